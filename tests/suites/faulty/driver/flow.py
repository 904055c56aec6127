"""IF and WHILE with a fault on the reference kernels: how variables of a loop and results of a branch are stored."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnhal.base.operands import Array
from nnhal.base.records import replace
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import Model
from nnhal.ops.schema import Bound

from .faults import RANDOM
from .operations import Every, Kernel, Kernels, of_engine


def of_loop(name: str, what: str) -> Any:
    """A fault of WHILE that shows in a loop whose variables depend on each other."""
    return of_engine(name, what, "WHILE", (RANDOM,), Every)


def same(one: Array, other: Array) -> bool:
    """Whether two arrays could have one memory."""
    return one.dtype == other.dtype and np.array_equal(one, other)


class Stored(Kernels):
    """A WHILE that stores the results of its body in some way."""

    operation = "WHILE"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        context, operands = arguments

        def call(index: int, variables: Sequence[Array]) -> list[Array]:
            made: list[Array] = context.call(index, variables)
            return self.stored(variables, made) if index == a.body_model.index else made

        return kernel(a, replace(context, call=call), operands)

    def stored(self, before: Sequence[Array], made: Sequence[Array]) -> list[Array]:
        """The variables after an iteration."""
        raise NotImplementedError


@of_loop("while-copies-late", "a variable that is a copy of another one is copied when that has changed already")
class CopiesLate(Stored):
    def stored(self, before: Sequence[Array], made: Sequence[Array]) -> list[Array]:
        found: list[Array] = []
        for result in made:
            source = next((n for n, x in enumerate(before[: len(found)]) if same(x, result)), None)
            found.append(result if source is None else found[source])
        return found


@of_loop("while-passed-lost", "a variable that the body passes through is in the other buffer, and lost")
class PassedLost(Stored):
    def stored(self, before: Sequence[Array], made: Sequence[Array]) -> list[Array]:
        return [
            np.zeros_like(result) if same(old, result) else result for old, result in zip(before, made, strict=False)
        ]


@of_loop("while-result-once", "a result that two variables get is stored in the first one only")
class ResultOnce(Stored):
    def stored(self, before: Sequence[Array], made: Sequence[Array]) -> list[Array]:
        return [before[n] if any(same(x, made[n]) for x in made[:n]) else made[n] for n in range(len(made))]


@of_loop("while-size-kept", "a variable that grows keeps the size that it begins with")
class SizeKept(Stored):
    def stored(self, before: Sequence[Array], made: Sequence[Array]) -> list[Array]:
        return [result[: len(old)] for old, result in zip(before, made, strict=False)]


@of_loop("while-operands-overwritten", "a WHILE writes its results over its operands, which others read")
class OperandsOverwritten(Kernels):
    operation = "WHILE"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        results = kernel(a, *arguments)
        for operand, result in zip(arguments[-1], results, strict=False):
            if operand.flags.writeable and operand.shape == result.shape:
                operand[...] = result
        return results


@of_loop("while-constants-overwritten", "a variable that begins with a constant begins where it was the last time")
class ConstantsOverwritten(Kernels):
    operation = "WHILE"

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.before: dict[int, Any] = {}

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        context, operands = arguments
        given = list(operands)
        for place, (operand, result) in self.before.items():
            if given[place] is operand and operand.shape == result.shape and operand.size > 1:  # not a counter
                given[place] = result
        results = kernel(a, context, given)
        self.before = {n: (operands[n], np.array(result)) for n, result in enumerate(results)}
        return results


@of_loop("while-condition-of-one", "the condition sees the first variable that changes, and others as they began")
class ConditionOfOne(Kernels):
    operation = "WHILE"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        context, operands = arguments

        def call(index: int, variables: Sequence[Array]) -> Any:
            if index == a.condition_model.index:
                changed = [n for n, x in enumerate(variables) if x.dtype.kind == "i" and not same(x, operands[n])]
                variables = [x if n in changed[:1] else operands[n] for n, x in enumerate(variables)]
            return context.call(index, variables)

        return kernel(a, replace(context, call=call), operands)


@of_loop("while-none-unwritten", "a loop of no iteration writes no results")
class NoneUnwritten(Stored):
    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        self.iterations = 0
        results = super().kernel(a, kernel, *arguments)
        return results if self.iterations else [np.zeros_like(x) for x in results]

    def stored(self, before: Sequence[Array], made: Sequence[Array]) -> list[Array]:
        self.iterations += 1
        return list(made)


@of_loop("while-inside-continues", "a loop in a loop goes on where it ended in the iteration before")
class InsideContinues(Kernels):
    operation = "WHILE"

    def run(self, request: Request, control: Control) -> Timing | None:
        self.ends: dict[int, Any] = {}
        return super().run(request, control)

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        context, operands = arguments
        ends = self.ends.get(a.body_model.index, ())
        given = [end if end.dtype.kind == "i" and end.size == 1 else x for end, x in zip(ends, operands, strict=False)]
        results = kernel(a, context, [*given, *operands[len(given) :]])
        self.ends[a.body_model.index] = results
        return results


@of_engine("if-inside-first", "an IF in a loop takes the branch of the first iteration", "IF", (RANDOM,), Every)
class InsideFirst(Kernels):
    operation = "IF"

    def run(self, request: Request, control: Control) -> Timing | None:
        self.taken: dict[int, Any] = {}
        return super().run(request, control)

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        context, condition, operands = arguments
        taken = self.taken.setdefault(a.then_model.index, np.array(condition))
        return kernel(a, context, taken, operands)


@of_engine("if-operands-returned", "a result that is an operand is taken from its own place", "IF", (RANDOM,), Every)
class OperandsReturned(Kernels):
    operation = "IF"

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        *_, operands = arguments
        results = kernel(a, *arguments)
        return [
            operands[n] if any(same(x, result) for x in operands) and operands[n].shape == result.shape else result
            for n, result in enumerate(results)
        ]
