"""The filter of system calls: its numbers are the kernel's, and it judges as its definition says, for both architectures."""

import errno
import re
import struct
from pathlib import Path

import pytest

from nnhal.ipc.confinement import filter as subject
from nnhal.ipc.confinement.allowed import ALLOWED, JUDGED, WITH_DEVICES, plain_names
from nnhal.ipc.confinement.filter import Bpf
from nnhal.ipc.confinement.landlock import CREATE
from nnhal.ipc.confinement.numbers import NAMES, numbers

HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_system_call_numbers_are_those_of_the_kernel_headers(machine: str) -> None:
    header = Path(HEADERS[machine])
    if not header.is_file():
        pytest.skip(f"no kernel headers at {header}")
    published = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text()))
    mine = numbers(machine)
    assert (mine["seccomp"], mine["landlock_create_ruleset"]) == (subject.SECCOMP[machine], CREATE)
    known = {name: number for name, number in mine.items() if name in published}
    assert known == {name: int(published[name]) for name in known}
    assert len(known) >= len(mine) - 25  # headers may be older than the newest calls


def test_every_call_that_is_allowed_is_one_and_named_once() -> None:
    named = [*plain_names(), *(call.name for call in JUDGED)]
    assert len(named) == len(set(named)) and set(named) <= NAMES
    assert all(group.why for group in ALLOWED) and all(call.rule for call in JUDGED)


def test_what_reaches_out_is_not_allowed() -> None:
    """Said apart from the table: nothing of this may slip into it."""
    reaching = """socket socketpair connect bind listen sendmmsg execve execveat fork vfork clone3 ptrace process_vm_readv
        process_vm_writev pidfd_getfd pidfd_send_signal kcmp setns unshare mount umount2 pivot_root chroot open_tree fsopen
        chmod fchmod fchmodat chown utimensat setxattr getxattr truncate mkdir rename unlink link symlink readlink
        readlinkat name_to_handle_at open_by_handle_at inotify_init inotify_init1 fanotify_init flock shmget semget msgget
        mq_open keyctl add_key bpf perf_event_open userfaultfd io_uring_setup personality modify_ldt seccomp setrlimit
        setpriority sched_setscheduler ioprio_set setuid capset setsid tkill rt_sigqueueinfo vmsplice splice sendfile
        reboot init_module"""
    assert set(reaching.split()) <= NAMES
    assert not set(reaching.split()) & set(plain_names())


def judged(code: bytes, arch: int, number: int, *arguments: int) -> int:
    """What a filter answers, by the definition of classic BPF: 0 for leave, or the error number."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    steps = list(struct.iter_unpack("<HBBI", code))
    at = value = 0
    while True:
        operation, yes, no, k = steps[at]
        at += 1
        if operation == 0x06:
            return 0 if k == 0x7FFF0000 else k - 0x00050000
        if operation == 0x20:
            value = int.from_bytes(data[k : k + 4], "little")
        elif operation == 0x54:
            value &= k
        else:
            at += yes if {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[operation] else no


@pytest.mark.parametrize(("machine", "arch", "read"), [("x86_64", 0xC000003E, 0), ("aarch64", 0xC00000B7, 63)])
def test_filter_judges_calls_by_architecture_number_and_arguments(machine: str, arch: int, read: int) -> None:
    code = subject.assemble(subject.program(machine, 4321))
    calls = numbers(machine)
    allowed = """read 0, openat, futex_waitv, sendmsg 0 0x5000, kill 4321, kill 0x7000010e1, tgkill 4321, clone 0x3d0f00,
        clone 0x7d0f00, ioctl 0 0x5401, ioctl 0 0x541b, fcntl 3 4 0x800, fcntl 3 1033 15, prctl 15, prlimit64 0 7 0,
         fcntl 3 37 0, fcntl 3 38 0,
         prlimit64 4321 7 0, sendto 3 0 0 0 0 0, socketpair 1 0x80005 0, get_robust_list 0, sched_setaffinity 0"""
    denied = """socket 1, socketpair 1 5 0, socketpair 1 0x80001 0, socketpair 1 0x80002 0, socketpair 2 0x80005 0,
         socketpair 1 0x80005 1, kill 0, kill 1, kill 0xffffffffffffffff, kill 0xffffffffffffef1f, tgkill 4322,
        tkill 4321, rt_sigqueueinfo 4321, clone 17, clone 0, clone 0x4111, clone 0x10010900, clone 0x10000, clone 0x11900,
        clone 0x18900, ioctl 0 0x5412, ioctl 0 0x100005412, ioctl 0 0x541c, ioctl 0 0x5452, ioctl 0 0x8901, fcntl 3 8 1,
        fcntl 3 10 9, fcntl 3 15 0, fcntl 3 4 0x2800, fcntl 3 6 0, fcntl 3 1024 0, fcntl 3 1026 1, prctl 4 1, prctl 22 2,
        setrlimit 7 1, prlimit64 0 7 1, prlimit64 0 7 0x100000000, prlimit64 99 7 0, sendto 3 0 0 0 1 0,
        sendto 3 0 0 0 0x100000000 0, setsockopt 3 1 20, get_robust_list 1, sched_setaffinity 1,
        execve, ptrace, mkdirat, readlinkat, inotify_init1, unshare"""
    unknown = "clone3 0, io_uring_setup, openat2, pidfd_getfd, landlock_restrict_self, file_setattr"
    for expected, table in ((0, allowed), (errno.EPERM, denied), (errno.ENOSYS, unknown)):
        for name, *arguments in (row.split() for row in table.split(",")):
            assert judged(code, arch, calls[name], *(int(x, 0) for x in arguments)) == expected, (name, arguments)
    assert judged(code, 0x40000003, read) == errno.EPERM  # 32-bit x86
    assert judged(code, arch, 1 << 30 | read) == errno.ENOSYS  # x32
    assert judged(code, arch, 4000) == errno.ENOSYS


def test_for_devices_ioctl_is_allowed_but_of_what_else_a_process_has_open() -> None:
    arch, ioctl = 0xC000003E, numbers("x86_64")["ioctl"]
    given, others = (subject.assemble(subject.program("x86_64", 4321, devices=x)) for x in (True, False))
    drm, nvidia, fence = 0xC0406400, 0xC020462A, 0xC0383E04
    # TIOCSTI, FIOASYNC, FIOSETOWN, FICLONE, FS_IOC_SETFLAGS, BLKDISCARD, UFFDIO_API
    harmful = (0x5412, 0x100005412, 0x5452, 0x8901, 0x40049409, 0x40086602, 0x1277, 0xC018AA3F)
    assert [judged(given, arch, ioctl, 3, x) for x in (drm, nvidia, fence, 0x5401)] == [0] * 4
    assert {judged(given, arch, ioctl, 3, x) for x in harmful} == {errno.EPERM}
    assert {judged(others, arch, ioctl, 3, x) for x in (drm, nvidia, *harmful)} == {errno.EPERM}


def test_calls_that_are_added_are_allowed_with_any_arguments() -> None:
    arch, calls = 0xC000003E, numbers("x86_64")
    code = subject.assemble(subject.program("x86_64", 4321, ["flock", "ioctl", "io_uring_setup"]))
    assert [judged(code, arch, calls[name], 0, 0x5412) for name in ("flock", "ioctl", "io_uring_setup")] == [0, 0, 0]
    assert judged(code, arch, calls["mkdir"]) == errno.EPERM
    everything = subject.assemble(subject.program("x86_64", 4321, sorted(calls)))
    assert judged(everything, arch, calls["read"]) == 0


def test_the_page_on_confinement_says_what_the_tables_say() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "sandbox.md").read_text()
    listed, _, tabled = page[page.index("## System calls") : page.index("## More")].partition("| judged | allowed |\n")
    items = [" ".join(item.split()) for item in re.split(r"^- ", listed, flags=re.MULTILINE)[1:]]
    assert items == [f"**{x.what}**: {x.why}: {' '.join(f'`{name}`' for name in x.calls.split())}" for x in ALLOWED]
    rows = [line for line in tabled.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{x.name}` | {x.rule} |" for x in JUDGED]
    assert WITH_DEVICES.rule in " ".join(page.split())
    assert f"\n{len(plain_names())} are allowed as they are and {len(JUDGED)} with some arguments, on x86-64;" in page
    assert set(plain_names()) <= numbers("x86_64").keys()


def test_assembler_refuses_a_jump_that_does_not_fit() -> None:
    far: list[Bpf | str] = [
        Bpf(0x15, 1, yes="end"),
        *[Bpf(0x20, 0)] * 256,
        "end",
        Bpf(0x06, 0),
    ]
    with pytest.raises(struct.error):
        subject.assemble(far)
