"""A profile: what devices take on this machine, measured. Plain data, and what it predicts.

An operation takes `fixed` seconds (of a sequence for each turn), and some for each multiplication and each byte that it
touches, by family and kind of values. A step takes something of its own, what crosses between two devices takes something.
Engines fuse operations, so what whole networks took over the sum of their operations corrects the sums.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import msgspec

from nnhal.base.errors import BadFile
from nnhal.base.records import Record, field
from nnhal.hal.device import Performance
from nnhal.runtime.measured.families import FAMILIES, KINDS, OperationWork

FORM = 2  # of the file
LATEST = 253_402_214_400  # seconds since 1970: the end of 9999
MOST_BYTES = 2**62  # that a network can touch
CONTROL = "if", "while"  # kinds of networks beside those of values
PLACES = "none", "process"  # where a driver runs, as `isolation` names it


class CostLine(Record, frozen=True, forbid_unknown_fields=True):
    """Seconds of one operation: `fixed` for each turn, and for each multiplication with accumulation and each byte that it
    touches."""

    fixed: float
    mac: float
    byte: float

    def seconds(self, work: OperationWork) -> float:
        """What an operation of that size takes."""
        return self.fixed * work.turns + self.mac * work.macs + self.byte * work.bytes


class CrossingCost(Record, frozen=True, forbid_unknown_fields=True):
    """Seconds of an operand that another device reads: `fixed`, and for each byte."""

    fixed: float
    byte: float


class Workload(Record, frozen=True, forbid_unknown_fields=True):
    """A whole network, measured on a device: seconds of an execution with one thread and with as many as the engine takes,
    of one of two at a time, and of all processors together (CPU time).

    predicted: what the sum of its operations said. family: of operations that its time goes to, "" for several. bytes: that
    those touch.
    """

    kind: str
    predicted: float
    seconds: float
    seconds_threads: float
    seconds_sustained: float
    cpu_seconds: float
    family: str = ""
    bytes: int = 0

    def correction(self, threads: int, bytes: int) -> float:
        """What it took over the sum of its operations, for a model of which its family touches so many bytes.

        Of a family it says what becomes of operations whose weights no cache holds, and the less the fewer there are.
        """
        took = (self.seconds if threads == 1 else self.seconds_threads) / self.predicted
        return took if bytes >= self.bytes else 1.0 + (took - 1.0) * bytes / self.bytes


class DeviceProfile(Record, frozen=True, forbid_unknown_fields=True):
    """What one device takes. identity: of driver, engine and processor; version: the driver's, for people.

    lines: by kind of values and family. steps: seconds of a step beside its operations, by place. workloads: by name.
    """

    identity: str
    version: str
    lines: Mapping[str, Mapping[str, CostLine]]
    steps: Mapping[str, float]
    workloads: Mapping[str, Workload] = field(default_factory=dict)

    def line(self, kind: str, family: str) -> CostLine | None:
        """That of a family and kind, or of what is nearest: the same family as float32, then what goes over bytes alone."""
        kinds = dict.fromkeys((kind, "float32"))
        near = [(each, family) for each in kinds] + [(each, name) for each in kinds for name in ("pad", "add", "relu")]
        return next((self.lines[k][f] for k, f in near if f in self.lines.get(k, {})), None)

    def factor(self, kind: str, family: str, threads: int, bytes: int) -> float:
        """What whole networks took over the sums of their operations, with one thread or more: those of that family, where
        there are such, of which a model touches so many bytes.

        Of networks of several families at least 1 for one thread: what a sum says too much is some operation's whose line is
        wrong, and makes no other faster than it is among its like.
        """
        plain = [w for w in self.workloads.values() if w.kind not in CONTROL]
        if own := [w for w in plain if family and w.family == family]:
            return _mean([w.correction(threads, bytes) for w in _alike(own, kind)])
        several = _alike([w for w in plain if not w.family], kind)
        gained = 1.0 if threads == 1 else _mean([w.seconds_threads / w.seconds for w in several])
        return max(_mean([w.seconds / w.predicted for w in several]), 1.0) * gained

    def sustained(self) -> float:
        """What an execution takes where several run at once, over what it takes alone."""
        return _mean([w.seconds_sustained / w.seconds_threads for w in self.workloads.values()])

    def cores(self) -> float:
        """Processors at work while one execution runs."""
        return _mean([w.cpu_seconds / w.seconds_threads for w in self.workloads.values()])

    def predicted(self, works: Sequence[OperationWork], threads: int) -> list[float] | None:
        """Seconds of each operation; None where nothing was measured that says so."""
        touched = Counter[tuple[str, str]]()
        for work in works:
            touched[work.kind, work.family] += work.bytes
        lines: dict[tuple[str, str], tuple[CostLine, float]] = {}
        for key, bytes in touched.items():
            line = self.line(*key)
            if line is None:
                return None
            lines[key] = line, self.factor(*key, threads, bytes)
        priced = ((work, *lines[work.kind, work.family]) for work in works)
        return [line.seconds(work) * factor for work, line, factor in priced]

    def against(self, cpu: "DeviceProfile") -> dict[str, Performance]:
        """Execution time and power of each kind against the CPU's, as the HAL states them, over the workloads of both.

        Power is told by the time of all processors: a figure in joules is nothing that this machine tells.
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
    """Those of that kind of values, where there are such."""
    return [w for w in networks if w.kind == kind] or networks


def _mean(values: Sequence[float]) -> float:
    """The geometric mean; 1 of none."""
    product = 1.0
    for value in values:
        product *= max(value, 1e-12) ** (1 / len(values))
    return product


class MachineProfile(Record, frozen=True, forbid_unknown_fields=True):
    """What was measured of the devices of one machine. made: seconds since 1970. pinned: was imported, and is held to.

    crossings: by "from > to" and place.
    """

    processor: str
    made: int
    devices: Mapping[str, DeviceProfile]
    crossings: Mapping[str, Mapping[str, CrossingCost]] = field(default_factory=dict)
    pinned: bool = False
    form: int = FORM

    def crossing(self, one: str, other: str, place: str) -> CrossingCost | None:
        """What crossing takes from a device to another; None where it was not measured."""
        return self.crossings.get(f"{one} > {other}", {}).get(place)


def encoded(profile: MachineProfile) -> bytes:
    """As JSON, for people too."""
    return msgspec.json.format(msgspec.json.encode(profile), indent=1) + b"\n"


def decoded(data: bytes, where: str) -> MachineProfile:
    """Out of JSON; BadFile with the place for what is none, or says what cannot be."""
    try:
        profile = msgspec.json.decode(data, type=MachineProfile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFile(f"{where}: is no profile: {error}") from None
    if profile.form != FORM:
        raise BadFile(f"{where}: form = {profile.form}, must be {FORM}: nnhal calibrate measures anew")
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
            if not 0 <= workload.bytes <= MOST_BYTES:
                given = f"devices.{name}.workloads.{name_of}.bytes = {workload.bytes}"
                raise BadFile(f"{where}: {given}, must be a number of at least 0 and at most {MOST_BYTES}")
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
    if not (isfinite(value) and value >= least):
        raise BadFile(f"{where} = {value}, must be a number of seconds of at least {least:g}")
