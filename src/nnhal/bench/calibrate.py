"""Calibration: measures each device on this machine, and makes a profile for the measured placement.

nnhal measures chains of one operation with few and with many links. The difference for each link is the operation's time.
From a few sizes it fits a line in iterations, multiplications and bytes, with no negative term. Whole networks check the
sums.
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
from nnhal.base.disturbed import NOTICED, process_cpu_time, share
from nnhal.base.errors import NnhalError, UnsupportedModel
from nnhal.base.log import logger
from nnhal.base.operands import Array
from nnhal.base.records import Struct, field, replace
from nnhal.bench import workloads
from nnhal.measure.latency import measure_calls, timed
from nnhal.model.graph import Model
from nnhal.runtime import isolation
from nnhal.runtime.compiled import Compiled
from nnhal.runtime.isolation import key_of
from nnhal.runtime.measured.families import OperationWork, work_of_operations
from nnhal.runtime.measured.profile import CrossingCost, DeviceProfile, LinearCost, MachineProfile, Workload
from nnhal.runtime.measured.record import processor
from nnhal.runtime.placer import identity_of
from nnhal.runtime.random_inputs import random_input
from nnhal.runtime.strategies import Rule
from nnhal.zoo import maker

LINKS = (1, 17), (1, 5), (1, 5), (1, 5), (1, 3)  # of the two chains, by size: small operations need many links
UNSURE = 0.02  # share of an execution's time; a smaller difference counts as noise
BETTER = 0.02  # mean relative error by which another term must improve the line
SLOW_NS = 100_000_000  # longer executions are measured only twice
BLOCK_NS, BLOCKS = 300_000, 7
AGAIN = 3  # attempts if other work disturbs the measurement
FASTEST = 1e13  # multiplications per second of one thread, which no processor reaches
CPU = "reference"
NETWORKS = {  # the kind of values, and the family that takes most of the time; "" for several
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
SMALL, LARGE = (8, 8), (128, 32)  # side and channels of the operands of device transfers
_log = logger("manager")


class ImplausibleRate(Exception):
    """An impossible measurement; the text gives the reason."""


class Measuring(Struct):
    """The measurements of one device so far.

    Attributes:
        device: The device's name.
        identity: The key of its measurements: driver, version, options and CPU.
        version: The driver's version.
        lines: The cost line of each family, by kind of values.
        steps: The seconds of a partition, by isolation.
        workloads: The whole networks, by name.
    """

    device: str
    identity: str
    version: str
    lines: dict[str, dict[str, LinearCost]] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)
    workloads: dict[str, Workload] = field(default_factory=dict)

    def profile(self) -> DeviceProfile:
        """Returns the measurements as part of a profile."""
        return DeviceProfile(self.identity, self.version, self.lines, self.steps, self.workloads)


Task = tuple[str, Callable[[], None]]  # a text for the progress bar, and the work


class Calibration:
    """Measures devices."""

    def __init__(self, devices: Sequence[str], *, quick: bool, isolated: bool, crossed: Sequence[str] = ()) -> None:
        """Prepares a calibration.

        Args:
            devices: The names of the devices to measure.
            quick: Whether to measure fewer sizes, types and networks.
            isolated: Whether to measure isolated drivers too.
            crossed: Further devices, to measure device transfers with.
        """
        self._quick, self._isolated = quick, isolated
        self._found = {name: self._about(name) for name in devices}
        self._crossed = list(dict.fromkeys([*devices, *crossed]))
        self._crossings: dict[str, dict[str, CrossingCost]] = {}
        self._measured = self._spoilt = 0
        self.failed: dict[str, list[str]] = {}  # by device, the measurements that its driver failed at

    def _about(self, name: str) -> Measuring:
        (device,) = isolation.select([name], "none")
        key = key_of(device)
        return Measuring(name, identity_of(key), key.version)

    def tasks(self) -> list[Task]:
        """Returns the measurements. They alternate between devices, so that other work on the machine affects all alike."""
        kinds = [kind for kind in workloads.VALUES if not self._quick or kind != "quant8"]
        networks = {name: what for name, what in NETWORKS.items() if not self._quick or name in FEW}
        parts: list[tuple[str, Callable[[Measuring], None]]] = [("a partition", self._step)]
        families = ((kind, family) for kind in kinds for family in workloads.families(kind))
        parts += [(f"{family.name} of {kind}", partial(self._line, kind, family)) for kind, family in families]
        parts += [(name, partial(self._network, name, *what)) for name, what in networks.items()]
        control = {"if": workloads.branching(), "while": workloads.looping()}
        parts += [(name, partial(self._whole, name, name, model)) for name, model in control.items()]
        parts.append(("a partition again", self._step))
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
        """Returns the profile.

        Args:
            made: The time of the calibration, in seconds since the epoch.
            before: An earlier profile; the result keeps its devices that were not measured now.
        """
        devices = {**(before.devices if before else {}), **{n: f.profile() for n, f in self._found.items()}}
        crossings = {**(before.crossings if before else {}), **self._crossings}
        return MachineProfile(processor(), made, devices, crossings)

    @property
    def disturbed(self) -> float:
        """The share (0 to 1) of measurements in which this process waited for a core at every attempt."""
        return self._spoilt / self._measured if self._measured else 0.0

    # ------------------------------------------------------------------------------------------------------ measuring

    def _took(self, compiled: Compiled) -> float:
        """Returns the seconds of an execution; measures again, up to `AGAIN` times, if other work had the cores."""
        self._measured += 1
        best = math.inf
        for _ in range(AGAIN):
            before = process_cpu_time()
            best = min(best, best_seconds(compiled))
            if share(before, process_cpu_time()) <= NOTICED:
                return best
        self._spoilt += 1
        return best

    def _slope(self, compiled: Sequence[Compiled], links: tuple[int, int], macs: int) -> float:
        """Returns the seconds of one more link. Raises ImplausibleRate if no processor is that fast."""
        for _ in range(AGAIN):
            few, many = map(self._took, compiled)
            slope = max(many - few, UNSURE * many) / (links[1] - links[0])
            if macs <= slope * FASTEST:
                return slope
        raise ImplausibleRate(f"{macs / slope:.2g} multiplications a second, must be {FASTEST:.2g} at most")

    def _left_out(self, found: Measuring, what: str, error: Exception) -> None:
        """Notes why something is not measured. A device that rejects operations has not failed."""
        _log.info("%s: %s is not measured: %s", found.device, what, error)
        rejected = isinstance(error, UnsupportedModel) and error.__cause__ is None
        if isinstance(error, NnhalError) and not rejected:
            self.failed.setdefault(found.device, []).append(f"{what}: {error}")

    def _step(self, found: Measuring) -> None:
        model = workloads.single()
        for place in ("none", "process") if self._isolated and found.device != CPU else ("none",):
            try:
                with _compiled(model, found.device, place=place) as compiled:
                    found.steps[place] = min(self._took(compiled), found.steps.get(place, math.inf))
            except NnhalError as error:
                self._left_out(found, f"a partition{'' if place == 'none' else ', isolated'}", error)
                return

    def _line(self, kind: str, family: workloads.Family, found: Measuring) -> None:
        """Fits a line through the sizes, unless the device rejects the family."""
        sizes = workloads.QUICK if self._quick else range(len(workloads.SIZES))
        points = []
        for size in sizes:
            links = LINKS[size]
            models = [workloads.chain(family, kind, size, number) for number in links]
            try:
                with ExitStack() as stack:
                    compiled = [stack.enter_context(_compiled(model, found.device)) for model in models]
                    each = work_of_operations(models[0])
                    slope = self._slope(compiled, links, sum(work.macs for work in each if work.family == family.name))
            except (NnhalError, ImplausibleRate) as error:
                self._left_out(found, f"{family.name} of {kind}", error)
                return
            own = [work for work in each if (work.kind, work.family) == (kind, family.name) and work.turns]
            beside = [(found.lines.get(w.kind, {}).get(w.family), w) for w in each if w.family in family.beside]
            other = [line.seconds(work) for line, work in beside if line is not None]
            spent = max(slope - sum(other), slope / 20) / max(1, len(own))
            points.append((own[0], spent))
        found.lines.setdefault(kind, {})[family.name] = fitted(points)

    def _network(self, name: str, kind: str, family: str, found: Measuring) -> None:
        try:
            model = api.load(maker.path(name))
        except NnhalError as error:  # the others are enough
            _log.warning("%s: %s is not measured: %s", found.device, name, error)
            return
        self._whole(name, kind, model, found, family)

    def _whole(self, name: str, kind: str, model: Model, found: Measuring, family: str = "") -> None:
        """Measures a whole network, to compare it with the sum of its operations."""
        bare = replace(found.profile(), workloads={})
        each = work_of_operations(model)
        predicted = bare.predicted(each, 1)
        try:
            with _compiled(model, found.device) as alone, _compiled(model, found.device, threads=0) as threaded:
                inputs = _inputs(threaded)
                one, several = self._took(alone), self._took(threaded)
                spent = time.process_time_ns()
                start = time.perf_counter_ns()
                runs = max(3, min(100, int(0.05 / several)))
                for _ in range(runs):
                    threaded(*inputs)
                cores = max(0.1, (time.process_time_ns() - spent) / (time.perf_counter_ns() - start))
                _, wall = measure_calls(lambda: threaded(*inputs), 0, 2 * runs, streams=2)
                sustained = wall / 1e9 / (2 * runs)
        except NnhalError as error:
            self._left_out(found, name, error)
            return
        found.workloads[name] = Workload(
            kind,
            sum(predicted or [one]),
            one,
            several,
            sustained,
            cores * several,
            family,
            *(sum(getattr(w, what) for w in each if family and w.family == family) for what in ("bytes", "macs")),
        )

    def _crossing(self, one: str, other: str, place: str) -> None:
        """Measures a device transfer: the time of two partitions, minus the time of each alone."""
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


def _inputs(compiled: Compiled) -> list[Array]:
    """Returns random inputs; integers are 0, at which loops begin to count."""
    rng = np.random.default_rng(0)
    return [
        np.zeros(spec.fixed or (), spec.dtype) if spec.dtype.kind == "i" and not spec.scale else random_input(spec, rng)
        for spec in compiled.inputs
    ]


def best_seconds(compiled: Compiled) -> float:
    """Returns the seconds of an execution: the best of a few blocks, because other work only adds time."""
    inputs = _inputs(compiled)

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


def fitted(points: Sequence[tuple[OperationWork, float]]) -> LinearCost:
    """Fits the seconds of operations by a line in iterations, multiplications and bytes.

    The candidates are the lines through as many points as they have terms, with no negative term. The one with the least
    sum of relative errors wins, so that small times do not dominate. Another term must improve the error by `BETTER`.

    Args:
        points: Operations with their seconds.
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
    return LinearCost(*(best[1].get(term, 0.0) for term in range(3)))


def predictions(profile: DeviceProfile) -> Iterator[tuple[str, float, float]]:
    """Yields for each whole network its name, and its predicted and measured seconds with one thread.

    The prediction includes the correction by the other networks, so that a network does not predict itself.
    """
    for name, workload in profile.workloads.items():
        others = {each: w for each, w in profile.workloads.items() if each != name}
        bare = replace(profile, workloads=others)
        factor = bare.factor(workload.kind, workload.family, 1, workload.bytes, workload.macs)
        yield name, workload.predicted * factor, workload.seconds
