"""Small changes of meaning, one at a time: `python -m tests.mutants [--room R] [--seed N ...] [--count N]`.

Each room's own tests are run once with coverage, which says what test runs which line; a change is then tried with the
tests that run its line, the quickest first. It is killed when one of them fails, or does not end. What no test can notice
stands in `equivalent.toml`, with the reason. Nothing is changed in place: the tests run in copies of the tree. Beside
every tenth change its tests run with nothing changed, and must pass: else what they killed proves nothing. The first few
tests of a change run by themselves: most changes are killed by those, and to collect hundreds takes longer.

While one writes tests: `--file src/nnhal/hal/fence.py tests/hal/test_fence.py`, the changes of one file by some tests.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from xml.etree import ElementTree

from coverage.numbits import numbits_to_nums

from nnhal.base.cores import usable_cores
from tests.mutants.sites import Site, sites

ROOT = Path(__file__).parents[2]
ROOMS = {
    "base": ["tests/base"],
    "ops": ["tests/ops"],
    "model": ["tests/model", "tests/frontends/test_builder.py", "tests/conformance/test_mutations.py"],
    "hal": ["tests/hal", "tests/contract"],
    "ipc": ["tests/ipc", "tests/matrix"],  # tests/faults, of several minutes, would kill more
    "drivers": ["tests/drivers", "tests/matrix"],
    "runtime": ["tests/runtime"],
    "frontends": ["tests/frontends"],
    "conformance": ["tests/conformance"],
    "zoo": ["tests/zoo"],
    "bench": ["tests/bench"],
    "cli": ["tests/cli"],
}
BUDGET = 60.0  # seconds that the tests of one change took together when nothing was changed
PATIENCE = 4.0  # times that, and a little: then it counts as hanging
START = 30.0
TEST = 30.0  # the same for a single test
FIRST = 12  # tests of a change that run by themselves
CONTROL = 10  # beside how many changes the tests run once with nothing changed
PYTEST = ["-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", "-q", "-m", "not slow"]


@dataclass(frozen=True)
class Coverage:
    """What test runs which line. lines: tests by file and line; seconds: how long each of the room's tests took."""

    lines: Mapping[tuple[str, int], frozenset[str]]
    seconds: Mapping[str, float]

    def tests_for(self, site: Site) -> list[str]:
        """The tests that run a site, the quickest first; where that is run at import, or by none, all of the room, those
        whose file names the module before the others. Behind them the others of their files, which may look at what those
        have made for all.
        """
        there = self.lines.get((str(site.path), site.line)) or frozenset(self.seconds)
        files = {_file(test) for test in there}
        naming = {file for file in files if _names(file, site.path)}
        chosen: list[str] = []
        spent = 0.0
        for test in sorted(
            (test for test in self.seconds.keys() | there if _file(test) in files),
            key=lambda test: (test not in there, _file(test) not in naming, self.seconds.get(test, 0.0), test),
        ):
            spent += self.seconds.get(test, 0.0)
            if spent > BUDGET and chosen:
                break
            chosen.append(test)
        return chosen


def _file(test: str) -> str:
    return test.partition("::")[0]


@cache
def _names(test: str, path: Path) -> bool:
    """Whether a file of tests imports the module."""
    package, module = ".".join(path.parent.parts[1:]), path.stem
    text = (ROOT / test).read_text()
    return re.search(rf"\b{re.escape(package)}(\.{module}| import ([\w, (]|\n)*\b{module})\b", text) is not None


def copied(into: Path) -> Path:
    """A copy of what the tests need, extensions that were built included."""
    listed = subprocess.check_output(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT)
    names = [name for name in listed.decode().split("\0") if name]
    built = [str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.so")]
    for name in [*names, *built]:
        if (ROOT / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into / name)
    return into


def pytest(tree: Path, arguments: Sequence[str], seconds: float | None) -> int:
    """Run the tests of a copy; the exit status, 124 where they did not end."""
    environment = os.environ | {
        "PYTHONPATH": str(tree / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NNHAL_VECTORS": os.environ.get("NNHAL_VECTORS", str(ROOT.parent / "shared" / "conformance")),
    }
    with subprocess.Popen(
        [sys.executable, *PYTEST, *arguments],
        cwd=tree,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def measured(room: str, tests: Sequence[str], tree: Path) -> Coverage:
    """Run a room's tests once, unchanged."""
    (tree / ".coveragerc").write_text("[run]\nsource = src\ndynamic_context = none\n[paths]\n")
    options = [f"--cov={tree / 'src' / 'nnhal' / room}", "--cov-context=test", "--cov-report=", "--junitxml=times.xml"]
    status = pytest(tree, ["-p", "tests.mutants.uninterrupted", *options, *tests], None)
    if status:
        raise SystemExit(f"{room}: its tests end with {status} when nothing is changed, must pass")
    seconds = {}
    for case in ElementTree.parse(tree / "times.xml").iter("testcase"):
        path = (case.get("classname") or "").replace(".", "/") + ".py"
        seconds[f"{path}::{case.get('name')}"] = float(case.get("time") or 0)
    lines: dict[tuple[str, int], set[str]] = defaultdict(set)
    with sqlite3.connect(tree / ".coverage") as found:
        query = (
            "select file.path, context.context, line_bits.numbits from line_bits join file on file.id = file_id "
            "join context on context.id = context_id where context.context != ''"
        )
        for path, context, bits in found.execute(query):
            name, test = str(Path(path).relative_to(tree)), context.rpartition("|")[0]
            for line in numbits_to_nums(bits):
                lines[name, line].add(test)
    return Coverage({key: frozenset(tests) for key, tests in lines.items()}, seconds)


def noticed(site: Site, tree: Path, coverage: Coverage, *, changed: bool = True) -> bool | None:
    """Whether a test of a change fails with it, or without it; None where no test runs its file."""
    tests = coverage.tests_for(site)
    if not tests:
        return None
    target = tree / site.path
    before = target.read_bytes()
    try:
        if changed:
            target.write_bytes(site.applied(before))
        return any(_failing(tree, some, coverage) for some in ([tests[:FIRST], tests] if changed else [tests]))
    finally:
        target.write_bytes(before)


def _failing(tree: Path, tests: Sequence[str], coverage: Coverage) -> bool:
    """Whether one of the tests fails, or takes far longer than it did."""
    seconds = [coverage.seconds.get(test, 0.0) for test in tests]
    limit = f"faulthandler_timeout={TEST + PATIENCE * max(seconds)}"
    options = ["-x", "-o", limit, "-o", "faulthandler_exit_on_timeout=true"]
    return pytest(tree, [*options, *tests], START + PATIENCE * sum(seconds)) != 0


def equivalent() -> list[dict[str, str]]:
    """Changes that no test can notice: file, the line's text, what stands there, what would, and why not."""
    listed: list[dict[str, str]] = tomllib.loads((Path(__file__).parent / "equivalent.toml").read_text())["change"]
    return listed


def is_equivalent(site: Site, line: str, known: Iterable[Mapping[str, str]]) -> bool:
    """Whether a site is one of those."""
    return any(
        entry["file"] == str(site.path)
        and entry["line"] == line.strip()
        and (entry.get("was", site.was), entry.get("text", site.text)) == (site.was, site.text)
        for entry in known
    )


def all_sites(room: str, files: Sequence[Path] = ()) -> list[Site]:
    """The changes of a room, or of some of its files, without those that no test can notice."""
    known, found = equivalent(), []
    for path in sorted((ROOT / "src" / "nnhal" / room).rglob("*.py")):
        if files and path not in files:
            continue
        source = path.read_bytes()
        text = source.decode().splitlines()
        here = sites(path.relative_to(ROOT), source)
        found += [site for site in here if not is_equivalent(site, text[site.line - 1], known)]
    return found


def drawn(found: Sequence[Site], room: str, count: int, seed: int) -> list[Site]:
    """A sample of a room's changes."""
    return random.Random(f"{room} {seed}").sample(found, min(count, len(found)))


@dataclass
class Trees:
    """Copies of the tree, one for each change that is tried at a time."""

    coverage: Coverage
    free: SimpleQueue[Path]

    def attempt(self, site: Site, *, control: bool) -> bool | None:
        """Try one change, and say what came of it."""
        tree = self.free.get()
        try:
            found = noticed(site, tree, self.coverage)
            if control and noticed(site, tree, self.coverage, changed=False):
                print(f"FLAKY     {site}: its tests fail with nothing changed", flush=True)
                found = False
        finally:
            self.free.put(tree)
        print(f"{'killed  ' if found else 'SURVIVED' if found is False else 'NO TEST '}  {site}", flush=True)
        return found

    def sample(self, tried: Sequence[Site], jobs: int) -> list[Site]:
        """Try changes; those that survived."""
        with ThreadPoolExecutor(jobs) as pool:
            controls = [n % CONTROL == CONTROL // 2 for n in range(len(tried))]
            results = list(pool.map(lambda site, control: self.attempt(site, control=control), tried, controls))
        return [site for site, found in zip(tried, results, strict=True) if not found]


def run(room: str, given: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Try samples of one room, one a seed; what survived."""
    with tempfile.TemporaryDirectory(prefix="nnhal-mutants-") as folder:
        free: SimpleQueue[Path] = SimpleQueue()
        for number in range(given.jobs):
            free.put(copied(Path(folder) / str(number)))
        first = free.get()
        start = time.monotonic()
        trees = Trees(measured(room, given.tests or ROOMS[room], first), free)
        free.put(first)
        print(f"{room}: its tests take {time.monotonic() - start:.0f} s with coverage", flush=True)
        found = all_sites(room, given.file)
        for seed in given.seed:
            tried = drawn(found, room, given.count, seed)
            left = trees.sample(tried, given.jobs)
            share = 1 - len(left) / max(1, len(tried))
            print(f"{room}, seed {seed}: {len(tried) - len(left)} of {len(tried)} killed, {share:.0%}\n", flush=True)
            yield {
                "room": room,
                "seed": seed,
                "sites": len(found),
                "tried": len(tried),
                "killed": len(tried) - len(left),
                "survived": [str(site) for site in left],
            }


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("tests", nargs="*", help="tests to judge by; all of the room by default")
    parser.add_argument("--room", choices=ROOMS, action="append", help="one of the rooms; all by default")
    parser.add_argument("--file", type=Path, action="append", help="changes of this file alone, which says the room")
    parser.add_argument("--seed", type=int, action="append", help="1 by default; each has a sample of its own")
    parser.add_argument("--count", type=int, default=40, help="changes of each room and seed")
    parser.add_argument("--jobs", type=int, default=usable_cores())
    parser.add_argument("--least", type=float, default=0.85, help="share that must be killed in every room")
    parser.add_argument("--json", type=Path, help="a file for what was found")
    given = parser.parse_args()
    given.file = [path.resolve() for path in given.file or ()]
    given.seed = given.seed or [1]
    rooms = given.room or list(ROOMS)
    if given.file:
        rooms = sorted({path.relative_to(ROOT / "src" / "nnhal").parts[0] for path in given.file})
    if given.tests and len(rooms) > 1:
        parser.error("tests are of one room: name it with --room or --file")
    found: list[dict[str, object]] = []
    for room in rooms:
        found += run(room, given)
        if given.json:
            given.json.write_text(json.dumps(found, indent=1))
    low = [f"{each['room']} (seed {each['seed']})" for each in found if _low(each, given.least)]
    print(f"below {given.least:.0%}: {', '.join(low) or 'none'}")
    return 1 if low else 0


def _low(found: Mapping[str, object], least: float) -> bool:
    return int(str(found["killed"])) < least * int(str(found["tried"]))


if __name__ == "__main__":
    sys.exit(main())
