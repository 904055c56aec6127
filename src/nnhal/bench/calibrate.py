"""Calibration: what each device takes on this machine, as a profile for the measured placement.

An operation's time is the slope of chains of a family: what more links take, by link. Of a few sizes a line is fitted in
multiplications and bytes, which is never below 0 in any term. Whole networks check the sums.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from nnhal import api
from nnhal.base.errors import NnhalError
from nnhal.base.log import logger
from nnhal.base.records import Struct, field, replace
from nnhal.bench import workloads
from nnhal.bench.disturbed import NOTICED, share, spent
from nnhal.measure.latency import steady, timed
from nnhal.model.graph import Model
from nnhal.runtime import isolation
from nnhal.runtime.compiled import Compiled
from nnhal.runtime.isolation import key_of
from nnhal.runtime.judgement import identity_of
from nnhal.runtime.measured.families import OperationWork, works
from nnhal.runtime.measured.profile import CostLine, CrossingCost, DeviceProfile, MachineProfile, Workload
from nnhal.runtime.measured.record import processor
from nnhal.runtime.strategies import Rule
from nnhal.runtime.tuning import drawn
from nnhal.zoo import maker

LINKS = (1, 17), (1, 5), (1, 5), (1, 5), (1, 3)  # of a slope's two chains, by size: what is small needs many
UNSURE = 0.02  # of what an execution takes: a difference that is not told from none
BETTER = 0.02  # that a line with one more term has to be off less: as a share, on average over its points
SLOW_NS = 100_000_000  # executions that are measured twice only
BLOCK_NS, BLOCKS = 300_000, 7
AGAIN = 3  # times that what was disturbed is measured
FASTEST = 1e13  # multiplications a second of one thread, which no processor reaches
CPU = "reference"
NETWORKS = {  # kind of their values, and the family that their time goes to: "" for several
    "mobilenet_v1": ("float32", ""),
    "mobilenet_v2": ("float32", ""),
    "mobilenet_v1_uint8": ("quant8", ""),
    "mobilenet_v2_uint8": ("quant8", ""),
    "mobilenet_v1_int8": ("quant8_signed", ""),
    "mobilenet_v2_int8": ("quant8_signed", ""),
    "speech_lstm_20": ("float32", "lstm"),
    "speech_lstm_1": ("float32", "lstm"),
}
FEW = "mobilenet_v2", "mobilenet_v2_int8", "mobilenet_v2_uint8", "speech_lstm_20"
SMALL, LARGE = (8, 8), (128, 32)  # side and channels of what crosses
_log = logger("manager")


class Implausible(Exception):
    """A measurement that cannot be right; the text says why."""


class Measuring(Struct):
    """What was measured of one device so far. sizes: of each kind and family multiplications, bytes and seconds."""

    device: str
    identity: str
    version: str
    lines: dict[str, dict[str, CostLine]] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)
    workloads: dict[str, Workload] = field(default_factory=dict)

    def profile(self) -> DeviceProfile:
        """As a profile has it."""
        return DeviceProfile(self.identity, self.version, self.lines, self.steps, self.workloads)


Task = tuple[str, Callable[[], None]]  # for people, and what is to be done


class Calibration:
    """Measures devices. crossed: devices that crossings are measured with beside them."""

    def __init__(self, devices: Sequence[str], *, quick: bool, isolated: bool, crossed: Sequence[str] = ()) -> None:
        self._quick, self._isolated = quick, isolated
        self._found = {name: self._about(name) for name in devices}
        self._crossed = list(dict.fromkeys([*devices, *crossed]))
        self._crossings: dict[str, dict[str, CrossingCost]] = {}
        self._measured = self._spoilt = 0

    def _about(self, name: str) -> Measuring:
        (device,) = isolation.select([name], "none")
        key = key_of(device)
        return Measuring(name, identity_of(key), key.version)

    def tasks(self) -> list[Task]:
        """What there is to be measured: each thing of all devices in turn, so that what else the machine does meets all."""
        kinds = [kind for kind in workloads.VALUES if not self._quick or kind != "quant8"]
        networks = {name: what for name, what in NETWORKS.items() if not self._quick or name in FEW}
        parts: list[tuple[str, Callable[[Measuring], None]]] = [("a step", self._step)]
        families = ((kind, family) for kind in kinds for family in workloads.families(kind))
        parts += [(f"{family.name} of {kind}", partial(self._line, kind, family)) for kind, family in families]
        parts += [(name, partial(self._network, name, *what)) for name, what in networks.items()]
        control = {"if": workloads.branching(), "while": workloads.looping()}
        parts += [(name, partial(self._whole, name, name, model)) for name, model in control.items()]
        parts.append(("a step again", self._step))
        tasks: list[Task] = [
            (f"{each.device}: {text}", partial(part, each)) for text, part in parts for each in self._found.values()
        ]
        for one, other in itertools.permutations(self._crossed, 2):
            if one in self._found or other in self._found:
                tasks.append((f"{one} to {other}", partial(self._crossing, one, other, "none")))
                if self._isolated:
                    tasks.append((f"{one} to {other}, isolated", partial(self._crossing, one, other, "process")))
        return tasks

    def result(self, made: int, before: MachineProfile | None) -> MachineProfile:
        """The profile: what was measured now, and what was before of other devices."""
        devices = {**(before.devices if before else {}), **{n: f.profile() for n, f in self._found.items()}}
        crossings = {**(before.crossings if before else {}), **self._crossings}
        return MachineProfile(processor(), made, devices, crossings)

    @property
    def disturbed(self) -> float:
        """The share of measurements during which this process waited for a core, however often they were repeated."""
        return self._spoilt / self._measured if self._measured else 0.0

    # ------------------------------------------------------------------------------------------------------ measuring

    def _took(self, compiled: Compiled) -> float:
        """Seconds of an execution; measured again, a few times, where something else had the cores."""
        self._measured += 1
        best = math.inf
        for _ in range(AGAIN):
            before = spent()
            best = min(best, took(compiled))
            if share(before, spent()) <= NOTICED:
                return best
        self._spoilt += 1
        return best

    def _slope(self, compiled: Sequence[Compiled], links: tuple[int, int], macs: int) -> float:
        """Seconds of one more link, by a chain of few and one of many. Implausible where no processor is that fast."""
        for _ in range(AGAIN):
            few, many = map(self._took, compiled)
            slope = max(many - few, UNSURE * many) / (links[1] - links[0])
            if macs <= slope * FASTEST:
                return slope
        raise Implausible(f"{macs / slope:.2g} multiplications a second, must be {FASTEST:.2g} at most")

    def _step(self, found: Measuring) -> None:
        model = workloads.single()
        for place in ("none", "process") if self._isolated and found.device != CPU else ("none",):
            try:
                with _compiled(model, found.device, place=place) as compiled:
                    found.steps[place] = min(self._took(compiled), found.steps.get(place, math.inf))
            except NnhalError as error:
                _log.info("%s: what a step costs is not measured: %s", found.device, error)
                return

    def _line(self, kind: str, family: workloads.Family, found: Measuring) -> None:
        """A line through the sizes; none where the device does not take the family."""
        sizes = workloads.QUICK if self._quick else range(len(workloads.SIZES))
        points = []
        for size in sizes:
            links = LINKS[size]
            models = [workloads.chain(family, kind, size, number) for number in links]
            try:
                with ExitStack() as stack:
                    compiled = [stack.enter_context(_compiled(model, found.device)) for model in models]
                    each = works(models[0])
                    slope = self._slope(compiled, links, sum(work.macs for work in each if work.family == family.name))
            except (NnhalError, Implausible) as error:
                _log.info("%s: no %s of %s: %s", found.device, family.name, kind, error)
                return
            own = [work for work in each if work.family == family.name]
            lines = found.lines.get(kind, {})
            other = [lines[w.family].seconds(w) for w in each if w.family in family.beside and w.family in lines]
            spent = max(slope - sum(other), slope / 20) / max(1, len(own))
            points.append((own[0], spent))
        found.lines.setdefault(kind, {})[family.name] = fitted(points)

    def _network(self, name: str, kind: str, family: str, found: Measuring) -> None:
        try:
            model = api.load(maker.path(name))
        except NnhalError as error:  # it is one network less
            _log.warning("%s: %s is not measured: %s", found.device, name, error)
            return
        self._whole(name, kind, model, found, family)

    def _whole(self, name: str, kind: str, model: Model, found: Measuring, family: str = "") -> None:
        """A whole network, against the sum of its operations."""
        bare = replace(found.profile(), workloads={})
        each = works(model)
        predicted = bare.predicted(each, 1)
        try:
            with _compiled(model, found.device) as alone, _compiled(model, found.device, threads=0) as threaded:
                inputs = drawn(threaded.inputs)
                one, several = self._took(alone), self._took(threaded)
                spent = time.process_time_ns()
                start = time.perf_counter_ns()
                runs = max(3, min(100, int(0.05 / several)))
                for _ in range(runs):
                    threaded(*inputs)
                cores = max(0.1, (time.process_time_ns() - spent) / (time.perf_counter_ns() - start))
                _, wall = steady(lambda: threaded(*inputs), 0, 2 * runs, streams=2)
                sustained = wall / 1e9 / (2 * runs)
        except NnhalError as error:
            _log.info("%s: %s does not run: %s", found.device, name, error)
            return
        found.workloads[name] = Workload(
            kind,
            sum(predicted or [one]),
            one,
            several,
            sustained,
            cores * several,
            family,
            sum(w.bytes for w in each if family and w.family == family),
        )

    def _crossing(self, one: str, other: str, place: str) -> None:
        """What an operand takes from a device to another: two steps, less each of them by itself."""
        points = []
        for side, channels in (SMALL, LARGE):
            both, single = workloads.pair(side, channels)
            rules = [Rule(one, "#0"), Rule(other, "#1")]
            try:
                with ExitStack() as stack:
                    across = stack.enter_context(_compiled(both, [one, other], place=place, placement=rules))
                    apart = [stack.enter_context(_compiled(single, name, place=place)) for name in (one, other)]
                    rest = sum(map(self._took, apart))
                    whole = self._took(across)
                    points.append((4 * side * side * channels, max(whole - rest, UNSURE * whole)))
            except NnhalError as error:
                _log.info("%s to %s is not measured: %s", one, other, error)
                return
        (few, least), (many, most) = points
        byte = max(0.0, (most - least) / (many - few))
        crossing = CrossingCost(max(0.0, least - byte * few), byte)
        self._crossings.setdefault(f"{one} > {other}", {})[place] = crossing


def _compiled(
    model: Model, devices: str | Sequence[str], *, threads: int = 1, place: str = "none", placement: Any = "stated"
) -> Compiled:
    isolated: Any = place
    return api.compile(
        model, devices=devices, threads=threads, isolation=isolated, placement=placement, cache_dir=False
    )


def took(compiled: Compiled) -> float:
    """Seconds of an execution: the best of a few blocks, after it has run; whatever else the machine does only adds."""
    inputs = drawn(compiled.inputs)

    def run() -> object:
        return compiled(*inputs)

    run()
    first = timed(run)
    if first > SLOW_NS:
        return min(first, timed(run)) / 1e9
    inner = max(1, BLOCK_NS // max(first, 1))
    found = []
    for _ in range(BLOCKS):
        start = time.perf_counter_ns()
        for _ in range(inner):
            run()
        found.append((time.perf_counter_ns() - start) / inner)
    return min(found) / 1e9


def fitted(points: Sequence[tuple[OperationWork, float]]) -> CostLine:
    """A line in turns, multiplications and bytes near operations and their seconds.

    Of the lines through as many points as they have terms, none below 0, that which is off least in proportion, summed over
    the points: what was measured as next to nothing does not make the rest so. One more term has to make it better.
    """
    table = np.array([(float(work.turns), work.macs, work.bytes) for work, _ in points])
    seconds = np.array([max(spent, 1e-9) for _, spent in points])
    best: tuple[float, Mapping[int, float]] = (np.inf, {0: float(seconds.mean())})
    for count in range(1, min(3, len(points)) + 1):
        for terms, through in itertools.product(
            itertools.combinations(range(3), count), itertools.combinations(range(len(points)), count)
        ):
            columns = table[:, terms]
            scale = np.abs(columns).max(axis=0)
            if not scale.all():
                continue
            square = columns[through, :] / scale
            if np.linalg.matrix_rank(square) < count:
                continue
            factors = np.linalg.solve(square, seconds[list(through)]) / scale
            said = columns @ factors
            if (factors < 0).any() or (said <= 0).any():
                continue
            off = float(np.abs(np.log(said / seconds)).sum())
            if off + BETTER * len(points) < best[0] or (off < best[0] and len(best[1]) == count):
                best = off, dict(zip(terms, map(float, factors), strict=True))
    return CostLine(*(best[1].get(term, 0.0) for term in range(3)))


def judged(profile: DeviceProfile) -> Iterator[tuple[str, float, float]]:
    """Of each whole network what was predicted, with what all of its kind say, and what it took: seconds, of one thread."""
    for name, workload in profile.workloads.items():
        factor = profile.factor(workload.kind, workload.family, 1, workload.bytes)
        yield name, workload.predicted * factor, workload.seconds
