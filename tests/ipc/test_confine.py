"""A confined process cannot reach out, and can still do all that a driver's service does. Every fact is one process."""

import ctypes
import mmap
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nnhal.base.errors import InvalidArgument
from nnhal.ipc.confinement.allowed import plain_names
from nnhal.ipc.confinement.confine import Limits, available, confine
from nnhal.ipc.confinement.numbers import numbers

PRELUDE = """
import ctypes, errno, mmap, os, signal, socket, subprocess, sys, threading
from pathlib import Path
from nnhal.ipc.confinement.confine import Limits, available, confine
from nnhal.ipc.confinement.filter import Bpf, assemble
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def outcome(act):
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
def syscall(*arguments):
    result = libc.syscall(*map(ctypes.c_long, arguments))
    return errno.errorcode[ctypes.get_errno()] if result < 0 else "done"
"""
CONFINE = "report = confine([], Limits())\n"
OPTIONS: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 120, "start_new_session": True}


def child(body: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs the code in a process of its own session, with what PRELUDE imports; nothing is confined but by the code."""
    return subprocess.run([sys.executable, "-W", "error", "-c", PRELUDE + body], check=False, **OPTIONS, **options)


def said(body: str, **options: Any) -> list[str]:
    """The lines that the code prints; it must end well."""
    done = child(body, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def privileges() -> set[str]:
    """The lines of this process's status that confinement changes."""
    return set(re.findall(r"(?m)^(?:NoNewPrivs|Seccomp|Seccomp_filters):.*$", Path("/proc/self/status").read_text()))


def test_everything_is_applied_on_this_kernel() -> None:
    look = "print(open('/proc/self/status').read(), 'dumpable', libc.prctl(3, 0, 0, 0, 0))"
    lines = said(CONFINE + "for row in report.items(): print(*row, sep='=')\n" + look)
    report = dict(line.split("=", 1) for line in lines[:5])
    assert list(report) == ["stdio", "no_new_privs", "rlimits", "landlock", "seccomp"]
    assert all(text.startswith("applied: ") for text in report.values()), report
    assert "NOT covered" not in report["landlock"]
    assert {"NoNewPrivs:\t1", "Seccomp:\t2", " dumpable 0"} <= set(lines)


def test_available_tells_the_version_of_landlock_and_changes_nothing() -> None:
    version = ctypes.CDLL(None).syscall(444, None, ctypes.c_long(0), 1)
    lines = said("print(available()['landlock'])\nprint(open('/proc/self/status').read())\nopen('/etc/passwd').close()")
    assert lines[0] == f"ABI {version}"
    assert privileges() <= set(lines)  # those of the test's own process
    assert set(available()) == {"stdio", "no_new_privs", "rlimits", "landlock", "seccomp"}


def test_module_brings_no_threads_of_its_own() -> None:
    assert said("print('numpy' in sys.modules, len(os.listdir('/proc/self/task')))") == ["False 1"]


REFUSED = """
EACCES open('own').close()
EACCES open('/etc/passwd').close()
EACCES open('/proc/self/root/etc/passwd').close()
EACCES open('/usr/bin/env', 'rb').close()
EACCES open(f'/proc/{os.getppid()}/status').close()
EACCES os.listdir('/')
EACCES open('new', 'w').close()
EACCES open('own', 'a').close()
EACCES open('/proc/self/comm', 'w').close()
EPERM os.mkdir('folder')
EPERM os.mkfifo('pipe')
EPERM os.symlink('own', 'link')
EPERM os.rename('own', 'other')
EPERM os.unlink('own')
EPERM os.truncate('own', 0)
EPERM os.chmod('own', 0o777)
EPERM os.utime('own')
EPERM socket.socket(socket.AF_INET)
EPERM socket.socket(socket.AF_UNIX)
EPERM held.bind('\\0nnhal test')
EPERM subprocess.run(['/bin/true'])
EPERM os.kill(os.getppid(), 0)
ENOSYS signal.pidfd_send_signal(parent, 0)
""".strip().splitlines()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fact", REFUSED)
def test_reaching_out_is_refused(fact: str, tmp_path: Path) -> None:
    refusal, act = fact.split(maxsplit=1)
    (tmp_path / "own").write_text("text")
    held = "held = socket.socket(socket.AF_UNIX)\nparent = os.pidfd_open(os.getppid())\n"
    look = f"print(outcome(lambda: {act}))"
    assert said(held + CONFINE + look, cwd=tmp_path) == [refusal]
    assert {x.name: x.read_text() for x in tmp_path.iterdir()} == {"own": "text"}
    assert said(held + look, cwd=tmp_path) == ["done"]  # it is the confinement that refuses


def test_every_system_call_that_is_not_listed_is_refused_by_the_kernel() -> None:
    """With arguments of ones alone, so are those that are judged by them."""
    allowed = {numbers(os.uname().machine).get(name) for name in plain_names()}
    probes = (
        335,
        336,
    )  # uretprobe, uprobe of x86-64: the kernel keeps filters from them, and ends who calls them by SIGILL
    others = [x for x in range(480) if x not in allowed and x not in probes]
    assert len(others) > 350
    look = f"assert report['seccomp'].startswith('applied')\nprint(*(syscall(x, *[-1] * 6) for x in {others}))"
    assert said(CONFINE + look) == [" ".join("EPERM" if x < 424 else "ENOSYS" for x in others)]


@pytest.mark.parametrize(
    "act", ["os.abort()", "os.kill(os.getpid(), 6)", "signal.raise_signal(6)", "ctypes.string_at(0)"]
)
def test_process_can_still_die_by_its_own_fault(act: str) -> None:
    assert child(CONFINE + act).returncode == (-signal.SIGSEGV if "ctypes" in act else -signal.SIGABRT)


@pytest.mark.parametrize("act", ["os.fork()", "os.posix_spawn('/bin/true', ['true'], {})", "vfork()"])
def test_a_process_cannot_leave_a_child_behind(act: str) -> None:
    body = "def vfork():\n    if libc.vfork() < 0: raise OSError(ctypes.get_errno(), '')\n"
    assert said(body + CONFINE + f"print(outcome(lambda: {act}))") == ["EPERM"]


def test_modules_that_are_not_yet_imported_can_be_imported() -> None:
    names = "sqlite3", "xml.dom.minidom", "lzma", "scipy.linalg"
    look = "print([x for x in names if x in sys.modules])\nfor x in names: importlib.import_module(x)"
    assert said(f"import importlib\nnames = {names}\n" + CONFINE + look) == ["[]"]


def test_numpy_multiplies_in_many_threads() -> None:
    body = """
import numpy as np
a = np.arange(640 * 640.0).reshape(640, 640) % 7
results = []
threads = [threading.Thread(target=lambda: results.append(float((a @ a)[3, 5]))) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
print(*results)
"""
    expected = float(sum((3 * 640 + k) % 7 * ((k * 640 + 5) % 7) for k in range(640)))
    assert said(CONFINE + body) == [" ".join([str(expected)] * 4)]


def test_memory_over_the_limit_is_a_memory_error() -> None:
    body = "confine([], Limits(memory=512 << 20))\nkept = bytearray(256 << 20)\n"
    done = child(body + "print('first')\nbytearray(512 << 20)")
    assert (done.stdout, done.stderr.splitlines()[-1]) == ("first\n", "MemoryError")


def test_descriptors_over_the_limit_are_refused() -> None:
    body = "confine([], Limits(descriptors=64))\nheld = []\n"
    look = "print(outcome(lambda: [held.append(os.dup(0)) for _ in range(100)]), max(held))"
    assert said(body + look) == ["EMFILE 63"]


def test_limits_cannot_be_changed_again() -> None:
    act = "resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))\n"
    look = "print(*(resource.getrlimit(x) for x in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)), flush=True)\n"
    done = child("import resource\n" + act + CONFINE + look + act)
    assert done.stdout == "(50, 50) (0, 0)\n"  # nor did confine raise the one that was lower
    assert done.returncode == 1 and "rror" in done.stderr.splitlines()[-1]


def test_the_soft_limit_of_descriptors_rises_as_far_as_the_hard_one_allows() -> None:
    for wanted, may in ((600, "(600, 600)"), (6000, "(900, 900)")):
        act = f"resource.setrlimit(resource.RLIMIT_NOFILE, (200, 900))\nconfine([], Limits(descriptors={wanted}))\n"
        assert said("import resource\n" + act + "print(resource.getrlimit(resource.RLIMIT_NOFILE))") == [may]


def test_received_descriptors_keep_working(tmp_path: Path) -> None:
    body = """
channel = socket.socket(fileno=int(sys.argv[1]))
confine([], Limits())
_, (memory, file), _, _ = socket.recv_fds(channel, 100, 2)
with mmap.mmap(memory, 4096) as view: view[:4] = view[:4][::-1]
os.pwrite(file, b"written", 0)
own = os.memfd_create("own", os.MFD_ALLOW_SEALING)
os.ftruncate(own, 4096)
with mmap.mmap(own, 4096) as view: view[:4] = b"mine"
socket.send_fds(channel, [b"done"], [own])
"""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    memory, file = os.memfd_create("shared"), os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.pwrite(memory, b"abcd" + bytes(4092), 0)
    command = [sys.executable, "-c", PRELUDE + body, str(theirs.fileno())]
    with ours, theirs, subprocess.Popen(command, pass_fds=[theirs.fileno()]) as process:
        socket.send_fds(ours, [b"two"], [memory, file])
        assert process.wait(60) == 0
        message, (theirs_memory,), _, _ = socket.recv_fds(ours, 100, 1)
    with mmap.mmap(theirs_memory, 4096) as view:
        assert (message, view[:4]) == (b"done", b"mine")
    assert (os.pread(memory, 4, 0), (tmp_path / "file").read_bytes()) == (b"dcba", b"written")
    [os.close(x) for x in (memory, file, theirs_memory)]


def test_a_message_that_names_a_receiver_goes_to_nobody_else(tmp_path: Path) -> None:
    """sendmsg has the name behind a pointer, where no filter sees it; sockets of a lane's kind do not look at it."""
    body = """
pairs = {kind: socket.socketpair(socket.AF_UNIX, kind) for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM)}
confine([], Limits())
for kind, (ours, theirs) in pairs.items():
    for path in ('datagrams', 'packets'):
        print(kind.name, outcome(lambda: ours.sendmsg([b'x'], [], 0, sys.argv[1] + '/' + path)))
        print('sendto', outcome(lambda: ours.sendto(b'x', sys.argv[1] + '/' + path)))
print(pairs[socket.SOCK_SEQPACKET][1].recv(10))
"""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as packets,
    ):
        datagrams.bind(str(tmp_path / "datagrams"))
        packets.bind(str(tmp_path / "packets"))
        packets.listen()
        command = [sys.executable, "-c", PRELUDE + body, str(tmp_path)]
        lines = subprocess.run(command, check=True, **OPTIONS).stdout.splitlines()
        for outside, receive in ((datagrams, datagrams.recv), (packets, lambda _: packets.accept())):
            outside.setblocking(False)
            with pytest.raises(BlockingIOError):
                receive(10)
    refused = ["sendto EPERM"]
    assert lines == [*(["SOCK_SEQPACKET done", *refused] * 2), *(["SOCK_STREAM EISCONN", *refused] * 2), "b'x'"]


def test_given_paths_and_the_null_device_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "driver").mkdir()
    for name in ("driver/weights", "table", "secret"):
        (tmp_path / name).write_text(name)
    body = "confine([Path('driver').absolute(), Path('table').absolute()], Limits())\n"
    look = "Path('/dev/null').write_text('x')\nprint(*(Path(x).read_text() for x in ('driver/weights', 'table')))\n"
    more = "print(*(outcome(lambda: open(x, m)) for x, m in [('secret', 'r'), ('table', 'a'), ('driver/new', 'w')]))"
    assert said(body + look + more, cwd=tmp_path) == ["driver/weights table", "EACCES EACCES EACCES"]


def test_a_given_device_is_written_and_controlled_and_no_other() -> None:
    body = """
import fcntl
def control(path):
    with open(path, "rb") as device:
        fcntl.ioctl(device, 0x6400)
def write(path):
    with open(path, "wb", buffering=0) as device:
        device.write(b"x")
for path in ("/dev/full", "/dev/zero"):
    print(outcome(lambda: write(path)), outcome(lambda: control(path)))
print(report["landlock"])
print(report["seccomp"])
"""
    given = "report = confine([], Limits(), (), [Path('/dev/full')])\n"
    full, zero, landlock, seccomp = said(given + body)
    assert full == "ENOSPC ENOTTY"  # the device's own answers
    assert zero == "EACCES EACCES" and "/dev/full to write" in landlock and "for devices ioctl" in seccomp
    full, zero, landlock, seccomp = said(CONFINE + body)
    assert full.startswith("EACCES") and zero == "EACCES EPERM"
    assert "none to write" in landlock and "devices" not in seccomp


@pytest.mark.parametrize("path", ["dev/null", "/dev/missing", "/etc/passwd", "/dev"])
def test_what_is_no_character_device_is_not_given_as_one(path: str) -> None:
    before = privileges()
    with pytest.raises(InvalidArgument, match=r"must be the absolute path of a character device"):
        confine([], Limits(), (), [Path(path)])
    assert privileges() == before


def test_home_and_working_folder_on_the_import_path_stay_closed_but_not_a_folder_in_them(tmp_path: Path) -> None:
    work, modules = tmp_path / "work", tmp_path / "work" / "modules"
    modules.mkdir(parents=True)
    (modules / "found_in_home.py").write_text("print('imported')")
    for folder in (tmp_path, work):
        (folder / "secret").write_text("text")
    environment = os.environ | {"HOME": str(tmp_path), "PYTHONPATH": f"{tmp_path}:{work}:{tmp_path.parent}:{modules}"}
    look = "print(report['landlock'])\nimport found_in_home\n"
    more = "print(outcome(lambda: open('secret')), outcome(lambda: open('../secret')))"
    landlock, *rest = said(CONFINE + look + more, env=environment, cwd=work)
    assert landlock.endswith(f"left closed: {tmp_path.parent}, {tmp_path}, {work}")
    assert rest == ["imported", "EACCES EACCES"]


def test_threads_that_escape_landlock_are_reported_and_still_filtered() -> None:
    body = """
go, seen = threading.Event(), []
def look():
    go.wait()
    seen.extend([outcome(lambda: open("/etc/passwd")), outcome(socket.socket)])
thread = threading.Thread(target=look)
thread.start()
report = confine([], Limits())
go.set()
thread.join()
print("NOT covered: 1 other threads" in report["landlock"], *seen)
"""
    escapes = int(available()["landlock"].removeprefix("ABI ")) < 8
    assert said(body) == [f"{escapes} {'done' if escapes else 'EACCES'} EPERM"]


def test_a_kernel_without_landlock_is_reported_and_the_rest_applied() -> None:
    body = """
steps = [Bpf(0x20, 0), Bpf(0x15, 444, yes="no"), Bpf(6, 0x7FFF0000), "no", Bpf(6, 0x50026)]
code = ctypes.create_string_buffer(assemble(steps))
libc.prctl(38, 1, 0, 0, 0)
program = (ctypes.c_uint64 * 2)(4, ctypes.addressof(code))
assert libc.prctl(22, 2, program) == 0
print(available()["landlock"])
print(*confine([], Limits()).values(), sep="\\n")
print(outcome(socket.socket), outcome(lambda: open("/etc/passwd")))
"""
    offer, _, privileges, limits, landlock, seccomp, last = said(body)
    missing = "landlock_create_ruleset: Function not implemented"
    assert (offer, landlock) == (f"not available: {missing}", f"not applied: {missing}")
    assert all(x.startswith("applied: ") for x in (privileges, limits, seccomp))
    assert last == "EPERM done"


def test_a_machine_without_a_table_is_reported() -> None:
    body = "libc.personality(8)\nprint(os.uname().machine)\n"  # as setarch does: a 32-bit machine by name
    name, seccomp, landlock = said(body + CONFINE + "print(report['seccomp'], report['landlock'], sep='\\n')")
    assert seccomp == f"not applied: system is {name} with 64 bits, must be x86_64 or aarch64 with 64"
    assert landlock.startswith("applied: ")


@pytest.mark.parametrize("path", ["relative", "/nonexistent/nnhal"])
def test_a_path_that_cannot_be_read_is_an_error_before_anything_is_applied(path: str) -> None:
    before = privileges()
    with pytest.raises(InvalidArgument, match=f"read path '{path}' .*must be absolute and exist"):
        confine([Path(path)], Limits())
    assert privileges() == before


@pytest.mark.parametrize("value", [-1, 0, 1 << 63])
def test_a_limit_that_would_mean_none_is_an_error(value: int) -> None:
    for name in ("memory", "descriptors", "processes"):
        with pytest.raises(InvalidArgument, match=f"{name} is {value}, must be at least 1 and below 1 << 63"):
            Limits(**{name: value})


def test_default_memory_is_three_quarters_of_the_machine() -> None:
    total = re.findall(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    assert Limits().memory == pytest.approx(int(total[0]) * 1024 * 3 / 4, rel=1e-3)


def test_litert_compiles_and_runs_a_model() -> None:
    body = """
assert "ai_edge_litert" not in sys.modules and "numpy" not in sys.modules
import nnhal
import numpy as np
b = nnhal.Builder()
x = b.input((1, 4, 4, 1))
y = b.conv_2d(x, np.ones((1, 3, 3, 1), np.float32), np.zeros(1, np.float32), padding="same", stride=1)
compiled = nnhal.compile(b.finish([x], [y]), devices=["litert"], threads=2)
print(np.asarray(compiled(np.ones((1, 4, 4, 1), np.float32))).ravel().tolist())
assert "ai_edge_litert" in sys.modules
"""
    assert said(CONFINE + body) == ["[4.0, 6.0, 6.0, 4.0, 6.0, 9.0, 9.0, 6.0, 6.0, 9.0, 9.0, 6.0, 4.0, 6.0, 6.0, 4.0]"]
