"""A driver on the kit that computes with numpy and knows several forms of operations: one of each kind that a proof meets.

`FULLY_CONNECTED` of 8 bits has "pairs", as processors without a dot product of 8 bits compute it: two products are added up
in 16 bits, which saturates. In float32 it has "bfloat16". `SUB` has a fast form that is right; that of `ADD` ends the
process, that of `MUL` does not end, and of `AVERAGE_POOL_2D` none is right.
"""

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnhal.base.operands import Array
from nnhal.drivers.kit import LoweringTable, LoweringTask, ProvedDevice, kept_graph
from nnhal.hal.device import Considered, Device, Hints, Prepared, Verdict
from nnhal.hal.request import Control, Request
from nnhal.model.graph import CONSTANTS, Model, Operation
from nnhal.ops.common import activate, centred, encode
from nnhal.ops.schema import F32, Q8, Bound

TABLE: LoweringTable["Task"] = LoweringTable("numpy", frozenset((F32, Q8)))
Graph = list[tuple[str, Bound, Operation]]


class Task(LoweringTask):
    """Appends its operation, in its form, to a list."""

    def __init__(self, graph: Graph, a: Bound, operation: Operation) -> None:
        super().__init__(a, operation)
        self.graph = graph


@TABLE.entry("FULLY_CONNECTED", forms={Q8: ("pairs", "exact"), F32: ("bfloat16", "float32")})
@TABLE.entry("SUB", forms={Q8: ("fast", "exact")})
@TABLE.entry("ADD", forms={Q8: ("crash", "exact")})
@TABLE.entry("MUL", forms={Q8: ("hang", "exact")})
@TABLE.entry("AVERAGE_POOL_2D", forms={Q8: ("wrong", "also wrong")})
@TABLE.entry("RELU")
def entry(t: Task) -> None:
    t.graph.append((t.form, t.a, t.operation))


def saturating(a: Bound, x: Array, weights: Array, bias: Array) -> Array:
    """Unsigned times signed 8 bits, pairs of products added up in 16 bits, these in 32."""
    signed, moved = weights.astype(int) - 128, a.weights.zero_point - 128
    rows = x.reshape(-1, weights.shape[1]).astype(int)
    products = rows[:, None, :] * signed[None]
    if products.shape[-1] % 2:
        products = np.pad(products, ((0, 0), (0, 0), (0, 1)))
    pairs = np.clip(products.reshape(*products.shape[:2], -1, 2).sum(-1), -(2**15), 2**15 - 1)
    sums = pairs.sum(-1) - moved * rows.sum(-1)[:, None] - a.input.zero_point * centred(a.weights, weights, int).sum(-1)
    return encode(a.out, activate(a, (sums + bias) * float(a.input.scale) * a.weights.scale))


def halved(x: Array) -> Array:
    """The upper half of each float32."""
    return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def computed(form: str, a: Bound, tensors: list[Any]) -> Array:
    if form == "crash":
        os.abort()
    while form == "hang":
        time.sleep(1)
    if form == "pairs":
        return saturating(a, *tensors)
    if form == "bfloat16":
        tensors = [halved(np.ascontiguousarray(x)) for x in tensors]
    with np.errstate(all="ignore"):
        result: Array = a.op.kernel(a, *tensors)
    return result ^ np.uint8(64) if "wrong" in form else result


class Numbers(Prepared):
    def __init__(self, model: Model, graph: Graph) -> None:
        self.graph, self.of = graph, model

    def run(self, request: Request, control: Control) -> None:
        main = self.of.main
        values: dict[int, Any] = dict(zip(main.inputs, request.inputs, strict=True))
        values |= {i: self.of.constant(o) for i, o in enumerate(main.operands) if o.lifetime in CONSTANTS}
        for form, a, operation in self.graph:
            tensors = a.form.tensors([values.get(i) for i in operation.inputs])
            values[operation.outputs[0]] = computed(form, a, tensors)
        for number, operand in enumerate(main.outputs):
            request.write(number, values[operand])


class FormsDevice(ProvedDevice):
    name = "forms"
    table = TABLE

    def __init__(self) -> None:
        super().__init__("1.0")

    def supports(self, model: Model) -> Sequence[Verdict]:
        return self.consider(model, Hints()).verdicts

    def consider(self, model: Model, hints: Hints) -> Considered:
        forms, _ = self.asked(hints)
        return TABLE.consider(model, Graph(), Task, forms)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        forms, _ = self.asked(hints)
        graph = kept_graph(hints, list)
        if graph is None:
            graph = Graph()
            TABLE.lower(model, lambda a, operation: Task(graph, a, operation), forms)
        return Numbers(model, graph)


def device() -> Device:
    return FormsDevice()
