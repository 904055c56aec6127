"""What steps and crossings cost beside the operations, by a rough model of the CPU reference, before anything was measured.

A device states its time against the reference's. So what an operation takes there is guessed from its work, and an
assignment of operations to devices has a price: operations, a fixed cost for each step, and what crosses between devices.
The best device for each operation is where the search begins, and all that any one device takes, on that device; whole
steps then go to a neighbour's device as long as that lowers the price.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from nnhal.base.codes import TYPE_FACTS
from nnhal.base.operands import Value, fixed
from nnhal.model.graph import Model
from nnhal.model.layouts import LaidOut
from nnhal.model.outline import outline
from nnhal.model.parts import live
from nnhal.model.validate import validate

OPERATION, ELEMENT, MAC = 50e-6, 1e-9, 0.2e-9  # seconds of the reference, of which only the size counts
STEP, STEP_ELSEWHERE = 20e-6, 80e-6  # seconds of a step beside its operations, in this process and in another
CROSSING, BYTE = 2e-6, 0.2e-9  # seconds of an operand that another device reads
PASSES = 8
Groups = Sequence[tuple[str, Sequence[int]]]  # steps: a device and its operations


def seconds(model: Model) -> list[float]:
    """What each operation of the main subgraph may take the reference; unknown dimensions count as 1."""
    shown, values = outline(model), validate(model).subgraphs[0].values
    sizes = [0 if v is None else math.prod(d or 1 for d in v.shape or ()) for v in values]
    return [
        OPERATION + ELEMENT * sum(sizes[i] for i in (*node.inputs, *node.outputs)) + MAC * shown.macs(node)
        for node in shown.nodes
    ]


def transposing(laid: LaidOut) -> dict[int, float]:
    """What the TRANSPOSEs that a layout needs may take the reference, by operation of the original that they serve."""
    found: dict[int, float] = {}
    values = validate(laid.model).subgraphs[0].values
    for n in laid.inserted:
        (made,) = laid.model.main.operations[n].outputs
        served = laid.serves[n]
        found[served] = found.get(served, 0) + _transpose(values[made])
    return found


def turning(model: Model, laid: LaidOut) -> dict[int, float]:
    """What transposing may take the reference, by operand that the layout has in another order."""
    values = validate(model).subgraphs[0].values
    return {i: _transpose(values[i]) for i in laid.turned}


def _transpose(value: Value | None) -> float:
    return OPERATION + ELEMENT * 2 * math.prod(d or 1 for d in value.shape or ()) if value is not None else OPERATION


class Prices:
    """Prices of assignments of one model. times: what an operation takes on each device that may have it, in seconds.

    steps: what a step costs on each device. group: the steps of an assignment. turned: by device, operands that it makes
    and reads in another order of dimensions than theirs, with the seconds that transposing them takes where they cross.
    """

    def __init__(
        self,
        model: Model,
        times: Sequence[Mapping[str, float]],
        steps: Mapping[str, float],
        group: Callable[[Sequence[str]], Groups],
        turned: Mapping[str, Mapping[int, float]] | None = None,
    ) -> None:
        self._times, self._steps, self._group, self._turned = times, steps, group, turned or {}
        operations, values = {n: model.main.operations[n] for n in live(model)}, validate(model).subgraphs[0].values
        self._writer = {i: n for n, operation in operations.items() for i in operation.outputs}
        self._readers: dict[int, list[int]] = {i: [] for i in self._writer}
        self._touched: dict[int, list[int]] = {}  # operands of each operation that others write or read
        for n, operation in operations.items():
            read = [i for i in dict.fromkeys(operation.inputs) if i in self._writer]
            for i in read:
                self._readers[i].append(n)
            self._touched[n] = [*read, *operation.outputs]
        self._bytes = {}
        for i in self._writer:
            value = values[i]
            known = fixed(value.shape) if value is not None else None
            facts = None if value is None else TYPE_FACTS.get(value.type)
            width = facts.dtype.itemsize if facts is not None and facts.dtype is not None else 1
            self._bytes[i] = 0 if known is None else math.prod(known) * width

    def of(self, devices: Sequence[str], groups: Groups) -> float:
        """The price of an assignment."""
        return (
            sum(times[device] for times, device in zip(self._times, devices, strict=True))
            + sum(self._steps[device] for device, _ in groups)
            + self._crossings(self._writer, devices)
        )

    def _crossings(self, operands: Iterable[int], devices: Sequence[str]) -> float:
        price = 0.0
        for i in operands:
            here = devices[self._writer[i]]
            elsewhere = {devices[n] for n in self._readers[i]} - {here}
            price += len(elsewhere) * (CROSSING + BYTE * self._bytes[i])
            if elsewhere and self._turned:
                price += sum(self._turned.get(device, {}).get(i, 0) for device in (here, *elsewhere))
        return price

    def lowered(self, devices: Sequence[str]) -> tuple[float, list[str]]:
        """An assignment with whole steps on other devices, and its price, which is no higher."""
        best = list(devices)
        groups = self._group(best)
        price = self.of(best, groups)
        for _ in range(PASSES):
            tried = self._pass(best, groups)
            if tried == best:
                break
            groups = self._group(tried)
            now = self.of(tried, groups)
            if now >= price:
                break
            best, price = tried, now
        return price, best

    def _pass(self, devices: Sequence[str], groups: Groups) -> list[str]:
        """Every step once, the smallest first: to the device of a neighbour where that seems to lower the price."""
        found = list(devices)
        step_of = {n: number for number, (_, members) in enumerate(groups) for n in members}
        for number in sorted(range(len(groups)), key=lambda g: (len(groups[g][1]), g)):
            members = groups[number][1]
            operands = {i for n in members for i in self._touched[n]}
            beside = {n for i in operands for n in (self._writer[i], *self._readers[i]) if step_of[n] != number}
            now = found[members[0]]
            before = self._price(members, operands, found)
            best = (0.0, now)
            for device in sorted({found[n] for n in beside} - {now}):
                if all(device in self._times[n] for n in members):
                    merged = {step_of[n] for n in beside if found[n] == device}
                    for n in members:
                        found[n] = device
                    gone = self._steps[now] + (len(merged) - 1) * self._steps[device]
                    best = min(best, (self._price(members, operands, found) - before - gone, device))
            for n in members:
                found[n] = best[1]
        return found

    def _price(self, members: Iterable[int], operands: Iterable[int], devices: Sequence[str]) -> float:
        return sum(self._times[n][devices[n]] for n in members) + self._crossings(operands, devices)
