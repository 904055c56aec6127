"""`nnhal devices`: every device, what it is and states; drivers that do not load, and why."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import click

from nnhal import api
from nnhal.base.codes import OperandType, type_name
from nnhal.base.names import is_path
from nnhal.base.records import replace
from nnhal.cli import common
from nnhal.conformance.probe import probe
from nnhal.hal.choices import FormChoice
from nnhal.hal.device import RELAXATIONS, Device, Performance, capabilities_by, identity_of, layout_of
from nnhal.hal.proofs import choices_of
from nnhal.ipc.names import running
from nnhal.runtime import discovery, judgement
from nnhal.runtime.discovery import Found
from nnhal.runtime.isolation import Confined, confinement, key_of
from nnhal.runtime.measured.record import KeptFailure, failures, profile

SHOWN = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED


@click.command("devices")
@common.driver_option
@click.option(
    "--device",
    "-d",
    "named",
    multiple=True,
    metavar="NAME",
    help="Show these alone, also ones that are used where named.",
)
@click.option("--operations", "listed", is_flag=True, help="List what each device does not take, and why.")
@click.option("--no-isolation", "bare", is_flag=True, help="Do not start each driver in a process of its own to ask.")
@common.json_option
def command(drivers: tuple[str, ...], named: tuple[str, ...], listed: bool, bare: bool, as_json: bool) -> None:
    """List devices: type, version, level, operations, extensions, stated performance; say why a driver does not load.

    Operations are those that the device takes on the worked example of each record. Isolation is what a process of the
    driver's own reports: which confinement was applied, and which was not.
    """
    common.load_drivers(drivers, ())
    found = discovery.found_of(named) if named else api.devices()
    confined = {} if bare else confinement([entry.name for entry in found if entry.device is not None])
    services = running()
    if as_json:
        documents = [_document(entry, confined.get(entry.name)) for entry in found]
        common.emit([*documents, *({"name": name, "origin": "service", "loads": True} for name in services)])
        return
    rows = [_row(entry.device) for entry in found if entry.device is not None]
    columns = [
        "device",
        "type",
        "version",
        "level",
        "operations",
        "float32",
        "relaxed",
        "quant8",
        "quant8 signed",
        "extensions",
    ]
    common.table(columns, rows)
    common.console.print("\nPerformance: execution time / power stated against the CPU reference, less is better.")
    for entry in found:
        for line in () if entry.device is None else _facts(entry, entry.device):
            common.console.print(line, markup=False)
    alike: dict[str, list[str]] = {}
    for name, report in confined.items():
        alike.setdefault(_isolation(report), []).append(name)
    for text, names in alike.items():
        common.console.print(f"\nA process of its own for {', '.join(names)}:\n{text}", markup=False)
    for line in [] if named else _others(services):
        common.console.print(line, markup=False)
    for entry in found:
        if entry.device is None:
            common.console.print(f"{entry.name} ({entry.origin}) does not load: {entry.problem}", markup=False)
        elif listed:
            for name, verdict in probe(entry.device).items():
                if not verdict.ok:
                    common.console.print(f"{entry.name} does not take {name}: {verdict.reason}", markup=False)


def _others(services: Sequence[str]) -> Iterator[str]:
    """What there is to know beside the devices that are candidates."""
    if profile() is None:
        yield f"\n{judgement.HINT}."
    candidates = discovery.candidates()
    if others := [name for name in discovery.engines() if name not in candidates]:
        yield f"\nUsed where they are named: {', '.join(others)} (nnhal devices -d {others[0]})."
    if services:
        yield f"services running: {', '.join(services)}"


def _row(device: Device) -> list[str]:
    own, stated = identity_of(device), capabilities_by(device)
    figures = [stated.of(t) for t in SHOWN]
    figures.insert(1, stated.of(OperandType.TENSOR_FLOAT32, relaxed=True))
    cells = ["-" if f is None else f"{f.exec_time:g} / {f.power_usage:g}" for f in figures]
    extensions = ", ".join(own.extensions) or "none"
    verdicts = probe(device).values()
    taken = f"{sum(v.ok for v in verdicts)} of {len(verdicts)}"
    return [own.name, own.type.name, own.version, str(own.level), taken, *cells, extensions]


def _facts(entry: Found, device: Device) -> Iterator[str]:
    """What is to be known of a device beside its row."""
    if measured := _measured(device):
        figures = ", ".join(f"{kind} {p.exec_time:.2g} / {p.power_usage:.2g}" for kind, p in measured.items())
        yield f"{entry.name}: measured on this machine: {figures}"
    for relaxation in identity_of(device).relaxations:
        yield f"{entry.name}: {RELAXATIONS.get(relaxation, relaxation)}"
    if layout := layout_of(device):
        yield f"{entry.name}: is given models in {layout}"
    yield from _forms(entry, device)
    for failure, current in _failures(device):
        operations = f"{len(failure.operations)} operations" if len(failure.operations) > 1 else "an operation"
        same = "until its version changes" if current else "with the same driver options, version and processor"
        again = f"not asked for them again {same}, or nnhal calibrate --forget"
        yield f"{device.name}: failed in {failure.phase} of {operations} that it had taken: {failure.why}; {again}"


def _failures(device: Device) -> list[tuple[KeptFailure, bool]]:
    """What the device failed at, and whether that was as it is now, without driver options."""
    here = key_of(device)
    identities = [judgement.identity_of(replace(here, isolation=where), {}) for where in ("none", "process")]
    asked = [identity for identity in identities if identity]
    return [(each, each.device in asked) for each in failures(asked, name=device.name)]


def _measured(device: Device) -> dict[str, Performance]:
    """What was measured of a device against the CPU reference, by kind of values."""
    known = profile()
    if known is None or device.name not in known.devices or discovery.CPU not in known.devices:
        return {}
    return known.devices[device.name].against(known.devices[discovery.CPU])


def _forms(entry: Found, device: Device) -> Iterator[str]:
    """Which forms of operations run, as far as there is a choice, and why no faster ones."""
    running: dict[str, list[str]] = defaultdict(list)
    unproved = 0
    for choice in _choices(device):
        if choice.found is None:
            unproved += 1
        elif choice.found.why:
            yield f"{device.name}: {choice.found.why}"
        else:
            running[choice.form or ""].append(f"{choice.operation} of {type_name(choice.type).removeprefix('TENSOR_')}")
    for form, operations in running.items():
        how = f"run in {form}" if form else f"{len(operations)} with one form"
        told = f": {', '.join(operations)}" if form else ""
        yield f"{device.name}: {how}, proved on this processor{told}"
    if unproved:
        what = entry.origin if is_path(entry.origin) else device.name
        exact = f"{unproved} operations run in their exact form"
        yield f"{device.name}: {exact}, not proved yet on this processor: nnhal prove {what}"


def _choices(device: Device) -> list[FormChoice]:
    """Where it knows several forms, or something was found."""
    return [choice for choice in choices_of(device) if len(choice.known) > 1 or choice.found is not None]


def _isolation(report: Confined) -> str:
    return report.problem or "\n".join(f"  {what:12} {how}" for what, how in report.applied.items())


def _document(entry: Found, report: Confined | None) -> dict[str, Any]:
    device = entry.device
    if device is None:
        return {"name": entry.name, "origin": entry.origin, "loads": False, "problem": entry.problem}
    own, stated = identity_of(device), capabilities_by(device)
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
