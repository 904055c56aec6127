"""`nnhal conformance`: published test vectors on a device, counted by operation."""

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from nnhal.cli import common
from nnhal.cli.main import ANSWER_NO
from nnhal.conformance.parallel import Selection, run_all
from nnhal.conformance.suite import Outcome
from nnhal.conformance.ways import WAYS
from nnhal.runtime import discovery

VERDICTS = ("passed", "failed", "unsupported", "skipped")
SHOWN = 20


@click.command("conformance")
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--device", "-d", default=discovery.CPU, show_default=True, help="The device under test.")
@common.driver_option
@click.option(
    "--operation", "operations", multiple=True, help="Only vectors of this primary operation; may be repeated."
)
@click.option("--filter", "pattern", default="", help="Only vectors whose id matches this regular expression.")
@click.option(
    "--published-only", is_flag=True, help="Leave out the re-runs (dynamic output shapes, signed quantised types)."
)
@click.option(
    "--way",
    type=click.Choice(list(WAYS)),
    default="plain",
    show_default=True,
    help="How the driver is made to execute.",
)
@common.isolate_option
@click.option("--level", default="", help="The device at this lower HAL level: 1.0 to 1.3.")
@click.option("--share", default=1.0, help="The part of all vectors to run, chosen by a hash of the id.")
@click.option("--flag", default="", help="Only vectors that have this flag in the index, such as deviceMemory.")
@click.option("--jobs", type=click.IntRange(1), default=len(os.sched_getaffinity(0)), show_default=True)
@click.option("--all-failures", is_flag=True, help=f"Print every failure, not only the first {SHOWN}.")
@common.json_option
def command(path: Path, device: str, drivers: tuple[str, ...], jobs: int, **options: Any) -> int:
    """Run the test vectors in the folder PATH on a device. Exit code 1 where one fails."""
    names = common.load_drivers(drivers, ())
    if names and device == discovery.CPU:
        device = names[0]
    if not options["isolate"]:
        discovery.select([device])
    wanted = frozenset(o.upper() for o in options["operations"])
    selection = Selection(
        path,
        device,
        drivers,
        options["pattern"],
        wanted,
        not options["published_only"],
        options["way"],
        options["isolate"],
        options["level"],
        options["share"],
        options["flag"],
    )
    outcomes: list[Outcome] = []
    calls: Counter[str] = Counter()
    with closing(run_all(selection, jobs)) as tasks, common.progress(options["as_json"]) as bar:
        task = bar.add_task(f"vectors on {device}", total=None)
        for some, done, total in tasks:
            outcomes += some.outcomes
            calls += some.calls
            bar.update(task, completed=done, total=total)
    if not outcomes:
        raise click.UsageError(f"no vector under {path} is among those asked for, must be at least one")
    counts = count(outcomes)
    failures = sorted((o for o in outcomes if o.verdict == "failed"), key=lambda o: (o.id, o.variant))
    if options["as_json"]:
        _json(device, counts, outcomes, failures, calls)
    else:
        _print(device, counts, outcomes, failures, None if options["all_failures"] else SHOWN)
        if calls:
            listed = ", ".join(f"{name} {number}" for name, number in sorted(calls.items()))
            common.console.print(f"methods called: {listed}", markup=False)
    return ANSWER_NO if failures else 0


def count(outcomes: Sequence[Outcome]) -> dict[str, Counter[str]]:
    """Verdicts by primary operation. Nothing is ever skipped; the column says so."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        counts[outcome.primary][outcome.verdict] += 1
    return dict(sorted(counts.items()))


def _totals(outcomes: Sequence[Outcome]) -> dict[str, int]:
    found = Counter(outcome.verdict for outcome in outcomes)
    return {verdict: found[verdict] for verdict in VERDICTS}


def _json(
    device: str,
    counts: dict[str, Counter[str]],
    outcomes: Sequence[Outcome],
    failures: Sequence[Outcome],
    calls: Counter[str],
) -> None:
    slowest = max(outcomes, key=lambda o: o.nanoseconds, default=None)
    common.emit(
        {
            "device": device,
            "totals": _totals(outcomes),
            "operations": {op: {v: c[v] for v in VERDICTS} for op, c in counts.items()},
            "failures": [{"id": o.id, "variant": o.variant, "reason": o.reason} for o in failures],
            "calls": dict(calls),
            "slowest": {"id": slowest.id, "time_ns": slowest.nanoseconds} if slowest else None,
        }
    )


def _print(
    device: str,
    counts: dict[str, Counter[str]],
    outcomes: Sequence[Outcome],
    failures: Sequence[Outcome],
    shown: int | None,
) -> None:
    rows = [[op, *(c[v] or "" for v in VERDICTS)] for op, c in counts.items()]
    totals = _totals(outcomes)
    common.table(
        ["operation", *(f">{v}" for v in VERDICTS)], [*rows, ["all", *totals.values()]], title=f"device {device}"
    )
    for outcome in failures[:shown]:
        variant = f" ({outcome.variant})" if outcome.variant else ""
        common.console.print(f"FAILED {outcome.id}{variant}: {outcome.reason}", markup=False)
    if shown is not None and len(failures) > shown:
        common.console.print(f"... and {len(failures) - shown} more: --all-failures")
    reasons = Counter(o.reason for o in outcomes if o.verdict == "unsupported")
    for reason, number in reasons.most_common(SHOWN):
        common.console.print(f"unsupported {number}: {reason}", markup=False)
    if outcomes:
        slowest = max(outcomes, key=lambda o: o.nanoseconds)
        common.console.print(f"slowest: {slowest.id}, {common.milliseconds(slowest.nanoseconds)}", markup=False)
