"""Every fault x the suites of `nnhal test` that have to catch it, and an application: what each says, as a table.

`python -m tests.suites.faulty` prints it, `--write` writes docs/contributing/faulty-drivers.md, a row as soon as it is
there: `--missing` goes on after an interrupt. Exit code 1 where a suite that has to catch a fault does not, a healthy driver
is blamed, or the application gets what it must not.
"""

import argparse
import logging
import os
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest import mock

from nnhal.base.brief import with_count
from nnhal.base.cores import usable_cores
from tests.conftest import DEFAULT_VECTORS
from tests.suites.faulty.application import COMPILE, Came, isolated
from tests.suites.faulty.driver.faults import Fault, healthy, table
from tests.suites.faulty.page import PAGE, Row, page, wrong
from tests.suites.faulty.suites import SUITES, results_of

SECOND = 1_000_000_000
STARTS = int(COMPILE * SECOND)  # that a driver's process may take to start, for the application


def row(fault: Fault, vectors: Path, also: Sequence[str]) -> Row:
    """What the suites say that have to catch a fault, and others until one has caught it; of a healthy driver, all."""
    wanted = [each for each in SUITES if not fault.seen_by or each in (*fault.seen_by, *also)]
    seen = results_of(wanted, fault, vectors)
    for name in SUITES:
        if name not in wanted and not any(each.caught for each in seen.values()):
            seen |= results_of([name], fault, vectors)
    made = Row(fault, {name: seen[name] for name in SUITES if name in seen}, None)
    print(made.text(), *wrong(made), sep="\n    ", flush=True)
    return made


def came_of(fault: Fault) -> Came:
    """The application over a fault, in a process of its own: the environment gives it its fault."""
    with (
        mock.patch("nnhal.ipc.client.session.GREETING_NS", STARTS),
        mock.patch("nnhal.ipc.client.session.QUERY_NS", STARTS),
    ):
        return isolated(fault)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.suites.faulty", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these faults")
    parser.add_argument("--missing", action="store_true", help="only faults without a row in the page")
    parser.add_argument("--also", nargs="+", default=[], choices=SUITES, help="these suites over each fault, too")
    parser.add_argument("--jobs", type=int, default=usable_cores(), help="suites that run at once")
    parser.add_argument("--write", action="store_true", help="write the rows into the page of faulty drivers")
    parser.add_argument("--vectors", type=Path, default=Path(os.environ.get("NNHAL_VECTORS", DEFAULT_VECTORS)))
    options = parser.parse_args()
    every = {each.name: each for each in (*healthy(), *table().values())}
    unknown = set(options.only) - set(every)
    if unknown:
        parser.error(f"there is no fault {', '.join(sorted(unknown))}, must be one of {', '.join(every)}")
    there = set(re.findall(r"^\| `(.+?)` \|", PAGE.read_text(), re.MULTILINE)) if options.missing else set()
    chosen = [every[name] for name in options.only or every if name not in there]
    logging.getLogger("nnhal").setLevel(logging.CRITICAL)
    begin, problems = time.monotonic(), list[str]()
    with ThreadPoolExecutor(options.jobs) as pool:
        made = {each.name: pool.submit(row, each, options.vectors, options.also) for each in chosen}
        for each in chosen:  # one application after the other, while suites run: it changes the environment
            came = came_of(each)
            whole = replace(made[each.name].result(), came=came)
            problems += wrong(whole)
            if options.write:
                PAGE.write_text(page([whole], PAGE.read_text(), list(every.values())))
    print("", *(problems or ["all is as it should be"]), with_count(len(chosen), "driver"), sep="\n")
    print(f"{time.monotonic() - begin:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
