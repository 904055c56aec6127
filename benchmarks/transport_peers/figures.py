"""The figures that the project names and holds itself to, computed from a contest."""

from collections.abc import Mapping
from dataclasses import dataclass

from nnhal.measure.latency import Ratio
from transport_peers.contest import US, Results

PLAIN, BURST, RING = "nnhal plain call", "nnhal burst", "nnhal bare ring and codec"
SPIN, BLOCK = ", spin", ", block"


@dataclass(frozen=True)
class Figure:
    """A named figure: its value, with its 95 % interval where it is a ratio. target: what it may be at most."""

    name: str
    value: float | None
    target: float | None = None
    low: float | None = None
    high: float | None = None
    missing: str = ""

    @classmethod
    def of(cls, name: str, found: Ratio, target: float | None) -> "Figure":
        """Of a paired ratio."""
        return cls(name, found.median, target, found.low, found.high)

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.name:45} not measured: {self.missing}"
        interval = f" [{self.low:.3f}, {self.high:.3f}]" if self.low is not None else ""
        verdict = "" if self.target is None else "  met" if self.value <= self.target else "  MISSED"
        target = "reported" if self.target is None else f"<= {self.target}"
        return f"{self.name:45} {target:>9}: {self.value:.3f}{interval}{verdict}"


@dataclass(frozen=True)
class Median:
    """A contender's median in microseconds."""

    name: str
    contender: str
    target: float
    placement: str


@dataclass(frozen=True)
class Quotient:
    """The ratio of two contenders, paired by round."""

    name: str
    one: str
    other: str
    target: float | None
    placement: str = "two"


NAMED = (
    Median("burst_noop_us_two_cores", BURST + SPIN, 4, "two"),
    Median("burst_noop_us_one_core", BURST + SPIN, 12, "one"),
    Quotient("burst_over_bare_ring", BURST + SPIN, RING + SPIN, 2.5),
    Quotient("plain_over_c_seqpacket_spinning", PLAIN + SPIN, "seqpacket in C" + SPIN, 2.5),
    Quotient("plain_over_c_seqpacket_blocking", PLAIN + BLOCK, "seqpacket in C" + BLOCK, 2.5),
    Quotient("plain_over_c_seqpacket_one_core", PLAIN + BLOCK, "seqpacket in C" + BLOCK, 2.5, "one"),
    Quotient("plain_over_grpc_spinning", PLAIN + SPIN, "gRPC" + BLOCK, 0.1),
    Quotient("plain_over_grpc_blocking", PLAIN + BLOCK, "gRPC" + BLOCK, 0.3),
    Quotient("plain_over_capnp_spinning", PLAIN + SPIN, "Cap'n Proto" + BLOCK, 0.1),
    Quotient("plain_over_capnp_blocking", PLAIN + BLOCK, "Cap'n Proto" + BLOCK, 0.3),
    Quotient("burst_over_iceoryx2_events", BURST + SPIN, "iceoryx2, events", 0.1),
    Quotient(
        "isolated_add_over_in_process", "ADD on litert, isolated burst, spin", "ADD on litert, in process, no wait", 2
    ),
    Quotient("plain_over_burst", PLAIN + SPIN, BURST + SPIN, None),
)


def named(found: Mapping[str, Results]) -> list[Figure]:
    """Every named figure; those whose placement or contender is missing say so."""
    return [_figure(spec, found) for spec in NAMED]


def _figure(spec: Median | Quotient, found: Mapping[str, Results]) -> Figure:
    wanted = (spec.contender,) if isinstance(spec, Median) else (spec.one, spec.other)
    results = found.get(spec.placement)
    if results is None:
        return Figure(spec.name, None, spec.target, missing=f"needs --placement {spec.placement}")
    missing = [label for label in wanted if results.row(label) is None]
    if missing:
        return Figure(spec.name, None, spec.target, missing=f"no {' and no '.join(missing)}")
    if isinstance(spec, Median):
        row = results.row(spec.contender)
        return Figure(spec.name, row.median / US if row else None, spec.target)
    ratio = results.ratio(spec.one, spec.other)
    assert ratio is not None
    return Figure.of(spec.name, ratio, spec.target)
