"""Files that lie: every one gives an error that names the place, never a crash, a hang or part of a model."""

import contextlib
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnhal
from nnhal.base.errors import NnhalError
from nnhal.frontends.tflite import load, signatures
from nnhal.frontends.tflite.reader import read
from nnhal.model.text import text
from nnhal.zoo import maker
from tests.frontends.cases import malformed, refused
from tests.frontends.flat import Writer, one_operator, schema, tensor


def small() -> Writer:
    """ADD of an input and a constant."""
    w = Writer()
    x, y = w.tensor([1, 4]), w.tensor([1, 4])
    c = w.tensor([4], "f4", [1, 2, 3, 4])
    w.operator("ADD", [x, c], [y], "Add")
    w.ends([x], [y])
    w.signature("serve", {"x": x}, {"y": y})
    return w


def spoilt(change, message: str, error: type[Exception] = nnhal.BadFile) -> None:
    refused(small().bytes(change), message, error)


# --------------------------------------------------------------------------------------------------------------- headers


def test_a_root_offset_past_the_end_is_named():
    with pytest.raises(nnhal.BadFile, match="model: root offset is 4096, must lie within the file's 8 bytes"):
        load(struct.pack("<I4s", 4096, b"TFL3"))


def test_another_kind_of_file_is_named():
    with pytest.raises(nnhal.BadFile, match=r"model: is a PNG picture, must be a \.tflite or \.onnx file"):
        load(b"\x89PNG\r\n\x1a\n" + bytes(100))


@pytest.mark.parametrize("size", range(1, 8))
def test_a_file_of_a_few_bytes_is_named(tmp_path, size):
    path = tmp_path / "short.tflite"
    path.write_bytes(bytes(size))
    malformed(path, rf"short.tflite: has {size} bytes, must have at least 8")


def test_what_is_no_file_is_named(tmp_path):
    for path, what in ((tmp_path / "none.tflite", "not a file"), (tmp_path, "a folder")):
        malformed(path, f"{path}: is {what}")
        with pytest.raises(nnhal.BadFile):
            signatures(path)


# ----------------------------------------------------------------------------------------------------------------- sweeps


def description(content: bytes) -> str:
    return text(load(content))


def test_a_file_cut_at_any_byte_is_refused():
    """Writers pad files at the end; a file that lacks no more than padding is whole."""
    content = small().bytes()
    whole = description(content)
    for size in range(len(content)):
        try:
            found = description(content[:size])
        except nnhal.InvalidArgument as error:
            assert str(error).startswith("model: ")
        else:
            assert size > len(content) - 16 and found == whole


@pytest.mark.parametrize("name", ["tiny_conv_int8", "tiny_lstm"])
def test_a_larger_file_cut_anywhere_is_refused(name):
    content = maker.make(name)
    for size in range(0, len(content) - 16, max(1, len(content) // 500)):
        with pytest.raises(nnhal.InvalidArgument):
            load(content[:size])


BASES = [small().bytes(), maker.make("tiny_conv_int8"), maker.make("tiny_lstm")]
FLIPS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6)


@settings(max_examples=400)
@given(st.sampled_from(BASES), FLIPS)
def test_changed_bytes_give_an_error_of_nnhal_or_a_valid_model(base, flips):
    content = bytearray(base)
    for place, value in flips:
        content[place % len(content)] = value
    with contextlib.suppress(NnhalError):
        nnhal.validate(load(bytes(content)))


@settings(max_examples=300)
@given(
    st.sampled_from(BASES), st.integers(0, 10**6), st.sampled_from([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFF])
)
def test_extreme_words_give_an_error_of_nnhal_or_a_valid_model(base, place, word):
    """Offsets and counts are aligned words: any of them may be absurd."""
    content = bytearray(base)
    at = place % (len(content) // 4) * 4
    content[at : at + 4] = word.to_bytes(4, "little")
    with contextlib.suppress(NnhalError):
        nnhal.validate(load(bytes(content)))


def test_vectors_that_share_their_bytes_do_not_make_a_small_file_large():
    """A vector of n tables that are all one table with a vector of n: n squared records in a file of n."""
    count, w = 20_000, small()
    w.model.subgraphs[0].tensors[0].shape = [1] * count
    w.model.subgraphs *= 100
    with pytest.raises(nnhal.BadFile):
        load(w.bytes())
    shared = _all_tensors_one(count)
    with pytest.raises(nnhal.BadFile, match="bytes of records, of which some may overlap"):
        read(np.frombuffer(shared, np.uint8), "model")


def _all_tensors_one(count: int) -> bytes:
    """A file whose subgraph lists one tensor `count` times, each with a quantisation of `count` scales."""
    import flatbuffers

    builder = flatbuffers.Builder(1024)
    scales = builder.CreateNumpyVector(np.ones(count, np.float32))
    schema.QuantizationParametersStart(builder)
    schema.QuantizationParametersAddScale(builder, scales)
    quant = schema.QuantizationParametersEnd(builder)
    schema.TensorStart(builder)
    schema.TensorAddQuantization(builder, quant)
    tensor = schema.TensorEnd(builder)
    buffer = _table(builder, schema.BufferStart, schema.BufferEnd)
    builder.StartVector(4, count, 4)
    for _ in range(count):
        builder.PrependUOffsetTRelative(tensor)
    tensors = builder.EndVector()
    schema.SubGraphStart(builder)
    schema.SubGraphAddTensors(builder, tensors)
    graph = schema.SubGraphEnd(builder)
    vectors = []
    for table in (graph, buffer):
        builder.StartVector(4, 1, 4)
        builder.PrependUOffsetTRelative(table)
        vectors.append(builder.EndVector())
    schema.ModelStart(builder)
    schema.ModelAddVersion(builder, 3)
    schema.ModelAddSubgraphs(builder, vectors[0])
    schema.ModelAddBuffers(builder, vectors[1])
    builder.Finish(schema.ModelEnd(builder), b"TFL3")
    return bytes(builder.Output())


def _table(builder, start, end) -> int:
    start(builder)
    return end(builder)


# ------------------------------------------------------------------------------------------------------ indices and sizes


def graph(m):
    return m.subgraphs[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: graph(m).operators[0].inputs.__setitem__(0, 99), r"operator 0: input 0 is tensor 99, must be -1 to 2"),
        (lambda m: graph(m).operators[0].inputs.__setitem__(0, -2), "input 0 is tensor -2, must be -1 to 2"),
        (lambda m: graph(m).operators[0].outputs.__setitem__(0, -1), "output 0 is tensor -1, must be 0 to 2"),
        (lambda m: graph(m).operators[0].inputs.__delitem__(1), r"operator 0 \(ADD\): has 1 inputs, must have 2"),
        (lambda m: setattr(graph(m).operators[0], "opcodeIndex", 7), "operator code is 7, must be 0 to 0"),
        (lambda m: graph(m).inputs.__setitem__(0, 44), "subgraph 0: input 0 is tensor 44, must be 0 to 2"),
        (lambda m: graph(m).outputs.__setitem__(0, -1), "subgraph 0: output 0 is tensor -1, must be 0 to 2"),
        (lambda m: setattr(graph(m).tensors[2], "buffer", 9), "tensor 2: buffer is 9, must be 0 to 1"),
        (lambda m: setattr(graph(m).tensors[2], "shape", [5]), "tensor 2: has 16 bytes in buffer 1, must have 20"),
        (lambda m: setattr(graph(m).tensors[0], "shape", [-1, 4]), "must have no negative dimension"),
        (lambda m: setattr(graph(m).tensors[0], "shapeSignature", [-2, 4]), "must be at least -1"),
        (lambda m: setattr(graph(m).tensors[0], "shape", [65536, 65536]), "must have at most 4294967295 bytes"),
        (lambda m: setattr(graph(m).tensors[0], "shape", [2**31 - 1] * 3), "must have at most 4294967295 bytes"),
        (lambda m: setattr(graph(m).tensors[0], "shape", [1] * 9), "has rank 9, must be at most 8"),
        (lambda m: setattr(graph(m).tensors[0], "type", 99), "tensor 0: type is 99, must be 0 to"),
        (lambda m: setattr(m, "version", 2), "version is 2, must be 3"),
        (lambda m: setattr(m, "subgraphs", []), "has no subgraphs, must have at least one"),
        (lambda m: setattr(m.signatureDefs[0], "subgraphIndex", 5), "signature 0: subgraph is 5, must be 0 to 0"),
        (lambda m: setattr(m.signatureDefs[0].inputs[0], "tensorIndex", 2), "input 'x' is tensor 2, must be an input"),
        (lambda m: setattr(m, "signatureDefs", m.signatureDefs * 2), "must have one name each"),
    ],
)  # fmt: skip
def test_wrong_indices_and_sizes_are_named_with_their_place(change, message):
    spoilt(change, message)


def test_bytes_outside_of_the_file_are_named():
    def outside(model):
        model.buffers[1].data = None
        model.buffers[1].offset, model.buffers[1].size = 2**63, 2**63

    spoilt(outside, rf"buffer 1: lies at bytes {2**63} to {2**64}, must lie within the file's")


def test_bytes_behind_the_tables_are_found():
    """Files of over 2 GiB keep constants behind the flatbuffer."""
    w = small()
    size = len(w.bytes())
    w.model.buffers[1].data = None
    w.model.buffers[1].offset, w.model.buffers[1].size = 2**40, 16
    bare = w.bytes()
    content = bare.replace(struct.pack("<Q", 2**40), struct.pack("<Q", len(bare)))
    assert content != bare and size
    model = load(content + np.array([1, 2, 3, 4], "f4").tobytes())
    assert nnhal.compile(model, devices="reference")(np.zeros((1, 4), "f4")).tolist() == [[1, 2, 3, 4]]


def test_a_schema_type_that_does_not_fit_the_operator_is_named():
    def options(model):
        graph(model).operators[0].builtinOptionsType = schema.BuiltinOptions.Conv2DOptions
        graph(model).operators[0].builtinOptions = schema.Conv2DOptionsT()

    spoilt(options, r"operator 0 \(ADD\): has Conv2DOptions, must be AddOptions")


# ------------------------------------------------------------------------------------------------------------------ order


def test_reading_what_nothing_wrote_names_the_operator():
    w = Writer()
    x, y, z = (w.tensor([1, 4]) for _ in range(3))
    w.operator("ADD", [x, z], [y], "Add")
    w.operator("ADD", [x, y], [z], "Add")
    malformed(w.file([x], [z]), r"operator 0 \(ADD\): reads tensor 2 as input 1, must be written by an op")


def test_two_writers_of_a_tensor_are_refused():
    w = Writer()
    x, y = w.tensor([1, 4]), w.tensor([1, 4])
    w.operator("ADD", [x, x], [y], "Add")
    w.operator("MUL", [x, x], [y], "Mul")
    with pytest.raises(
        nnhal.BadFile, match=r"operator 1 \(MUL\): writes tensor 1, must not be written by an operator before"
    ):
        load(w.file([x], [y]))


def test_writing_an_input_or_constant_is_refused():
    for place in (0, 2):
        spoilt(lambda m, to=place: graph(m).operators[0].outputs.__setitem__(0, to), "must not be an input or constant")


def test_an_output_without_a_value_is_refused():
    spoilt(lambda m: graph(m).operators.clear(), "output tensor 1 has no value, must be written by an operator")


# ----------------------------------------------------------------------------------------------------------- quantisation


def quantised(**more) -> bytes:
    w = Writer()
    x, y = w.tensor([1, 4], **more), w.tensor([1, 4], "u1", scale=1.0)
    w.operator("RELU", [x], [y])
    return w.file([x], [y])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        *[({"kind": "u1", "scale": s}, "tensor 0: has scale .*, must be a finite number greater than 0")
          for s in (float("nan"), float("inf"), 0.0, -1.0)],
        ({"kind": "u1", "scale": 1.0, "zero": 300}, "tensor 0: has zero point 300, must be 0 to 255"),
        ({"kind": "i1", "scale": 1.0, "zero": 2**40}, "must be -128 to 127"),
        ({"kind": "i1", "scale": [1.0, 2.0], "axis": 1}, "tensor 0: has 2 scales, must be 4, one for each channel"),
        ({"kind": "i1", "scale": [1.0, 2.0], "axis": 7}, "has scales along dimension 7, must be 0 to 1"),
    ],
)  # fmt: skip
def test_quantisation_that_cannot_be_is_named(more, message):
    malformed(quantised(**more), message)


# ------------------------------------------------------------------------------------------------------ values of arguments


@pytest.mark.parametrize("axis", [-100000, 9])
def test_an_axis_out_of_range_is_refused(axis):
    content = one_operator("MEAN", [tensor([1, 4]), tensor([1], "i4", [axis])], [tensor([1])], "Reducer")
    refused(content, f"MEAN #0: .*{axis}, must be from", nnhal.InvalidModel)


@pytest.mark.parametrize("alpha", [1e20, -1e20])
def test_a_number_that_an_integer_does_not_hold_is_refused(alpha):
    content = one_operator("LEAKY_RELU", [tensor([4], "i4")], [tensor([4], "i4")], "LeakyRelu", alpha=alpha)
    refused(content, "does not fit TENSOR_INT32")


def test_a_vector_that_is_taken_for_a_size_is_refused():
    """BATCH_TO_SPACE_ND with crops that leave less than nothing."""
    w = Writer()
    x, y = w.tensor([4, 2, 2, 1]), w.tensor([1])
    block, crops = w.tensor([2], "i4", [2, 2]), w.tensor([2, 2], "i4", [[2**31 - 1] * 2] * 2)
    w.operator("BATCH_TO_SPACE_ND", [x, block, crops], [y])
    refused(w.file([x], [y]), r"BATCH_TO_SPACE_ND #0: .*do not fit into 32 bits")


def test_a_stride_of_zero_is_refused():
    w = Writer()
    x, y = w.tensor([1, 4]), w.tensor([1, 4])
    rows = [w.tensor([2], "i4", v) for v in ([0, 0], [1, 4], [1, 0])]
    w.operator("STRIDED_SLICE", [x, *rows], [y], "StridedSlice")
    refused(w.file([x], [y]), "= 0, must not be 0", nnhal.InvalidModel)


@pytest.mark.parametrize("name", ["FILL", "TILE", "BROADCAST_TO", "RANGE", "ONE_HOT"])
def test_small_constants_that_ask_for_huge_ones_are_refused_at_once(name):
    w = Writer()
    huge = 2**31 - 1
    arguments = {
        "FILL": [w.tensor([3], "i4", [huge] * 3), w.tensor([], "i4", 1)],
        "TILE": [w.tensor([2], "i4", [1, 2]), w.tensor([1], "i4", [huge])],
        "BROADCAST_TO": [w.tensor([1], "i4", [1]), w.tensor([2], "i4", [huge, huge])],
        "RANGE": [w.tensor([], "i4", 0), w.tensor([], "i4", huge), w.tensor([], "i4", 1)],
        "ONE_HOT": [w.tensor([1], "i4", [1]), *(w.tensor([], "i4", n) for n in (huge, 1, 0))],
    }
    y = w.tensor([4], "i4")
    w.operator(name, arguments[name], [y])
    with pytest.raises(nnhal.InvalidModel):
        load(w.file([], [y]))


# ------------------------------------------------------------------------------------------------------------------ sparse


def sparse(change=lambda s: None, values=(1, 2, 3)) -> bytes:
    """[[1, 0, 2], [0, 0, 3]] by rows, through DENSIFY."""
    w = Writer()
    x, c, full, y = w.tensor([2, 3]), w.tensor([2, 3], "f4", values), w.tensor([2, 3]), w.tensor([2, 3])
    found = w.graph.tensors[c].sparsity = schema.SparsityParametersT()
    found.traversalOrder, found.blockMap = [0, 1], []
    rows, columns = schema.DimensionMetadataT(), schema.DimensionMetadataT()
    rows.format, rows.denseSize = schema.DimensionType.DENSE, 2
    columns.format = schema.DimensionType.SPARSE_CSR
    columns.arraySegmentsType = columns.arrayIndicesType = schema.SparseIndexVector.Int32Vector
    columns.arraySegments, columns.arrayIndices = schema.Int32VectorT(), schema.Int32VectorT()
    columns.arraySegments.values, columns.arrayIndices.values = [0, 2, 3], [0, 2, 2]
    found.dimMetadata = [rows, columns]
    change(found)
    w.operator("DENSIFY", [c], [full], "Densify")
    w.operator("ADD", [x, full], [y], "Add")
    return w.file([x], [y])


def test_sparse_constants_are_expanded():
    result = nnhal.compile(load(sparse()), devices="reference")(np.zeros((2, 3), "f4"))
    assert result.tolist() == [[1, 0, 2], [0, 0, 3]]


def columns(sparsity):
    return sparsity.dimMetadata[1]


@pytest.mark.parametrize(
    "change",
    [
        lambda s: setattr(s, "traversalOrder", [0, 0]),
        lambda s: setattr(s, "traversalOrder", [0, 2]),
        lambda s: setattr(s, "blockMap", [5]),
        lambda s: setattr(s, "dimMetadata", s.dimMetadata[:1]),
        lambda s: setattr(s.dimMetadata[0], "denseSize", 2**31 - 1),
        lambda s: setattr(s.dimMetadata[0], "denseSize", -2),
        lambda s: setattr(columns(s).arraySegments, "values", [0, 2]),
        lambda s: setattr(columns(s).arraySegments, "values", [0, 3, 2]),
        lambda s: setattr(columns(s).arraySegments, "values", [0, 2, 2**30]),
        lambda s: setattr(columns(s).arrayIndices, "values", [0, 3, 2]),
        lambda s: setattr(columns(s).arrayIndices, "values", [0, -1, 2]),
        lambda s: setattr(columns(s).arrayIndices, "values", [0, 2]),
    ],
)
def test_sparse_constants_that_contradict_themselves_are_named(change):
    malformed(sparse(change), "model: subgraph 0 tensor 1: ")


def test_a_sparse_constant_does_not_grow_without_limit():
    w = Writer()
    x, c, y = w.tensor([1]), w.tensor([60000, 60000], "i1", [1], scale=1.0), w.tensor([60000, 60000], "i1", scale=1.0)
    found = w.graph.tensors[c].sparsity = schema.SparsityParametersT()
    found.traversalOrder = [0, 1]
    found.dimMetadata = [schema.DimensionMetadataT(), schema.DimensionMetadataT()]
    w.operator("DENSIFY", [c], [y], "Densify")
    malformed(w.file([x], [y]), r"tensor 1: needs more than 1342[0-9]+ bytes of constants")
