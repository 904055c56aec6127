"""Profiles: measured costs of devices on this machine, as plain data, and predictions from them.

An operation takes `fixed` seconds (for a sequence, in each iteration), and some for each multiplication and each byte,
by family and kind of values. A partition and a device transfer have fixed costs. Engines fuse operations, so the
measured times of whole networks correct the sums.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from nnhal.base.errors import BadFile
from nnhal.base.records import Record, field
from nnhal.hal.device import Performance
from nnhal.runtime.measured.families import FAMILIES, KINDS, OperationWork, with_inside

FORM = 3  # of the file
LATEST = 253_402_214_400  # seconds since 1970: the end of 9999
MOST_WORK = 2**62  # bytes that a network can read and write, and multiplications
NEAREST = 0.1  # the distance of networks, in natural logarithms, below which one no longer counts more than another
MOST_SECONDS = 1e9  # of one operation, or of what else is measured
CONTROL = "if", "while"  # kinds of networks other than those of values
PLACES = "none", "process"  # the places of a driver, by the names of `isolation`


class LinearCost(Record, frozen=True, forbid_unknown_fields=True):
    """The seconds of one operation: `fixed` in each iteration, and for each multiply-accumulate and each byte."""

    fixed: float
    mac: float
    byte: float

    def seconds(self, work: OperationWork) -> float:
        """Return the predicted seconds of an operation."""
        return self.fixed * work.turns + self.mac * work.macs + self.byte * work.bytes


class CrossingCost(Record, frozen=True, forbid_unknown_fields=True):
    """The seconds of an operand that another device reads: `fixed`, and for each byte."""

    fixed: float
    byte: float


class Workload(Record, frozen=True, forbid_unknown_fields=True):
    """A whole network, measured on a device.

    Seconds of an execution with one thread, with the engine's default threads, of one of two at a time, and of all CPUs
    together (CPU time). predicted: the sum of its operations. family: of the operations that dominate it, "" for
    several. bytes, macs: that those read and write, and their multiplications.
    """

    kind: str
    predicted: float
    seconds: float
    seconds_threads: float
    seconds_sustained: float
    cpu_seconds: float
    family: str = ""
    bytes: int = 0
    macs: int = 0

    def correction(self, threads: int, bytes: int) -> float:
        """Return the ratio of measured to predicted time, for a model whose operations of this family have so many bytes.

        A network of one family measures operations whose weights exceed all caches; it counts less for smaller ones.
        """
        took = (self.seconds if threads == 1 else self.seconds_threads) / self.predicted
        return took if bytes >= self.bytes else 1.0 + (took - 1.0) * bytes / self.bytes


class DeviceProfile(Record, frozen=True, forbid_unknown_fields=True):
    """The costs of one device. identity: of driver, engine and CPU; version: the driver's, for people.

    lines: by kind of values and family. steps: the fixed seconds of a partition, by place. workloads: by name.
    """

    identity: str
    version: str
    lines: Mapping[str, Mapping[str, LinearCost]]
    steps: Mapping[str, float]
    workloads: Mapping[str, Workload] = field(default_factory=dict)

    def line(self, kind: str, family: str) -> LinearCost | None:
        """Return the costs of a family and kind, or the nearest: the family with float32, then by bytes only."""
        kinds = dict.fromkeys((kind, "float32"))
        near = [(each, family) for each in kinds] + [(each, name) for each in kinds for name in ("pad", "add", "relu")]
        return next((self.lines[k][f] for k, f in near if f in self.lines.get(k, {})), None)

    def factor(self, kind: str, family: str, threads: int, bytes: int, macs: int) -> float:
        """Return the ratio of measured to predicted time of whole networks, with one thread or more.

        Networks of that family count, if there are some, by the bytes in a model, and the more, the nearer they are in
        multiplications for each byte: memory limits a network that uses each of its weights once. For networks of
        several families the ratio is at least 1 with one thread: a sum that is too large has one wrong line, and does
        not make other operations faster.
        """
        plain = [w for w in self.workloads.values() if w.kind not in CONTROL]
        if own := [w for w in plain if family and w.family == family]:
            near = _alike(own, kind)
            places = [_intensity(w.macs, w.bytes) for w in near]
            place = min(max(_intensity(macs, bytes), min(places)), max(places))
            weights = [1 / (NEAREST + abs(place - other)) for other in places]
            return _mean([w.correction(threads, bytes) for w in near], weights)
        several = _alike([w for w in plain if not w.family], kind)
        gained = 1.0 if threads == 1 else _mean([w.seconds_threads / w.seconds for w in several])
        return max(_mean([w.seconds / w.predicted for w in several]), 1.0) * gained

    def sustained(self) -> float:
        """The ratio of an execution's time with several at once to that alone."""
        return _mean([w.seconds_sustained / w.seconds_threads for w in self.workloads.values()])

    def cores(self) -> float:
        """The CPUs that work during one execution."""
        return _mean([w.cpu_seconds / w.seconds_threads for w in self.workloads.values()])

    def predicted(self, works: Sequence[OperationWork], threads: int) -> list[float] | None:
        """Return the predicted seconds of each operation; None without enough measurements."""
        touched, multiplied = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for work in with_inside(works):
            touched[work.kind, work.family] += work.bytes
            multiplied[work.kind, work.family] += work.macs
        lines: dict[tuple[str, str], tuple[LinearCost, float]] = {}
        for key, bytes in touched.items():
            line = self.line(*key)
            if line is None:
                return None
            lines[key] = line, self.factor(*key, threads, bytes, multiplied[key])

        def seconds(work: OperationWork) -> float:
            line, factor = lines[work.kind, work.family]
            return line.seconds(work) * factor

        return [work.total(seconds) for work in works]

    def against(self, cpu: "DeviceProfile") -> dict[str, Performance]:
        """Return execution time and power of each kind relative to the CPU, as in the HAL, over the common workloads.

        CPU time stands for power, because this machine has no measurement in joules.
        """
        found = {}
        for kind in (*KINDS, *CONTROL):
            both = [
                (mine, cpu.workloads[name])
                for name, mine in self.workloads.items()
                if mine.kind == kind and name in cpu.workloads
            ]
            if both:
                time = _mean([mine.seconds_threads / its.seconds_threads for mine, its in both])
                found[kind] = Performance(time, _mean([mine.cpu_seconds / its.cpu_seconds for mine, its in both]))
        return found


def _alike(networks: Sequence[Workload], kind: str) -> Sequence[Workload]:
    """Return the networks with that kind of values, or all if there are none."""
    return [w for w in networks if w.kind == kind] or networks


def _intensity(macs: int, bytes: int) -> float:
    """Return the natural logarithm of the multiplications for each byte."""
    return math.log(max(macs, 1) / max(bytes, 1))


def _mean(values: Sequence[float], weights: Sequence[float] = ()) -> float:
    """Return the geometric mean, of equal weights by default; 1 without values."""
    weights = weights or [1.0] * len(values)
    product = 1.0
    for value, weight in zip(values, weights, strict=True):
        product *= max(value, 1e-12) ** (weight / sum(weights))
    return product


class MachineProfile(Record, frozen=True, forbid_unknown_fields=True):
    """The measured costs of one machine's devices. made: seconds since 1970. pinned: imported, so it does not change.

    crossings: by "from > to" and place.
    """

    processor: str
    made: int
    devices: Mapping[str, DeviceProfile]
    crossings: Mapping[str, Mapping[str, CrossingCost]] = field(default_factory=dict)
    pinned: bool = False
    form: int = FORM

    def crossing(self, one: str, other: str, place: str) -> CrossingCost | None:
        """Return the cost of a transfer from one device to another; None if it was not measured."""
        return self.crossings.get(f"{one} > {other}", {}).get(place)


def encoded(profile: MachineProfile) -> bytes:
    """Return the profile as readable JSON."""
    return msgspec.json.format(msgspec.json.encode(profile), indent=1) + b"\n"


def decoded(data: bytes, where: str) -> MachineProfile:
    """Parse JSON; BadFile with the place of an invalid value."""
    try:
        profile = msgspec.json.decode(data, type=MachineProfile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFile(f"{where}: is not a profile: {error}") from None
    if profile.form != FORM:
        raise BadFile(f"{where}: format is {profile.form}, must be {FORM}: run nnhal calibrate again")
    if not 0 <= profile.made <= LATEST:
        raise BadFile(f"{where}: made = {profile.made}, must be seconds since 1970, of at most {LATEST}")
    for name, device in profile.devices.items():
        for kind, lines in device.lines.items():
            _known(f"{where}: devices.{name}.lines", kind, KINDS)
            for family, line in lines.items():
                _known(f"{where}: devices.{name}.lines.{kind}", family, FAMILIES)
                _seconds(f"{where}: devices.{name}.lines.{kind}.{family}", line)
        for place, seconds in device.steps.items():
            _known(f"{where}: devices.{name}.steps", place, PLACES)
            _amount(f"{where}: devices.{name}.steps.{place}", seconds)
        for name_of, workload in device.workloads.items():
            _known(f"{where}: devices.{name}.workloads.{name_of}.kind", workload.kind, (*KINDS, *CONTROL))
            _known(f"{where}: devices.{name}.workloads.{name_of}.family", workload.family, ("", *FAMILIES))
            _seconds(f"{where}: devices.{name}.workloads.{name_of}", workload, least=1e-12)
            for field_name in ("bytes", "macs"):
                if not 0 <= (given := getattr(workload, field_name)) <= MOST_WORK:
                    place = f"devices.{name}.workloads.{name_of}.{field_name} = {given}"
                    raise BadFile(f"{where}: {place}, must be a number of at least 0 and at most {MOST_WORK}")
    for pair, places in profile.crossings.items():
        for place, crossing in places.items():
            _known(f"{where}: crossings.{pair}", place, PLACES)
            _seconds(f"{where}: crossings.{pair}.{place}", crossing)
    return profile


def _known(where: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise BadFile(f"{where}: {name!r} must be one of {', '.join(known)}")


def _seconds(where: str, record: Record, least: float = 0.0) -> None:
    for name in record.__struct_fields__:
        value: Any = getattr(record, name)
        if isinstance(value, float):
            _amount(f"{where}.{name}", value, least)


def _amount(where: str, value: float, least: float = 0.0) -> None:
    if not least <= value <= MOST_SECONDS:
        raise BadFile(
            f"{where} = {value}, must be a number of seconds of at least {least:g} and at most {MOST_SECONDS:g}"
        )
