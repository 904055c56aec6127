"""`nnhal conformance`: runs test vectors on a device and counts the results by operation."""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import click

from nnhal.base.brief import duration
from nnhal.base.names import suggestion
from nnhal.base.time import NS
from nnhal.cli import common
from nnhal.cli.command import command as nnhal_command
from nnhal.cli.judged import count_verdicts, run_with_progress, timeout_option
from nnhal.cli.main import ANSWER_NO
from nnhal.cli.vectors import specs_type, temporary
from nnhal.conformance.parallel import run_vectors
from nnhal.conformance.report import BEFORE, Group, grouped, repeats
from nnhal.conformance.repro import write as write_repro
from nnhal.conformance.selection import Selection
from nnhal.conformance.subject import ANY
from nnhal.conformance.suite import VERDICTS, Outcome
from nnhal.conformance.vectors import index
from nnhal.conformance.ways import WAYS

SHOWN = 20
LINE = 400  # characters of a reason in one line


@nnhal_command("conformance", formerly={"--way": "--execution-path", "--share": "--sample"})
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path), required=False)
@click.option("--specs", type=specs_type, help="Run AOSP's test specifications in this folder, instead of vectors.")
@click.option("--device", "-d", default="", help="Device under test (default: that of --driver, else reference).")
@common.driver_option
@common.option_option
@click.option("--operation", "operations", multiple=True, help="Run only vectors of this operation; may be repeated.")
@click.option("--filter", "pattern", default="", metavar="REGEX", help="Run only vectors whose id matches.")
@click.option("--published-only", is_flag=True, help="Leave out the variants that nnhal derives from vectors.")
@click.option(
    "--execution-path",
    "way",
    type=click.Choice(list(WAYS)),
    default="plain",
    show_default=True,
    help="How the driver executes a vector.",
)
@common.isolate_option
@click.option("--level", default="", metavar="VERSION", help="Test the device at this HAL version: 1.0 to 1.3.")
@click.option(
    "--sample", "share", default=1.0, show_default=True, help="Run this share of the vectors, chosen by a hash."
)
@click.option("--flag", default="", help="Run only vectors with this flag, such as deviceMemory.")
@timeout_option("Time until a vector counts as hung.")
@common.jobs_option("Processes that run vectors at once.")
@click.option("--all-failures", is_flag=True, help=f"Print every failure (default: {SHOWN} groups of similar ones).")
@click.option(
    "--repro",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the first vector of each group of failures here.",
)
@common.json_option
def command(path: Path | None, specs: Path | None, jobs: int, as_json: bool, **options: Any) -> int:
    """Run test vectors on a device.

    PATH is the folder of the vectors. The exit code is 1 if a vector fails, crashes or hangs.
    """
    if specs is None and path is not None:
        return _run(path, None, jobs, as_json, **options)
    if specs is None or path is not None:
        raise click.UsageError("give a folder of test vectors or --specs, and not both")
    with temporary(specs, jobs, as_json) as (folder, built):
        return _run(folder, specs, jobs, as_json, **options) or (ANSWER_NO if built.errors else 0)


def _run(
    path: Path,
    specs: Path | None,
    jobs: int,
    as_json: bool,
    all_failures: bool,
    repro: Path | None,
    **options: Any,
) -> int:
    wanted = frozenset(o.upper() for o in options["operations"])
    entries = index(path).values()
    _known("operation", wanted, {entry["primary"] for entry in entries if entry.get("primary")})
    _known("flag", {options["flag"]} - {""}, {flag for entry in entries for flag in entry.get("flags", ())})
    selection = Selection(
        path,
        specs=specs,
        device=options["device"],
        drivers=options["drivers"],
        pattern=options["pattern"],
        operations=wanted,
        rerun=not options["published_only"],
        way=options["way"],
        isolate=options["isolate"],
        level=options["level"],
        share=options["share"],
        flag=options["flag"],
        timeout=options["timeout"],
        outputs=repro is not None,
        options=common.parse_options(options["driver_options"], None, options["device"] or ANY),
    )
    ran = run_with_progress(run_vectors(selection, jobs), "vectors", "vectors on", selection.device, as_json)
    outcomes, calls, device = ran.outcomes, ran.calls, ran.device
    if not outcomes:
        raise click.UsageError(f"no vector under {specs or path} is among those asked for, must be at least one")
    groups = grouped(outcomes)
    folders = [write_repro(repro, selection, group.first) for group in groups] if repro is not None else []
    if as_json:
        _json(device, selection, outcomes, groups, folders, calls)
    else:
        _print(device, selection, outcomes, groups, folders, all_failures)
        if calls:
            listed = ", ".join(f"{name} {number}" for name, number in sorted(calls.items()))
            common.console.print(f"methods called: {listed}", markup=False)
    return ANSWER_NO if groups else 0


def _known(what: str, names: Collection[str], known: Collection[str]) -> None:
    """Raises UsageError with similar names if there are no vectors of one of `names`."""
    for name in sorted(set(names) - set(known)):
        like = suggestion(name, known) or f", must be one of {', '.join(sorted(known))}"
        raise click.UsageError(f"{what} {name!r}: the index has no vector of it{like}")


def count(outcomes: Sequence[Outcome]) -> dict[str, Counter[str]]:
    """Counts verdicts by primary operation."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        counts[outcome.primary][outcome.verdict] += 1
    return dict(sorted(counts.items()))


def _json(
    device: str,
    selection: Selection,
    outcomes: Sequence[Outcome],
    groups: Sequence[Group],
    folders: Sequence[Path],
    calls: Counter[str],
) -> None:
    slowest = max(outcomes, key=lambda o: o.nanoseconds)
    failures = sorted((o for group in groups for o in group.outcomes), key=lambda o: (o.id, o.variant))
    common.print_json(
        {
            "device": device,
            "totals": count_verdicts(outcomes, VERDICTS),
            "operations": {op: {v: c[v] for v in VERDICTS} for op, c in count(outcomes).items()},
            "failures": [
                {
                    "id": o.id,
                    "variant": o.variant,
                    "verdict": o.verdict,
                    "reason": o.reason,
                    "hint": o.hint,
                    "alone": o.alone,
                    "before": list(o.before),
                }
                for o in failures
            ],
            "groups": [
                {
                    "operation": group.operation,
                    "verdict": group.verdict,
                    "reason": group.first.reason,
                    "hint": group.hint,
                    "count": len(group.outcomes),
                    "repeat": repeats(selection, group.first),
                    **({"repro": str(folders[n])} if folders else {}),
                }
                for n, group in enumerate(groups)
            ],
            "calls": dict(calls),
            "slowest": {"id": slowest.id, "time_ns": slowest.nanoseconds},
        }
    )


def _print(
    device: str,
    selection: Selection,
    outcomes: Sequence[Outcome],
    groups: Sequence[Group],
    folders: Sequence[Path],
    every: bool,
) -> None:
    rows = [[op, *(c[v] or "" for v in VERDICTS)] for op, c in count(outcomes).items()]
    found = count_verdicts(outcomes, VERDICTS)
    common.table(
        ["operation", *(f">{v}" for v in VERDICTS)], [*rows, ["all", *found.values()]], title=f"device {device}"
    )
    for n, group in enumerate(groups if every else groups[:SHOWN]):
        hint = f" ({group.hint})" if group.hint else ""
        reason = group.first.reason if len(group.first.reason) <= LINE else f"{group.first.reason[:LINE]} ..."
        many = len(group.outcomes)
        common.console.print(f"{group.verdict.upper()} {many} {group.operation}: {reason}{hint}", markup=False)
        for outcome in group.outcomes if every else ():
            variant = f" ({outcome.variant})" if outcome.variant else ""
            common.console.print(f"    {outcome.id}{variant}: {outcome.reason}", markup=False)
        if group.first.before:
            ran = group.first.before
            some = f"the last of {len(ran)}: " if len(ran) > BEFORE else ""
            text = f"    ran before in that process: {some}{', '.join(ran[-BEFORE:])}"
            common.console.print(text, markup=False)
        common.console.print(f"    {repeats(selection, group.first)}", markup=False)
        if folders:
            common.console.print(f"    {folders[n]}", markup=False)
    if not every and len(groups) > SHOWN:
        common.console.print(f"... and {len(groups) - SHOWN} more such groups: --all-failures")
    reasons = Counter(o.reason for o in outcomes if o.verdict == "unsupported")
    for reason, number in reasons.most_common(SHOWN):
        common.console.print(f"unsupported {number}: {reason}", markup=False)
    slowest = max(outcomes, key=lambda o: o.nanoseconds)
    common.console.print(f"slowest: {slowest.id}, {duration(slowest.nanoseconds / NS)}", markup=False)
