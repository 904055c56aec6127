"""Contenders in turn, in short slices over many rounds: what disturbs the machine disturbs all of them alike."""

import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from nnhal.measure.latency import Ratio, ratio
from transport_peers.peer import Peer, Placement, Progress, Unavailable, started

WARM_UP = 100  # round trips before the first slice
US = 1e3  # nanoseconds


@dataclass(frozen=True)
class Row:
    """One contender's durations: the median of each slice, and all round trips, in nanoseconds; or why there are none."""

    label: str
    slices: tuple[float, ...] = ()
    low: float = 0.0
    high: float = 0.0
    missing: str = ""
    facts: dict[str, object] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """The median of the slices' medians, in nanoseconds."""
        return float(np.median(self.slices))


@dataclass(frozen=True)
class Results:
    """All contenders under one placement."""

    placement: Placement
    rows: tuple[Row, ...]

    def row(self, label: str) -> Row | None:
        """A contender's row; None where it is missing or could not run."""
        return next((r for r in self.rows if r.label == label and not r.missing), None)

    def ratio(self, one: str, other: str) -> Ratio | None:
        """Median ratio of two contenders' slices, paired by round; None where either could not run."""
        a, b = self.row(one), self.row(other)
        return ratio(list(zip(a.slices, b.slices, strict=True))) if a and b else None


def contest(
    peers: Sequence[Peer], placement: Placement, rounds: int, count: int, progress: Progress, seed: int = 0
) -> Results:
    """Run `rounds` slices of `count` round trips of every contender, in an order drawn anew for each round."""
    order = random.Random(seed)
    with ExitStack() as stack:
        missing: dict[str, str] = {}
        running: list[Peer] = []
        for peer in peers:
            try:
                stack.enter_context(started(peer, placement))
            except Unavailable as error:
                missing[peer.label] = str(error)
                continue
            running.append(peer)
            _slice(peer, WARM_UP)
        spent: dict[str, list[list[int]]] = {peer.label: [] for peer in running}
        for number in range(rounds):
            progress(f"{placement.name}: round {number + 1} of {rounds}")
            for peer in order.sample(running, len(running)):
                spent[peer.label].append(_slice(peer, count))
        facts = {peer.label: peer.facts() for peer in running}
    rows = [
        Row(peer.label, missing=missing[peer.label])
        if peer.label in missing
        else _row(peer.label, spent[peer.label], facts[peer.label])
        for peer in peers
    ]
    return Results(placement, tuple(rows))


def _slice(peer: Peer, count: int) -> list[int]:
    peer.resume()
    try:
        return peer.run(count)
    finally:
        peer.pause()


def _row(label: str, slices: list[list[int]], facts: dict[str, object]) -> Row:
    low, high = np.quantile(np.array(slices), (0.1, 0.9))
    return Row(label, tuple(float(np.median(s)) for s in slices), float(low), float(high), facts=facts)


def table(results: Results, base: str) -> str:
    """Contenders with their medians, percentiles and ratios to `base`."""
    lines = [
        f"{results.placement.name} (base of the ratios: {base})",
        f"  {'contender':34} {'median us':>10} {'10 %':>8} {'90 %':>8}   ratio [95 % interval]",
    ]
    for row in results.rows:
        if row.missing:
            lines.append(f"  {row.label:34} {row.missing}")
            continue
        figures = f"{row.median / US:10.2f} {row.low / US:8.2f} {row.high / US:8.2f}"
        lines.append(f"  {row.label:34} {figures}   {results.ratio(row.label, base) or ''}")
        if row.facts:
            lines.append(f"      {', '.join(f'{k} {v}' for k, v in row.facts.items())}")
    return "\n".join(lines)
