"""The filter of system calls: a program of classic BPF that the kernel runs before each call (seccomp)."""

import ctypes
import errno
import os
import struct
from collections.abc import Collection, Iterator, Sequence

from nnhal.base.records import Record
from nnhal.ipc.confinement.allowed import JUDGED, OWN, WITH_DEVICES, Check, JudgedCall, plain_names
from nnhal.ipc.confinement.kernel import AUDIT_ARCH, machine_name, syscall
from nnhal.ipc.confinement.numbers import UNIFIED, numbers

SECCOMP = {"x86_64": 317, "aarch64": 277}
SET_MODE_FILTER, GET_ACTION_AVAIL, ALL_THREADS = 1, 2, 1
NR, ARCH, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; arguments have 8 bytes, little-endian
LOAD, EQUAL, AT_LEAST, ANY_BIT, MASK, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000


class Bpf(Record, frozen=True):
    """One instruction; a jump names its target labels, "" is the next step."""

    code: int
    value: int
    yes: str = ""
    no: str = ""


def assemble(items: Sequence[Bpf | str]) -> bytes:
    """Return the machine code of a program.

    A string in it labels the following instruction. Jumps reach 255 instructions.
    """
    places: dict[str, int] = {}
    steps: list[Bpf] = []
    for item in items:
        if isinstance(item, str):
            places[item] = len(steps)
        else:
            steps.append(item)

    def offset(label: str, at: int) -> int:
        return places[label] - at - 1 if label else 0

    return b"".join(
        struct.pack("=HBBI", x.code, offset(x.yes, at), offset(x.no, at), x.value) for at, x in enumerate(steps)
    )


def program(name: str, pid: int, more: Collection[str] = (), *, devices: bool = False) -> list[Bpf | str]:
    """Return the filter for the process `pid` on a machine (a key of AUDIT_ARCH), with more calls allowed, by name.

    devices: whether the process has any.

    A refused call gets EPERM, but ENOSYS from UNIFIED on (this includes clone3 and x32's numbers, from 1 << 30 on), as
    on a kernel without the call: libraries then use alternatives.
    """
    of = numbers(name)
    plain = [x for x in dict.fromkeys([*plain_names(), *more]) if x in of]
    calls = [WITH_DEVICES if devices and x.name == WITH_DEVICES.name else x for x in JUDGED]
    judged = [x for x in calls if x.name in of and x.name not in more]
    return [
        *(Bpf(LOAD, ARCH), Bpf(EQUAL, AUDIT_ARCH[name], yes="ours"), Bpf(RETURN, REFUSE | errno.EPERM)),
        *("ours", Bpf(LOAD, NR)),
        *(step for call in judged for step in _judge(call, of[call.name], pid)),
        *(step for x in plain for step in (Bpf(EQUAL, of[x], no=f"not {x}"), Bpf(RETURN, ALLOW), f"not {x}")),
        Bpf(AT_LEAST, UNIFIED, yes="unknown"),
        Bpf(RETURN, REFUSE | errno.EPERM),
        *("unknown", Bpf(RETURN, REFUSE | errno.ENOSYS)),
    ]


def _judge(call: JudgedCall, number: int, pid: int) -> Iterator[Bpf | str]:
    """Yield the answer for the call of that number; other calls continue, with the number still loaded."""
    others = f"not {call.name}"
    yield Bpf(EQUAL, number, no=others)
    for at, way in enumerate(call.ways):
        failed = f"{call.name}, not way {at}"
        for check in way:
            yield from _check(check, f"{failed}, argument {check.argument}", failed, pid)
        yield from (Bpf(RETURN, ALLOW), failed)
    yield from (Bpf(RETURN, REFUSE | errno.EPERM), others)


def _check(check: Check, passed: str, failed: str, pid: int) -> Iterator[Bpf | str]:
    """Continue if the argument passes, otherwise jump to `failed`."""
    low = FIRST_ARGUMENT + 8 * check.argument
    if check.null:
        yield from (Bpf(LOAD, low + 4), Bpf(EQUAL, 0, no=failed))
    yield Bpf(LOAD, low)
    values = [0] if check.null else [pid if x == OWN else x for x in check.values]
    for value in values[:-1]:
        yield Bpf(EQUAL, value, yes=passed)
    if values:
        yield from (Bpf(EQUAL, values[-1], no=failed), passed)
    if check.lacks:
        yield Bpf(ANY_BIT, check.lacks, yes=failed)
    if check.kinds:
        yield Bpf(MASK, 0xFF00)
        yield from (Bpf(EQUAL, kind << 8, yes=failed) for kind in check.kinds)
    if check.has:
        yield from (Bpf(MASK, check.has), Bpf(EQUAL, check.has, no=failed))


def install(more: Collection[str] = (), *, devices: bool = False) -> str:
    """Filter the system calls of all threads, irreversibly. more: additional calls, allowed with any arguments."""
    name = machine_name()
    code = ctypes.create_string_buffer(assemble(program(name, os.getpid(), more, devices=devices)))
    count = len(code) // 8
    filters = struct.pack("@HP", count, ctypes.addressof(code))
    stuck = syscall("seccomp", SECCOMP[name], SET_MODE_FILTER, ALL_THREADS, filters)
    if stuck:
        raise OSError(0, f"seccomp: thread {stuck} has another filter")
    of = numbers(name)
    plain, judged = (sum(x in of for x in names) for names in (plain_names(), [x.name for x in JUDGED]))
    said = f"{name}, {plain + judged} system calls allowed, {judged} of them with some arguments only, all threads"
    said += "; for devices ioctl of all kinds except those of files, terminals, sockets, processes and memory" * devices
    return said + (f"; by option also {', '.join(sorted(more))}" if more else "")


def describe_filters() -> str:
    """Describe what this kernel supports. Raises OSError if it has no seccomp filters."""
    name = machine_name()
    syscall("seccomp", SECCOMP[name], GET_ACTION_AVAIL, 0, struct.pack("=I", REFUSE))
    return f"filters for {name}"
