"""`nnhal validate`: checks the driver contract, operation by operation."""

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from nnhal.base.names import is_path, printable
from nnhal.cli import common
from nnhal.cli.command import command as nnhal_command
from nnhal.cli.judged import RunResult, count_verdicts, run_with_progress, timeout_option
from nnhal.cli.main import ANSWER_NO
from nnhal.conformance.subject import ANY
from nnhal.conformance.suite import BAD
from nnhal.conformance.validate.check import CHECKS, VERDICTS, CheckOutcome
from nnhal.conformance.validate.run import DRAWS, Validation, repeats_check, run_checks

LINE = 400  # characters of a reason in one line
_WORDS = "; its last words:"  # the line has the place already
_SHORT = {"failed": "FAIL", "crashed": "CRASH", "hung": "HANG"}


@nnhal_command("validate", formerly={"--draws": "--samples"})
@click.argument("driver", default="")
@click.option("--device", "-d", default="", help="Device under test (default: that of DRIVER).")
@common.option_option
@click.option(
    "--only",
    multiple=True,
    metavar="CHECK[/OPERATION]",
    help="Run only this check (of one operation); may be repeated.",
)
@common.isolate_option
@click.option("--level", default="", metavar="VERSION", help="Check the device at this HAL version: 1.0 to 1.3.")
@click.option(
    "--samples", "draws", type=click.IntRange(1), default=DRAWS, show_default=True, help="Calls of each kind."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random calls.")
@timeout_option("Time until a call of the driver counts as hung.")
@click.option(
    "--sample",
    default=1.0,
    show_default=True,
    metavar="FRACTION",
    help="Run this share of the checks, chosen by a hash.",
)
@common.jobs_option("Processes that check at once; more than cores if the driver waits for a device.")
@click.option("--list", "as_list", is_flag=True, help="List the checks and run none.")
@common.json_option
def command(driver: str, jobs: int, as_list: bool, as_json: bool, **options: Any) -> int:
    """Check a driver against the driver contract.

    DRIVER is a file or package under development, or the name of an installed driver. The exit code is 1 if a check fails,
    crashes or hangs.
    """
    if as_list:
        return _list(as_json)
    if not driver:
        raise click.UsageError("DRIVER is missing, must be a file, a package, or the name of an installed device")
    by_path = is_path(driver) or Path(driver).exists()
    chosen = Validation(
        device=options["device"] if by_path else options["device"] or driver,
        drivers=(driver,) if by_path else (),
        isolate=options["isolate"],
        level=options["level"],
        timeout=options["timeout"],
        options=common.parse_options(options["driver_options"], None, options["device"] or ANY),
        only=options["only"],
        seed=options["seed"],
        draws=options["draws"],
        sample=options["sample"],
    )
    begin = time.monotonic_ns()
    failed = (lambda outcome: None) if as_json else partial(_print_bad, chosen)
    ran = run_with_progress(run_checks(chosen, jobs), "checks", "checks of", chosen.device, as_json, failed)
    outcomes: list[CheckOutcome] = ran.outcomes
    bad = sorted((o for o in outcomes if o.verdict in BAD), key=lambda o: (o.operation, list(CHECKS).index(o.check)))
    asked = [o for o in outcomes if chosen.takes(o.check, o.operation)]  # `extensions` runs for what it finds, too
    if not ran.interrupted and not any(o.verdict not in ("unsupported", "skipped") for o in asked):
        raise click.UsageError(_nothing(chosen, asked))
    show = _json if as_json else _print
    show(chosen, ran, bad, time.monotonic_ns() - begin)
    if ran.interrupted:
        raise click.Abort
    return ANSWER_NO if bad else 0


def _nothing(chosen: Validation, outcomes: Sequence[CheckOutcome]) -> str:
    asked = ", ".join(chosen.only) or "all checks"
    reasons = Counter(o.reason for o in outcomes).most_common(1)
    return f"nothing was checked by {asked}" + (
        f": {reasons[0][0]}" if reasons else ", must name an operation there is"
    )


def _list(as_json: bool) -> int:
    if as_json:
        common.print_json(
            [{"check": each.name, "promise": each.promise, "needs": list(each.needs)} for each in CHECKS.values()]
        )
    else:
        common.table(["check", "promise"], [[each.name, each.promise] for each in CHECKS.values()])
    return 0


def _json(chosen: Validation, ran: RunResult, bad: Sequence[CheckOutcome], spent: int) -> None:
    outcomes: Sequence[CheckOutcome] = ran.outcomes
    operations: dict[str, Counter[str]] = defaultdict(Counter)
    taken = {o.operation for o in outcomes if o.verdict != "unsupported"}  # one check of it may still be unsupported
    outcomes = [o for o in outcomes if o.verdict != "unsupported" or o.operation not in taken]
    for outcome in outcomes:
        if outcome.operation and outcome.verdict != "unsupported":
            operations[outcome.operation][outcome.verdict] += 1
    common.print_json(
        {
            "device": ran.device,
            "seed": chosen.seed,
            "totals": count_verdicts(outcomes, VERDICTS),
            "operations": {name: {v: c[v] for v in VERDICTS[:-1]} for name, c in sorted(operations.items())},
            "failures": [
                {
                    "check": o.check,
                    "operation": o.operation,
                    "verdict": o.verdict,
                    "reason": o.reason,
                    "place": o.place,
                    "repeat": repeats_check(chosen, o),
                }
                for o in bad
            ],
            "skipped": [
                {"check": o.check, "operation": o.operation, "reason": o.reason}
                for o in outcomes
                if o.verdict == "skipped"
            ],
            "unsupported": {o.operation: o.reason for o in outcomes if o.verdict == "unsupported"},
            "time_ns": spent,
            "interrupted": ran.interrupted,
        }
    )


def _print_bad(chosen: Validation, outcome: CheckOutcome) -> None:
    """Prints a line for a check that failed."""
    reason = outcome.reason.partition(_WORDS)[0] if outcome.place else outcome.reason
    reason = " ".join((reason if len(reason) <= LINE else f"{reason[:LINE]} ...").split())
    what = _SHORT[outcome.verdict], outcome.check, outcome.operation
    words = *what, reason, outcome.place, repeats_check(chosen, outcome)
    # A rich console keeps a line that a Ctrl-C interrupts as it is written, and prints it again.
    click.echo(printable("  ".join(word for word in words if word)))


def _print(chosen: Validation, ran: RunResult, bad: Sequence[CheckOutcome], spent: int) -> None:
    outcomes: Sequence[CheckOutcome] = ran.outcomes
    skipped = Counter(o.reason for o in outcomes if o.verdict == "skipped")
    for reason, number in sorted(skipped.items(), key=lambda each: (-each[1], each[0])):
        common.console.print(f"skipped {number}: {reason}", markup=False)
    found = count_verdicts(outcomes, VERDICTS)
    told = ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS[:-1] if found[verdict]) or "nothing checked"
    operations = {o.operation for o in outcomes if o.operation and o.verdict != "unsupported"}
    many = f"{len(operations)} operation{'s' * (len(operations) != 1)}"
    rest = f"; interrupted, at least {ran.interrupted:,} checks left out" if ran.interrupted else ""
    common.console.print(f"device {ran.device}: {told}; {many}, {spent / 1e9:.1f} s{rest}", markup=False)
