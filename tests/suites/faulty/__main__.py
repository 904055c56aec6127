"""Every fault x `conformance` and `validate` x in process and isolated, and an application: what each says, as a table.

`python -m tests.suites.faulty` prints it, `--write` writes docs/contributing/faulty-drivers.md. Exit code 1
where a suite that has to catch a fault does not, a healthy driver is blamed, or the application gets what it must not.
"""

import argparse
import logging
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

from nnhal.base.cores import usable_cores
from tests.conftest import DEFAULT_VECTORS
from tests.suites.faulty.application import Came, isolated
from tests.suites.faulty.driver.faults import Fault, healthy, table
from tests.suites.faulty.page import PAGE, Row, page, with_rows, wrong
from tests.suites.faulty.suites import SUITES, Seen

SECOND = 1_000_000_000
STARTS = 10 * SECOND  # that a driver's process may take to start, for the application


def row(fault: Fault, vectors: Path) -> Row:
    """All that is said of one fault."""
    seen: dict[tuple[str, bool], Seen] = {
        (name, isolate): suite(fault, vectors, isolate) for name, suite in SUITES.items() for isolate in (False, True)
    }
    made = Row(fault, seen, None)
    print(made.text(), *wrong(made), sep="\n    ", flush=True)
    return made


def applications(faults: list[Fault]) -> dict[str, Came]:
    """The application over each, in processes of their own, one after the other: the environment gives them their faults."""
    with (
        mock.patch("nnhal.ipc.client.session.GREETING_NS", STARTS),
        mock.patch("nnhal.ipc.client.session.QUERY_NS", STARTS),
    ):
        return {fault.name: isolated(fault) for fault in faults}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.suites.faulty", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these faults")
    parser.add_argument("--jobs", type=int, default=usable_cores(), help="suites that run at once")
    parser.add_argument("--write", action="store_true", help="write the page of faulty drivers, or those rows of it")
    parser.add_argument("--vectors", type=Path, default=Path(os.environ.get("NNHAL_VECTORS", DEFAULT_VECTORS)))
    options = parser.parse_args()
    every = {each.name: each for each in (*healthy(), *table().values())}
    unknown = set(options.only) - set(every)
    if unknown:
        parser.error(f"there is no fault {', '.join(sorted(unknown))}, must be one of {', '.join(every)}")
    chosen = [every[name] for name in options.only or every]
    logging.getLogger("nnhal").setLevel(logging.CRITICAL)
    begin = time.monotonic()
    slowest_first = sorted(chosen, key=lambda fault: not fault.hangs)
    with ThreadPoolExecutor(options.jobs) as pool:
        made = {each.name: pool.submit(row, each, options.vectors) for each in slowest_first}
        came = applications(chosen)
        rows = [Row(each, made[each.name].result().seen, came[each.name]) for each in chosen]
    spent = time.monotonic() - begin
    print("", *(each.text() for each in rows), sep="\n")
    problems = [problem for each in rows for problem in wrong(each)]
    print("", *(problems or ["all is as it should be"]), f"{len(rows)} drivers, {spent:.0f} s", sep="\n")
    if options.write:
        every_one = [*every.values()]
        PAGE.write_text(with_rows(PAGE.read_text(), rows, every_one) if options.only else page(rows, spent))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
