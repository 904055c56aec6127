"""`nnhal verify`: verifies the kernel variants of a device on this processor."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from nnhal.base.codes import type_name
from nnhal.base.names import is_path, suggestion
from nnhal.cli import common
from nnhal.cli.command import command as nnhal_command
from nnhal.cli.judged import run_with_progress, timeout_option
from nnhal.cli.main import ANSWER_NO
from nnhal.conformance.device_under_test import Subject
from nnhal.conformance.proving.run import ProofOutcome, found_by, keep, run_proofs, variants_to_prove
from nnhal.hal.choices import Proved, VariantChoice
from nnhal.hal.device import Device
from nnhal.hal.proofs import require_writable
from nnhal.ops import OPS
from nnhal.runtime import discovery


@nnhal_command("verify", formerly={"--every": "--all-operations", "--missing": "--only-new"})
@click.argument("devices", nargs=-1, metavar="[DEVICE]...")
@click.option("--all-operations", "every", is_flag=True, help="Verify operations with one kernel variant too.")
@click.option("--only-new", "missing", is_flag=True, help="Verify only what was not verified before.")
@click.option("--operation", "operations", multiple=True, help="Verify only this operation; may be repeated.")
@timeout_option("Time until a call of the driver counts as hung.")
@common.jobs_option("Processes at once.")
@common.json_option
def command(
    devices: tuple[str, ...],
    every: bool,
    missing: bool,
    operations: tuple[str, ...],
    timeout: float,
    jobs: int,
    as_json: bool,
) -> int:
    """Verify fast kernels on this CPU and enable those that pass.

    DEVICE is a name, or the file or package of a driver (default: all devices with several kernel variants). Each variant
    runs on hard inputs, and the fastest correct one is used from then on. Until then, the device uses its reference
    kernels. The exit code is 1 if an operation has no correct kernel.
    """
    documents, lost = [], False
    for device, subject in _subjects(devices, timeout):
        choices = _chosen(variants_to_prove(device, every=every), operations)
        if missing and not (choices := [choice for choice in choices if choice.found is None]):
            continue
        if choices:
            require_writable()
        proofs = run_proofs(subject, choices, jobs)
        outcomes: list[ProofOutcome] = run_with_progress(proofs, "kernels", "kernels of", device.name, as_json)
        found = found_by(outcomes, choices)
        if found:
            keep(device, found)
        lost |= any(proved.form is None for proved in found.values())
        if as_json:
            documents.append(_document(device, choices, found, outcomes))
        else:
            _print(device, found, outcomes, choices)
    if as_json:
        common.print_json(documents)
    elif not devices and not any(variants_to_prove(each, every=every) for each in _every()):
        common.console.print("no device has several kernel variants of an operation: nothing to verify")
    return ANSWER_NO if lost else 0


def _every() -> list[Device]:
    return [entry.device for entry in discovery.found_with_engines() if entry.device is not None]


def _chosen(choices: Sequence[VariantChoice], operations: Sequence[str]) -> Sequence[VariantChoice]:
    """Returns the choices of `operations`, or all if it is empty; BadParameter for an unknown operation."""
    wanted = {name.upper() for name in operations}
    for name in wanted:
        if name not in OPS:
            raise click.BadParameter(f"there is no operation {name!r}{suggestion(name, OPS)}", param_hint="--operation")
    return [choice for choice in choices if not wanted or choice.operation in wanted]


def _subjects(names: Sequence[str], timeout: float) -> list[tuple[Device, Subject]]:
    """Returns the devices, and how a separate process loads each."""
    if not names:
        known = [each for each in _every() if variants_to_prove(each)]
        return [(each, Subject(device=each.name, timeout=timeout)) for each in known]
    found = []
    for name in dict.fromkeys(names):
        by_path = is_path(name) or Path(name).exists()
        device = discovery.load_driver(name) if by_path else discovery.load_one(name)
        paths = (name,) if by_path else ()
        found.append((device, Subject(device=device.name if by_path else name, drivers=paths, timeout=timeout)))
    return found


def _print(
    device: Device,
    found: Mapping[tuple[str, int], Proved],
    outcomes: Sequence[ProofOutcome],
    choices: Sequence[VariantChoice],
) -> None:
    rows = [
        [name, type_name(kind), "none" if proved.form is None else proved.form, proved.why]
        for (name, kind), proved in found.items()
        if proved.form != ""
    ]
    if rows:
        common.table(["operation", "type", "kernel variant", "why no faster one"], rows, title=device.name)
    spent = sum(outcome.nanoseconds for outcome in outcomes) / 1e9
    untried = len(choices) - len(found)
    told = f"; {untried} not tried: it rejects all calls" if untried else ""
    told = told if choices else "; it has one kernel variant of each operation: --all-operations verifies those"
    common.console.print(f"device {device.name}: {len(found)} verified{told}, {spent:.1f} s", markup=False)


def _document(
    device: Device,
    choices: Sequence[VariantChoice],
    found: Mapping[tuple[str, int], Proved],
    outcomes: Sequence[ProofOutcome],
) -> dict[str, Any]:
    tried: dict[tuple[str, int], list[ProofOutcome]] = defaultdict(list)
    for outcome in outcomes:
        tried[outcome.operation, outcome.type].append(outcome)
    rows = []
    for choice in choices:
        key = choice.operation, choice.type
        proved = found.get(key)
        rows.append(
            {
                "operation": choice.operation,
                "type": type_name(choice.type),
                "known": list(choice.known),
                "proved": proved is not None,
                "form": choice.known[-1] if proved is None else proved.form,
                "why": "" if proved is None else proved.why,
                "tried": [
                    {
                        "form": o.form,
                        "verdict": o.verdict,
                        "reason": o.reason,
                        "detail": o.detail,
                        "time_ns": o.nanoseconds,
                    }
                    for o in tried[key]
                ],
            }
        )
    return {"device": device.name, "version": device.version, "operations": rows}
