"""Draws graphs: each operation from its record, on values that the graph has already, with all results at hand.

A drawn operation is kept if the record accepts it, the device supports it, and an error would show in its results: they
are finite, not all at the ends of their type, and the errors that a correct device may make so far (`evaluation`) stay
small next to their spread. An operation whose results jump (comparisons, indices, FLOOR, casts) is drawn only on
exact values: a correct device might be on the other side of a jump.

The suites `random`, `cts` and `stress` draw their graphs here.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from nnhal.base.codes import EXTENSION_SHIFT
from nnhal.base.errors import InvalidModel, NnhalError
from nnhal.base.operands import Array, UnknownValue, Value, dtype_of, fixed, quantised
from nnhal.base.records import Record, replace
from nnhal.conformance.control import CONTROL, CountingLoop, if_call, while_call
from nnhal.conformance.differential import arrays_of, operands_of, with_other_values
from nnhal.conformance.draw import Call, Cell, Drawn, cells
from nnhal.conformance.evaluation import RUNS, Evaluation, applied, deviations, moved, output_buffers
from nnhal.conformance.flow_drawing import KINDS, FlowCall, drawn_flow
from nnhal.conformance.reduction import without_unused
from nnhal.hal.claims import consider_support
from nnhal.hal.device import Device, Hints
from nnhal.hal.lowering import refusals
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model, State
from nnhal.model.parts import branch
from nnhal.model.validate import validate
from nnhal.ops import OPS
from nnhal.ops.common import broadcast_shape
from nnhal.ops.order import each_element
from nnhal.ops.schema import B8, F16, F32, I32, Q8, Q8S, T, bind, output_at

UNREAD = Value(F32, (2,), data=np.ones(2, np.float32))  # of an input that nothing reads
TYPES = (F32, Q8S, Q8, F16, I32)  # of the first inputs of graphs
WEIGHTS = (0.4, 0.2, 0.15, 0.1, 0.15)
# Around the widths of vectors and tiles, with and without a remainder.
WIDE = (7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 66, 67, 72, 96, 100, 127, 129)
WIDEST = tuple(size for size in WIDE if size > 64)  # beyond a tile
LONG = (65537, 66000, 70001)  # beyond an index of 16 bits
# Names of dimensions that kernels divide into vectors
CHANNELS = "depth", "depth_in", "depth_out", "input_size", "num_units", "units"
MOST, LONGEST = 8192, 1 << 18  # elements of a tensor, and of one with a wide or long dimension
MOST_OUTPUTS = 6  # of an operation in a graph
GREATEST = 1e3  # magnitude of floats
LARGEST = 2**20  # of integers
UNCERTAIN = 0.02  # the most that errors may be, as a share of the spread of a result
FREQUENT = frozenset(("ADD", "CONCATENATION", "LOGISTIC", "MUL", "RELU", "RESHAPE", "SOFTMAX", "SUB", "TANH"))
VIEWS = frozenset(("EXPAND_DIMS", "RESHAPE", "SQUEEZE", "TRANSPOSE"))  # results may share the input's memory
ACTIVATIONS = "RELU", "RELU1", "RELU6"  # engines fuse them with the operation before
# Engines fuse these with neighbours, move them, or leave out two that undo each other.
NEIGHBOURS = "ADD", "CAST", "CONCATENATION", "DEQUANTIZE", "MUL", "PAD", "PAD_V2", "QUANTIZE", "RESHAPE", "TRANSPOSE"
CONVERSIONS = "CAST", "DEQUANTIZE", "QUANTIZE"
TRIES = 60  # for an operation
FUSED_TRIES = 6  # for a result that an activation changes, or a conversion back to the type before
FEW_TRIES = 12  # for an operation that need not be there
REFUSED = 4  # refused calls of a cell after which it is not drawn any more
UNWANTED = 0.3  # the share of operations with several results of which nothing needs one, mostly the first
SCALINGS = 16  # of a result, the most
NARROW = 0.05  # of the range of a quantised type: the least share that results spread over

Takes = Callable[[Model], bool]
Runs = list[Array]  # the exact result, then those with errors


@dataclass(frozen=True, eq=False)
class DrawnNode:
    """A value of the graph: its facts with the exact data, its operand, and its results with errors."""

    value: Value
    operand: int
    runs: tuple[Array, ...]

    @property
    def exact(self) -> bool:
        """Whether a correct device can have only this result."""
        return all(x is self.runs[0] for x in self.runs)


class Fitted(Drawn):
    """A call whose first tensor is a value of the graph, and others where one fits.

    full_rank: the number of the argument with all dimensions, which have equal sizes. Others lack some. None: any shapes.
    """

    def __init__(
        self,
        cell: Cell,
        rng: np.random.Generator,
        pool: Sequence[DrawnNode],
        seeded: DrawnNode | None,
        wide: bool,
        full_rank: int | None = None,
    ):
        super().__init__(cell, rng)
        self._pool, self._first_node, self._may_be_wide, self._full_rank = pool, seeded, wide, full_rank
        self.nodes: dict[int, DrawnNode] = {}
        self.widest = self.longest = False
        if seeded is not None:
            self._seed(seeded)

    def _seed(self, node: DrawnNode) -> None:
        """Make one of the arguments of type `T` the value: the first one, or sometimes another."""
        fitting = [a for a in self.form if a.spec is T and a.many is None and (a.drawn is None or a is self.form[0])]
        if not fitting:
            return  # variadic ones find it in `tensor`
        if self._full_rank is not None:
            argument = fitting[self._full_rank % len(fitting)]
        else:
            argument = fitting[0] if len(fitting) == 1 or self.rng.random() < 0.6 else self.pick(*fitting)
        shape = node.value.known
        if argument.dims is not None:
            names = list(argument.dims)
            if argument.layout and self["nchw"]:
                names.insert(1, names.pop())
            if len(names) != len(shape):
                raise InvalidModel("another rank")
            for name, size in zip(names, shape, strict=True):
                wanted = int(name) if name.isdigit() else size if name == "_" else self._sizes.setdefault(name, size)
                if wanted != size:
                    raise InvalidModel("another size")
        else:
            self._all_of(argument, shape)
        self._values[argument.name] = node.value
        self._types[argument.name] = node.value.type
        self.nodes[id(node.value)] = node

    def _all_of(self, argument: Any, shape: tuple[int, ...]) -> None:
        """Let the other arguments have this shape; a broadcasting operation may have a larger one of higher rank."""
        least, most = argument.rank or (1, 6)
        if not least <= len(shape) <= most:
            raise InvalidModel("another rank")
        more = 0
        if (
            self._full_rank is None
            and self.record.infer is broadcast_shape
            and len(shape) < min(4, most)
            and self.rng.random() < 0.3
        ):
            more = 1
        self._once["rank of all"] = len(shape) + more
        for axis, size in enumerate(shape, more):
            if size == 1 and self.record.infer is broadcast_shape and self.rng.random() < 0.5:
                continue
            if axis < 4:
                self._sizes[f"axis {axis}"] = size
            else:
                self._once[f"axis {axis}"] = size

    def size(self, name: str) -> int:
        axis = int(self._once.get("rank of all", 0)) - 1
        if self.longest and axis > 0:
            axis = self.once("long axis", 0, axis)
        long = name == f"axis {axis}" and not self._wide
        if self.widest and name not in self._sizes and (name in CHANNELS or long):
            self._wide = True
            self._sizes[name] = int(self.pick(*(LONG if self.longest else WIDEST)))
        return super().size(name)

    def _size(self) -> int:
        if self._may_be_wide and not self._wide and self.rng.random() < 0.3:
            self._wide = True
            return int(self.pick(*WIDE))
        return int(self.whole(1, 6))

    def _shape(self, argument: Any) -> tuple[int, ...]:
        if self._full_rank is not None and argument.dims is None:
            return self._of_equal_sizes()
        shape = super()._shape(argument)
        if self.record.infer is broadcast_shape and self.rng.random() < 0.5:
            whole = tuple(self._once.get(f"axis {n}") or self._sizes.get(f"axis {n}", 0) for n in range(9))
            return tuple(n for n in whole if n) or shape
        return shape

    def _of_equal_sizes(self) -> tuple[int, ...]:
        """Draw equal sizes, and fewer of them for further tensors: only the results show where they are aligned."""
        rank, side = int(self.once("rank of all", 2, 3)), int(self.whole(2, 3))
        sizes = tuple(self._sizes.setdefault(f"axis {n}", self._sizes.get("axis 0", side)) for n in range(rank))
        return sizes if self._first_node is None else sizes[int(self.whole(1, rank - 1)) :]

    def tensor(self, kind: int, shape: Sequence[int], quant: tuple[float, int] | None = None) -> Value:
        shape = tuple(int(n) for n in shape)
        if np.prod(shape, dtype=np.int64) > (LONGEST if self.widest else MOST):
            raise InvalidModel("too large")
        if self.rng.random() < 0.6:
            fitting = [n for n in self._pool if n.value.type == kind and n.value.shape == shape]
            if quant is not None:
                fitting = [n for n in fitting if (n.value.scale, n.value.zero_point) == quant]
            if self._first_node in fitting and self.rng.random() < 0.4:
                fitting = [self._first_node]  # a repeated operand
            if fitting:
                node = self.pick(*fitting)
                self.nodes[id(node.value)] = node
                value: Value = node.value
                return value
        value = super().tensor(kind, shape, quant)
        if value.dtype.kind == "f":
            return replace(value, data=floats(self.rng, shape).astype(value.dtype))
        return value


def floats(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """Draw numbers of about 1, all different, so that one in the wrong place shows."""
    return np.asarray(rng.normal(size=shape) + rng.uniform(-0.5, 0.5))


def fresh(rng: np.random.Generator, value: Value) -> Array:
    """Draw other elements for an input of the graph."""
    if value.dtype.kind == "f":
        return floats(rng, value.known).astype(value.dtype)
    if value.type == B8:
        return rng.integers(0, 2, value.known).astype(value.dtype)
    if value.dtype.itemsize < 4:
        limits = np.iinfo(value.dtype)
        return rng.integers(limits.min, limits.max, value.known, np.int64, endpoint=True).astype(value.dtype)
    return rng.integers(-99, 100, value.known).astype(value.dtype)


def is_data(x: Array) -> bool:
    """Whether an input cannot be a position, a size or an axis: those are 32-bit integers."""
    return x.dtype.itemsize < 4 or x.dtype.kind == "f"


class GraphDrawing:
    """A graph under construction."""

    def __init__(
        self, rng: np.random.Generator, takes: Takes, name: str, in_a_row: bool, refused: Counter[str] | None = None
    ) -> None:
        """Begin an empty graph.

        Args:
            rng: Draws everything.
            takes: Whether the graph may have a call, as a model of one operation.
            name: The name of the model.
            in_a_row: Whether the device adds up products one after another (its relaxation "long_sums").
            refused: Counts the refused calls by cell, over several graphs for one device.
        """
        self.rng, self._takes, self._in_a_row = rng, takes, in_a_row
        self._refused = Counter[str]() if refused is None else refused
        self.b = ModelBuilder(name)
        self.inputs: list[DrawnNode] = []
        self.pool: list[DrawnNode] = []  # values that operations may read
        self.made: list[DrawnNode] = []  # all results, by operations
        self.free: set[int] = set()  # operands of inputs that may have any elements
        self.read: dict[int, int] = {}
        self.kept: set[int] = set()  # operands of results that are outputs although operations read them
        self.unwanted: set[int] = set()  # operands of results that nothing may need: never outputs
        self.count = 0
        self._ask_first = False

    def add_input(self, value: Value, free: bool) -> DrawnNode:
        """Add an input of the graph."""
        dims = () if value.shape == () else value.known
        index = self.b.operand(value.type, dims, value.scale, value.zero_point, channel=value.channel)
        node = DrawnNode(value, index, (value.array,) * (RUNS + 1))
        self.inputs.append(node)
        if free:
            self.free.add(index)
        return node

    def first_inputs(self, kinds: Sequence[int], least: int = 0) -> None:
        """Add one or two inputs of types that the device supports. least: the fewest bytes of each."""
        for _ in range(int(self.rng.integers(1, 3))):
            weights = np.array([WEIGHTS[TYPES.index(k)] for k in kinds])
            kind = kinds[int(self.rng.choice(len(kinds), p=weights / weights.sum()))]
            rank = int(self.rng.choice([1, 2, 3, 4, 4]))
            shape = [int(n) for n in self.rng.integers(1, 6, rank)]
            if rank == 4:
                shape[1:3] = [int(n) for n in self.rng.integers(3, 8, 2)]
                shape[0] = int(self.rng.choice([1, 1, 2]))
            if self.rng.random() < 0.4:
                shape[-1] = int(self.rng.choice(WIDE))
            if least:
                shape[-1] = -(-least // (math.prod(shape[:-1]) * dtype_of(kind).itemsize))
            scale, zero = quantisation(self.rng, kind)
            value = Value(kind, tuple(shape), scale, zero)
            self.pool.append(self.add_input(replace(value, data=fresh(self.rng, value)), True))

    def fill(self, size: int, kinds: Sequence[int] = TYPES, flow: float = 0.0) -> bool:
        """Add operations until there are `size`; return False if not so many can be drawn.

        kinds: the types of inputs. flow: the share of control flow.
        """
        self.first_inputs(kinds)
        while self.count < size and len(self.inputs) <= size + 20:
            controls = self.rng.random() < flow and self._any_flow()
            if not controls and not self.grow():
                self.first_inputs(kinds)  # others may have more readers
        return self.count >= size

    def _any_flow(self) -> bool:
        if self.rng.random() < 0.5:
            return self.try_flow(str(self.rng.choice(CONTROL)))
        return self.try_dependent(str(self.rng.choice([*KINDS])))

    def fill_views(self, kind: int) -> bool:
        """Add a result, and each operation on single elements on a view of it.

        An engine that computes one of these in place changes the result that the others read.

        Args:
            kind: The type of the result.

        Returns:
            Whether there is an operation on a view.
        """
        self.first_inputs([kind])
        elementwise = [cell for cell in by_type(kind) if cell.op.reorder is each_element]
        views = [cell for cell in by_type(kind) if cell.op.name in VIEWS]
        results = (self._result_of(elementwise, self.pool[0]) for _ in range(FEW_TRIES))
        source = next((node for node in results if node is not None and node.value.type == kind), None)
        if source is None:
            return False
        added = 0
        for cell in elementwise:
            view = self._result_of(views, source)
            added += view is not None and self._result_of([cell], view) is not None
        return added > 0

    def fill_fused(self, operation: Sequence[Cell]) -> bool:
        """Add results of an operation with other parameters each, beside operations that engines fuse with it.

        Each activation follows such a result three times: it is the only reader, there is another one, or the result is
        an output of the graph too. Each neighbour, and the operation itself, comes before and after it twice.

        Args:
            operation: The cells of the operation.

        Returns:
            Whether there is a pair.
        """
        if not any(self.try_single(cell, soft=False, wide=False) for cell in operation for _ in range(TRIES)):
            return False
        self._ask_first = False
        first = next((node for node in self.inputs if node.value.type == operation[0].kind), None)
        if first is None:  # all its tensors are constants
            self.first_inputs([operation[0].kind])
            first = self.inputs[-1]
        before = self.count
        for name, link in product(ACTIVATIONS, range(3)):
            for _ in range(FUSED_TRIES):
                result = self._result_of(operation, first)
                after = None if result is None else self._reader(name, result)
                if result is None or after is None:
                    break
                changed = not np.array_equal(result.runs[0], after.runs[0])
                if link == 1:
                    cells = [cell for cell in by_type(result.value.type) if cell.op.reorder is each_element]
                    changed = self._result_of(cells, result) is not None and changed
                elif link == 2:
                    self.kept.add(result.operand)
                if link == 0 or changed:
                    break
        for saturating, name in product((False, True), (operation[0].op.name, *NEIGHBOURS)):
            self._pair(operation, name, first, saturating)
            other = self._reader(name, first, saturating)
            if other is not None:
                cells = [cell for cell in operation if cell.kind == other.value.type]
                self._result_of(cells, other, saturating)
        return self.count > before + 1

    def _pair(self, operation: Sequence[Cell], name: str, first: DrawnNode, saturating: bool) -> None:
        """Add an operation and one after it; of two conversions, the second is to the type that the first began with."""
        for _ in range(FUSED_TRIES):
            result = self._result_of(operation, first, saturating)
            after = None if result is None else self._reader(name, result, saturating)
            if result is None or result.value.type == first.value.type or name not in CONVERSIONS:
                return
            if after is not None and after.value.type == first.value.type:
                return

    def _reader(self, name: str, node: DrawnNode, saturating: bool = False) -> DrawnNode | None:
        """Add an operation on a value."""
        return self._result_of([cell for cell in by_type(node.value.type) if cell.op.name == name], node, saturating)

    def _result_of(self, cells: Sequence[Cell], node: DrawnNode, saturating: bool = False) -> DrawnNode | None:
        """Add one of some operations on a value; return its first result, None if none was kept."""
        for _ in range(FEW_TRIES):
            wanted = [cell for cell in cells if self._refused[str(cell)] < REFUSED]
            if not wanted:
                return None
            before = len(self.made)
            if self.try_cell(wanted[int(self.rng.integers(len(wanted)))], node, saturating=saturating):
                return self.made[before]
        return None

    def grow(self) -> bool:
        """Add one operation; return False if none of many tries was kept."""
        for _ in range(TRIES):
            node = self._seed()
            cell = self._cell(node.value.type)
            if self.try_cell(cell, node):
                return True
        return False

    def _seed(self) -> DrawnNode:
        """Choose a value: mostly a late one, often one that has a reader already."""
        starts = [n for n in self.pool if by_type(n.value.type)]
        late = starts[-5:] if self.rng.random() < 0.6 else starts
        again_ = [n for n in late if self.read.get(n.operand)]
        chosen = again_ if again_ and self.rng.random() < 0.3 else late
        weights = np.array([0.2 if n.value.type in (I32, B8) else 1.0 for n in chosen])
        return chosen[int(self.rng.choice(len(chosen), p=weights / weights.sum()))]

    def _cell(self, kind: int) -> Cell:
        """Choose an operation on values of a type: mostly one that computes."""
        cells = by_type(kind)
        choices = [cell for cell in cells if self._refused[str(cell)] < REFUSED] or cells
        weights = np.array([4.0 if cell.op.sums or cell.op.name in FREQUENT else 1.0 for cell in choices])
        return choices[int(self.rng.choice(len(choices), p=weights / weights.sum()))]

    def try_single(
        self, cell: Cell, *, soft: bool, wide: bool, long: bool = False, full_rank: int | None = None
    ) -> bool:
        """Make a graph of one operation. Its first tensor is an input, that others may be, too.

        wide, long: in one dimension. full_rank: see `Fitted`.
        """
        self._ask_first = True  # the reference may need longer than the device
        try:
            fitted = Fitted(cell, self.rng, [], None, True, full_rank)
            fitted.widest, fitted.longest = wide, long
            call = fitted.call()
        except (InvalidModel, UnknownValue):
            return False
        first = call.inputs[0]
        usual = first is not None and call.arguments[0].spec is T and call.arguments[0].drawn is None
        if first is None or not usual or not first.array.size:
            return not long and full_rank is None and self.try_cell(cell, None, soft=soft)
        if long and first.array.size < min(LONG):
            return False
        node = self.add_input(first, True)
        self.pool.append(node)
        if self.try_cell(cell, node, soft=soft, wide=wide, long=long, full_rank=full_rank):
            return True
        self.inputs.remove(node)
        self.pool.remove(node)
        return False

    def try_cell(
        self,
        cell: Cell,
        seeded: DrawnNode | None,
        *,
        soft: bool = False,
        wide: bool = False,
        long: bool = False,
        full_rank: int | None = None,
        saturating: bool = False,
    ) -> bool:
        """Draw one call; add it if it suits.

        soft: results may hide errors, such as all at an end of their type. saturating: see `scaled`.
        """
        try:
            fitted = Fitted(cell, self.rng, self.pool, seeded, True, full_rank)
            fitted.widest, fitted.longest = wide, long
            call = scaled(fitted.call(), saturating=saturating)
        except (InvalidModel, UnknownValue):
            return False
        if (len(call.outputs) > MOST_OUTPUTS or any(v.shape is None for v in call.outputs)) and not soft:
            return False
        places = [n for n in range(len(call.inputs)) if id(call.inputs[n]) in fitted.nodes]
        others = [n for n in call.given if soft or self.rng.random() < 0.3]
        call = replace(call, given=tuple(sorted({*places, *others})))
        return self.add(call, fitted.nodes, soft=soft)

    def try_flow(self, name: str) -> bool:
        """Add an IF or WHILE around a drawn operation on a value of the graph."""
        for _ in range(TRIES):
            node = self._seed()
            cell = self._cell(node.value.type)
            try:
                inner = Fitted(cell, self.rng, [node], node, False)
                call = scaled(inner.call())
            except (InvalidModel, UnknownValue):
                continue
            places = [n for n in range(len(call.inputs)) if call.inputs[n] is node.value]
            call = replace(call, given=tuple(sorted({*call.given, *places})))
            known = all(fixed(v.shape) and v.type != B8 for v in call.outputs)
            scalars = any(a.scalar for p, a in enumerate(call.arguments) if p in call.given)
            channels = any(v is not None and v.channel for p, v in enumerate(call.inputs) if p in call.given)
            if not places or not known or scalars or channels or cell.op.random or call.cell.op.leaves_open:
                continue
            if self.add(self._around(name, call), {id(node.value): node}):
                return True
        return False

    def try_dependent(self, kind: str) -> bool:
        """Add an IF or WHILE whose variables depend on each other. kind: one of `flow_drawing.KINDS`."""
        for _ in range(FEW_TRIES):
            node = self._seed()
            v = node.value
            if v.type not in TYPES or not v.known:
                continue
            nodes = {id(n.value): n for n in self.pool}
            described = v.type, v.shape, v.scale, v.zero_point
            fitting = [
                o
                for n in self.pool
                if ((o := n.value).type, o.shape, o.scale, o.zero_point) == described and o is not v
            ]
            try:
                call = drawn_flow(self.rng, kind, v, fitting, lambda value: fresh(self.rng, value))
            except InvalidModel:
                continue
            read = {id(value) for value in call.inputs}
            results = {n.operand for n in self.made if id(n.value) in read}
            if self.add(call, nodes):
                self.kept |= results  # the graph shows that they are as they were
                return True
        return False

    def _around(self, name: str, call: Call) -> Call:
        if name == "IF":
            other = with_other_values(call, self.rng)
            return if_call(call, other, bool(self.rng.random() < 0.5), given=bool(self.rng.random() < 0.5))
        start = [replace(v, data=fresh(self.rng, v)) for v in call.outputs]
        rounds = int(self.rng.choice([0, 1, 2, 3]))
        return while_call(call, CountingLoop(I32, "LESS", "ADD"), rounds, start, given=False)

    def add(self, call: Call, nodes: dict[int, DrawnNode], *, soft: bool = False) -> bool:
        """Add a call if the device supports it and its results suit."""
        given = [nodes.get(id(v)) for v in call.inputs]
        if self._ask_first and not self._may_have(call):
            return False
        runs = self._results(call, given)
        if runs is None:
            return False
        each = zip(call.outputs, zip(*runs, strict=True), strict=True)
        if not soft and not all(suits(value, results) for value, results in each):
            return False
        inexact = any(n is not None and not n.exact for n in given)
        whole = [v for v in call.outputs if not quantised(v.type) and v.dtype.kind not in "fc"]
        if inexact and (whole or call.cell.op.jumps) and not isinstance(call, FlowCall):  # its counters are exact
            return False
        if not self._ask_first and not self._may_have(call):
            return False
        self._append(call, given, runs)
        return True

    def _may_have(self, call: Call) -> bool:
        """Ask whether the graph may have a call, and count refusals until the first call of its cell is taken."""
        try:
            model = alone(call)
        except InvalidModel:  # a constant without elements
            return False
        takes, cell = self._takes(model), str(call.cell)
        if takes or self._refused[cell] >= 0:
            self._refused[cell] = -1 if takes else self._refused[cell] + 1
        return takes

    def _results(self, call: Call, given: Sequence[DrawnNode | None]) -> list[list[Array]] | None:
        """Return the results of each run, None if the reference fails."""
        try:
            if call.cell.op.name in CONTROL:
                return self._flow_results(call, given)
            a, exact = applied(call.bound, call.inputs)
            rooms = output_buffers(a, call.inputs, exact, in_a_row=self._in_a_row)
            found = [exact]
            quiet = not any(np.any(np.isfinite(room) & (np.asarray(room) > 0)) for room in rooms)
            for run in range(1, RUNS + 1):
                if quiet and all(n is None or n.exact for n in given):
                    found.append(exact)
                    continue
                known = [
                    v if n is None or v is None else replace(v, data=n.runs[run])
                    for v, n in zip(call.inputs, given, strict=True)
                ]
                results = applied(call.bound, known)[1]
                if [x.shape for x in results] != [x.shape for x in exact]:
                    return None  # the number of results depends on errors
                found.append([moved(x, room, self.rng) for x, room in zip(results, rooms, strict=True)])
            return found
        except (NnhalError, UnknownValue):
            return None

    def _flow_results(self, call: Call, given: Sequence[DrawnNode | None]) -> list[list[Array]]:
        model = alone(call)
        places = call.given
        exact = Evaluation(model, in_a_row=self._in_a_row)
        found = [exact.graph(0, arrays_of(call))]
        for run in range(1, RUNS + 1):
            arrays = []
            for place in places:
                value, node = call.inputs[place], given[place]
                assert value is not None
                arrays.append(value.array if node is None else node.runs[run])
            found.append(Evaluation(model, self.rng, exact.rooms).graph(0, arrays))
        return found

    def _append(self, call: Call, given: Sequence[DrawnNode | None], runs: list[list[Array]]) -> None:
        b, arguments = self.b, call.arguments
        control = call.cell.op.name in CONTROL
        indices, fresh_inputs, outputs = operands_of(call, b)
        late = dict(zip(call.given, fresh_inputs, strict=True))
        for place, node in enumerate(given):
            value = call.inputs[place]
            if node is not None:
                indices[place] = node.operand
                self.read[node.operand] = self.read.get(node.operand, 0) + 1
            elif value is not None and place in late:
                free = (
                    (not control or value.type == B8) and arguments[place].drawn is None and not arguments[place].scalar
                )
                if isinstance(call, FlowCall):
                    free = place in call.free
                new = self.add_input(value, free)
                indices[place] = new.operand
                self.read[new.operand] = 1
                if free and value.array.size:
                    self.pool.append(new)
        b.operation(call.cell.op.code, indices, outputs)
        self.count += 1
        if len(outputs) > 1 and not isinstance(call, FlowCall) and self.rng.random() < UNWANTED:
            self.unwanted.add(outputs[max(0, int(self.rng.integers(1 - len(outputs), len(outputs))))])
        for number, value in enumerate(call.outputs):
            found = [run[number] for run in runs]
            # Equal results are not enough: with other inputs of the graph the errors may show.
            same = all(run is runs[0] for run in runs)
            node = DrawnNode(
                replace(value, shape=found[0].shape, data=found[0]),
                outputs[number],
                tuple([found[0]] * len(found) if same else found),
            )
            self.made.append(node)
            undefined = not control and output_at(call.cell.op, number).undefined
            readable = fixed(value.shape) is not None and found[0].size and not undefined
            if outputs[number] in self.unwanted:
                continue
            if readable and not call.cell.op.random and call.cell.op.leaves_open is None:
                self.pool.append(node)

    def finish(self, whole: bool, states: bool) -> "DrawnGraph":
        """Return the graph. whole: all results are outputs; else those that nothing reads, and a few others.

        Nothing needs one result of some operations with several: the graph does not output it.

        If the number of operations is odd, inputs and outputs are in descending order of their operands. If it is even,
        nothing reads the first input.
        """
        odd = self.count % 2 == 1
        step = -1 if odd else 1
        outputs = [
            n
            for n in self.made
            if n.operand not in self.unwanted
            and (whole or n.operand in self.kept or not self.read.get(n.operand) or self.rng.random() < 0.1)
        ][::step]
        used = [n for n in self.inputs if self.read.get(n.operand)][::step]
        carried = self._states(used, outputs) if states else []
        if not odd:
            used = [self.add_input(UNREAD, False), *used]
            carried = [replace(state, input=state.input + 1) for state in carried]
        ends = [n.operand for n in used], [n.operand for n in outputs]
        model = without_unused(self.b.finish(*ends, states=carried))
        validate(model)
        free = tuple(n.operand in self.free for n in used)
        return DrawnGraph(model, tuple(n.value for n in used), free)

    def _states(self, used: Sequence[DrawnNode], outputs: Sequence[DrawnNode]) -> list[State]:
        """Carry one result, that a correct device has exactly, to an input like it, from call to call."""
        for place, node in enumerate(used):
            v = node.value
            for number, other in enumerate(outputs):
                o = other.value
                same = (v.type, v.shape, v.scale, v.zero_point) == (o.type, o.shape, o.scale, o.zero_point)
                if same and other.exact and node.operand in self.free and len(used) > 1 and len(outputs) > 1:
                    return [State(place, number, v.array)]
        return []


class DrawnGraph(Record, frozen=True):
    """A drawn model, with values for its inputs. free: which inputs may have any elements."""

    model: Model
    values: tuple[Value, ...]
    free: tuple[bool, ...]

    @property
    def inputs(self) -> list[Array]:
        """The values that the graph was drawn with."""
        return [v.array for v in self.values]

    def others(self, rng: np.random.Generator) -> list[Array]:
        """Draw other values; a condition takes the other branch."""
        return [
            v.array if not free else np.logical_not(v.array) if v.type == B8 and v.array.size == 1 else fresh(rng, v)
            for v, free in zip(self.values, self.free, strict=True)
        ]


def refused_by(device: Device) -> Counter[str]:
    """Return the refused calls of each cell, that graphs for one device count together."""
    return _refused.setdefault(device, Counter())


_refused: "WeakKeyDictionary[Device, Counter[str]]" = WeakKeyDictionary()


def refusal(device: Device, model: Model) -> str:
    """Return why a device does not support a whole model; "" if it does."""
    lacking = [*filter(None, refusals(model, device.level))]
    if lacking:
        return lacking[0]
    claims = consider_support(device, model, Hints())
    refused = [*claims.refused().values()]
    claims.release_work()
    return refused[0] or "refused without a reason" if refused else ""


def refusal_inside(device: Device, model: Model) -> str:
    """Return why a device supports no operation of the subgraphs; "" if it supports one."""
    reasons: list[str] = []
    for number, subgraph in enumerate(model.referenced):
        inside = branch(model, number, [None] * len(subgraph.inputs)).model
        claims = consider_support(device, inside, Hints())
        refused = claims.refused()
        claims.release_work()
        if len(refused) < len(inside.main.operations):
            return ""
        reasons += refused.values()
    return reasons[0] or "refused without a reason"


def alone(call: Call) -> Model:
    """Make a model of one call whose given values are inputs."""
    b = ModelBuilder(call.cell.op.name)
    indices, inputs, outputs = operands_of(call, b)
    b.operation(call.cell.op.code, indices, outputs)
    return b.finish(inputs, outputs)


@cache
def by_type(kind: int) -> list[Cell]:
    """Return the cells that read a first tensor of a type, each operation once for each of its signatures."""
    return [cell for cell in ordinary() if cell.kind == kind and not cell.op.random]


@cache
def ordinary() -> list[Cell]:
    """Return all cells of ordinary values."""
    return [
        cell
        for name in OPS
        if not OPS[name].code >> EXTENSION_SHIFT
        for cell in cells((name,))
        if cell.values == "ordinary"
    ]


def quantisation(rng: np.random.Generator, kind: int) -> tuple[float, int]:
    """Draw a scale and zero point."""
    if not quantised(kind):
        return 0.0, 0
    limits = np.iinfo(dtype_of(kind))
    return float(np.float32(2.0 ** rng.uniform(-6, -2))), int(rng.integers(limits.min, limits.max, endpoint=True))


def scaled(call: Call, *, saturating: bool = False) -> Call:
    """Return a call with a scale of quantised results that spreads them over their type, where the record leaves it.

    saturating: whether a fifth to a half of the results lie beyond their type, so that they are at its ends.
    """
    record = call.cell.op
    for number, value in enumerate(call.outputs):
        output = output_at(record, number)
        ruled = output.quant is not None or output.name in record.scaled
        if not quantised(value.type) or ruled or record.context:
            continue
        for _ in range(SCALINGS):
            factor = _factor(call, number, saturating)
            if factor == 1:
                break
            outputs = list(call.outputs)
            outputs[number] = replace(outputs[number], scale=float(np.float32(outputs[number].scale * factor)))
            bound = bind(record, call.inputs, outputs)
            call = replace(call, outputs=tuple(outputs), bound=bound)
    return call


def _factor(call: Call, number: int, saturating: bool) -> float:
    try:
        results = applied(call.bound, call.inputs)[1]
    except NnhalError as error:
        raise InvalidModel(str(error)) from None
    x = results[number].astype(np.int64)
    if not x.size:
        return 1.0
    limits = np.iinfo(results[number].dtype)
    width = limits.max - limits.min
    at_end = float(np.mean((x == limits.min) | (x == limits.max)))
    spread = int(x.max() - x.min())
    if saturating:
        return 1.25 if at_end > 0.5 and spread else 1.0 if 0.2 <= at_end <= 0.5 else 0.5
    if at_end > 0.1 and spread:
        return 2.0
    if x.size > 1 and 0 < spread < width / 6:
        return max(spread * 2 / width, 1 / 16)
    return 1.0


def suits(value: Value, runs: Sequence[Array]) -> bool:
    """Whether an error would show in a result, and the errors of correct devices are small."""
    x = runs[0]
    if not x.size:
        return False
    if x.dtype.kind == "b":
        return bool(x.size < 4 or x.any() != x.all())
    if x.dtype.kind in "iu" and not quantised(value.type):
        return bool(np.abs(x.astype(np.int64)).max() < LARGEST)
    real = x.astype(np.float64)
    if not np.isfinite(real).all():
        return False
    uncertain = 0.0 if all(r is x for r in runs) else float(np.max(deviations(x, runs[1:])))
    spread = float(real.max() - real.min())
    if quantised(value.type):
        limits = np.iinfo(x.dtype)
        at_end = float(np.mean((x == limits.min) | (x == limits.max)))
        if x.size >= 4 and (at_end > 0.5 or spread < NARROW * (limits.max - limits.min)):
            return False
        return uncertain <= max(2.0, spread / 16)
    size = float(np.abs(real).max())
    if size > GREATEST or size < 1e-3 or (x.size >= 4 and spread < 1e-3 * size):
        return False
    return uncertain <= UNCERTAIN * (spread if x.size > 1 else size) / (1 if value.type == F32 else 0.25)
