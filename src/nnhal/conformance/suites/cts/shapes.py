"""Unknown dimensions and ranks: the model leaves them open, and each execution gives them."""

from functools import partial
from typing import Any

import numpy as np

import nnhal
from nnhal.base.records import replace
from nnhal.conformance.differential import arrays_of
from nnhal.conformance.draw import Call
from nnhal.conformance.suites.cts.area import AreaTrial, SampleModel, area
from nnhal.conformance.suites.suite import CaseFailed, NotSupported
from nnhal.model.graph import Model

# Operations with one changing dimension, by kind: makes the result, and computes it in numpy
CHANGING: dict[str, tuple[Any, Any]] = {
    "ADD": (lambda b, x: b.add(x, np.float32(1.5)), lambda x: x + 1.5),
    "MUL": (lambda b, x: b.mul(x, x), lambda x: x * x),
    "RELU": (lambda b, x: b.relu(x), lambda x: np.maximum(x, 0)),
    "TANH": (lambda b, x: b.tanh(x), np.tanh),
    "CONCATENATION": (lambda b, x: b.concatenation([x, x], 0), lambda x: np.concatenate([x, x], 0)),
    "FULLY_CONNECTED": (
        lambda b, x: b.fully_connected(x, np.full((3, 4), 0.5, "f4"), np.arange(3, dtype="f4")),
        lambda x: x @ np.full((4, 3), 0.5) + np.arange(3),
    ),
    "SOFTMAX": (
        lambda b, x: b.softmax(x, 1.0),
        lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
    ),
    "REDUCE_SUM": (lambda b, x: b.reduce_sum(x, [1], True), lambda x: x.sum(1, keepdims=True)),
}
SIZES = 1, 3, 2, 70, 3, 1  # of the open dimension, one execution after another


@area("shapes/unknown-dimensions", "operation")
def dimensions(trial: AreaTrial) -> None:
    """The dimensions of inputs and outputs are unknown until the execution."""
    sample = trial.sample(open=True)
    results = sample.execute("execution with open dimensions")
    sample.other().execute("execution with other inputs")
    trial.require(
        [y.shape for y in results] == [w.shape for w in sample.wanted],
        f"shapes are {[y.shape for y in results]}, must be {[w.shape for w in sample.wanted]}",
    )
    rooms = [np.zeros(w.shape, w.dtype) for w in sample.wanted]
    sample.execute("execution with open dimensions into arrays", lambda: sample.compiled(*sample.arrays, out=rooms))
    trial.no_fallback(sample.compiled)


@area("shapes/unknown-rank", "operation")
def rank(trial: AreaTrial) -> None:
    """Even the rank of inputs and outputs is unknown until the execution."""
    first = trial.sample(_without_axes, open=True)
    model = unranked(first.model)
    try:
        compiled = trial.compile(model, fallback="forbid")
    except nnhal.UnsupportedModel as why:
        trial.idle()
        raise NotSupported(str(why)) from why
    sample = SampleModel(trial, first.call, model, compiled)
    sample.execute("execution with unknown ranks")
    sample.other().execute("execution with unknown ranks and other inputs")
    trial.no_fallback(compiled)


def _without_axes(call: Call) -> bool:
    """Whether no input has a rank from its quantisation."""
    return all(v is None or v.channel is None for v in call.inputs) and len(arrays_of(call)) > 0


def unranked(model: Model) -> Model:
    """Return the model with tensors of unknown rank as inputs and outputs."""
    main = model.main
    ends = {i for i in (*main.inputs, *main.outputs) if main.operands[i].dimensions}
    operands = tuple(replace(o, dimensions=()) if n in ends else o for n, o in enumerate(main.operands))
    return replace(model, main=replace(main, operands=operands))


@area("shapes/changing", "once", kinds=tuple(CHANGING))
def changing(trial: AreaTrial) -> None:
    """One compilation serves executions of several shapes, in any order."""
    build, compute = CHANGING[trial.kind]
    b = nnhal.Builder(trial.kind)
    x = b.input([None, 4])
    try:
        compiled = trial.compile(b.finish([x], [build(b, x)]), fallback="forbid")
    except nnhal.UnsupportedModel as why:
        trial.idle()
        raise NotSupported(str(why)) from why
    for size in SIZES:
        data = trial.rng.uniform(-3, 3, (size, 4)).astype("f4")
        (y,) = trial.execute(partial(compiled, data))
        wanted = compute(data.astype("f8"))
        if y.shape != wanted.shape:
            raise CaseFailed(f"shape of the output for {size} rows is {list(y.shape)}, must be {list(wanted.shape)}")
        if not np.allclose(y, wanted, 1e-5, 1e-5):
            raise CaseFailed(f"output for {size} rows is off by {np.abs(y - wanted).max():g}, must be at most 1e-5")
    wrong = np.zeros((2, 5), np.float32)
    trial.must_raise(nnhal.InvalidRequest, "an input whose known dimension differs", lambda: compiled(wrong))
