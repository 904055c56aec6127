"""The reference device: runs every operation of `ops` with its reference kernel, in numpy. It is always available."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from logging import DEBUG
from typing import Any

import numpy as np

from nnhal import ops
from nnhal.base.codes import DeviceType, operation_name
from nnhal.base.errors import InvalidModel, NnhalError, OperationFailed, OutOfMemory
from nnhal.base.extensions import EXTENSIONS, canonical
from nnhal.base.log import logger
from nnhal.base.operands import Array, UnknownValue, Value, fixed
from nnhal.base.records import Record, replace
from nnhal.hal.answers import wants_exact
from nnhal.hal.device import EXACT, FAST, YES, Capabilities, Device, Hints, Prepared, Verdict, each_operation
from nnhal.hal.memory import MemoryUse
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import CONSTANTS, Model, Operand, Operation, Subgraph
from nnhal.model.parts import operations_reached
from nnhal.model.validate import ValidationFacts, validate
from nnhal.ops.schema import Bound, agree, bind, show

_log = logger("cpuexe")


class Reference(Device):
    """The CPU device that results are measured against.

    The option `numerics` selects "fast" (quantised operations in float32, the default) or "exact" (in integers).

    A driver may derive from it and override `supports` or `prepare`, for the operations that its engine lacks.
    """

    name = "reference"
    version = "1"
    type = DeviceType.CPU

    @property
    def numerics(self) -> tuple[str, ...]:  # type: ignore[override]
        """A derived class that overrides `prepare` must declare its own numerics."""
        return (FAST, EXACT) if type(self).prepare is Reference.prepare else (FAST,)

    @property
    def extensions(self) -> tuple[str, ...]:  # type: ignore[override]
        """The extensions whose operations have records, with kernels, in this process."""
        return tuple(EXTENSIONS)

    def capabilities(self) -> Capabilities:
        return Capabilities.uniform(1.0)

    def supports(self, model: Model) -> list[Verdict]:
        validate(model)
        return each_operation(model, _verdict)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return Interpreter(model, exact=wants_exact(hints.options, self.name))


def _verdict(model: Model, operation: Operation) -> Verdict:
    for each in operations_reached(model, operation):
        if operation_name(canonical(each.type, model.extensions)) not in ops.OPS:
            return Verdict(False, f"no reference kernel for {operation_name(each.type)}")
    return YES


class ReadyOperation(Record, frozen=True):
    """One operation, ready to run. last: operands without a later reader."""

    bound: Bound
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    last: tuple[int, ...]


class SubgraphContext(Record, frozen=True):
    """The services of the interpreter for kernels of control flow and random operations."""

    call: Callable[[int, Sequence[Array | None]], list[Array]]
    control: Control


class Interpreter(Prepared):
    """Runs a bound model operation by operation. It keeps no state between runs, so several may run at once.

    Args:
        model: The model; every operation must have a reference kernel.
        exact: Whether quantised operations are computed in integers, see `ops.integer`.

    Attributes:
        graphs: The subgraphs, the main one first.
        facts: The result of `validate`.
        steps: The operations of each subgraph, ready to run.
        constants: The arrays of each subgraph's constants, by operand.

    Raises:
        InvalidModel: The model breaks a rule of NNAPI, or an operation has no kernel.
    """

    profiles = True

    def __init__(self, model: Model, *, exact: bool = False) -> None:
        self.model, self._exact = model, exact
        self.graphs = tuple(model.subgraphs)
        self.facts: ValidationFacts = validate(model)
        self.steps = [self._plan(i) for i in range(len(self.graphs))]
        self.constants = [
            {i: model.constant(o) for i, o in enumerate(g.operands) if o.lifetime in CONSTANTS} for g in self.graphs
        ]

    def _plan(self, number: int) -> list[ReadyOperation]:
        subgraph, binding = self.graphs[number], self.facts.subgraphs[number]
        last_use = {
            i: n for n, operation in enumerate(subgraph.operations) for i in (*operation.inputs, *operation.outputs)
        }
        for index in subgraph.outputs:
            last_use.pop(index, None)
        dying: list[list[int]] = [[] for _ in subgraph.operations]
        for index, n in last_use.items():
            dying[n].append(index)
        steps = []
        for n, (operation, bound) in enumerate(zip(subgraph.operations, binding.operations, strict=True)):
            if bound is None:
                raise InvalidModel(
                    f"{operation_name(operation.type)} #{n}: is not implemented by the reference device, must have a kernel"
                )
            steps.append(ReadyOperation(bound, operation.inputs, operation.outputs, tuple(dying[n])))
        return steps

    def run(self, request: Request, control: Control) -> Timing | None:
        start = time.monotonic_ns()
        with np.errstate(all="ignore"):
            results = self.call(0, request.inputs, control)
        for index, result in enumerate(results):
            request.write(index, result)
        spent = time.monotonic_ns() - start
        return Timing(spent, spent) if control.measure else None

    def memory(self) -> MemoryUse:
        """Report constants, which are read in place, and intermediates if they are known.

        They are known if all shapes are and no subgraph is called.
        """
        constants = {(o.lifetime, o.location): o.location.length for g in self.graphs for o in constants_of(g)}
        return MemoryUse(0, sum(constants.values()), 0, self._intermediates())

    def _intermediates(self) -> int | None:
        """Return the peak size in bytes of intermediate results; None if it depends on the execution."""
        values, held, most = self.facts.subgraphs[0].values, dict[int, int](), 0
        if len(self.graphs) > 1:
            return None
        for step in self.steps[0]:
            for index in step.outputs:
                value = values[index]
                shape = None if value is None else fixed(value.shape)
                if value is None or shape is None:
                    return None
                held[index] = math.prod(shape) * value.dtype.itemsize
            most = max(most, sum(held.values()))
            for index in step.last:
                held.pop(index, None)
        return most

    def call(self, number: int, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        """Run subgraph `number`.

        Args:
            number: The index of the subgraph, 0 for the main one.
            inputs: Its inputs, None for those without a value.
            control: The execution's control.

        Returns:
            Its outputs. They may share memory with inputs and constants.

        Raises:
            OperationFailed: A kernel failed, or its result breaks the model's declarations.
        """
        subgraph, values = self.graphs[number], self.facts.subgraphs[number].values
        arrays: dict[int, Any] = dict(self.constants[number])
        arrays.update(zip(subgraph.inputs, inputs, strict=True))
        rebind = any(x is None for x in inputs)
        context = SubgraphContext(lambda index, xs: self.call(index + 1, xs, control), control)
        verbose = _log.isEnabledFor(DEBUG)
        profile = control.profile if number == 0 else None
        for place, step in enumerate(self.steps[number]):
            control.check()
            begin = 0 if profile is None else time.monotonic_ns()
            given = [arrays.get(i) for i in step.inputs]
            bound = step.bound
            if rebind or bound.deferred:
                # Copy, so that a rule and the kernel see the same values, even if another thread writes to the caller's
                # memory.
                given = [x.copy() if x is not None and x.dtype.kind in "ib" else x for x in given]
                bound = _rebind(step, [values[i] for i in step.inputs], given)
            for index, array in zip(step.outputs, _apply(bound, given, context, self._exact), strict=True):
                arrays[index] = array
                if verbose:
                    _log.debug("%s wrote operand %d: %s%s", bound.name, index, array.dtype, show(array.shape))
            for index in step.last:
                arrays.pop(index, None)
            if profile is not None:
                profile(place, begin, time.monotonic_ns())
        return [arrays[i] for i in subgraph.outputs]


def constants_of(subgraph: Subgraph) -> Iterator[Operand]:
    """Yield the constant operands of a subgraph."""
    return (operand for operand in subgraph.operands if operand.lifetime in CONSTANTS)


def _rebind(step: ReadyOperation, values: Sequence[Value | None], given: Sequence[Array | None]) -> Bound:
    """Bind again with all values known; a fault is now an error of the execution."""
    known = [
        v
        if v is None or (x is None and v.data is not None)
        else None
        if x is None
        else replace(v, shape=x.shape, data=x)
        for v, x in zip(values, given, strict=True)
    ]
    try:
        return bind(step.bound.op, known, step.bound.outs, step.bound.name)
    except InvalidModel as error:
        raise OperationFailed(str(error)) from error


def _apply(a: Bound, given: Sequence[Array | None], context: SubgraphContext, exact: bool = False) -> list[Array]:
    try:
        extra = (context,) if a.op.context else ()
        kernel = a.op.integer if exact and a.op.integer is not None else a.op.kernel
        results = kernel(a, *extra, *a.form.tensors(given))
    except NnhalError as error:
        if isinstance(error, InvalidModel):
            raise OperationFailed(str(error)) from error
        raise
    except MemoryError as error:
        raise OutOfMemory(f"{a.name}: {error}") from error
    except UnknownValue as error:
        raise OperationFailed(f"{a.name}: {error} is omitted, must have a value") from error
    except (ValueError, IndexError, TypeError, ArithmeticError) as error:
        raise OperationFailed(f"{a.name}: {error}") from error
    outputs = list(results) if isinstance(results, tuple | list) else [results]
    for value, shape, output in zip(a.outs, a.shapes, outputs, strict=False):
        # The result of a loop or branch also has to match the declared shape: it could not be inferred.
        wrong = [s for s in (shape, value.shape or None) if s is not None and not agree(s, output.shape)]
        if output.dtype != value.dtype or wrong:
            wanted = show(wrong[0] if wrong else shape)
            raise OperationFailed(
                f"{a.name}: the result is {output.dtype}{show(output.shape)}, must be {value.dtype}{wanted}"
            )
    return outputs[: len(a.outs)]


def device() -> Device:
    """Return the driver's device."""
    return Reference()
