"""Calls of every operation that the litert device lowers, drawn out of its record: what it takes is right by the definition,
and what it refuses it refuses for what LiteRT cannot do.
"""

import re
import zlib
from contextlib import closing
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from nnhal.base.operands import quantised
from nnhal.conformance.differential import model_of
from nnhal.conformance.draw import Call, Cell, cells, draw
from nnhal.drivers import reference
from nnhal.hal.chain import checked_prepared
from nnhal.hal.claims import consider_support
from nnhal.hal.device import Hints
from nnhal.ops.schema import F16, I32, Q8PC, Q8SYMM, Q16A, Q16S, T
from tests.comparing import as_code, run_both

litert = pytest.importorskip("nnhal.drivers.litert")
pytest.importorskip("ai_edge_litert")
from ai_edge_litert import schema_py_generated as tfl  # noqa: E402, TID251
from ai_edge_litert.interpreter import Interpreter, OpResolverType  # noqa: E402, TID251

from nnhal.drivers.kit import Refused  # noqa: E402
from nnhal.drivers.litert.lowering import lower  # noqa: E402
from nnhal.drivers.litert.task import TABLE  # noqa: E402

DRAWN = {"ordinary": 3}  # calls of a class of values, 1 of the others
TRIES = 60  # calls that are refused before one is taken
AT_EXECUTION = "execution"  # in the reasons of what is refused unless it is constant
SCALES = r"scale .* (must be from|is too fine for|is too coarse for)|sums of products and bias exceed LiteRT.s 32 bits"
NO_SIGMOID = "TFLite's options have no activation SIGMOID"
LSTM = f"{NO_SIGMOID}|LiteRT's kernel without activation|the projection of .* cells has size"
EMPTY = "LiteRT needs elements"
REASONS = {  # for which calls of any scales may be refused whose arguments are constant
    "BIDIRECTIONAL_SEQUENCE_LSTM": LSTM,
    "BIDIRECTIONAL_SEQUENCE_RNN": NO_SIGMOID,
    "DIV": "least integer by -1 ends the process",
    "ELU": r"alpha is [\d.]+, must be 1 for LiteRT's kernel",
    "FILL": EMPTY,
    "LSH_PROJECTION": "the signature is sparse|the sparse projection has|bytes of float16 are hashed",
    "LSTM": LSTM,
    "SVDF": "needs state_size",  # of a state without elements
    "PRELU": "LiteRT broadcasts only alpha, but the input is smaller",
    "SLICE": EMPTY,
    "STRIDED_SLICE": EMPTY,
    "TRANSPOSE_CONV_2D": "padding is negative at the end and positive at the beginning",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": LSTM,
    "UNIDIRECTIONAL_SEQUENCE_RNN": NO_SIGMOID,
}
NEVER: dict[str, dict[int, str]] = {  # types of which LiteRT has no kernel, or another one
    "BATCH_MATMUL": {I32: "does not support TENSOR_INT32"},
    "CAST": dict.fromkeys((Q16A, Q16S), "does not support TENSOR_QUANT16"),
    "LSH_PROJECTION": {F16: "the signature is sparse|the sparse projection has|the bytes of float16 are hashed"},
    "RANK": dict.fromkeys((Q16A, Q16S, Q8SYMM, Q8PC), "does not support TENSOR_QUANT"),
}


device = cache(litert.device)


def constant(call: Call) -> Call:
    """The same call with all constant that can be, but for a first argument of the operation's own type."""
    first = [0] if call.bound.form[0].spec is T else []
    empty = [place for place in call.given if (value := call.inputs[place]) is not None and not value.array.size]
    return replace(call, given=tuple(dict.fromkeys([*first, *empty])))


def refused_or_compared(call: Call) -> tuple[str, str]:
    """Why the device refuses a call, and where its results differ from the definition; "" for neither."""
    model, hints = model_of(call), Hints(threads=1)
    claims = consider_support(device(), model, hints)
    if why := claims.refused().get(0, ""):
        return why, ""
    with (
        closing(checked_prepared(reference.device(), model, Hints())) as mine,
        closing(checked_prepared(device(), model, claims.hints(hints))) as theirs,
    ):
        found = run_both(device(), mine, theirs, call)
    return "", "" if found.outcome == "agrees" else f"{found.reason}\n{as_code(call)}"


def taken(cell: Cell, rng: np.random.Generator, allowed: str) -> str:
    """Draw until a call is taken; what is wrong with it, or with a refusal on the way, "" for nothing."""
    for _ in range(TRIES):
        call = draw(cell, rng)
        why, differs = refused_or_compared(call)
        if AT_EXECUTION in why:
            why, differs = refused_or_compared(constant(call))
        if not why:
            return differs
        if not (allowed and re.search(allowed, why)):
            return f"is refused: {why}\n{as_code(call)}"
    return f"none of {TRIES} calls is taken"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(TABLE.entries))
def test_calls_of_every_form_type_and_class_of_values_are_taken_and_right(name: str) -> None:
    problems = []
    for cell in cells([name]):
        rng = np.random.default_rng(zlib.crc32(str(cell).encode()))
        if cell.kind in NEVER.get(name, {}):
            why, _ = refused_or_compared(draw(cell, rng))
            assert re.search(NEVER[name][cell.kind], why)
            continue
        allowed = "|".join(filter(None, (REASONS.get(name), SCALES if quantised(cell.kind) else None)))
        found = [taken(cell, rng, allowed) for _ in range(DRAWN.get(cell.values, 1))]
        problems += [f"{cell}: {problem}" for problem in found if problem]
    assert not problems, "\n\n".join(problems)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(TABLE.entries))
def test_every_tensor_is_written_with_the_shape_that_litert_finds(name: str) -> None:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for cell in (cell for cell in cells([name]) for _ in range(2) if cell.values == "ordinary"):
        try:
            content = bytes(lower(model_of(constant(draw(cell, rng)))).content)
        except Refused:
            continue
        engine = Interpreter(
            model_content=content, experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        )
        engine.allocate_tensors()
        found = {each["index"]: each["shape"].tolist() for each in engine.get_tensor_details()}
        written = tfl.ModelT.InitFromObj(tfl.Model.GetRootAs(content, 0)).subgraphs[0].tensors
        shapes = {index: list(tensor.shape) for index, tensor in enumerate(written) if index in found}
        assert shapes.items() <= found.items(), cell  # besides, it has tensors of its own
