"""`nnhal devices`: lists devices with their declared and measured performance, and drivers that do not load."""

import re
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import click

from nnhal import api
from nnhal.base.codes import OperandType, type_name
from nnhal.base.columns import WIDTH, Section, columns, fixed, section, shortened, wrap_text
from nnhal.base.names import is_path
from nnhal.base.records import replace
from nnhal.cli import common
from nnhal.cli.command import command as nnhal_command
from nnhal.cli.model_text import hal_version, type_text
from nnhal.conformance.probe import probe
from nnhal.hal.answers import driver_capabilities
from nnhal.hal.choices import VariantChoice
from nnhal.hal.device import RELAXATIONS, Device, Performance, identity_of, layout_of
from nnhal.hal.proofs import choices_of
from nnhal.ipc.names import running
from nnhal.runtime import discovery, placer
from nnhal.runtime.discovery import CPU, DiscoveredDriver
from nnhal.runtime.isolation import SandboxStatus, confinement, key_of
from nnhal.runtime.measured.record import StoredFailure, failures, profile

SHOWN = (OperandType.TENSOR_FLOAT32, "float32"), (OperandType.TENSOR_QUANT8_ASYMM_SIGNED, "quant8_signed")
LISTED, LONG = 8, 1 << 20  # lines of a problem; columns for text that is not shortened


@nnhal_command("devices")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@common.driver_option
@click.option("--device", "-d", "named", multiple=True, metavar="NAME", help="The same as NAME.")
@click.option("--operations", "listed", is_flag=True, help="List the operations that each device rejects, and why.")
@click.option("--no-isolation", "bare", is_flag=True, help="Start no isolated process to report its isolation.")
@common.verbose_option
@common.json_option
def command(
    names: tuple[str, ...],
    drivers: tuple[str, ...],
    named: tuple[str, ...],
    listed: bool,
    bare: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """List devices; show the details of one.

    Ops counts the operations that the device supports, by the example of each operation's definition.
    """
    common.load_drivers(drivers, ())
    asked = [*names, *named]
    found = discovery.drivers_named(asked) if asked else api.devices()
    if not asked and not as_json:
        found = _with_engines(found)
    confined = (
        {}
        if bare or (listed and not as_json)
        else confinement([entry.name for entry in found if entry.device is not None])
    )
    services = running()
    if as_json:
        documents = [_document(entry, confined.get(entry.name)) for entry in found]
        common.print_json([*documents, *({"name": name, "origin": "service", "loads": True} for name in services)])
        return
    if listed:
        lines = [line for entry in found for line in _rejected(entry)]
    elif asked:
        lines = []
        for entry in found:
            lines += [*([""] if lines else []), *_details(entry, confined.get(entry.name), verbose=verbose)]
    else:
        common.show(_list(found, confined, services), verbose=verbose)
        lines = []
    for line in lines:
        common.console.print(line)


def _with_engines(found: Sequence[DiscoveredDriver]) -> list[DiscoveredDriver]:
    """The devices, with the installed engines that are not selected automatically before the CPU."""
    there = {entry.name for entry in found}
    more = discovery.drivers_named([name for name in discovery.engines() if name not in there])
    return [*(entry for entry in found if entry.name != CPU), *more, *(entry for entry in found if entry.name == CPU)]


def _list(
    found: Sequence[DiscoveredDriver], confined: Mapping[str, SandboxStatus], services: Sequence[str]
) -> list[Section]:
    """A row for each device, with its speed relative to the reference."""
    chosen = {*discovery.candidates(), *(entry.name for entry in api.devices())}
    heads = ["Device", "Version", "Type", ">Ops", ">float32", ">int8", "Auto-select", "Isolation"]
    there, known = [(entry.name, entry.device) for entry in found if entry.device is not None], profile()
    outdated = {name: placer.changed_since_measured(key_of(device), known) for name, device in there}
    rows = [_row(device, confined.get(name), _auto_selected(name, chosen, outdated[name])) for name, device in there]
    lines = columns(heads, rows)
    broken = [
        shortened(f"{entry.name} does not load: {entry.problem}", WIDTH) for entry in found if entry.device is None
    ]
    measured = "" if known is None else f" {time.strftime('%Y-%m-%d', time.localtime(known.made))}"
    marks = f"(m) measured{measured}, (d) declared" if known is not None else "(d) declared by the driver"
    legend = [f"Inference time relative to reference, lower is faster; {marks}"]
    everywhere = {_isolation(each) for each in confined.values()}
    if everywhere == {"full"}:
        legend.append(f"Isolation full: {_mechanisms(next(iter(confined.values())))}")
    left_out = [f"{name} is left out: {why}" for name, why in outdated.items() if why and name in chosen]
    failed = [name for entry in found if entry.device is not None for name in [entry.name] if _failures(entry.device)]
    hint = "Details: nnhal devices NAME [--operations]"
    hint += "" if known is not None else ". Measure the devices: nnhal calibrate"
    return [
        section(lines[:1], lines[1:], "devices"),
        section([], broken, "drivers that do not load"),
        fixed(*legend),
        fixed(*(line for text in left_out for line in wrap_text(text, most=2, indent="  "))),
        fixed(*([f"Failed before, and left out there: {', '.join(failed)}"] if failed else [])),
        section([], [f"Services running: {', '.join(services)}"] if services else [], "services"),
        fixed(hint),
    ]


def _row(device: Device, report: SandboxStatus | None, select: str) -> list[str]:
    own, declared, measured = identity_of(device), driver_capabilities(device), _measured(device)
    speeds = []
    for type, kind in SHOWN:
        stated = declared.of(type)
        if kind in measured:
            speeds.append(f"{measured[kind].exec_time:.2g}x (m)")
        else:
            speeds.append("-" if stated is None else f"{stated.exec_time:g}x (d)" if own.name != CPU else "1x")
    if own.name == CPU:
        speeds = ["1x"] * len(SHOWN)
    isolation = "-" if report is None else _isolation(report)
    return [own.name, own.version, own.type.name, _supported(device), *speeds, select, isolation]


def _auto_selected(name: str, chosen: Collection[str], outdated: str) -> str:
    """Whether compilations that name no device use it. chosen: the candidates. outdated: why they leave it out, or ""."""
    return "fallback" if name == CPU else "by name" if name not in chosen else "outdated" if outdated else "yes"


def _supported(device: Device) -> str:
    verdicts = probe(device).values()
    return f"{sum(v.ok for v in verdicts)}/{len(verdicts)}"


def _isolation(report: SandboxStatus) -> str:
    """`full`, what is missing, or why the driver does not start isolated."""
    missing = [name for name, how in report.applied.items() if not how.startswith("applied")]
    return "does not start" if report.problem else f"without {', '.join(missing)}" if missing else "full"


def _mechanisms(report: SandboxStatus) -> str:
    """`stdio, no_new_privs, rlimits, Landlock ABI 7, seccomp (114 system calls)`."""
    texts = {name: how.removeprefix("applied: ") for name, how in report.applied.items()}
    abi, calls = (
        re.search(pattern, texts.get(name, ""))
        for name, pattern in (("landlock", r"ABI \d+"), ("seccomp", r"\d+ system calls"))
    )
    details = {"landlock": abi and f"Landlock {abi[0]}", "seccomp": calls and f"seccomp ({calls[0]})"}
    return ", ".join(details.get(name) or name for name in texts)


def _rejected(entry: DiscoveredDriver) -> Iterator[str]:
    """The operations that a device rejects, and why."""
    verdicts = {} if entry.device is None else probe(entry.device)
    rejected = {name: verdict.reason for name, verdict in verdicts.items() if not verdict.ok}
    yield f"{entry.name} rejects {len(rejected)} of {len(verdicts)} operations"
    yield from columns(["", ""], list(rejected.items()), indent=2, width=LONG)


def _details(entry: DiscoveredDriver, report: SandboxStatus | None, *, verbose: bool) -> Iterator[str]:
    """Yields the details of one device."""
    device = entry.device
    if device is None:
        yield from wrap_text(f"{entry.name} does not load: {entry.problem}", most=LISTED, indent="  ")
        return
    own = identity_of(device)
    outdated = placer.changed_since_measured(key_of(device), profile())
    auto = _auto_selected(own.name, discovery.candidates(), outdated)
    preferred = layout_of(device)
    layout = f", preferred layout {preferred.upper()}" if preferred else ""
    level, rest = hal_version(str(own.level)), f"{_supported(device)} operations{layout}, auto-select: {auto}"
    yield f"{own.name} {own.version}: {own.type.name}, {level}, {rest}"
    facts: list[tuple[str, str]] = [("Performance", _performance(device)), *_kernels(entry, device, verbose=verbose)]
    facts += [("Numeric exceptions", "; ".join(RELAXATIONS.get(each, each) for each in own.relaxations) or "none")]
    facts += [("Extensions", ", ".join(own.extensions))] if own.extensions else []
    failed = [_failure(*each) for each in _failures(device)]
    facts += [("Known failures", text) for text in (failed if verbose else failed[-3:]) or ["none"]]
    if report is not None:
        applied = "; ".join(f"{name} {how}" for name, how in report.applied.items())
        facts.append(
            ("Isolation", report.problem or (applied if verbose else f"{_isolation(report)}: {_mechanisms(report)}"))
        )
    facts.append(("Origin", entry.origin))
    for name, text in facts:
        yield from wrap_text(f"{name:20}{text}", most=99 if verbose else 3, indent=" " * 20)


def _performance(device: Device) -> str:
    """Declared and measured time and power relative to the reference."""
    declared = driver_capabilities(device)
    stated = [(type_text(type.name), p) for type, _ in SHOWN if (p := declared.of(type)) is not None]
    words = [f"{name} {p.exec_time:g}x time, {p.power_usage:g}x power" for name, p in stated]
    alike = {text.split(" ", 1)[1] for text in words}
    text = f"declared {alike.pop() if len(alike) == 1 else '; '.join(words)}"
    if measured := _measured(device):
        text += "; measured time " + ", ".join(f"{kind} {p.exec_time:.2g}x" for kind, p in measured.items())
    return f"{text} (relative to reference)"


def _failures(device: Device) -> list[tuple[StoredFailure, bool]]:
    """Returns the device's known failures, and whether each was with the present version and no driver options."""
    here = key_of(device)
    identities = [placer.identity_of(replace(here, isolation=where), {}) for where in ("none", "process")]
    asked = [identity for identity in identities if identity]
    return [(each, each.device in asked) for each in failures(asked, name=device.name)]


def _measured(device: Device) -> dict[str, Performance]:
    """Returns the measured performance relative to the CPU reference, by kind of values."""
    known = profile()
    if known is None or device.name not in known.devices or discovery.CPU not in known.devices:
        return {}
    return known.devices[device.name].against(known.devices[discovery.CPU])


def _failure(failure: StoredFailure, current: bool) -> str:
    operations = f"{len(failure.operations)} operations" if len(failure.operations) > 1 else "an operation"
    until = "until the driver changes" if current else "with those driver options, version and CPU"
    again = f"excluded {until}, or nnhal calibrate --forget"
    return f"{failure.phase} of {operations}: {failure.why}; {again}"


def _kernels(entry: DiscoveredDriver, device: Device, *, verbose: bool) -> Iterator[tuple[str, str]]:
    """Yields the kernel variants that run, and why faster ones do not."""
    running: dict[str, list[str]] = defaultdict(list)
    unverified, why = 0, Counter[str]()
    for choice in _choices(device):
        if choice.found is None:
            unverified += 1
        elif choice.found.why:
            why[choice.found.why] += 1
        else:
            running[choice.form or ""].append(f"{choice.operation} {type_text(type_name(choice.type))}")
    for form, operations in running.items():
        listing = f": {', '.join(operations)}" if verbose else " (list: --verbose)"
        name = form or "one variant"
        yield "Kernel variants", f"{name}: {len(operations)} operation/type pairs verified on this CPU{listing}"
    for text, count in why.items():
        yield "Kernel variants", text if count == 1 else f"{text} (and {count - 1} more)"
    if unverified:
        faster = f"`nnhal verify {entry.origin if is_path(entry.origin) else device.name}` verifies fast ones"
        yield "Kernel variants", f"{unverified} operation/type pairs run in their reference kernel; {faster}"


def _choices(device: Device) -> list[VariantChoice]:
    """Returns the operations with several kernel variants, or with a verification result."""
    return [choice for choice in choices_of(device) if len(choice.known) > 1 or choice.found is not None]


def _document(entry: DiscoveredDriver, report: SandboxStatus | None) -> dict[str, Any]:
    device = entry.device
    if device is None:
        return {"name": entry.name, "origin": entry.origin, "loads": False, "problem": entry.problem}
    own, stated = identity_of(device), driver_capabilities(device)
    performance = {
        OperandType(t).name: {"exec_time": p.exec_time, "power_usage": p.power_usage}
        for t, p in stated.operands.items()
    }
    return {
        "name": own.name,
        "origin": entry.origin,
        "loads": True,
        "type": own.type.name,
        "version": own.version,
        "level": str(own.level),
        "extensions": list(own.extensions),
        "relaxations": list(own.relaxations),
        "preferred_layout": layout_of(device),
        "operations": {name: {"ok": v.ok, "reason": v.reason} for name, v in probe(device).items()},
        "performance": performance,
        "forms": [
            {
                "operation": choice.operation,
                "type": type_name(choice.type),
                "known": list(choice.known),
                "form": choice.form,
                "proved": choice.found is not None,
                "why": "" if choice.found is None else choice.found.why,
            }
            for choice in _choices(device)
        ],
        "measured": {k: {"exec_time": p.exec_time, "power_usage": p.power_usage} for k, p in _measured(device).items()},
        "failures": [
            {"phase": f.phase, "operations": list(f.operations), "why": f.why, "at": f.at, "current": current}
            for f, current in _failures(device)
        ],
        "isolation": None if report is None else report.problem or dict(report.applied),
    }
