"""The XLA device: compiles models with JAX for whatever JAX runs on: a GPU or TPU with JAX's plugin for it, or the CPU.

One file is the whole driver: the primitives that `kit.operations` lowers to, written with JAX while it traces; the
compiled model; and the device. JAX is imported when the first model needs it.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.codes import DeviceType
from nnhal.base.codes import RecurrentActivation as Kind
from nnhal.base.errors import Closed, DeviceUnavailable, InvalidArgument, InvalidRequest, OperationFailed
from nnhal.base.installed import version_of
from nnhal.base.operands import fixed
from nnhal.drivers import reference
from nnhal.drivers.kit import for_each_shape, kept_graph
from nnhal.drivers.kit.lowering import WholeModelGraph
from nnhal.drivers.kit.native import interrupted_later
from nnhal.drivers.kit.operations import Node, WindowAttributes, table_for
from nnhal.drivers.kit.operations.primitives import GATES, LstmLayer, RnnLayer
from nnhal.drivers.kit.proof import ProvedDevice
from nnhal.drivers.kit.real import RealGraph, RealTask
from nnhal.drivers.kit.real.arrays import ArrayNode, ArrayPrimitives
from nnhal.hal.device import Capabilities, Considered, Device, Hints, Prepared, Verdict
from nnhal.hal.request import UNLIMITED, Control, Request, Timing
from nnhal.model.graph import Model
from nnhal.model.validate import validate
from nnhal.ops.schema import show

INSTALL = "install it with: pip install 'nnhal[xla]'"
PICTURES = "NCHW", "OIHW", "NCHW"
PLUGINS = find_spec("jax_plugins") is not None  # for GPUs, and other devices than the CPU
NO_BACKEND = AssertionError, RuntimeError  # JAX raises these for a platform that it lacks
ELSEWHERE = {"IF": "the runtime itself runs branches", "WHILE": "XLA cannot end a loop at its timeout"}
TABLE = table_for(RealTask, "XLA", ELSEWHERE)


@cache
def jax() -> Any:
    """Import JAX; DeviceUnavailable if it is not installed."""
    try:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # as JAX does, but before its extension reads it
        with interrupted_later():
            import_module("jaxlib.xla_client")
        import_module("jax.extend")
        return import_module("jax")
    except ImportError as error:
        raise DeviceUnavailable(f"xla: JAX cannot be imported ({error}), {INSTALL}") from error


@cache
def started() -> int:
    """Return the process that JAX started its threads in: a forked child has the module, but not the threads.

    DeviceUnavailable if JAX does not start, for example with JAX_PLATFORMS=cuda without a GPU.
    """
    try:
        jax().devices()
    except NO_BACKEND as error:
        raise DeviceUnavailable(
            f"xla: JAX finds no device: {error or 'its setting JAX_PLATFORMS names none'}"
        ) from error
    return os.getpid()


@contextmanager
def _own_settings() -> Iterator[None]:
    """Compute as JAX does without the settings that an application may have made."""
    own = jax()
    with (
        own.enable_x64(False),
        own.numpy_rank_promotion("allow"),
        own.disable_jit(False),
        own.debug_nans(False),
        own.debug_infs(False),
        own.transfer_guard("allow"),
    ):
        yield


class XlaPrimitives(ArrayPrimitives):
    """A computation that JAX traces.

    Constants stay NumPy arrays until an operation reads them, and become arguments of the compiled computation. So its
    compilation does not depend on their values.
    """

    name, merges_factors = "XLA", True

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__(jax().numpy, inputs)
        self.lax = jax().lax
        self.exact = {"precision": self.lax.Precision.HIGHEST}  # of float32, on devices that prefer fewer bits
        self.functions |= {
            "sigmoid": self.lax.logistic,
            "log": lambda x: self.np.log(self.normal(x)),
            "power": lambda x, y: self.np.power(self.normal(x), self.normal(y)),
        }

    def quotient(self, x: Any, y: Any) -> Any:
        """Divide, rounded once.

        XLA multiplies by the reciprocal of what it knows to be one number, and makes one division of two, whose product
        of divisors may be 0. It does not look through a choice.
        """
        found = self.np.divide(x, self.np.where(self.np.isnan(x), np.float32(1), y))
        return self.np.where(self.np.isnan(found), np.float32(np.nan), found)

    def normal(self, x: Any) -> Any:
        """Return x with 0 for subnormal numbers, which only some steps of XLA's functions take for 0."""
        return self.np.where(self.np.abs(x) < np.finfo(np.float32).tiny, self.np.copysign(np.float32(0), x), x)

    def rounded(self, x: Any) -> Any:
        return self.lax.round(x, self.lax.RoundingMethod.AWAY_FROM_ZERO)

    def product(self, x: Any, y: Any) -> Any:
        return self.np.matmul(x, y, **self.exact)

    def top(self, x: Node, count: int, axis: int) -> Node:
        rows = self.np.moveaxis(x.array, axis, -1)  # zeros of both signs are equal, but not to `top_k`
        found = self.lax.top_k(self.np.where(rows == 0, self.np.zeros_like(rows), rows), count)[1]
        return ArrayNode(self.np.moveaxis(found, -1, axis).astype(np.int32))

    def convolution(self, x: Node, weights: Node, groups: int, how: WindowAttributes, bias: Node | None = None) -> Node:
        sizes, (_, inputs, *window) = x.array.shape[2:], weights.array.shape
        pads = [how.around(n, k, axis) for axis, (n, k) in enumerate(zip(sizes, window, strict=True))]
        whole = partial(
            self.lax.conv_general_dilated,
            window_strides=how.strides,
            padding=pads,
            rhs_dilation=how.dilations,
            dimension_numbers=PICTURES,
            feature_group_count=groups,
            **self.exact,
        )
        if groups == 1 or inputs > 1:
            return ArrayNode(whole(x.array, weights.array))
        shifted = partial(self._shifted, pads=pads, how=how)  # on the CPU 10 to 30 times as fast
        return ArrayNode(self.lax.platform_dependent(x.array, weights.array, cpu=shifted, default=whole))

    def _shifted(self, x: Any, weights: Any, *, pads: Sequence[tuple[int, int]], how: WindowAttributes) -> Any:
        """Write a depthwise convolution as a sum of moved pictures."""
        outputs, _, high, wide = weights.shape
        x = self.np.pad(self.np.repeat(x, outputs // x.shape[1], 1), [(0, 0), (0, 0), *pads])
        (down, across), (tall, broad) = how.dilations, how.strides
        rows, columns = x.shape[2] - (high - 1) * down, x.shape[3] - (wide - 1) * across
        y = None
        for row in range(high):
            for column in range(wide):
                first, left = row * down, column * across
                moved = x[:, :, first : first + rows : tall, left : left + columns : broad]
                part = moved * weights[:, 0, row, column].reshape(1, -1, 1, 1)
                y = part if y is None else y + part
        return y

    def spread(
        self, x: Node, weights: Node, strides: Sequence[int], before: Sequence[int], after: Sequence[int]
    ) -> Node:
        window = weights.array.shape[2:]
        pads = [(size - 1 - first, size - 1 - more) for size, first, more in zip(window, before, after, strict=True)]
        turned = weights.array[:, :, ::-1, ::-1].swapaxes(0, 1)
        one, how = (1, 1), {"lhs_dilation": tuple(strides), "dimension_numbers": PICTURES, **self.exact}
        return ArrayNode(self.lax.conv_general_dilated(x.array, turned, one, pads, **how))

    def _windows(self, x: Any, how: WindowAttributes, reduce: Callable[..., Any], start: float) -> Any:
        size = how.size or (1, 1)
        pads = [how.around(n, k, axis) for axis, (n, k) in enumerate(zip(x.shape[2:], size, strict=True))]
        move = {"window_strides": (1, 1, *how.strides), "padding": [(0, 0), (0, 0), *pads]}
        return self.lax.reduce_window(x, np.float32(start), reduce, (1, 1, *size), **move)

    def mean_pool(self, x: Node, how: WindowAttributes, padded: bool = False) -> Node:
        total, size = self._windows(x.array, how, self.lax.add, 0), np.float32(np.prod(how.size or ()))
        ones = np.ones((1, 1, *x.array.shape[2:]), np.float32)
        return ArrayNode(self.quotient(total, size if padded else self._windows(ones, how, self.lax.add, 0)))

    def max_pool(self, x: Node, how: WindowAttributes) -> Node:
        return ArrayNode(self._windows(x.array, how, self.lax.max, -np.inf))

    def recurrent(self, x: Node, layer: LstmLayer | RnnLayer, count: int, back: bool, axis: int) -> Sequence[Node]:
        """Write a loop of XLA over the sequence."""
        step: Callable[..., Any]
        if isinstance(layer, LstmLayer):
            own = [gate for gate in GATES if gate in layer.weights]
            ahead, again, bias = ([part[gate] for gate in own if gate in part] for part in layer[:3])
            step, states = partial(self._lstm_step, layer, own), [layer.state, layer.memory]
        else:
            ahead, again, bias = [layer.weights], [layer.recurrent], [layer.bias]
            step, states = lambda _, own, again: (self._activation(layer.activation, own + again),), [layer.state]
        products = self.matmul(x, self.concat(ahead, 0), turn_y=True).array + self.concat(bias, 0).array
        return self._loop(step, products, self.concat(again, 0), states, back, axis)

    def _loop(
        self, step: Callable[..., Any], products: Any, again: Node, states: Sequence[Node], back: bool, axis: int
    ) -> Sequence[Node]:
        """Run a step, which returns the next states, for each input's products; its first state is the output."""

        def one(before: Any, own: Any) -> Any:
            after = step(before, own, self.product(before[0], again.array.T))
            return after, after[0]

        begin = tuple(self.np.asarray(state.array) for state in states)
        last, y = self.lax.scan(one, begin, self.np.moveaxis(products, axis, 0), reverse=back)
        return [ArrayNode(self.np.moveaxis(y, 0, axis)), *map(ArrayNode, last)]

    def _activation(self, kind: Kind, x: Any) -> Any:
        functions = {
            Kind.NONE: lambda x: x,
            Kind.RELU1: lambda x: self.np.clip(x, -1, 1),
            Kind.RELU6: lambda x: self.np.clip(x, 0, 6),
            Kind.RELU: self.functions["relu"],
            Kind.SIGMOID: self.lax.logistic,
            Kind.TANH: self.np.tanh,
        }
        return functions[kind](x)

    def _lstm_step(
        self, layer: LstmLayer, gates: Sequence[str], states: Sequence[Any], own: Any, again: Any
    ) -> tuple[Any, ...]:
        values = dict(zip(gates, self.np.split(own + again, len(gates), -1), strict=True))

        def gate(name: str, memory: Any) -> Any:
            peephole = layer.peepholes.get(name)
            return values[name] if peephole is None else values[name] + memory * peephole.array

        memory = states[1]
        forget = self.lax.logistic(gate("forget", memory))
        admit = self.lax.logistic(gate("input", memory)) if "input" in gates else np.float32(1) - forget
        memory = forget * memory + admit * self._activation(layer.activation, gate("cell", memory))
        return self.lax.logistic(gate("output", memory)) * self._activation(layer.activation, memory), memory

    def gru(self, x: Node, state: Node, weights: Sequence[Node], count: int, reset_behind: bool) -> Sequence[Node]:
        of_input, of_state, biases = weights
        bias = self.np.split(biases.array, 3 + reset_behind)
        behind = bias[3] if reset_behind else np.float32(0)
        candidate = of_state.array[2 * len(bias[0]) :]

        def step(states: Sequence[Any], own: Any, again: Any) -> tuple[Any, ...]:
            (before,), (update, reset, new) = states, self.np.split(own, 3, -1)
            kept, used, through = self.np.split(again, 3, -1)
            update, reset = self.lax.logistic(update + kept), self.lax.logistic(reset + used)
            seen = reset * (through + behind) if reset_behind else self.product(reset * before, candidate.T)
            return ((np.float32(1) - update) * self.np.tanh(new + seen) + update * before,)

        products = self.matmul(x, of_input, turn_y=True).array + self.np.concatenate(bias[:3])
        return self._loop(step, products, of_state, [state], False, 1)


class Traced(NamedTuple):
    """A computation that JAX traced. closed: it and its constants. checks: how many last outputs report a failure."""

    closed: Any
    checks: int


def traced(model: Model, write: Callable[[RealGraph[Any]], bool]) -> Traced:
    """Trace a model of known input shapes. write: lowers its operations, and returns whether all are in the graph."""
    values = validate(model).subgraphs[0].values
    inputs = [value for value in (values[index] for index in model.main.inputs) if value is not None]
    checks = 0

    def lowered(*given: Any) -> list[Any]:
        nonlocal checks
        graph = RealGraph(model, XlaPrimitives(given))
        outputs = graph.outputs() if write(graph) else []
        checks = len(graph.checks)
        return [node.array for node in outputs]

    with _own_settings():
        closed = jax().make_jaxpr(lowered)(*(jax().ShapeDtypeStruct(value.shape, value.dtype) for value in inputs))
    return Traced(closed, checks)


class XlaModel(Prepared):
    """A compiled model whose input shapes are known. JAX runs several executions at once."""

    def __init__(self, found: Traced, platform: str | None) -> None:
        if os.getpid() != started():
            raise OperationFailed("xla: JAX does not run in a forked process; compile with isolation='process'")
        closed, self._checks = found.closed, found.checks
        self._shapes = [aval.shape for aval in closed.in_avals]
        core = jax().extend.core

        def computation(constants: Sequence[Any], *inputs: Any) -> Any:
            return core.jaxpr_as_fun(core.ClosedJaxpr(closed.jaxpr, constants))(*inputs)

        try:
            with _own_settings():
                device = jax().devices(platform)[0]
                own = jax().sharding.SingleDeviceSharding(device)
                self._constants = jax().device_put(closed.consts, device)
                inputs = [jax().ShapeDtypeStruct(aval.shape, aval.dtype, sharding=own) for aval in closed.in_avals]
                self._call: Any = jax().jit(computation).lower(self._constants, *inputs).compile()
        except RuntimeError as error:
            raise OperationFailed(f"xla: cannot compile the model: {error}") from error

    def run(self, request: Request, control: Control) -> Timing | None:
        start = time.monotonic_ns()
        if control is not UNLIMITED:
            control.check()
        call, constants, given = self._call, self._constants, request.inputs
        if call is None:
            raise Closed("xla: the prepared model was closed")
        for number, (x, shape) in enumerate(zip(given, self._shapes, strict=True)):
            if x is None or x.shape != shape:
                state = "omitted" if x is None else f"of shape {show(x.shape)}"
                raise InvalidRequest(f"input {number} is {state}, must be of shape {show(shape)}")
        begin = time.monotonic_ns()
        try:
            with _own_settings():
                outputs = [np.asarray(y) for y in call(constants, *given)]
        except RuntimeError as error:
            raise OperationFailed(f"xla: {error}") from error
        spent = time.monotonic_ns() - begin
        control.check()
        count = len(outputs) - self._checks
        if any(failed.any() for failed in outputs[count:]):
            raise OperationFailed("xla: an index is outside its dimension")
        for number, y in enumerate(outputs[:count]):
            request.write(number, y)
        return Timing(spent, time.monotonic_ns() - start) if control.measure else None

    def close(self) -> None:
        self._call = self._constants = None


class Xla(ProvedDevice):
    """A GPU, a TPU or the CPU, through JAX's compiler XLA.

    The option `platform` (text) is one of JAX's platforms, such as "cpu", "cuda" or "rocm"; by default the one that JAX
    prefers. The number of threads on the CPU is JAX's: one for each core that the process may use.
    """

    name = "xla"
    type = DeviceType.GPU if PLUGINS else DeviceType.CPU
    numerics = ("fast", "exact")
    relaxations = ("float16", "infinities", "long_sums", "subnormals")
    table = TABLE

    def __init__(self) -> None:
        super().__init__(version())

    def capabilities(self) -> Capabilities:
        return Capabilities.uniform(0.1)

    def supports(self, model: Model) -> Sequence[Verdict]:
        return self.consider(model, Hints()).verdicts

    def consider(self, model: Model, hints: Hints) -> Considered:
        forms, values = self.asked(hints)[0], validate(model).subgraphs[0].values
        if any((value := values[index]) is None or fixed(value.shape) is None for index in model.main.inputs):
            why = "XLA needs the shapes of all inputs when the model is prepared"
            return Considered([Verdict(False, why)] * len(model.main.operations))
        verdicts: list[Verdict] = []

        def write(graph: RealGraph[Any]) -> bool:
            verdicts.extend(TABLE.verdicts(model, partial(RealTask, graph), forms))
            return all(verdict.ok for verdict in verdicts)

        found = traced(model, write)
        return Considered(verdicts, worked_out=WholeModelGraph(found) if all(v.ok for v in verdicts) else None)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        forms, own = self.asked(hints)
        platform = _platform(own)

        def lowered(known: Model) -> Traced:
            def write(graph: RealGraph[Any]) -> bool:
                TABLE.lower(known, partial(RealTask, graph), forms)
                return True

            return traced(known, write)

        def make(known: Model) -> XlaModel:
            return XlaModel((kept_graph(hints, Traced) if known is model else None) or lowered(known), platform)

        return for_each_shape(model, make, partial(reference.Interpreter, exact=forms.exact))


def version() -> str:
    """Return JAX's version, and whether it has plugins; DeviceUnavailable if JAX is not installed."""
    return f"{version_of('jax') or jax().__version__}{' with plugins' * PLUGINS}"


def _platform(hints: Hints) -> str | None:
    """Return the platform that the hints name; None for JAX's default."""
    options = dict(hints.options)
    platform = options.pop("platform", None)
    if options:
        raise InvalidArgument(f"xla: option {min(options)!r} is unknown, must be 'platform'")
    try:
        if platform is not None:
            jax().devices(str(platform))
    except NO_BACKEND as error:
        raise InvalidArgument(f"xla: option platform is {platform!r}, must be one that JAX has: {error}") from error
    return platform


def device() -> Device:
    """Return the driver's device; DeviceUnavailable if JAX is not installed."""
    return Xla()
