"""Endurance of the isolation layer: growth over many executions and connections, deaths, a model of 100 MB.

    python benchmarks/endurance.py [growth] [shapes] [deaths] [weights] [--executions N] [--shapes N] [--connections N]
                                   [--kills N] [--mebibytes N] [--quick] [--json]

All parts where none is named. Exit status 1 where a part breaks its rule. The last line is JSON.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from endurance_parts.deaths import CLIENTS, IN_TIME, KINDS, Delays, deaths
from endurance_parts.growth import RULE, Growth, connections, executions, shapes
from endurance_parts.weights import ADDED, Held, held

from nnhal.cli import common

PARTS = "growth", "shapes", "deaths", "weights"
QUICK = {"executions": 5000, "shapes": 200, "connections": 50, "kills": 1, "mebibytes": 32}


@dataclass
class Found:
    """What was measured."""

    growth: list[Growth] = field(default_factory=list)
    deaths: list[Delays] = field(default_factory=list)
    weights: Held | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing breaks its rule."""
        rows = (*self.growth, *self.deaths, *([self.weights] if self.weights else []))
        return all(row.ok for row in rows)


def mib(size: int) -> str:
    return f"{size / 2**20:.1f}"


def show_growth(rows: list[Growth]) -> None:
    columns = [
        "work",
        ">rounds",
        "process",
        ">descriptors",
        ">mappings",
        ">threads",
        ">RSS MiB",
        ">private MiB",
        ">private half",
        "",
    ]
    common.table(
        columns,
        [
            [
                *(row.what, row.rounds, row.process),
                f"{row.warm.descriptors} -> {row.end.descriptors}",
                f"{row.warm.mappings} -> {row.end.mappings}",
                f"{row.warm.threads} -> {row.end.threads}",
                f"{mib(row.warm.resident)} -> {mib(row.end.resident)}",
                f"{mib(row.warm.private)} -> {mib(row.end.private)}",
                f"{(row.end.private - row.half.private) / 1024:+.0f} KiB",
                "ok" if row.ok else "GROWS",
            ]
            for row in rows
        ],
        title="growth, after the warm-up -> at the end",
    )
    common.console.print(RULE + "\n", markup=False)


def show_deaths(rows: list[Delays]) -> None:
    common.table(
        ["client", "waiter", ">kills", ">p50 ms", ">p99 ms", ">max ms", ">over the floor", ""],
        [
            [
                *(row.client, row.kind, len(row.ms) + len(row.wrong)),
                *(f"{row.at(q):.2f}" for q in (0.5, 0.99, 1)),
                f"{row.over:+.2f}" if row.floor else "",
                row.verdict,
            ]
            for row in rows
        ],
        title="from SIGKILL of the driver to DEAD_OBJECT",
    )
    common.console.print(IN_TIME + "\n", markup=False)


def show_weights(row: Held) -> None:
    parts = "private", "anonymous", "resident", "share"
    rows = {"client": row.client, "driver": row.service}
    common.table(
        ["process", *(f">{part} MiB" for part in parts)],
        [[name, *(f"{mib(getattr(a, p))} -> {mib(getattr(b, p))}" for p in parts)] for name, (a, b) in rows.items()],
        title=f"a model of {mib(row.size)} MiB, before it is prepared -> after it ran",
    )
    added = f"client {row.client_private / 1e6:.2f} MB, driver {row.service_private / 1e6:.2f} MB"
    verdict = "ok" if row.ok else "TOO MUCH"
    common.console.print(
        f"private memory added, besides views of the weights' file: {added}, at most {ADDED / 1e6:g} MB each;\n"
        f"resident in the driver {row.times:.2f} times, must be once: {verdict}\n",
        markup=False,
    )


def document(found: Found) -> dict[str, object]:
    """As JSON: milliseconds, bytes."""
    weights = found.weights
    return {
        "ok": found.ok,
        "growth": [
            {"work": g.what, "rounds": g.rounds, "process": g.process, "ok": g.ok}
            | {point: getattr(g, point)._asdict() for point in ("warm", "half", "end")}
            for g in found.growth
        ],
        "deaths": [
            {
                "client": d.client,
                "waiter": d.kind,
                "ok": d.ok,
                "over_ms": round(d.over, 3),
                "kills": len(d.ms),
                "wrong": d.wrong,
            }
            | {name: round(d.at(q), 3) for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1)) if d.ms}
            for d in found.deaths
        ],
        "weights": weights
        and {
            "ok": weights.ok,
            "size": weights.size,
            "client_private": weights.client_private,
            "driver_private": weights.service_private,
            "driver_times": round(weights.times, 3),
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}; all by default")
    parser.add_argument("--executions", type=int, default=100_000)
    parser.add_argument("--shapes", type=int, default=1000, help="that take turns in as many executions")
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=200, help="for each kind of waiter and client")
    parser.add_argument("--mebibytes", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="small counts")
    parser.add_argument("--json", action="store_true", help="print the last line only")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"part is {unknown.pop()!r}, must be one of {', '.join(PARTS)}")
    if given.quick:
        vars(given).update(QUICK)
    parts, found = given.parts or PARTS, Found()
    with common.progress(given.json) as bar:

        def counted(what: str, total: int) -> Callable[[], None]:
            task = bar.add_task(what, total=total)
            return lambda: bar.advance(task)

        if "growth" in parts:
            found.growth += executions(given.executions, counted("executions", given.executions))
            found.growth += connections(given.connections, counted("connections", given.connections))
        if "shapes" in parts:
            found.growth += shapes(given.executions, given.shapes, counted("shapes", given.executions))
        if "deaths" in parts:
            found.deaths = deaths(given.kills, counted("kills", given.kills * len(CLIENTS) * len(KINDS)))
        if "weights" in parts:
            found.weights = held(given.mebibytes)
    if not given.json:
        if found.growth:
            show_growth(found.growth)
        if found.deaths:
            show_deaths(found.deaths)
        if found.weights:
            show_weights(found.weights)
    print(json.dumps(document(found)))
    return 0 if found.ok else 1


if __name__ == "__main__":
    sys.exit(main())
