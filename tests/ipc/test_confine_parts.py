"""The parts of confinement by what each asks of the kernel: the numbers are those of the kernel's own headers."""

import ctypes
import errno
import fcntl
import os
import pty
import resource
import socket
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nnhal.base.errors import InvalidArgument
from nnhal.ipc.confinement import allowed, filter, kernel, landlock, limits, stdio
from nnhal.ipc.confinement.allowed import ALLOWED, JUDGED
from tests.runtime.devices import failing
from tests.waiting import Opened

# ------------------------------------------------------------------------------------------------------------ landlock

# linux/landlock.h: the rights of files that an ABI knows, its rights of TCP ports, and what it scopes.
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL_DEV = 1, 2, 4, 8, 0x4000, 0x8000
KNOWN = {
    1: (0x1FFF, 0, 0),
    2: (0x3FFF, 0, 0),
    3: (0x7FFF, 0, 0),
    4: (0x7FFF, 3, 0),
    5: (0xFFFF, 3, 0),
    6: (0xFFFF, 3, 3),
    7: (0xFFFF, 3, 3),
    8: (0xFFFF, 3, 3),
    9: (0xFFFF, 3, 3),
}
LACKS = {3: "truncation", 4: "TCP", 5: "ioctl of devices", 6: "abstract sockets and signals to others"}


class Landlock:
    """Takes the place of the kernel's. rules: rights by place. opened: how places were opened."""

    def __init__(self, abi: int) -> None:
        self.abi = abi
        self.handled: tuple[int, ...] = ()
        self.rules: dict[Path, int] = {}
        self.flags: int | None = None
        self.ruleset = -1

    def __call__(self, name: str, number: int, *arguments: Any) -> int:
        if name == "landlock_create_ruleset":
            assert number == 444
            if arguments[0] is None:
                assert arguments == (None, 0, 1)
                return self.abi
            fields, size, flags = arguments
            assert (size, flags) == (24, 0)
            self.handled = struct.unpack("=QQQ", fields)
            self.ruleset = os.open("/dev/null", os.O_RDONLY)
            return self.ruleset
        assert arguments[0] == self.ruleset
        if name == "landlock_add_rule":
            assert number == 445
            _, path_beneath, rule, flags = arguments
            assert (path_beneath, flags) == (1, 0)
            rights, fd = struct.unpack("=Qi", rule)
            assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH
            self.rules[Path(os.readlink(f"/proc/self/fd/{fd}"))] = rights
        else:
            assert (name, number) == ("landlock_restrict_self", 446)
            self.flags = arguments[1]
        return 0


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that is all that modules are imported from."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.setattr(landlock, "import_paths", lambda: ({folder}, set()))
    return folder


@pytest.mark.parametrize("abi", KNOWN)
def test_as_much_is_closed_as_the_kernel_knows_and_what_it_lacks_is_said(
    abi: int, few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Landlock(abi)
    monkeypatch.setattr(landlock, "syscall", asked)
    monkeypatch.setattr(landlock, "_other_threads", lambda: "; others")
    opened = Opened()
    said = landlock.restrict([])
    opened.closed()
    rights, tcp, scopes = KNOWN[abi]
    assert asked.handled == KNOWN[abi]
    assert asked.flags == (1 << 3 if abi >= 8 else 0)  # all threads
    guarded = ", no TCP" * bool(tcp) + ", no abstract sockets and signals to others" * bool(scopes)
    lacking = ", ".join(what for since, what in LACKS.items() if abi < since)
    assert said == (
        f"ABI {abi}, {len(asked.rules)} places to read, none to write{guarded}"
        + (f"; the kernel lacks {lacking}" if lacking else "")
        + ("; others" if abi < 8 else "")
    )
    assert all(not granted & ~rights for granted in asked.rules.values())


@pytest.mark.parametrize("abi", [1, 3, 5])
def test_places_are_read_the_null_device_is_written_and_a_given_device_controlled(
    abi: int, few: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked, known = Landlock(abi), KNOWN[abi][0]
    monkeypatch.setattr(landlock, "syscall", asked)
    file, link, missing = tmp_path / "weights", tmp_path / "link", tmp_path / "missing"
    file.write_text("x")
    link.symlink_to(few)
    (tmp_path / "other").mkdir()
    said = landlock.restrict([file, link, missing, tmp_path / "other"], [Path("/dev/full"), Path("/dev/zero")])
    assert "/dev/full, /dev/zero to write" in said
    assert asked.rules[file] == READ_FILE and missing not in asked.rules and link not in asked.rules
    assert asked.rules[few] == asked.rules[tmp_path / "other"] == READ_FILE | READ_DIR
    assert asked.rules[Path("/dev/null")] == (READ_FILE | WRITE_FILE | TRUNCATE) & known
    assert asked.rules[Path("/dev/full")] == (READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV) & known
    assert asked.rules[Path("/dev/urandom")] == READ_FILE
    own = {place.name: rights for place, rights in asked.rules.items() if place.parent == Path(f"/proc/{os.getpid()}")}
    assert (own["status"], own["fd"], own["task"]) == (READ_FILE, READ_FILE | READ_DIR, READ_DIR)
    assert not own.keys() & {"environ", "net", "mountinfo", "mem", "root", "cwd"}
    assert not any(rights & EXECUTE for rights in asked.rules.values())


def test_a_dma_buf_can_be_made_where_the_machine_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "exists", lambda place: str(place) in ("/dev/udmabuf", "/dev/null"))
    rules = landlock._rules([], [])
    everything = READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE
    assert rules == {Path("/dev/null"): everything, Path("/dev/udmabuf"): everything | IOCTL_DEV}


def test_import_paths_that_stay_closed_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(landlock, "import_paths", lambda: (set[Path](), {Path("/b"), Path("/a")}))
    monkeypatch.setattr(landlock, "syscall", Landlock(8))
    assert landlock.restrict([]).endswith("; import paths left closed: /a, /b")


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of folders below this one: home, tmp, work (the working folder), site, python (the prefix)."""
    sysconfig.get_config_vars()  # what it imports is found while Python's own folders are in the path
    for name in ("home", "tmp", "work", "site", "python", "user"):
        (tmp_path / name / "in").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(landlock.pwd, "getpwuid", lambda _: SimpleNamespace(pw_dir=str(tmp_path / "user")))
    for name in ("prefix", "exec_prefix", "base_prefix", "base_exec_prefix"):
        monkeypatch.setattr(sys, name, str(tmp_path / "python" / name))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def test_folders_of_the_import_path_are_opened_but_for_the_users_own(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = [places / name for name in ("home", "tmp", "work", "user")]
    path = [*private, places, Path("/"), places / "site", *(place / "in" for place in private)]
    monkeypatch.setattr(sys, "path", [*map(str, path), "", "relative"])
    opened, closed = landlock.import_paths()
    assert closed == {*private, places, Path("/")}
    assert {places / "site", *(place / "in" for place in private)} <= opened
    assert not closed & opened and all(place.is_absolute() for place in opened)
    prefixes = [places / "python" / name for name in ("prefix", "exec_prefix", "base_prefix", "base_exec_prefix")]
    libraries = {
        p / lib for p in [*prefixes, *map(Path, ("/", "/usr", "/usr/local"))] for lib in ("lib", "lib32", "lib64")
    }
    assert libraries <= opened
    assert Path(landlock.__file__).parents[2] in opened and Path(os.__file__).parent in opened


def test_a_user_without_a_name_and_a_working_folder_that_is_gone_are_no_trouble(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landlock.pwd, "getpwuid", failing(KeyError))
    monkeypatch.setattr(sys, "path", [str(places / "user"), str(places / "work")])
    (places / "work" / "in").rmdir()
    (places / "work").rmdir()
    opened, closed = landlock.import_paths()
    assert closed == set() and {places / "user", places / "work"} <= opened
    monkeypatch.delenv("TMPDIR")
    assert Path(os.path.realpath("/tmp")) in landlock._private_places()[0]


@pytest.mark.parametrize(
    ("threads", "says"), [(1, ""), (2, "; NOT covered: 1 other threads"), (4, "; NOT covered: 3 other threads")]
)
def test_threads_that_landlock_does_not_cover_are_counted(
    threads: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "listdir", lambda _: ["1"] * threads)
    assert landlock._other_threads() == says


def test_where_threads_cannot_be_counted_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", failing(FileNotFoundError))
    assert landlock._other_threads() == "; other threads, if any, are NOT covered: /proc is not mounted"


# -------------------------------------------------------------------------------------------------------------- filter


@pytest.mark.parametrize(("machine", "number", "devices"), [("x86_64", 317, False), ("aarch64", 277, True)])
def test_the_filter_is_set_for_all_threads_and_what_it_lets_through_is_said(
    machine: str, number: int, devices: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def syscall(*arguments: Any) -> int:
        count, address = struct.unpack("@HP", arguments[-1])
        asked.append((*arguments[:-1], ctypes.string_at(address, 8 * count)))
        return 0

    monkeypatch.setattr(filter, "machine_name", lambda: machine)
    monkeypatch.setattr(filter, "syscall", syscall)
    said = filter.install(["flock", "bind"], devices=devices)
    code = filter.assemble(filter.program(machine, os.getpid(), ["flock", "bind"], devices=devices))
    mode_filter, for_all_threads = 1, 1
    assert asked == [("seccomp", number, mode_filter, for_all_threads, code)]
    there = filter.numbers(machine)
    plain = [name for group in ALLOWED for name in group.calls.split() if name in there]
    judged = [call for call in JUDGED if call.name in there]
    assert said == (
        f"{machine}, {len(plain) + len(judged)} system calls allowed, {len(judged)} of them with some arguments only, all "
        "threads"
        + "; for devices ioctl of all kinds except those of files, terminals, sockets, processes and memory" * devices
        + "; by option also bind, flock"
    )
    assert "by option" not in filter.install()


def test_a_thread_with_a_filter_of_its_own_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter, "syscall", lambda *_: 4711)
    with pytest.raises(OSError, match="seccomp: thread 4711 has another filter"):
        filter.install()


def test_whether_filters_are_to_be_had_is_asked_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(filter, "machine_name", lambda: "x86_64")
    monkeypatch.setattr(filter, "syscall", lambda *arguments: asked.append(arguments) or 0)
    assert filter.describe_filters() == "filters for x86_64"
    get_action_avail, return_error = 2, 0x00050000
    assert asked == [("seccomp", 317, get_action_avail, 0, struct.pack("=I", return_error))]


# asm-generic/fcntl.h, ioctls.h, linux/prctl.h, sched.h, sockios.h, sync_file.h, udmabuf.h, asm/prctl.h: whose numbers the
# filter compares with.
def test_arguments_are_judged_by_the_kernels_numbers() -> None:
    clone = {
        "VM": 0x100,
        "FS": 0x200,
        "FILES": 0x400,
        "SIGHAND": 0x800,
        "PIDFD": 0x1000,
        "PTRACE": 0x2000,
        "VFORK": 0x4000,
        "PARENT": 0x8000,
    }
    spaces = {"NEWNS": 0x20000, "NEWCGROUP": 0x2000000, "NEWUTS": 0x4000000, "NEWIPC": 0x8000000}
    spaces |= {"NEWUSER": 0x10000000, "NEWPID": 0x20000000, "NEWNET": 0x40000000}
    thread = 0x10000
    assert thread == allowed.CLONE_THREAD
    assert thread | clone["VM"] | clone["SIGHAND"] == allowed.CLONE_AS_THREADS_DO
    not_threads = sum(spaces.values()) + sum(clone[name] for name in ("PIDFD", "PTRACE", "VFORK", "PARENT"))
    assert not_threads == allowed.CLONE_OTHERWISE
    assert (allowed.F_SETFL, allowed.O_ASYNC) == (fcntl.F_SETFL, fcntl.FASYNC)
    assert set(allowed.FCNTL) == {
        *(fcntl.F_DUPFD, fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL, fcntl.F_DUPFD_CLOEXEC),
        *(fcntl.F_ADD_SEALS, fcntl.F_GET_SEALS),
        *(fcntl.F_OFD_GETLK, fcntl.F_OFD_SETLK, fcntl.F_OFD_SETLKW),
    }
    assert set(allowed.IOCTL) == {
        *(0x5401, 0x802C542A),  # TCGETS, TCGETS2
        *(0x541B, 0x5421, 0x5450, 0x5451),  # FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
        *(0xC0383E04, 0x40187542),  # SYNC_IOC_FILE_INFO, UDMABUF_CREATE
    }
    assert set(allowed.PRCTL) == {3, 15, 16, 51, 64, 0x53564D41}
    sockets = socket.AF_UNIX, socket.SOCK_SEQPACKET, socket.SOCK_CLOEXEC
    assert sockets == (allowed.AF_UNIX, allowed.SOCK_SEQPACKET, allowed.SOCK_CLOEXEC)
    assert set(allowed.NO_DEVICE) == {
        *(0x00, 0x12, 0x58, 0x66, 0x76, 0x94),  # what files and block devices have: FIBMAP, BLK, FS_IOC, FICLONE
        *(0x21, 0x93, 0xB7, 0xFF),  # seccomp, autofs, namespaces, pidfds
        *(0x54, 0x89, 0x8A, 0x8B),  # terminals, sockets
        *(0xAA, 0xE5),  # userfaultfd, of processes
    }
    amx = [call for call in JUDGED if call.name == "arch_prctl"]
    assert [call.ways for call in amx] == [((allowed.Check(0, (0x1021, 0x1022, 0x1023)),),)]  # GET_XCOMP_SUPP and on


def test_a_check_asks_nothing_that_it_does_not_say() -> None:
    check = allowed.Check(2)
    assert (check.values, check.has, check.lacks, check.null, check.kinds) == ((), 0, 0, False, ())
    assert list(filter._check(check, "passed", "failed", 7)) == [filter.Bpf(0x20, 16 + 8 * 2)]  # loads, and goes on


# -------------------------------------------------------------------------------------------------------------- kernel


def test_what_the_kernel_refuses_is_an_error_with_its_number_and_all_else_is_its_answer() -> None:
    assert [kernel.checked("call", result) for result in (0, 1, 4711)] == [0, 1, 4711]
    ctypes.set_errno(errno.EPERM)
    with pytest.raises(OSError, match="call: Operation not permitted") as refused:
        kernel.checked("call", -1)
    assert refused.value.errno == errno.EPERM
    with pytest.raises(OSError, match="getpriority: ") as refused:
        kernel.syscall("getpriority", {"x86_64": 140, "aarch64": 141}[os.uname().machine], 77, 0)
    assert refused.value.errno == errno.EINVAL
    with pytest.raises(OSError, match="PR_NONE: ") as refused:
        kernel.prctl("PR_NONE", 0x7FFFFFFF)
    assert refused.value.errno == errno.EINVAL


def test_arguments_of_calls_are_numbers_and_pointers() -> None:
    pipe = os.pipe()
    try:
        number = {"x86_64": 1, "aarch64": 64}[os.uname().machine]
        assert kernel.syscall("write", number, pipe[1], b"said", 4) == 4
        assert os.read(pipe[0], 10) == b"said"
    finally:
        os.close(pipe[0])
        os.close(pipe[1])


def test_privileges_are_given_up_and_nobody_may_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []
    prctl = lambda *arguments: asked.append(arguments) or 0  # noqa: E731
    monkeypatch.setattr(kernel, "LIBC", SimpleNamespace(prctl=prctl))
    assert kernel.no_new_privileges() == "no new privileges, not dumpable"
    assert asked == [(38, 1, 0, 0, 0), (4, 0, 0, 0, 0)]  # PR_SET_NO_NEW_PRIVS, PR_SET_DUMPABLE
    assert kernel.prctl("PR_GET_NO_NEW_PRIVS", kernel.PR_GET_NO_NEW_PRIVS) == 0
    assert asked[2] == (39, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("name", "pointer", "fits"),
    [("x86_64", 8, True), ("aarch64", 8, True), ("riscv64", 8, False), ("x86_64", 4, False), ("x86_64", 16, False)],
)
def test_machines_with_a_table_have_64_bits(
    name: str, pointer: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=name))
    monkeypatch.setattr(struct, "calcsize", {"P": pointer}.__getitem__)
    if fits:
        assert kernel.machine_name() == name
        return
    says = f"system is {name} with {8 * pointer} bits, must be x86_64 or aarch64 with 64"
    with pytest.raises(OSError, match=says) as error:
        kernel.machine_name()
    assert error.value.errno == 0


# -------------------------------------------------------------------------------------------------------------- limits

NONE = resource.RLIM_INFINITY


class Kernel:
    """Takes the place of the kernel's limits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **held: tuple[int, int]) -> None:
        names = {
            name: getattr(resource, f"RLIMIT_{name.upper()}") for name in ("data", "nofile", "fsize", "core", "nproc")
        }
        self.held = {which: held.get(name, (NONE, NONE)) for name, which in names.items()}
        self.set: list[tuple[int, tuple[int, int]]] = []
        monkeypatch.setattr(resource, "getrlimit", self.held.__getitem__)
        monkeypatch.setattr(resource, "setrlimit", lambda which, pair: self.set.append((which, pair)))


def test_limits_are_those_that_are_wanted_and_never_above_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = limits.Limits(memory=1000, descriptors=50, file=800, processes=7)
    free = Kernel(monkeypatch)
    assert limits.limit(wanted) == "data 1000, descriptors 50, file 800, core 0, processes 7"
    names = "DATA", "NOFILE", "FSIZE", "CORE", "NPROC"
    kinds = [getattr(resource, f"RLIMIT_{name}") for name in names]
    assert free.set == list(zip(kinds, [(1000, 1000), (50, 50), (800, 800), (0, 0), (7, 7)], strict=True))
    # The soft limit of descriptors may rise to the hard one; the others may not.
    bound = Kernel(monkeypatch, data=(600, 900), nofile=(10, 40), fsize=(70, 90), core=(5, 5), nproc=(3, NONE))
    assert limits.limit(wanted) == "data 600, descriptors 40, file 70, core 0, processes 3"
    assert bound.set == list(zip(kinds, [(600, 600), (40, 40), (70, 70), (0, 0), (3, 3)], strict=True))
    assert limits.limit(limits.Limits(memory=1, descriptors=1, file=1)) == "data 1, descriptors 1, file 1, core 0"


def test_unless_it_is_said_descriptors_are_1024_a_file_has_4_gib_and_processes_are_as_they_are() -> None:
    given = limits.Limits()
    assert (given.descriptors, given.file, given.processes) == (1024, 4 << 30, None)
    for least_and_most in (1, (1 << 63) - 1):
        assert limits.Limits(least_and_most, least_and_most, least_and_most).memory == least_and_most
    with pytest.raises(InvalidArgument, match="the rule"):
        limits.require(False, "the rule")
    limits.require(True, "the rule")


@pytest.mark.parametrize(
    ("soft", "hard", "set_to"),
    [
        (100, 1000, [(500, 1000)]),
        (100, 300, [(300, 300)]),
        (100, NONE, [(500, NONE)]),
        (500, 1000, []),
        (501, 1000, []),
        (300, 300, []),
        (NONE, NONE, []),
    ],
)
def test_descriptors_are_raised_as_far_as_may_be_and_never_lowered(
    soft: int, hard: int, set_to: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = Kernel(monkeypatch, nofile=(soft, hard))
    limits.raise_descriptors(500)
    assert kernels.set == [(resource.RLIMIT_NOFILE, pair) for pair in set_to]


# --------------------------------------------------------------------------------------------------------------- stdio


def test_a_process_keeps_what_it_reads_and_writes_and_closes_what_it_inherited_beside() -> None:
    code = """
import os, sys
from nnhal.ipc.confinement.stdio import close_inherited
given, kept = map(int, sys.argv[1:])
close_inherited([kept])
os.write(1, os.read(0, 4) + b" out")
os.write(2, b"err")
os.fstat(kept)
try:
    os.fstat(given)
except OSError:
    os.write(2, b", closed")
"""
    given, kept = os.pipe()
    try:
        command = [sys.executable, "-c", code, str(given), str(kept)]
        done = subprocess.run(
            command, input=b"read", capture_output=True, pass_fds=(given, kept), check=False, timeout=60
        )
        assert (done.stdout, done.stderr, done.returncode) == (b"read out", b"err, closed", 0)
    finally:
        os.close(given)
        os.close(kept)


@pytest.fixture
def held() -> Iterator[list[int]]:
    """Descriptors that are closed afterwards."""
    fds: list[int] = []
    yield fds
    for fd in fds:
        os.close(fd)


def mode(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND)


def test_what_can_be_read_is_opened_anew_for_writing_only(held: list[int], tmp_path: Path) -> None:
    null, file = tmp_path / "null", tmp_path / "file"
    file.write_text("text")
    held.append(os.open(file, os.O_RDONLY))
    assert stdio._write_only(held[-1])  # is nothing to write to: goes nowhere
    assert mode(held[-1]) == os.O_WRONLY and os.fstat(held[-1]).st_rdev == os.stat("/dev/null").st_rdev
    held.append(os.open(file, os.O_RDWR))
    assert stdio._write_only(held[-1]) and mode(held[-1]) == os.O_WRONLY | os.O_APPEND
    os.write(held[-1], b"more")
    assert file.read_text() == "textmore"
    for flags in (os.O_WRONLY, os.O_WRONLY | os.O_APPEND):
        held.append(os.open(null, flags | os.O_CREAT))
        assert stdio._write_only(held[-1]) and mode(held[-1]) == flags
    assert not any(os.get_inheritable(fd) for fd in held[2:])


@pytest.mark.parametrize("append", [0, os.O_APPEND])
def test_a_terminal_keeps_how_it_is_written_to(append: int, held: list[int]) -> None:
    held += pty.openpty()
    held.append(os.open(os.ttyname(held[1]), os.O_RDWR | os.O_NOCTTY | append))
    assert stdio._write_only(held[2]) and mode(held[2]) == os.O_WRONLY | append


def test_a_socket_stays_as_it_is() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert stdio._write_only(theirs.fileno())
        theirs.send(b"said")
        assert ours.recv(10) == b"said"


def test_what_cannot_be_opened_anew_is_named(monkeypatch: pytest.MonkeyPatch, held: list[int]) -> None:
    held += pty.openpty()

    with monkeypatch.context() as patched:
        patched.setattr(stdio, "_replace", failing(PermissionError))
        assert stdio._write_only(held[1]) is False
    replaced: list[tuple[int, str, int]] = []
    monkeypatch.setattr(stdio, "_replace", lambda *how: replaced.append(how))
    for bad, names in (({1}, "output"), ({2}, "errors"), ({1, 2}, "output and errors")):
        monkeypatch.setattr(stdio, "_write_only", lambda fd, bad=bad: fd not in bad)
        with pytest.raises(OSError, match=rf"\] {names} can be read, and cannot be reopened") as error:
            stdio.redirect()
        assert error.value.errno == 0
    monkeypatch.setattr(stdio, "_write_only", lambda fd: True)
    assert stdio.redirect() == "input is /dev/null, output and errors for writing only"
    assert replaced == [(0, "/dev/null", os.O_RDONLY)] * 4


def test_what_takes_the_place_of_a_descriptor_leaves_none_besides(
    held: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    held.append(os.open("/dev/zero", os.O_RDONLY))
    opened = Opened()
    stdio._replace(held[0], "/dev/null", os.O_RDONLY)
    assert os.read(held[0], 1) == b"" and opened.count() == 1
    flags: list[int] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, how: flags.append(how) or real(path, how))
    free = os.dup(held[0])
    os.close(free)  # the next one that is opened has this number
    stdio._replace(free, "/dev/null", os.O_WRONLY)
    held.append(free)
    assert os.write(free, b"x") == 1
    assert flags == [os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC]  # no terminal becomes this process's own


def test_descriptors_that_came_from_elsewhere_are_closed_but_for_those_that_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inherited, closed = {0, 1, 2, 3, 4, 6}, []

    def from_elsewhere(fd: int) -> bool:
        if fd == 5:
            raise OSError(errno.EBADF, "was the listing's own")
        return fd in inherited

    monkeypatch.setattr(os, "listdir", lambda _: list("01234567"))
    monkeypatch.setattr(os, "get_inheritable", from_elsewhere)
    monkeypatch.setattr(os, "close", closed.append)
    stdio.close_inherited([4])
    assert closed == [3, 6]


def test_where_descriptors_cannot_be_listed_none_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", failing(FileNotFoundError))
    monkeypatch.setattr(os, "close", lambda fd: pytest.fail("is closed"))
    stdio.close_inherited([])


def test_what_is_closed_of_the_standard_descriptors_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    given, closed = iter([1, 2, 3]), []
    monkeypatch.setattr(os, "open", lambda path, flags: next(given) if (path, flags) == NULL else -1)
    monkeypatch.setattr(os, "close", closed.append)
    stdio.open_standard_descriptors()
    assert closed == [3]


NULL = "/dev/null", os.O_RDWR | os.O_CLOEXEC
