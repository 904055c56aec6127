"""A model checker's view of the IPC boundary: real code of client and service, simulated threads, kernel and clock.

python -m tests.nightly.simulate --steps 1000000 [--seed S]: random runs until so many steps are done; exit status 1 and the
seed of the run where an invariant breaks. `--seed S --runs 1` replays one.
"""

import argparse
import random
import sys
import time
from collections import Counter

from tests.nightly.simulation.stage import Changes, staged, stepped
from tests.nightly.simulation.workload import Run


def simulate(
    steps: int, seed: int, runs: int | None = None, show: bool = False, history: int = 60, changes: Changes = ()
) -> tuple[Counter[str], str]:
    """Run until so many steps, or runs, are done; what happened, and the report of the first violation, if any."""
    counts: Counter[str] = Counter()
    began = shown = time.monotonic()
    with staged(), stepped(changes):
        number = 0
        while counts["steps"] < steps and (runs is None or number < runs):
            run = Run(seed + number, number)
            failure = run.go()
            counts += run.world.counts
            counts["steps"] += run.world.steps
            counts["runs"] += 1
            number += 1
            if failure:
                return counts, run.report(history)
            if show and time.monotonic() - shown > 5:
                shown = time.monotonic()
                pace = counts["steps"] / (shown - began)
                print(
                    f"{counts['steps']:>12,} of {steps:,} steps, {counts['runs']} runs, {pace:,.0f} a second",
                    flush=True,
                )
    return counts, ""


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--runs", type=int, help="no more runs than that; 1 with a seed replays it")
    parser.add_argument("--history", type=int, default=60, help="steps to show of a violation")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    print(f"seed {seed}")
    began = time.monotonic()
    counts, report = simulate(options.steps, seed, options.runs, True, options.history)
    for what, count in sorted(counts.items()):
        print(f"{count:>12,}  {what}")
    if report:
        again = f"python -m tests.nightly.simulate --runs 1 --seed {report.split(',')[0].split()[1]}"
        print(f"\nVIOLATION: {report}\nreplay: {again}")
        return 1
    print(f"no violation in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
