"""Recurrent layers. Their variable tensors become states: inputs and outputs that the API carries from call to call."""

from collections.abc import Sequence

from nnhal.frontends.tflite.build import Importer, Refused
from nnhal.frontends.tflite.file import Operator
from nnhal.frontends.tflite.table import T, entry, has

CODES = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4}  # fused activations that NNAPI numbers alike; SIGN_BIT is another


def floats(g: Importer, o: Operator) -> None:
    """Refuse what NNAPI has no operation for: quantised layers, and those of mixed types."""
    if any(g.tensor(i).type != "float32" for i in o.inputs if i >= 0):
        raise Refused("quantised or of mixed types")
    if o.option("AsymmetricQuantizeInputs", False) or getattr(o.options, "DiagonalRecurrentTensors", bool)():
        raise Refused("with settings that NNAPI lacks")


def given(g: Importer, o: Operator, places: Sequence[int]) -> list[int]:
    """Inputs by place; an omitted operand for each that is not there."""
    return [g.x(o.inputs[i]) if has(o, i) else g.omitted(T.TENSOR_FLOAT32) for i in places]


def activation(g: Importer, o: Operator) -> int:
    """The layer's activation as a scalar."""
    code = o.option("FusedActivationFunction")
    if code not in CODES:
        raise Refused(f"with activation {code}")
    return g.int32(CODES[code])


def carry(g: Importer, o: Operator, places: Sequence[int]) -> tuple[list[int], list[int]]:
    """The states at these inputs: the operands to read, and those that hold what they become."""
    before = [g.x(o.inputs[i]) for i in places]
    after = [g.like(operand, g.known(operand)) for operand in before]
    for place, operand in zip(places, after, strict=True):
        if not g.tensor(o.inputs[place]).variable:
            raise Refused("a state is no variable tensor")
        g.assign_variable(o.inputs[place], operand)
    return before, after


def clips(g: Importer, o: Operator) -> list[int]:
    return [g.literal(o.option(name), T.FLOAT32) for name in ("CellClip", "ProjClip")]


@entry("UNIDIRECTIONAL_SEQUENCE_LSTM")
def sequence_lstm(g: Importer, o: Operator) -> None:
    floats(g, o)
    weights, norms = given(g, o, range(18)), given(g, o, range(20, 24))
    states, finals = carry(g, o, (18, 19))
    settings = [activation(g, o), *clips(g, o), g.flag(o.option("TimeMajor"))]
    g.emit("UNIDIRECTIONAL_SEQUENCE_LSTM", [*weights, *states, *settings, *norms], [g.declare(o.outputs[0]), *finals])


@entry("LSTM")
def lstm(g: Importer, o: Operator) -> None:
    if o.option("KernelType", 0):
        raise Refused("of the basic kind")
    floats(g, o)
    weights, norms = given(g, o, range(18)), given(g, o, range(20, 24))
    states, finals = carry(g, o, (18, 19))
    batch, units = g.known(states[1])
    scratch = g.new(T.TENSOR_FLOAT32, (batch, units * (4 if has(o, 1) else 3)))
    inputs = [*weights, *states, activation(g, o), *clips(g, o), *(norms if has(o, 21) else [])]
    g.emit("LSTM", inputs, [scratch, *finals, g.declare(o.outputs[0])])


@entry("BIDIRECTIONAL_SEQUENCE_LSTM")
def bidirectional_lstm(g: Importer, o: Operator) -> None:
    floats(g, o)
    weights, auxiliary = given(g, o, range(35)), given(g, o, range(39, 48))
    states, finals = carry(g, o, (35, 36, 37, 38))
    flags = [g.flag(False), g.flag(o.option("TimeMajor", True))]
    norms = [g.omitted(T.TENSOR_FLOAT32) for _ in range(8)]
    inputs = [*weights, *states, *auxiliary, activation(g, o), *clips(g, o), *flags, *norms]
    both_ways(g, o, "BIDIRECTIONAL_SEQUENCE_LSTM", inputs, finals)


@entry("RNN")
def rnn(g: Importer, o: Operator) -> None:
    floats(g, o)
    weights = given(g, o, range(4))
    states, finals = carry(g, o, (4,))
    g.emit("RNN", [*weights, *states, activation(g, o)], [*finals, g.declare(o.outputs[0])])


@entry("UNIDIRECTIONAL_SEQUENCE_RNN")
def sequence_rnn(g: Importer, o: Operator) -> None:
    floats(g, o)
    weights = given(g, o, range(4))
    states, finals = carry(g, o, (4,))
    inputs = [*weights, *states, activation(g, o), g.int32(o.option("TimeMajor"))]
    g.emit("UNIDIRECTIONAL_SEQUENCE_RNN", inputs, [g.declare(o.outputs[0]), *finals])


@entry("BIDIRECTIONAL_SEQUENCE_RNN")
def bidirectional_rnn(g: Importer, o: Operator) -> None:
    floats(g, o)
    forward, backward, auxiliary = (given(g, o, places) for places in (range(4), range(5, 8), range(9, 12)))
    states, finals = carry(g, o, (4, 8))
    flags = [activation(g, o), g.flag(o.option("TimeMajor")), g.flag(False)]
    inputs = [*forward, states[0], *backward, states[1], *auxiliary, *flags]
    both_ways(g, o, "BIDIRECTIONAL_SEQUENCE_RNN", inputs, finals)


def both_ways(g: Importer, o: Operator, name: str, inputs: Sequence[int], finals: Sequence[int]) -> None:
    """Outputs of both directions; where the file merges them they are joined behind the layer."""
    if not o.option("MergeOutputs"):
        g.emit(name, inputs, [*(g.declare(i) for i in o.outputs), *finals])
        return
    y = g.declare(o.outputs[0])
    halves = [g.like(y, (None,) * 3) for _ in range(2)]
    g.emit(name, inputs, [*halves, *finals])
    g.emit("CONCATENATION", [*halves, g.int32(2)], [y])


@entry("SVDF")
def svdf(g: Importer, o: Operator) -> None:
    floats(g, o)
    weights = given(g, o, range(4))
    states, finals = carry(g, o, (4,))
    inputs = [*weights, *states, g.int32(o.option("Rank")), activation(g, o)]
    g.emit("SVDF", inputs, [*finals, g.declare(o.outputs[0])])
