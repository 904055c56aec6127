"""Changes of `.tflite` files by their structure: the result is a file again, whose fields, vectors, options, types, shapes,
codes and indices have other values."""

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from nnhal.conformance.suites.fuzz.inputs import corpus_of

INTEGERS = (
    0,
    1,
    -1,
    2,
    3,
    4,
    5,
    7,
    8,
    16,
    100,
    127,
    255,
    256,
    4096,
    65535,
    65536,
    2**20,
    2**30,
    2**31 - 1,
    -(2**31),
    -2,
    -7,
)
REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-40, 1e-20, 1e20, 3e38, float("inf"), float("-inf"), float("nan"), 255.0)
NAMES = (b"", b"\x1b[2J", "\u202e".encode(), b"../x", b"\xff\xfe", b"a" * 5000, b"t0", b"<&\x01>", b"a\x00b")
DIMENSIONS = (0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 17, 64, 1000, 65536, 2**31 - 1, -1)
WIDTHS = {0: 4, 1: 2, 2: 4, 3: 1, 4: 8, 6: 1, 7: 2, 9: 1, 10: 8, 12: 8, 15: 4, 16: 2}  # bytes of an element by type
MOST_BYTES = 1 << 20  # of a constant that is made to fit its shape
Random = random.Random
Change = Callable[[Any, Random], object]


@cache
def schema() -> Any:
    """Return the classes of the published schema, None if ai-edge-litert is not installed."""
    try:
        from ai_edge_litert import schema_py_generated  # noqa: TID251 (the file format, no engine)
    except ImportError:
        return None
    return schema_py_generated


def available() -> bool:
    """Whether files can be changed by their structure."""
    return schema() is not None


def changed_file(rng: Random, content: bytes) -> bytes:
    """Return a changed file. content: a readable file."""
    while True:
        model = parsed(content)
        try:
            gentle = rng.random() < 0.5
            for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5, 8))):
                rng.choices(CHANGES, GENTLE if gentle else WEIGHTS)[0](model, rng)
            if gentle or rng.random() < 0.7:
                fit_buffers(model)
            return packed(model)
        except Exception:  # a number that its field does not hold, or a table in the place of a number
            continue


def parsed(content: bytes) -> Any:
    """The file as objects."""
    return schema().ModelT.InitFromPackedBuf(content, 0)


def packed(model: Any) -> bytes:
    """The objects as a file."""
    import flatbuffers

    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


# ---------------------------------------------------------------------------------------------------------------- anything


def tables(node: Any, found: list[Any]) -> list[Any]:
    """All tables below one."""
    found.append(node)
    for value in vars(node).values():
        for each in value if isinstance(value, list) else [value]:
            if type(each).__module__ == schema().__name__:
                tables(each, found)
    return found


def as_list(value: Any) -> list[Any]:
    return [] if value is None else value.tolist() if isinstance(value, np.ndarray) else list(value)


def any_field(model: Any, rng: Random) -> None:
    """A field of any table is another value."""
    table = rng.choice(tables(model, []))
    name = rng.choice(list(vars(table)) or ["none"])
    value = getattr(table, name, None)
    if isinstance(value, bool):
        value = not value
    elif isinstance(value, int):
        value = rng.choice((*INTEGERS, value + 1, value - 1, rng.randrange(300)))
    elif isinstance(value, float):
        value = rng.choice((*REALS, rng.uniform(-4, 4)))
    elif isinstance(value, bytes | str):
        value = rng.choice(NAMES)
    elif isinstance(value, list | np.ndarray):
        value = other_list(as_list(value), rng)
    else:
        value = None
    setattr(table, name, value)


def other_list(values: list[Any], rng: Random) -> list[Any] | None:
    """A vector with elements left out, doubled, exchanged or changed, or none at all."""
    how = rng.randrange(7)
    if not values:
        return [rng.choice(INTEGERS)] if how else None
    place, other = rng.randrange(len(values)), rng.randrange(len(values))
    if how == 0:
        del values[place]
    elif how == 1:
        values.insert(other, values[place])
    elif how == 2:
        values[place], values[other] = values[other], values[place]
    elif how == 3:
        return None if rng.random() < 0.5 else values[:place]
    elif isinstance(values[place], bool | int):
        values[place] = rng.choice(INTEGERS)
    elif isinstance(values[place], float):
        values[place] = rng.choice(REALS)
    else:
        values *= rng.choice((1, 2, 20))
    return values


# ------------------------------------------------------------------------------------------------------- parts of a model


def graph_of(model: Any, rng: Random) -> Any:
    return rng.choice(model.subgraphs or [schema().SubGraphT()])


def tensor_of(model: Any, rng: Random) -> Any:
    return rng.choice(as_list(graph_of(model, rng).tensors) or [schema().TensorT()])


def operator_of(model: Any, rng: Random) -> Any:
    return rng.choice(as_list(graph_of(model, rng).operators) or [schema().OperatorT()])


def shape(model: Any, rng: Random) -> None:
    """A tensor has another dimension, or another rank."""
    tensor = tensor_of(model, rng)
    sizes = as_list(tensor.shape)
    if sizes and rng.random() < 0.7:
        sizes[rng.randrange(len(sizes))] = rng.choice(DIMENSIONS)
    elif rng.random() < 0.5:
        sizes.insert(rng.randrange(len(sizes) + 1), rng.choice(DIMENSIONS))
    else:
        sizes = [rng.choice(DIMENSIONS) for _ in range(rng.choice((0, 1, 2, 3, 4, 5, 6, 8, 9)))]
    tensor.shape = sizes


def batch(model: Any, rng: Random) -> None:
    """The same dimension is another one everywhere in a subgraph, so that what follows is of one mind."""
    graph = graph_of(model, rng)
    present = [n for tensor in as_list(graph.tensors) for n in as_list(tensor.shape)]
    before, after = rng.choice(present or [1]), rng.choice(DIMENSIONS)
    for tensor in as_list(graph.tensors):
        tensor.shape = [after if n == before else n for n in as_list(tensor.shape)]


def open_shape(model: Any, rng: Random) -> None:
    """A tensor has a shape signature."""
    tensor = tensor_of(model, rng)
    tensor.shapeSignature = [rng.choice((-1, -1, n)) for n in as_list(tensor.shape)]


def kind(model: Any, rng: Random) -> None:
    """A tensor, or all of one type in a subgraph, have another type."""
    tensor, new = tensor_of(model, rng), rng.choice((0, 1, 2, 3, 4, 6, 7, 9, 9, 0, rng.randrange(20)))
    if rng.random() < 0.5:
        tensor.type = new
        return
    before = tensor.type
    for graph in model.subgraphs or []:
        for each in as_list(graph.tensors):
            each.type = new if each.type == before else each.type


def quantisation(model: Any, rng: Random) -> None:
    """A tensor has scales and zero points of any value and number."""
    tensor = tensor_of(model, rng)
    if rng.random() < 0.5:
        tensor.type = rng.choice((3, 9, 9, 7, 2))
    quant = tensor.quantization = schema().QuantizationParametersT()
    count = rng.choice((1, 1, 1, *as_list(tensor.shape)[:1], 0, 3))
    usual = rng.random() < 0.5
    scales = (0.5, 0.05, 0.01, 1.0) if usual else (*REALS, 0.05)
    quant.scale = np.array([rng.choice(scales) for _ in range(min(max(count, 0), 2000))], np.float32)
    zeros = (0, 0, 3, -128, 127, 128, 255) if usual else INTEGERS
    quant.zeroPoint = np.array([rng.choice(zeros)] * rng.choice((len(quant.scale), 1)), np.int64)
    quant.quantizedDimension = rng.choice((0, 0, 1, 3, -1, 9))


def index(model: Any, rng: Random) -> None:
    """An operator or a subgraph takes or gives another tensor."""
    graph = graph_of(model, rng)
    holder = rng.choice([graph, *as_list(graph.operators)])
    name = rng.choice(("inputs", "outputs"))
    values, count = as_list(getattr(holder, name)), len(as_list(graph.tensors))
    new = rng.choice((*range(-1, count + 1), rng.choice(INTEGERS)))
    if values and rng.random() < 0.7:
        values[rng.randrange(len(values))] = new
    elif rng.random() < 0.7:
        values.append(new)
    else:
        values = other_list(values, rng) or []
    setattr(holder, name, values)


def code(model: Any, rng: Random) -> None:
    """An operator is another one, with its own options or those that it had."""
    number = rng.choice([n for n in vars(schema().BuiltinOperator).values() if isinstance(n, int)])
    place = rng.randrange(max(1, len(model.operatorCodes or [])))
    if model.operatorCodes:
        model.operatorCodes[place].builtinCode = number
        model.operatorCodes[place].deprecatedBuiltinCode = min(number, 127)
        if rng.random() < 0.7:
            for graph in model.subgraphs or []:
                for operator in as_list(graph.operators):
                    if operator.opcodeIndex == place:
                        operator.builtinOptions, operator.builtinOptionsType = None, 0


def options(model: Any, rng: Random) -> None:
    """An operator has options of any kind, or another value in its own."""
    operator = operator_of(model, rng)
    own = operator.builtinOptions or operator.builtinOptions2
    if own is not None and rng.random() < 0.7:
        fields = vars(own)
        if fields:
            name = rng.choice(list(fields))
            new: Any = rng.choice((*INTEGERS, *range(8)))
            if isinstance(fields[name], float):
                new = rng.choice(REALS)
            elif isinstance(fields[name], list | np.ndarray):
                new = other_list(as_list(fields[name]), rng)
            setattr(own, name, new)
        return
    name, number = rng.choice([(k, n) for k, n in vars(schema().BuiltinOptions).items() if isinstance(n, int) and n])
    operator.builtinOptionsType, operator.builtinOptions = number, getattr(schema, f"{name}T")()


def buffer(model: Any, rng: Random) -> None:
    """A constant holds other values."""
    found = rng.choice(model.buffers or [schema().BufferT()])
    data = np.asarray(as_list(found.data), np.uint8)
    how = rng.randrange(5)
    if how == 0:
        data = data[: rng.randrange(len(data) + 1)]
    elif how == 1:
        data = np.frombuffer(rng.randbytes(rng.choice((4, 8, 16, max(4, len(data))))), np.uint8)
    elif how == 2 and len(data) >= 4:
        words = data[: len(data) // 4 * 4].view(np.uint32).copy()
        words[rng.randrange(len(words))] = rng.choice(INTEGERS) & 0xFFFFFFFF
        data = words.view(np.uint8)
    elif how == 3:
        data = np.full(len(data), rng.choice((0, 0x7F, 0x80, 0xFF)), np.uint8)
    found.data = data if how < 4 else None


def constant(model: Any, rng: Random) -> None:
    """An input becomes constant, or the reverse; or a tensor keeps its value from run to run."""
    tensor, how = tensor_of(model, rng), rng.randrange(3)
    if how == 0:
        model.buffers.append(schema().BufferT())
        model.buffers[-1].data = np.zeros(4, np.uint8)
        tensor.buffer = len(model.buffers) - 1
    elif how == 1:
        tensor.buffer = 0
    else:
        tensor.isVariable = not tensor.isVariable


def splice(model: Any, rng: Random) -> None:
    """A subgraph or an operator of another file, or the same one again."""
    donor = parsed(rng.choice(corpus_of("tflite"))) if rng.random() < 0.5 else model
    graph = graph_of(model, rng)
    if rng.random() < 0.4:
        model.subgraphs.append(rng.choice(donor.subgraphs))
        return
    operators = as_list(graph.operators)
    operators.insert(rng.randrange(len(operators) + 1), operator_of(donor, rng))
    graph.operators = operators


def joined(model: Any, rng: Random) -> None:
    """Another file's operators follow, and read what this one's tensors hold."""
    donor = parsed(rng.choice(corpus_of("tflite")))
    if len(donor.subgraphs) > 1 or not model.subgraphs:
        return
    graph, other = model.subgraphs[0], donor.subgraphs[0]
    tensors, buffers, codes = (len(as_list(x)) for x in (graph.tensors, model.buffers, model.operatorCodes))
    inputs = as_list(other.inputs)
    replaced = rng.choice(inputs or [-1])
    alike = [
        i for i, t in enumerate(as_list(graph.tensors)) if replaced >= 0 and t.type == other.tensors[replaced].type
    ]
    place = {i: i + tensors for i in range(len(as_list(other.tensors)))} | {-1: -1}
    if alike:
        place[replaced] = rng.choice(alike)
    for tensor in other.tensors:
        tensor.buffer += buffers
    for operator in other.operators:
        operator.opcodeIndex += codes
        operator.inputs = [place[i] for i in as_list(operator.inputs)]
        operator.outputs = [place[i] for i in as_list(operator.outputs)]
    graph.tensors, graph.operators = [*graph.tensors, *other.tensors], [*graph.operators, *other.operators]
    graph.inputs = [*as_list(graph.inputs), *(place[i] for i in inputs if not (alike and i == replaced))]
    graph.outputs = [*as_list(graph.outputs), *(place[i] for i in as_list(other.outputs))]
    model.buffers, model.operatorCodes = [*model.buffers, *donor.buffers], [*model.operatorCodes, *donor.operatorCodes]


def calls(model: Any, rng: Random) -> None:
    """An operator calls subgraphs."""
    operator, name = operator_of(model, rng), rng.choice(("IF", "WHILE", "CALL_ONCE"))
    found = schema().OperatorCodeT()
    found.builtinCode = found.deprecatedBuiltinCode = getattr(schema().BuiltinOperator, name)
    if name == "CALL_ONCE":
        found.deprecatedBuiltinCode = 127
    model.operatorCodes.append(found)
    operator.opcodeIndex = len(model.operatorCodes) - 1
    title = {"IF": "If", "WHILE": "While", "CALL_ONCE": "CallOnce"}[name]
    operator.builtinOptionsType = getattr(schema().BuiltinOptions, f"{title}Options")
    operator.builtinOptions = getattr(schema, f"{title}OptionsT")()
    for field in vars(operator.builtinOptions):
        setattr(operator.builtinOptions, field, rng.randrange(len(model.subgraphs) + 1))


def names(model: Any, rng: Random) -> None:
    """A tensor has an impossible name."""
    tensor_of(model, rng).name = rng.choice(NAMES)


CHANGES: tuple[Change, ...] = (
    any_field, shape, batch, open_shape, kind, quantisation, index, code, options, buffer, constant, splice, calls, names,
    joined,
)  # fmt: skip
WEIGHTS = (4, 4, 4, 1, 3, 4, 3, 3, 5, 3, 2, 1, 1, 1, 6)
GENTLE = (0, 2, 4, 2, 1, 3, 0, 1, 5, 3, 0, 0, 0, 0, 8)  # most of what these make is still a model


def fit_buffers(model: Any) -> None:
    """Make constants as long as their types and shapes require, so that what follows is reached."""
    for graph in model.subgraphs or []:
        for tensor in as_list(graph.tensors):
            place = tensor.buffer
            if tensor.sparsity is not None or not 0 < place < len(model.buffers or []):
                continue
            size = WIDTHS.get(tensor.type, 1)
            for dimension in as_list(tensor.shape):
                size *= dimension
            data = np.asarray(as_list(model.buffers[place].data), np.uint8)
            if 0 < size <= MOST_BYTES and len(data) and len(data) != size:
                model.buffers[place].data = np.resize(data, size)


def with_words(content: bytes, rng: Random) -> bytes:
    """A file of which a few words, which may be offsets or lengths, are others."""
    spoilt = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(spoilt) // 4) * 4
        word = rng.choice((*INTEGERS, rng.randrange(2**32), len(spoilt), len(spoilt) - at)) & 0xFFFFFFFF
        spoilt[at : at + 4] = word.to_bytes(4, "little")
    return bytes(spoilt)
