"""Landlock: limits the files that a sandboxed process may open, and keeps signals and abstract sockets inside."""

import os
import pwd
import struct
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from nnhal.ipc.confinement.kernel import syscall

CREATE, ADD, RESTRICT = 444, 445, 446  # on both architectures

# Rights: bits 0 to 12 in ABI 1, then REFER (2), TRUNCATE (3), IOCTL_DEV (5).
RIGHTS_SINCE = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL_DEV = 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
READ, WRITE = READ_FILE | READ_DIR, WRITE_FILE | TRUNCATE
TCP_BIND_CONNECT, SCOPE_ABSTRACT_SIGNAL = 0b11, 0b11
RESTRICT_ALL_THREADS = 1 << 3
SINCE = {3: "truncation", 4: "TCP", 5: "ioctl of devices", 6: "abstract sockets and signals to others"}
# Places in /proc/self, without `environ`, `net` and the like, also beneath `task`: there only the names.
ITSELF = (
    *("auxv", "cgroup", "cmdline", "comm", "fd", "fdinfo", "limits"),
    *("maps", "smaps", "smaps_rollup", "stat", "statm", "status"),
)
SYSTEM = (
    *("/etc/ld.so.cache", "/dev/zero", "/dev/urandom"),
    *("/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu"),
    *(f"/proc/self/{name}" for name in ITSELF),
)
THREADS = "/proc/self/task"
LIBRARIES = "lib", "lib32", "lib64"


def version() -> int:
    """Return the kernel's ABI of landlock. Raises OSError if it has none."""
    return syscall("landlock_create_ruleset", CREATE, None, 0, 1)


def _private_places() -> tuple[set[Path], Path | None]:
    """Return homes, the folder for temporary files and the root; and the working folder, None if it was deleted."""
    names = {os.path.expanduser("~"), os.environ.get("TMPDIR", "/tmp"), "/"}
    with suppress(KeyError):  # a user without a name, common in containers
        names.add(pwd.getpwuid(os.getuid()).pw_dir)
    try:
        working = Path.cwd()
    except FileNotFoundError:
        working = None
    return set(map(_real, names)), working


def _real(path: str | Path) -> Path:
    return Path(os.path.realpath(path))  # unlike Path.resolve, no error for circular links


def import_paths() -> tuple[set[Path], set[Path]]:
    """Return the paths that modules and shared libraries are loaded from: those to open, and those that stay closed.

    Closed entries of sys.path: the working folder, and folders that contain a home, the temporary files or everything.
    Only the libraries of a prefix are opened: an engine does not need the rest of /usr.
    """
    prefixes = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, "/", "/usr", "/usr/local")
    opened = {Path(prefix) / name for prefix in prefixes for name in LIBRARIES}
    opened |= {Path(sysconfig.get_path(x)) for x in ("stdlib", "platstdlib")} | {Path(__file__).parents[2]}
    private, working = _private_places()
    entries = {_real(x) for x in sys.path if os.path.isabs(x)}
    closed = {x for x in entries if x == working or any(y.is_relative_to(x) for y in private)}
    return opened | (entries - closed), closed


def _rules(readable: Iterable[Path], devices: Iterable[Path]) -> dict[Path, int]:
    """Return every place that may be opened, with its rights; symbolic links resolved, missing places left out."""
    rules = {_real(x): READ for x in [*readable, *map(Path, SYSTEM)]}
    rules |= {_real(THREADS): READ_DIR}
    rules |= {Path("/dev/null"): READ | WRITE, Path("/dev/udmabuf"): READ | WRITE | IOCTL_DEV}
    rules |= {_real(x): READ | WRITE | IOCTL_DEV for x in devices}
    return {place: rights for place, rights in rules.items() if os.path.exists(place)}


def restrict(read: Iterable[Path], devices: Sequence[Path] = ()) -> str:
    """Close all other files than Python's and these, irreversibly; describe what was done and what the kernel lacks.

    devices: may also be written, and controlled by ioctl.
    """
    abi = version()
    handled = (1 << RIGHTS_SINCE[min(abi, max(RIGHTS_SINCE))]) - 1
    net, scopes = TCP_BIND_CONNECT * (abi >= 4), SCOPE_ABSTRACT_SIGNAL * (abi >= 6)
    opened, closed = import_paths()
    rules = _rules([*opened, *read], devices)
    escaped = _other_threads() if abi < 8 else ""
    fields = struct.pack("=QQQ", handled, net, scopes)  # a kernel with fewer fields accepts zeros for the rest
    ruleset = syscall("landlock_create_ruleset", CREATE, fields, len(fields), 0)
    try:
        for place, rights in rules.items():
            _add_rule(ruleset, place, rights & handled)
        flags = RESTRICT_ALL_THREADS if abi >= 8 else 0
        syscall("landlock_restrict_self", RESTRICT, ruleset, flags)
    finally:
        os.close(ruleset)
    guarded = [what for since, what in SINCE.items() if since in (4, 6) and abi >= since]
    lacking = [what for since, what in SINCE.items() if abi < since]
    said = f"ABI {abi}, {len(rules)} places to read, {_to_write(devices)} to write" + "".join(
        f", no {what}" for what in guarded
    )
    said += f"; the kernel lacks {', '.join(lacking)}" if lacking else ""
    return said + escaped + (f"; import paths left closed: {', '.join(map(str, sorted(closed)))}" if closed else "")


def _to_write(devices: Iterable[Path]) -> str:
    return ", ".join(map(str, devices)) or "none"


def _add_rule(ruleset: int, place: Path, rights: int) -> None:
    descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(place):
            rights &= ~READ_DIR
        syscall("landlock_add_rule", ADD, ruleset, 1, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


def _other_threads() -> str:
    try:
        others = len(os.listdir("/proc/self/task")) - 1
    except FileNotFoundError:
        return "; other threads, if any, are NOT covered: /proc is not mounted"
    return f"; NOT covered: {others} other threads" if others else ""
