"""The filter of system calls: its numbers are the kernel's, and it judges as its definition says, for both architectures."""

import errno
import re
import struct
from pathlib import Path

import pytest

from nnhal.ipc import confine as subject
from nnhal.ipc.confine import Bpf

HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}


def calls_of(machine: str) -> dict[str, int]:
    tables = (*subject.DENIED.values(), subject.OWN_PID, subject.JUDGED)
    return {name: number for table in tables for name, number in subject.numbers(table, machine).items()}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_system_call_numbers_are_those_of_the_kernel_headers(machine: str) -> None:
    header = Path(HEADERS[machine])
    if not header.is_file():
        pytest.skip(f"no kernel headers at {header}")
    published = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text()))
    mine = calls_of(machine)
    mine |= {"seccomp": subject.SECCOMP[machine], "landlock_create_ruleset": subject.LANDLOCK_CREATE}
    known = {name: number for name, number in mine.items() if name in published}
    assert known == {name: int(published[name]) for name in known}
    assert len(known) >= len(mine) - 5  # headers may be older than the newest calls


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
        else:
            at += yes if {0x15: value == k, 0x25: value > k, 0x45: bool(value & k)}[operation] else no


@pytest.mark.parametrize(("machine", "arch", "read"), [("x86_64", 0xC000003E, 0), ("aarch64", 0xC00000B7, 63)])
def test_filter_judges_calls_by_architecture_number_and_arguments(machine: str, arch: int, read: int) -> None:
    code = subject.assemble(subject.program(machine, 4321))
    calls = calls_of(machine) | {"read": read}
    allowed = """read 0, kill 4321, kill 0x7000010e1, tgkill 4321, tkill 4321, clone 0x3d0f00, clone 17, ioctl 0 0x5401,
        prlimit64 0 7 0, prlimit64 99 7 0"""
    denied = """socket 1, kill 0, kill 1, kill 0xffffffffffffffff, kill 0xffffffffffffef1f, tgkill 4322, rt_sigqueueinfo 1,
        clone 0x10000000, clone 0x20000, ioctl 0 0x5412, ioctl 0 0x100005412, ioctl 0 0x541c, setrlimit 7 1, prlimit64 0 7 1,
        prlimit64 0 7 0x100000000"""
    for expected, table in ((0, allowed), (errno.EPERM, denied), (errno.ENOSYS, "clone3 0")):
        for name, *arguments in (row.split() for row in table.split(",")):
            assert judged(code, arch, calls[name], *(int(x, 0) for x in arguments)) == expected, (name, arguments)
    assert judged(code, 0x40000003, read) == errno.EPERM  # 32-bit x86
    assert judged(code, arch, 1 << 30 | read) == errno.ENOSYS  # x32
    assert judged(code, arch, 4000) == errno.ENOSYS


def test_assembler_refuses_a_jump_that_does_not_fit() -> None:
    far: list[Bpf | str] = [
        Bpf(0x15, 1, yes="end"),
        *[Bpf(0x20, 0)] * 256,
        "end",
        Bpf(0x06, 0),
    ]
    with pytest.raises(struct.error):
        subject.assemble(far)
