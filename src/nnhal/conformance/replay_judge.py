"""Compares the results of a replayed request with the captured ones.

An output that is not equal to the captured one may differ by twice the tolerance that `evaluation` estimates: the captured
device and this one may each be off by that much from the exact result. A request without captured outputs, because it
failed then, is compared with the reference.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from nnhal.base.errors import NnhalError, OperationFailed, error_text
from nnhal.base.operands import Array
from nnhal.conformance.compare import tolerance
from nnhal.conformance.evaluation import Evaluated, evaluate
from nnhal.model.graph import CONSTANTS, Model
from nnhal.model.validate import validate

Arrays = Sequence[Array | None]


class NothingToCompare(NnhalError):
    """Neither the capture nor the reference has a result for a request."""


class ResultJudge:
    """Judges the results of one model's requests. rtol, atol: in place of the operations' tolerances."""

    def __init__(self, model: Model, rtol: float | None, atol: float | None, *, in_a_row: bool) -> None:
        """in_a_row: as of `evaluate`."""
        self._model, self._rtol, self._atol, self._in_a_row = model, rtol, atol, in_a_row
        self._computed = _computed(model)
        self._known: dict[tuple[bytes, ...], Evaluated | str] = {}

    def compared(
        self,
        inputs: Arrays,
        wanted: Arrays | None,
        actual: Arrays,
        digests: Sequence[bytes | None],
    ) -> tuple[str, float | None]:
        """Return the problem with the results, "" without one, and the largest difference from the captured ones.

        wanted: None if the captured request failed. digests: of the inputs, which are evaluated once. Raises
        NothingToCompare.
        """
        if wanted is None:
            judged = self._evaluated(inputs, digests)
            if isinstance(judged, str):
                raise NothingToCompare(f"the capture has no outputs, and the reference gives none: {judged}")
            problem = judged.differences(actual)
            return problem and f"{problem} (the captured request failed: by the reference)", None
        if len(actual) != len(wanted):
            return f"has {len(actual)} outputs, must have {len(wanted)}", None
        worst = max((_off(a, w) for a, w in zip(actual, wanted, strict=True)), default=0.0)
        if all(map(_equal, actual, wanted)):
            return "", worst
        given = Evaluated(tuple(_filled(wanted)), tuple(self._fixed(n, w) for n, w in enumerate(wanted)))
        problem = given.differences(actual)
        if not problem or self._rtol is not None or self._atol is not None:
            return problem, worst
        judged = self._evaluated(inputs, digests)
        if isinstance(judged, str):
            rooms = tuple(self._fixed(n, w, anyway=True) for n, w in enumerate(wanted))
            problem = Evaluated(given.outputs, rooms).differences(actual)
            return problem and f"{problem} (by a tolerance for all operations: {judged})", worst
        twice = Evaluated(given.outputs, tuple(2 * room for room in judged.rooms))
        problem = twice.differences(actual)
        if not problem:
            return "", worst
        right = [not judged.differences(each) for each in (wanted, actual)]
        whose = {
            (True, False): "the reference agrees with the capture",
            (False, True): "the reference agrees with the replay",
        }
        return f"{problem} ({whose.get((right[0], right[1]), 'the reference agrees with neither')})", worst

    def _fixed(self, number: int, wanted: Array | None, *, anyway: bool = False) -> Array:
        """Return a tolerance that needs no evaluation: the user's, or AOSP's for a real result that is computed.

        anyway: AOSP's for each result.
        """
        if wanted is None:
            return np.zeros(())
        rtol, atol = self._rtol, self._atol
        if rtol is None and atol is None:
            main = self._model.main
            if not anyway and (wanted.dtype.kind not in "fc" or main.outputs[number] not in self._computed):
                return np.zeros(wanted.shape)
            atol, rtol = tolerance(main.operands[main.outputs[number]].type, self._model.relaxed)
        with np.errstate(invalid="ignore"):
            size = np.abs(wanted.astype(np.complex128 if wanted.dtype.kind == "c" else np.float64))
            return np.asarray((atol or 0) + (rtol or 0) * np.where(np.isfinite(size), size, 0))

    def _evaluated(self, inputs: Arrays, digests: Sequence[bytes | None]) -> Evaluated | str:
        """Return the reference's results on these inputs, or why there are none; once for equal inputs."""
        key = tuple(each or b"" for each in digests)
        if key not in self._known:
            given = [x for x in inputs if x is not None]
            try:
                if len(given) != len(inputs):
                    raise OperationFailed("an input is omitted")
                self._known[key] = evaluate(self._model, given, in_a_row=self._in_a_row)
            except NnhalError as error:
                self._known[key] = error_text(error)
        return self._known[key]


def _equal(actual: Array | None, wanted: Array | None) -> bool:
    if actual is None or wanted is None:
        return actual is wanted
    same = (actual.shape, actual.dtype) == (wanted.shape, wanted.dtype)
    return same and np.array_equal(actual, wanted, equal_nan=wanted.dtype.kind in "fc")


def _filled(outputs: Sequence[Array | None]) -> list[Array]:
    return [np.zeros(()) if x is None else x for x in outputs]


def _off(actual: Array | None, wanted: Array | None) -> float:
    """Return the largest difference of two outputs; infinity if they cannot be compared."""
    if actual is None or wanted is None:
        return 0.0 if actual is wanted else np.inf
    if actual.shape != wanted.shape:
        return np.inf
    wide: Callable[[Array], Array] = partial(
        np.asarray, dtype=np.complex128 if wanted.dtype.kind == "c" else np.float64
    )
    a, w = wide(actual), wide(wanted)
    with np.errstate(invalid="ignore"):
        off = np.where((a == w) | (np.isnan(a) & np.isnan(w)), 0.0, np.abs(a - w))
    return float(np.max(np.where(np.isnan(off), np.inf, off), initial=0.0))


def _computed(model: Model) -> frozenset[int]:
    """Return the operands of the main subgraph that are not copies of elements of inputs or constants."""
    main, bounds = model.main, validate(model).subgraphs[0].operations
    found: set[int] = set()
    for operation, bound in zip(main.operations, bounds, strict=True):
        reads = [i for i in operation.inputs if main.operands[i].lifetime not in CONSTANTS]
        if bound is None or not bound.op.moves or any(i in found for i in reads):
            found.update(operation.outputs)
    return frozenset(found)
