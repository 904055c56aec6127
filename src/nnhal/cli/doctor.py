"""`nnhal doctor`: checks engines, CPU features and kernel interfaces, and explains what each is needed for."""

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from importlib import util
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from nnhal import api
from nnhal.base.columns import WIDTH, columns, fixed, section, shortened
from nnhal.base.cores import usable_cores
from nnhal.base.errors import NnhalError
from nnhal.base.memory import Memory
from nnhal.base.records import Record, as_dict
from nnhal.cli import common
from nnhal.cli.command import command as nnhal_command

FEATURES = "sse4_1 avx avx2 fma f16c avx512f avx512_vnni avx_vnni amx_int8 asimd asimddp i8mm sve"
PACKAGES = {
    "numpy": "the reference kernels",
    "ai-edge-litert": "the litert device: pip install 'nnhal[litert]'",
    "onnxruntime": "the onnxruntime device: pip install 'nnhal[onnxruntime]'",
    "openvino": "the openvino device: pip install 'nnhal[openvino]'",
    "jax": "the xla device: pip install 'nnhal[xla]'",
    "pillow": "pictures as inputs: pip install 'nnhal[pictures]'",
    "prometheus-client": "metrics of services: pip install 'nnhal[metrics]'",
}
EXTENSIONS = {  # a wheel has them; so has `pip install --force-reinstall --no-deps` with a C compiler
    "nnhal.base._gate": "fast hand-overs between threads (deadlines, callbacks); plain Python stands in",
    "nnhal.base._mapping": "memories without a descriptor for each mapping; plain Python stands in",
    "nnhal.base._owner": "descriptors that close under every interrupt; plain Python stands in",
    "nnhal.ipc.transport._native": "isolated drivers, services, bursts over queues: "
    "install a C compiler, then nnhal again",
}
SYS_LANDLOCK_CREATE_RULESET, LANDLOCK_VERSION_FLAG = 444, 1
SYS_FUTEX_WAITV = 449
ENOSYS = 38
NAME, DETAIL, LONG = 40, 32, 1 << 20  # columns


class Finding(Record, frozen=True):
    """The result of one check; `needed_for` describes what does not work without it."""

    what: str
    there: bool
    detail: str
    needed_for: str


@nnhal_command("doctor")
@common.verbose_option
@common.json_option
def command(*, as_json: bool, verbose: bool) -> None:
    """Check this machine: engines, CPU, kernel."""
    findings = list(examine())
    if as_json:
        common.print_json([as_dict(f) for f in findings])
        return
    missing = [f for f in findings if not f.there]
    there = [f for f in findings if f.there]
    count = f"{len(missing)} of {len(findings)} checks found something missing"
    answer = count if missing else f"all {len(findings)} checks passed"
    lacks = [[shortened(f.what, NAME), shortened(f.detail, DETAIL), f.needed_for] for f in missing]
    table = columns(["Missing", "found", "needed for"], lacks, width=WIDTH if not verbose else LONG)
    found = columns(["Found", ""], [[f.what, f.detail] for f in there], width=WIDTH if not verbose else LONG)
    parts = [
        fixed(answer),
        section(table[:1], table[1:], "checks"),
        section(found[:1], found[1:], "checks that passed"),
    ]
    common.show(parts, verbose=verbose)


def examine() -> Iterator[Finding]:
    """Yields the result of every check, in the order of the output."""
    yield Finding("Python", sys.version_info >= (3, 11), platform.python_version(), "nnhal needs 3.11")
    yield Finding(
        "kernel", sys.platform == "linux", f"{platform.system()} {platform.release()}", "everything but reading models"
    )
    yield from _processor()
    for package, purpose in PACKAGES.items():
        yield _package(package, purpose)
    for entry in api.devices():
        yield Finding(
            f"device {entry.name}", entry.device is not None, entry.problem or "loads", "running models on it"
        )
    yield from _extensions()
    yield _memfd()
    yield from _kernel_calls()


def _processor() -> Iterator[Finding]:
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    lines = dict(line.split(":", 1) for line in reversed(info.splitlines()) if ":" in line)
    table = {key.strip(): value.strip() for key, value in lines.items()}
    usable = usable_cores()
    name = table.get("model name", platform.machine())
    yield Finding("processor", True, f"{name}, {usable} cores usable", "")
    flags = (table.get("flags") or table.get("Features", "")).split()
    there = [f for f in FEATURES.split() if f in flags]
    fast = "avx2" in there or "asimd" in there
    yield Finding("vector units", fast, " ".join(there) or "none known", "fast float and quantised kernels")
    dots = [f for f in there if "vnni" in f or f in ("asimddp", "i8mm", "amx_int8")]
    yield Finding("int8 dot products", bool(dots), " ".join(dots) or "none", "the fastest quantised kernels")


def _package(name: str, purpose: str) -> Finding:
    try:
        return Finding(f"package {name}", True, version(name), purpose)
    except PackageNotFoundError:
        return Finding(f"package {name}", False, "not installed", purpose)


def _extensions() -> Iterator[Finding]:
    for name, purpose in EXTENSIONS.items():
        there = util.find_spec(name) is not None
        yield Finding(f"extension {name}", there, "built" if there else "not built: no C compiler", purpose)


def _memfd() -> Finding:
    purpose = "constants and shared memory (ashmem pools)"
    try:
        Memory.allocate(4096).close()
    except NnhalError as error:
        return Finding("memfd with seals", False, str(error), purpose)
    return Finding("memfd with seals", True, "works", purpose)


def _kernel_calls() -> Iterator[Finding]:
    libc = ctypes.CDLL(None, use_errno=True)
    abi = libc.syscall(SYS_LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_VERSION_FLAG)
    detail = f"ABI {abi}" if abi > 0 else os.strerror(ctypes.get_errno())
    yield Finding("landlock", abi > 0, detail, "keeping drivers away from files")
    libc.syscall(SYS_FUTEX_WAITV, None, 0, 0, None, 0)
    error = ctypes.get_errno()
    there = error != ENOSYS
    yield Finding("futex_waitv", there, "works" if there else os.strerror(error), "seeing at once that a driver died")
    seccomp = "Seccomp:" in Path("/proc/self/status").read_text()
    yield Finding("seccomp", seccomp, "works" if seccomp else "not in this kernel", "keeping drivers off the network")
