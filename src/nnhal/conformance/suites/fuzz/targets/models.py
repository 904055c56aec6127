"""Models: calls of the builder, drawn models with changes, and files in nnhal's own format.

A model is valid, and then can be shown, written and read again, or an error refuses it.
"""

import random
import tempfile
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from nnhal import api
from nnhal.base.codes import Lifetime, OperandType
from nnhal.base.errors import InvalidArgument, NnhalError
from nnhal.base.operands import ChannelQuant
from nnhal.base.records import replace
from nnhal.conformance.differential import model_of
from nnhal.conformance.draw import Call, Cell, cells, draw
from nnhal.conformance.mutate import MUTATIONS
from nnhal.conformance.suites.fuzz.inputs import NUMBERS, Choices
from nnhal.conformance.suites.fuzz.target import FuzzTarget, WrongAnswer
from nnhal.conformance.suites.suite import SuiteRun
from nnhal.model.builder import ModelBuilder
from nnhal.model.file import MAGIC, write_model
from nnhal.model.graph import Model
from nnhal.model.outline import outline
from nnhal.model.stored import pack_device_view
from nnhal.model.text import text
from nnhal.model.validate import validate
from nnhal.ops import OPS

MOST_MUTANTS = 40  # of one mutation, among which an input chooses
_DIMENSIONS = (0, 1, 1, 2, 2, 3, 4, 5, 7, 8, 17, 64, 65536, 2**31 - 1, 2**32 - 1, -1)
_REALS = (0.0, 1.0, 0.5, 0.05, 1 / 256, -1.0, 1e-45, 3e38, float("inf"), float("nan"))
_CELLS = list(cells())


class ModelTarget(FuzzTarget):
    """Bytes of a model's file, or the choices of a builder's calls or of a drawn model and its changes."""

    name = "model"
    guided = "nnhal.model", "nnhal.ops"

    def __init__(self, run: SuiteRun) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="nnhal-fuzz-")
        self._path = Path(self._folder.name, "model.nnhal")

    def seeds(self) -> Sequence[bytes]:
        """Return files of models, and random choices."""
        rng = random.Random(0)
        return [*super().seeds(), *(rng.randbytes(256) for _ in range(32))]

    def mutate(self, rng: random.Random, data: bytes, other: bytes) -> bytes:
        """Change bytes, or draw other ones."""
        return rng.randbytes(256) if rng.random() < 0.2 else super().mutate(rng, data, other)

    def run(self, data: bytes) -> str:
        """Make one model and look at it."""
        if data.startswith(MAGIC):
            return self._judged("file", lambda: api.load(data))
        choices = Choices(data)
        if choices.random() < 0.5:
            return self._judged("builder", lambda: built(choices))
        return self._judged("drawn", lambda: mutated(choices, model_of(drawn(choices))))

    def _judged(self, how: str, make: Callable[[], Model]) -> str:
        try:
            model = make()
            validate(model)
        except NnhalError as error:
            if not isinstance(error, InvalidArgument) or len(str(error)) < 8:
                raise WrongAnswer(
                    f"{how}: {type(error).__name__}: {error}, must be InvalidArgument with a reason"
                ) from error
            return f"{how}: {type(error).__name__}"
        text(model)
        outline(model)
        write_model(model, self._path)
        if pack_device_view(api.load(self._path)) != pack_device_view(model):
            raise WrongAnswer(f"{how}: a model is another one after it was written and read")
        return f"{how}: valid"

    def close(self) -> None:
        """Delete the files."""
        self._folder.cleanup()


def drawn(choices: Choices, among: Sequence[Cell] = _CELLS) -> Call:
    """Return a valid call of one of several cells; the choices seed its values."""
    cell = choices.choice(among)
    rng = np.random.default_rng(choices.getrandbits(32))
    return draw(cell, rng, open=choices.random() < 0.1, late=choices.random() < 0.1)


def mutated(choices: Choices, model: Model) -> Model:
    """Return a model with up to three changes: mutations of the NN HAL's test suite, and other values of any field."""
    if choices.random() < 0.5:
        found = [main for _, _, main in islice(choices.choice(list(MUTATIONS.values()))(model.main), MOST_MUTANTS)]
        model = replace(model, main=choices.choice(found)) if found else model
    for _ in range(choices.randrange(3)):
        if model.main.operands:
            operands = list(model.main.operands)
            place = choices.randrange(len(operands))
            operands[place] = replace(operands[place], **_operand_field(choices))
            model = replace(model, main=replace(model.main, operands=tuple(operands)))
    return model


def _operand_field(choices: Choices) -> dict[str, Any]:
    """Return another value of an operand's field."""
    kind = choices.randrange(6)
    if kind == 0:
        return {"type": choices.choice(list(OperandType))}
    if kind == 1:
        return {"dimensions": _dimensions(choices)}
    if kind == 2:
        return {"scale": choices.choice(_REALS)}
    if kind == 3:
        return {"zero_point": choices.choice((*NUMBERS, -1, -128, -(2**31)))}
    if kind == 4:
        return {"lifetime": choices.choice(list(Lifetime))}
    return {"channel": _channel(choices)}


def _dimensions(choices: Choices) -> tuple[int, ...]:
    return tuple(choices.choice(_DIMENSIONS) for _ in range(choices.choice((0, 1, 2, 3, 4, 4, 5, 9))))


def _channel(choices: Choices) -> ChannelQuant:
    return ChannelQuant(tuple(choices.choice(_REALS) for _ in range(choices.randrange(6))), choices.randrange(5) - 1)


def built(choices: Choices) -> Model:
    """Return a model that random calls of the builder make."""
    b = ModelBuilder(choices.choice(("", "m", "\x1b[2J")))
    indices: list[int] = [0]
    for _ in range(choices.randint(1, 12)):
        _add(choices, b, indices)
    several = indices or [0]
    inputs = [choices.choice(several) for _ in range(choices.randrange(4))]
    outputs = [choices.choice(several) for _ in range(choices.randrange(4))]
    return b.finish(inputs, outputs, relaxed=choices.random() < 0.2, extensions=b.extensions())


def _add(choices: Choices, b: ModelBuilder, indices: list[int]) -> None:
    """Make one call of the builder."""
    kind, type = choices.randrange(8), choices.choice((*OperandType, 9999, -1))
    if kind < 2:
        channel = _channel(choices) if choices.random() < 0.2 else None
        lifetime = choices.choice(list(Lifetime)) if choices.random() < 0.2 else Lifetime.TEMPORARY_VARIABLE
        scale, zero = choices.choice(_REALS), choices.choice((0, 0, *NUMBERS))
        indices.append(b.operand(type, _dimensions(choices), scale, zero, channel=channel, lifetime=lifetime))
    elif kind == 2:
        array = np.zeros(
            [min(d, 8) % 9 for d in _dimensions(choices)][:4], choices.choice(("f4", "i4", "u1", "b1", "f2"))
        )
        indices.append(b.constant(type, array, choices.choice(_REALS), choices.choice(NUMBERS)))
    elif kind == 3:
        numbers = choices.choice(NUMBERS), choices.choice(NUMBERS), choices.choice(NUMBERS)
        indices.append(b.reference(type, _dimensions(choices), *numbers, choices.choice(_REALS)))
    elif kind == 4:
        indices.append(b.no_value(type) if choices.random() < 0.5 else b.subgraph_operand(type, choices.randrange(3)))
    elif kind == 5:
        other = b.subgraph()
        inner = [0]
        for _ in range(choices.randrange(3)):
            _add(choices, other, inner)
        other.finish_subgraph([choices.choice(inner)], [choices.choice(inner)])
    else:
        operation = choices.choice(list(OPS)) if choices.random() < 0.9 else choices.choice((9999, -1))
        several = [*indices, *NUMBERS[:4]]
        given = [choices.choice(several) for _ in range(choices.randrange(9))]
        b.operation(operation, given, [choices.choice(several) for _ in range(choices.randrange(4))])
