"""nnhal's transport against others: an echo of 200 bytes from a client process to a server process and back.

    python benchmarks/transport.py [--placement one|two|free] [--rounds N] [--slice N] [--base LABEL] [--quick]
                                   [--json]

Contenders are interleaved in short slices; ratios are medians of slices paired by round, with a 95 % bootstrap interval.
What is not installed is a row that says so: `pip install 'nnhal[peers]'` brings all of them, the floors in C need gcc.
The last line is JSON.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from transport_peers import capnp_peer, grpc_peer, iceoryx2_peer, isolated, native, nnhal_peer, seqpacket_msgspec
from transport_peers.contest import US, Results, contest, table
from transport_peers.figures import named
from transport_peers.peer import Peer, Placement, placements

BASE = "seqpacket in C, block"
SOURCES = (nnhal_peer, native, seqpacket_msgspec, grpc_peer, capnp_peer, iceoryx2_peer)
ROUNDS, SLICE = 40, 300
QUICK_ROUNDS, QUICK_SLICE = 8, 100
PAIRS, QUICK_PAIRS = 300, 30  # of executions of a real model


def contenders() -> list[Peer]:
    """A fresh one of each."""
    return [peer for source in SOURCES for peer in source.peers()]


def pin_all_threads(placement: Placement, allowed: set[int]) -> None:
    """Move every thread of this process: libraries keep theirs from one placement to the next."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), placement.client or allowed)


def measure(names: list[str], rounds: int, count: int) -> dict[str, Results]:
    """The contest under each placement."""
    allowed, known = os.sched_getaffinity(0), placements()
    found = {}
    for name in names:
        pin_all_threads(known[name], allowed)
        try:
            found[name] = contest(contenders(), known[name], rounds, count, progress)
        finally:
            pin_all_threads(known["free"], allowed)
    return found


def progress(line: str) -> None:
    print(f"\r{line:60}", end="", file=sys.stderr, flush=True)


def as_json(results: Results, base: str) -> dict[str, object]:
    """Microseconds and ratios by contender."""
    return {
        row.label: {"missing": row.missing}
        if row.missing
        else {
            "median_us": round(row.median / US, 3),
            "p10_us": round(row.low / US, 3),
            "p90_us": round(row.high / US, 3),
            "ratio": (found := results.ratio(row.label, base)) and asdict(found),
            **row.facts,
        }
        for row in results.rows
    }


def main() -> int:
    known = placements()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--placement", choices=sorted(known), action="append", help="only this one; may be repeated")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--slice", type=int, default=SLICE, help="round trips of a contender in each round")
    parser.add_argument("--base", default=BASE, metavar="LABEL", help="what the tables' ratios are to")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds of {QUICK_SLICE}: for a look only")
    parser.add_argument("--json", action="store_true", help="print the last line only")
    arguments = parser.parse_args()
    labels = [peer.label for peer in contenders()]
    if arguments.base not in labels:
        parser.error(f"--base is {arguments.base!r}, must be one of {'; '.join(labels)}")
    rounds, count = (QUICK_ROUNDS, QUICK_SLICE) if arguments.quick else (arguments.rounds, arguments.slice)
    found = measure(arguments.placement or [n for n in ("one", "two", "free") if n in known], rounds, count)
    figures = named(found)
    if not arguments.placement or "free" in arguments.placement:
        figures += isolated.figures(QUICK_PAIRS if arguments.quick else PAIRS, progress)
    print(file=sys.stderr)
    if not arguments.json:
        for results in found.values():
            print(table(results, arguments.base), end="\n\n")
        print(*figures, sep="\n")
    report = {
        "placements": {name: as_json(r, arguments.base) for name, r in found.items()},
        "figures": {f.name: asdict(f) for f in figures},
        "rounds": rounds,
        "slice": count,
    }
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
