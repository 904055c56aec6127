"""Results of a whole model that are wrong on some inputs, after some executions, or once the model is restored."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnhal.base.operands import Array
from nnhal.hal.cache.files import CacheContent
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.request import Control
from nnhal.model.graph import Model

from .faults import MLTS
from .kept import Keeper, Saved
from .operations import Every, Kernels, of_engine

ONE_INPUT, IN_LATENCY, IN_LOADGEN, ONE_IN_LOADGEN = 7, 12, 20, 30  # executions of a prepared model


class Scores(Saved, Kernels):
    """Results of the model may be others. runs: the number of its executions so far."""

    restored, runs = False, 0

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.whole = model

    def call(self, number: int, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        results = super().call(number, inputs, control)
        if number != 0:
            return results
        self.runs += 1
        return [self.changed(x) for x in results]

    def changed(self, x: Array) -> Array:
        """The result that is given."""
        return x


class Models(Keeper, Every):
    """A driver of all operations of the reference, which keeps compilations."""

    engine = Scores

    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Prepared:
        prepared = super().restore(files, token, hints)
        assert isinstance(prepared, Scores)
        prepared.restored = True
        return prepared


def of_scores(name: str, what: str, whole: type[Models] = Models) -> Any:
    """A fault in the results of a whole model."""
    return of_engine(name, what, "SOFTMAX", (MLTS,), whole)


@of_scores("scores-shifted", "each class has the score of the class before")
class ScoresShifted(Scores):
    def changed(self, x: Array) -> Array:
        return np.roll(x, 1, -1)


@of_scores("scores-inaccurate", "each score is too high by 0.2 % of the highest")
class ScoresInaccurate(Scores):
    def changed(self, x: Array) -> Array:
        return x + x.dtype.type(2e-3) * x.max()


@of_scores("scores-nan", "all scores are NaN")
class ScoresNan(Scores):
    def changed(self, x: Array) -> Array:
        return x * x.dtype.type(np.nan)


class Lower(Scores):
    """Some executions give scores that are too low."""

    def changed(self, x: Array) -> Array:
        return x * x.dtype.type(0.9) if self.is_low() else x

    def is_low(self) -> bool:
        """Whether this execution does."""
        raise NotImplementedError


@of_scores("scores-of-one-input", "the scores of execution 7 of a model are too low by a tenth")
class ScoresOfOneInput(Lower):
    def is_low(self) -> bool:
        return self.runs == ONE_INPUT


@of_scores("scores-sink", "the scores from execution 13 of a model on are too low by a tenth")
class ScoresSink(Lower):
    def is_low(self) -> bool:
        return self.runs > IN_LATENCY


@of_scores("scores-sink-late", "the scores from execution 21 of a model on are too low by a tenth")
class ScoresSinkLate(Lower):
    def is_low(self) -> bool:
        return self.runs > IN_LOADGEN


@of_scores("scores-of-one-run", "the scores of execution 30 of a model are too low by a tenth")
class ScoresOfOneRun(Lower):
    def is_low(self) -> bool:
        return self.runs == ONE_IN_LOADGEN


@of_scores("restored-reversed", "a restored model gives its scores in reverse")
class RestoredReversed(Scores):
    def changed(self, x: Array) -> Array:
        return x[..., ::-1] if self.restored else x


@of_scores("restored-reversed-once", "a restored model gives the scores of its execution 7 in reverse")
class RestoredReversedOnce(Scores):
    def changed(self, x: Array) -> Array:
        return x[..., ::-1] if self.restored and self.runs == ONE_INPUT else x


class NotRestored(Models):
    """A driver that cannot restore."""

    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Prepared:
        raise RuntimeError("cannot")


@of_scores("saved-in-vain", "saves each model and restores none", NotRestored)
class SavedInVain(Scores):
    pass


class Unsaved(Models):
    """A driver that keeps compilations, but none of any model."""

    class engine(Scores):  # noqa: N801 (as the attribute is called)
        def save(self, files: CacheContent) -> bool:
            return False
