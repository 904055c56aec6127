"""Confine this process for good: before a driver's service runs engine code that may be broken or hostile.

Afterwards the process computes on memory and descriptors it holds or is sent, reads what it needs to import, and no more:
no other file, no write, no new socket, no program started, no other process touched. Each of the four parts is applied where
the kernel has it (x86-64 and aarch64), and the report says what was not.

    service:  sockets made ──► chdir("/") ──► confine(driver's files, Limits()) ──► import numpy, engine ──► serve

Call it while the process has one thread, before numpy or an engine starts its own: landlock covers the calling thread and
what it starts later (all threads since ABI 8). The report counts threads that escape it; seccomp covers those too. For the
same reason nothing here imports numpy, nor what imports it.

Still open: whether a path exists and its size and times (stat); priorities and scheduling of the user's other processes;
fork, whose child can signal nobody, itself included (its abort() ends by SIGSEGV); whatever descriptors it holds allow.
"""

import ctypes
import errno
import os
import pwd
import resource
import struct
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
LIBC.prctl.argtypes = ctypes.c_int, *[ctypes.c_ulong] * 4

# ------------------------------------------------------------------------------------------------ what is refused

# System calls answered with EPERM, by what they would reach: name, number on x86-64, number on aarch64 (- for none).
DENIED = {
    "network": "socket 41 198, connect 42 203, bind 49 200, listen 50 201",
    "programs": "execve 59 221, execveat 322 281, uselib 134 -",
    "other processes": """ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272,
        pidfd_getfd 438 438, pidfd_send_signal 424 424, process_madvise 440 440, process_mrelease 448 448,
        migrate_pages 256 238, move_pages 279 239, setns 308 268, unshare 272 97""",
    "attributes of files, which landlock does not guard": """chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452,
        chown 92 -, fchown 93 55, lchown 94 -, fchownat 260 54, utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88,
        setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, setxattrat 463 463, removexattr 197 14, lremovexattr 198 15,
        fremovexattr 199 16, removexattrat 466 466, file_setattr 469 469, truncate 76 45""",
    "files by handle": "name_to_handle_at 303 264, open_by_handle_at 304 265, fanotify_init 300 262",
    "mounts": """mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, open_tree 428 428, open_tree_attr 467 467,
        move_mount 429 429, fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433, mount_setattr 442 442""",
    "objects shared by key or name": """shmget 29 194, shmat 30 196, shmctl 31 195, semget 64 190, semop 65 193,
        semtimedop 220 192, semctl 66 191, msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187, mq_open 240 180,
        mq_unlink 241 181, keyctl 250 219, add_key 248 217, request_key 249 218""",
    "wide kernel interfaces": """bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, io_uring_setup 425 425,
        io_uring_enter 426 426, io_uring_register 427 427, personality 135 92, modify_ldt 154 -, ioperm 173 -, iopl 172 -""",
    "the machine": """init_module 175 105, finit_module 313 273, delete_module 176 106, kexec_load 246 104,
        kexec_file_load 320 294, reboot 169 142, syslog 103 116, swapon 167 224, swapoff 168 225, acct 163 89,
        quotactl 179 60, quotactl_fd 443 443, settimeofday 164 170, clock_settime 227 112, adjtimex 159 171,
        clock_adjtime 305 266, setrlimit 160 164, sethostname 170 161, setdomainname 171 162, vhangup 153 58""",
}
OWN_PID = "kill 62 129, tkill 200 130, tgkill 234 131, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240"
JUDGED = "clone 56 220, clone3 435 435, ioctl 16 29, prlimit64 302 261"
NEWEST = 469  # Linux 6.17; later calls are ENOSYS, as on an older kernel, which also refuses x32 (numbers from 1 << 30)
SECCOMP, LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = {"x86_64": 317, "aarch64": 277}, 444, 445, 446
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
TIOCSTI, TIOCLINUX = 0x5412, 0x541C  # typing into, and pasting into, the terminal that started this

# Rights of landlock: bits 0 to 12 in ABI 1, then REFER (2), TRUNCATE (3), IOCTL_DEV (5).
RIGHTS_SINCE = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL_DEV = 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
READ, WRITE = READ_FILE | READ_DIR, WRITE_FILE | TRUNCATE
TCP_BIND_CONNECT, SCOPE_ABSTRACT_SIGNAL = 0b11, 0b11
RESTRICT_ALL_THREADS, ALL_THREADS = 1 << 3, 1
SYSTEM = (
    *("/etc/ld.so.cache", "/dev/zero", "/dev/urandom"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu"),
)
LIBRARIES = "lib", "lib32", "lib64"
PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS = 4, 38, 39


def _three_quarters_of_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4


@dataclass(frozen=True)
class Limits:
    """What a confined process may use. A limit never rises above the one it is under already.

    memory: bytes of private writable memory (RLIMIT_DATA: heaps, stacks, arenas; shared pools do not count).
    descriptors: one more than the highest descriptor (RLIMIT_NOFILE).
    processes: processes and threads of the *user*, all of them, not of this process alone (RLIMIT_NPROC); None leaves it.
    Core dumps are always off.
    """

    memory: int = field(default_factory=_three_quarters_of_memory)
    descriptors: int = 1024
    processes: int | None = None

    def __post_init__(self) -> None:
        for name in ("memory", "descriptors", "processes"):
            value = getattr(self, name)
            fits = value is None or 1 <= value < 1 << 63
            _require(fits, f"Limits: {name} = {value}, must be at least 1 and below 1 << 63")


def _require(fact: bool, message: str) -> None:
    if not fact:
        from nnhal.base.errors import InvalidArgument  # it imports numpy, whose threads are not to be there yet

        raise InvalidArgument(message)


def confine(read: Sequence[Path], limits: Limits) -> dict[str, str]:
    """Confine the calling process, irreversibly; `read` are absolute paths it may read besides what Python needs.

    Answers "no_new_privs", "rlimits", "landlock", "seccomp" with "applied: what" or "not applied: why".
    Raises InvalidArgument, before anything is applied, for a path that is relative or does not exist.
    """
    for path in read:
        fits = path.is_absolute() and os.path.exists(path)
        _require(fits, f"confine: read path {str(path)!r} is relative or missing, must be absolute and exist")
    steps = {
        "no_new_privs": _no_new_privs,
        "rlimits": lambda: _rlimits(limits),
        "landlock": lambda: _landlock(read),
        "seccomp": _seccomp,
    }
    return {name: _outcome(step, "applied: ", "not applied: ") for name, step in steps.items()}


def available() -> dict[str, str]:
    """What this kernel offers, by the keys of `confine`, with nothing applied."""
    offers = {
        "no_new_privs": lambda: f"prctl, now {_checked('prctl', LIBC.prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0))}",
        "rlimits": lambda: "data, descriptors, core",
        "landlock": lambda: f"ABI {_landlock_abi()}",
        "seccomp": _seccomp_offer,
    }
    return {name: _outcome(offer, "", "not available: ") for name, offer in offers.items()}


def _outcome(step: Callable[[], str], done: str, refused: str) -> str:
    try:
        return done + step()
    except OSError as error:
        return refused + (error.strerror or str(error))


def _checked(name: str, result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


def _syscall(name: str, number: int, *arguments: int | bytes | None) -> int:
    """A system call by number: integers by value, bytes by pointer. Raises OSError."""
    words = [ctypes.c_long(x) if isinstance(x, int) else ctypes.c_char_p(x) for x in arguments]
    return _checked(name, LIBC.syscall(ctypes.c_long(number), *words))


def _machine() -> str:
    """The architecture of the tables. Raises OSError for another one, also for a 32-bit Python on a 64-bit kernel."""
    machine = os.uname().machine
    if machine not in AUDIT_ARCH or sys.maxsize < 1 << 32:
        bits = 64 if sys.maxsize > 1 << 32 else 32
        raise OSError(0, f"system is {machine} with {bits} bits, must be {' or '.join(AUDIT_ARCH)} with 64")
    return machine


# ------------------------------------------------------------------------------------------------ privileges, limits


def _no_new_privs() -> str:
    _checked("PR_SET_NO_NEW_PRIVS", LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked("PR_SET_DUMPABLE", LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))  # other processes of the user cannot trace it
    return "no new privileges, not dumpable"


def _rlimits(limits: Limits) -> str:
    wanted = {
        "data": (resource.RLIMIT_DATA, limits.memory),
        "descriptors": (resource.RLIMIT_NOFILE, limits.descriptors),
        "core": (resource.RLIMIT_CORE, 0),
        "processes": (resource.RLIMIT_NPROC, limits.processes),
    }
    said = []
    for name, (which, value) in wanted.items():
        if value is None:
            continue
        held = [value, *(x for x in resource.getrlimit(which) if x != resource.RLIM_INFINITY)]
        resource.setrlimit(which, (min(held), min(held)))
        said.append(f"{name} {min(held)}")
    return ", ".join(said)


# ------------------------------------------------------------------------------------------------ landlock: files


def _landlock_abi() -> int:
    return _syscall("landlock_create_ruleset", LANDLOCK_CREATE, None, 0, 1)


def _private_places() -> tuple[set[Path], Path | None]:
    """Homes, the folder for temporary files and the root; and the working folder, None where it was deleted."""
    names = {os.path.expanduser("~"), os.environ.get("TMPDIR", "/tmp"), "/"}
    with suppress(KeyError):  # a user without a name, as containers have
        names.add(pwd.getpwuid(os.getuid()).pw_dir)
    try:
        working = Path.cwd()
    except FileNotFoundError:
        working = None
    return set(map(_real, names)), working


def _real(path: str | Path) -> Path:
    return Path(os.path.realpath(path))  # unlike Path.resolve, no error for links in a circle


def import_paths() -> tuple[set[Path], set[Path]]:
    """What modules and shared libraries are loaded from: to be opened, and those of sys.path that stay closed.

    Closed are the working folder, and what holds a home, the temporary files or everything. Of a prefix only its libraries
    are opened: the rest of /usr is none of an engine's business.
    """
    prefixes = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, "/", "/usr", "/usr/local")
    opened = {Path(prefix) / name for prefix in prefixes for name in LIBRARIES}
    opened |= {Path(sysconfig.get_path(x)) for x in ("stdlib", "platstdlib")} | {Path(__file__).parents[1]}
    private, working = _private_places()
    entries = {_real(x) for x in sys.path if os.path.isabs(x)}
    closed = {x for x in entries if x == working or any(y.is_relative_to(x) for y in private)}
    return opened | (entries - closed), closed


def _rules(readable: Iterable[Path]) -> dict[Path, int]:
    """Every place that may be opened, with its rights; symbolic links resolved, places that do not exist left out."""
    rules = {_real(x): READ for x in [*readable, *map(Path, SYSTEM)]}
    rules |= {Path("/dev/null"): READ | WRITE, Path("/dev/udmabuf"): READ | WRITE | IOCTL_DEV}
    return {place: rights for place, rights in rules.items() if os.path.exists(place)}


def _landlock(read: Iterable[Path]) -> str:
    abi = _landlock_abi()
    handled = (1 << RIGHTS_SINCE[min(abi, max(RIGHTS_SINCE))]) - 1
    net, scopes = TCP_BIND_CONNECT * (abi >= 4), SCOPE_ABSTRACT_SIGNAL * (abi >= 6)
    opened, closed = import_paths()
    rules = _rules([*opened, *read])
    escaped = _other_threads() if abi < 8 else ""
    fields = struct.pack("=QQQ", handled, net, scopes)  # a kernel that knows fewer fields takes zeros for the rest
    ruleset = _syscall("landlock_create_ruleset", LANDLOCK_CREATE, fields, len(fields), 0)
    try:
        for place, rights in rules.items():
            _add_rule(ruleset, place, rights & handled)
        flags = RESTRICT_ALL_THREADS if abi >= 8 else 0
        _syscall("landlock_restrict_self", LANDLOCK_RESTRICT, ruleset, flags)
    finally:
        os.close(ruleset)
    said = f"ABI {abi}, {len(rules)} places to read, none to write"
    said += ", no TCP" * bool(net) + ", no abstract sockets or signals to others" * bool(scopes) + escaped
    return said + (f"; import paths left closed: {', '.join(map(str, sorted(closed)))}" if closed else "")


def _add_rule(ruleset: int, place: Path, rights: int) -> None:
    descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(place):
            rights &= ~READ_DIR
        _syscall("landlock_add_rule", LANDLOCK_ADD, ruleset, 1, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


def _other_threads() -> str:
    try:
        others = len(os.listdir("/proc/self/task")) - 1
    except FileNotFoundError:
        return "; other threads, if any, are NOT covered: /proc is not mounted"
    return f"; NOT covered: {others} other threads" if others else ""


# ------------------------------------------------------------------------------------------------ seccomp: system calls

NR, ARCH, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; arguments have 8 bytes, little-endian
LOAD, EQUAL, ABOVE, ANY_BIT, RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000


@dataclass(frozen=True)
class Bpf:
    """One instruction of classic BPF; a jump names the labels it goes to, "" is the next step."""

    code: int
    value: int
    yes: str = ""
    no: str = ""


def numbers(table: str, machine: str) -> dict[str, int]:
    """System calls by name, of a table above, as far as the architecture has them."""
    column = list(AUDIT_ARCH).index(machine)
    rows = [row.split() for row in table.split(",")]
    return {name: int(found[column]) for name, *found in rows if found[column] != "-"}


def assemble(items: Sequence[Bpf | str]) -> bytes:
    """The machine code of a program; a string among its steps labels the step after it. Jumps reach 255 steps."""
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


def null(argument: int) -> list[Bpf | str]:
    """Goes on if the 64-bit argument is zero, else to "denied"."""
    low = FIRST_ARGUMENT + 8 * argument
    return [step for half in (low, low + 4) for step in (Bpf(LOAD, half), Bpf(EQUAL, 0, no="denied"))]


def program(machine: str, pid: int) -> list[Bpf | str]:
    """The filter of system calls for the process `pid` on that machine (a key of AUDIT_ARCH); see `assemble`."""
    judged = numbers(JUDGED, machine)
    listed = [Bpf(EQUAL, x, yes="denied") for table in DENIED.values() for x in numbers(table, machine).values()]
    first, second = (Bpf(LOAD, FIRST_ARGUMENT + 8 * x) for x in range(2))
    return [
        *(Bpf(LOAD, ARCH), Bpf(EQUAL, AUDIT_ARCH[machine], no="denied")),
        *(Bpf(LOAD, NR), Bpf(ABOVE, NEWEST, yes="unknown")),
        *listed,
        Bpf(EQUAL, judged["clone3"], yes="unknown"),  # its flags are behind a pointer: libraries fall back to clone
        Bpf(EQUAL, judged["clone"], yes="clone"),
        Bpf(EQUAL, judged["ioctl"], yes="ioctl"),
        Bpf(EQUAL, judged["prlimit64"], yes="limits"),
        *(Bpf(EQUAL, x, yes="signal") for x in numbers(OWN_PID, machine).values()),
        Bpf(RETURN, ALLOW),
        *("clone", first, Bpf(ANY_BIT, NEW_NAMESPACES, yes="denied", no="allowed")),
        *("ioctl", second, Bpf(EQUAL, TIOCSTI, yes="denied"), Bpf(EQUAL, TIOCLINUX, yes="denied", no="allowed")),
        *("limits", *null(2), Bpf(RETURN, ALLOW)),  # reading them: no new value is given
        *("signal", first, Bpf(EQUAL, pid, yes="allowed", no="denied")),
        *("unknown", Bpf(RETURN, REFUSE | errno.ENOSYS)),
        *("denied", Bpf(RETURN, REFUSE | errno.EPERM)),
        *("allowed", Bpf(RETURN, ALLOW)),
    ]


def _seccomp() -> str:
    machine = _machine()
    code = ctypes.create_string_buffer(assemble(program(machine, os.getpid())))
    count = len(code) // 8
    filters = struct.pack("@HP", count, ctypes.addressof(code))
    stuck = _syscall("seccomp", SECCOMP[machine], 1, ALL_THREADS, filters)
    if stuck:
        raise OSError(0, f"seccomp: thread {stuck} has a filter of its own")
    refused = sum(len(numbers(x, machine)) for x in DENIED.values())
    return f"{machine}, {refused} system calls refused, all threads"


def _seccomp_offer() -> str:
    machine = _machine()
    _syscall("seccomp", SECCOMP[machine], 2, 0, struct.pack("=I", REFUSE))
    return f"filters for {machine}"
