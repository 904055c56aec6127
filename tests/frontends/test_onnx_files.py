"""Files that lie, and files that tensors lie in beside the model."""

import gc
import os
import struct
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper

import nnhal
from nnhal.frontends.onnx.reader import read
from nnhal.frontends.onnx.wire import numbers
from nnhal.frontends.source import open_source
from tests.effort import lines
from tests.frontends.cases import malformed, refused
from tests.frontends.onnx_models import by_onnxruntime, check, model, node, saved

RNG = np.random.default_rng(3)


def real(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def small():
    return model([node("Conv", "x w", "c"), node("Relu", "c")], {"x": real(1, 2, 4, 4)}, {"w": real(3, 2, 3, 3)})


# --------------------------------------------------------------------------------------------------------- by content


def test_a_file_is_told_by_its_content_whatever_it_is_called(tmp_path):
    path = saved(small(), tmp_path, "model.bin")
    assert len(nnhal.load(path).main.operations) == 1
    with path.open("rb") as file:
        assert len(nnhal.load(file).main.operations) == 1


def test_a_member_of_a_bundle_is_read(tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "both.zip", "w") as archive:
        archive.writestr("inner/model.onnx", small().SerializeToString())
    assert len(nnhal.load(f"{tmp_path}/both.zip:inner/model.onnx").main.operations) == 1


def test_a_signature_is_refused():
    with pytest.raises(
        nnhal.InvalidArgument, match=r"signature is 'a', must be left out: an \.onnx file has no signatures"
    ):
        nnhal.load(small().SerializeToString(), signature="a")


def test_large_weights_that_need_no_other_order_stay_where_they_lie(tmp_path):
    weights = real(256, 64)
    made = model([node("Gemm", "x w", transB=1)], {"x": real(2, 64)}, {"w": weights})
    padding = "p" * 64
    for n in range(4):  # in one of four places the bytes are aligned
        made.doc_string = padding[: 60 + n]
        data = made.SerializeToString()
        if data.index(weights.tobytes()) % 4 == 0:
            imported = nnhal.load(data)
            operand = imported.main.operands[imported.main.operations[0].inputs[1]]
            assert operand.location.offset == data.index(weights.tobytes())
            assert imported.pools[operand.location.pool].size == len(data)
            return
    raise AssertionError("none was aligned")


# --------------------------------------------------------------------------------------------------------- what lies


def mapped_files():
    """Lines of this process's map that are copies of files."""
    gc.collect()
    return sum("memfd:nnhal-model" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_a_file_whose_weights_all_need_another_order_is_let_go(tmp_path):
    filters, short = np.ones((64, 32, 3, 3), np.float32), np.float32([2])
    constants = {"w": filters, "v": np.ones((2, 64, 1, 1), np.float32), "s": short}
    nodes = [node("Conv", "x w", "a"), node("Conv", "a v", "b"), node("Mul", "b s", "y")]
    made = model(nodes, {"x": real(1, 32, 8, 8)}, constants)
    made.producer_name = "somebody"
    path = saved(made, tmp_path)
    before = mapped_files()
    for _ in range(3):  # the last ones are what was kept of it
        imported = nnhal.load(path, cache_dir=tmp_path / "cache")
        assert mapped_files() == before
    assert [pool.size for pool in imported.pools] == [pytest.approx(filters.nbytes, rel=0.1)]


def test_every_cut_of_a_file_is_an_error_and_never_a_part_of_a_model():
    data = small().SerializeToString()
    whole = len(nnhal.load(data).main.operations)
    for length in range(len(data)):
        try:
            assert len(nnhal.load(data[:length]).main.operations) == whole  # what is behind the graph is not needed
        except nnhal.NnhalError as error:
            assert str(error)


def test_bytes_that_are_changed_one_at_a_time_are_an_error_or_a_model():
    data = bytearray(small().SerializeToString())
    for place in range(len(data)):
        for value in (0, 0x7F, 0xFF, data[place] ^ 1):
            changed = bytearray(data)
            changed[place] = value
            try:
                nnhal.load(bytes(changed))
            except nnhal.NnhalError as error:
                assert str(error)


def test_a_file_without_a_graph_is_refused():
    malformed(onnx.ModelProto(ir_version=8, producer_name="x").SerializeToString(), "has 0 graphs, must have one")


def test_two_graphs_are_refused():
    data = small().SerializeToString()
    malformed(data + data, "has 2 graphs, must have one")


def test_old_operators_are_refused_with_what_makes_new_ones_of_them():
    made = small()
    made.opset_import[0].version = 6
    malformed(made, "has operators of version 6, must be 7 or later: onnx.version_converter")


def test_a_name_that_is_written_twice_is_refused():
    made = small()
    made.graph.node.append(node("Relu", "x"))
    malformed(made, r"Relu #2 writes 'y', which is defined before, must be defined once")


@pytest.mark.parametrize(
    ("nodes", "match"),
    [
        ([node("Add", "x b", "a"), node("Add", "a x", "b"), node("Relu", "b")], r"Add #0 is part of a cycle"),
        ([node("Relu", "gone")], r"Relu #0 reads 'gone', which no node writes"),
        ([node("Relu", "x", "z")], "output 'y' is not written by any node"),
    ],
    ids=["a cycle", "a name that nothing writes", "an output that nothing writes"],
)
def test_a_graph_that_lies_is_refused(nodes, match):
    malformed(model(nodes, {"x": real(2)}), match)


def test_nodes_in_another_order_are_put_in_order():
    made = small()
    nodes = [made.graph.node[1], made.graph.node[0]]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    assert len(nnhal.load(made.SerializeToString()).main.operations) == 1


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda t: t.dims.__setitem__(0, 4), r"initializer 0 \(w\): raw_data has 216 bytes, must have 288 for FLOAT"),
        (lambda t: t.dims.__setitem__(0, -3), r"initializer 0 \(w\): has a dimension of -3, must be 0 to"),
        (lambda t: t.dims.__setitem__(0, 2**62), r"initializer 0 \(w\): has a dimension of 4611686018427387904"),
        (lambda t: setattr(t, "data_type", 99), r"initializer 0 \(w\): has data_type 99, must be one of"),
        (lambda t: t.dims.extend([1] * 9), r"initializer 0 \(w\): has 13 dimensions, must have at most 8"),
    ],
)
def test_a_tensor_that_lies_is_named(change, match):
    made = small()
    change(made.graph.initializer[0])
    malformed(made, match)


def test_values_in_a_field_of_their_own_are_read_and_counted():
    made = small()
    weights = made.graph.initializer[0]
    values = numpy_helper.to_array(weights).reshape(-1).tolist()
    weights.ClearField("raw_data")
    weights.float_data.extend(values)
    inputs = {"x": real(1, 2, 4, 4)}
    check(made, inputs)
    weights.float_data.pop()
    malformed(made, r"initializer 0 \(w\): has 53 values, must have 54")


def test_integers_in_a_field_must_be_of_the_type():
    tensor = helper.make_tensor("k", TensorProto.INT8, [2], [1, 2])
    tensor.int32_data[0] = 300
    made = model([node("Add", "x k")], {"x": real(2)})
    made.graph.initializer.append(tensor)
    malformed(made, r"initializer 0 \(k\): has a value that is not INT8, must be -128 to 127")


def test_a_self_nested_attribute_is_no_stack_overflow():
    inner = b""
    for _ in range(3000):  # graph in attribute in node in graph ..
        attribute = b"\x0a\x01g\xa0\x01\x05" + field(6, inner)
        inner = field(1, field(5, attribute) + field(4, b"If"))
    malformed(b"\x08\x08" + field(7, inner) + field(8, b"\x10\x11"), "graphs are nested deeper than 64")


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value):
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def test_a_length_that_wraps_is_refused():
    malformed(b"\x08\x08\x3a" + varint(2**64 - 8) + b"rest", "has a field of 18446744073709551608 bytes")


def test_millions_of_empty_messages_are_refused_before_they_are_made():
    data = b"\x08\x08" + field(7, b"\x0a\x00" * 3_000_000)

    def load():
        with pytest.raises(nnhal.BadFile):
            nnhal.load(data)

    assert lines(load) < 100_000


def test_a_constant_that_asks_for_all_memory_is_refused():
    shape = np.array([1 << 40], np.int64)
    made = model([node("ConstantOfShape", "s", "c"), node("Add", "x c")], {"x": real(1)}, {"s": shape}, infer=False)
    refused(made, "ConstantOfShape", nnhal.NnhalError)


def test_doubling_at_import_ends_in_a_budget():
    nodes = [node("Concat", f"a{n} a{n}", f"a{n + 1}", axis=0) for n in range(60)]
    made = model([*nodes, node("Add", "x a60")], {"x": real(1)}, {"a0": real(1000)}, infer=False)
    malformed(made, r"needs more than \d+ bytes of constants that are not in the file")


def test_a_batch_that_no_memory_holds_is_refused_before_its_state_is_made():
    inputs = {"x": np.zeros((3, 1, 4), np.float32)}
    constants = {"w": np.zeros((1, 8, 4), np.float32), "r": np.zeros((1, 8, 2), np.float32)}
    nodes = [node("LSTM", "x w r", hidden_size=2)]
    made = model(nodes, inputs, constants, shapes={"x": [3, 2**31 - 1, 4]}, infer=False)
    malformed(made, r"LSTM #0: needs more than \d+ bytes of constants that are not in the file")


@pytest.mark.parametrize("axis", [-100000, 100000, 2**62])
def test_an_axis_out_of_range_is_refused(axis):
    refused(model([node("Concat", "x x", axis=axis)], {"x": real(2, 3)}), r"Concat #0: axis is ")


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": [0, 1]},
        {"dilations": [-1, 1]},
        {"pads": [-1, 0, 0, 0]},
        {"pads": [1]},
        {"group": 0},
        {"group": "many"},
    ],
)
def test_attributes_of_a_layer_that_lie_are_refused(attributes):
    refused(model([node("Conv", "x w", **attributes)], {"x": real(1, 2, 4, 4)}, {"w": real(3, 2, 3, 3)}), r"Conv #0: ")


def test_packed_numbers_are_decoded_as_protocol_buffers_encode_them():
    values = [0, 1, 127, 128, 300, 2**31, 2**63 - 1, -1, -(2**63)]
    data = b"".join(varint(n % 2**64) for n in values)
    assert numbers(np.frombuffer(data, np.uint8)).tolist() == values


# ------------------------------------------------------------------------------------------------------------- beside


def with_data_beside(folder, location="weights.bin", **how):
    made = model([node("Gemm", "x w", transB=1)], {"x": real(2, 64)}, {"w": real(256, 64)})
    path = folder / "model.onnx"
    onnx.save(made, str(path), save_as_external_data=True, location=location, size_threshold=0, **how)
    return path


def test_weights_beside_a_model_are_read_where_they_lie(tmp_path):
    path = with_data_beside(tmp_path)
    imported = nnhal.load(path)
    operand = imported.main.operands[imported.main.operations[0].inputs[1]]
    assert imported.pools[operand.location.pool].size == (tmp_path / "weights.bin").stat().st_size
    inputs = {"x": real(2, 64)}
    made = onnx.load(str(path))
    found = nnhal.compile(imported, devices=["reference"])(inputs["x"])
    assert np.allclose(found, by_onnxruntime(made, inputs)[0], atol=1e-4)


def test_bytes_without_a_folder_say_that_there_is_data_beside_them(tmp_path):
    data = with_data_beside(tmp_path).read_bytes()
    malformed(data, r"initializer 0 \(w\): has external data in 'weights.bin', must be loaded by its path")


def changed(path, **entries):
    made = onnx.load(str(path), load_external_data=False)
    for tensor in made.graph.initializer:
        if external_data_helper.uses_external_data(tensor):
            for entry in tensor.external_data:
                entry.value = entries.get(entry.key, entry.value)
    path.write_bytes(made.SerializeToString())
    return path


@pytest.mark.parametrize(
    "location", ["../weights.bin", "/etc/passwd", "a/../../b", "", ".", "a//b", "./weights.bin", "a\\b", "a\0b"]
)
def test_a_path_that_may_leave_the_folder_is_refused(tmp_path, location):
    (tmp_path / "inner").mkdir()
    path = changed(with_data_beside(tmp_path / "inner"), location=location)
    malformed(path, r"initializer 0 \(w\): external location is .* must be the path of a file")


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_link_is_refused_whether_it_is_the_file_or_on_the_way(tmp_path, what):
    inner = tmp_path / "inner"
    (inner / "deep").mkdir(parents=True)
    path = with_data_beside(inner)
    os.rename(inner / "weights.bin", tmp_path / "weights.bin")
    if what == "file":
        (inner / "weights.bin").symlink_to(tmp_path / "weights.bin")
    else:
        (inner / "way").symlink_to(tmp_path)
        changed(path, location="way/weights.bin")
    malformed(path, "is or follows a link")


def test_a_file_below_the_folder_is_read(tmp_path):
    path = with_data_beside(tmp_path)
    (tmp_path / "deep").mkdir()
    os.rename(tmp_path / "weights.bin", tmp_path / "deep" / "weights.bin")
    assert len(nnhal.load(changed(path, location="deep/weights.bin")).main.operations) == 1


def replaced_by_a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        pytest.param(replaced_by_a_pipe, "is not a file", id="a pipe, which is not waited for"),
        pytest.param(Path.unlink, r"external file 'weights.bin': No such file", id="a missing file"),
        pytest.param(
            lambda file: os.truncate(file, 1 << 40),  # a hole
            "has 1099511627776 bytes, must have at most 1179648",
            id="a file of which hardly anything is used",
        ),
    ],
)
def test_what_is_no_file_of_weights_is_refused(tmp_path, spoil, match):
    path = with_data_beside(tmp_path)
    spoil(tmp_path / "weights.bin")
    malformed(path, match)


@pytest.mark.parametrize(
    ("entries", "match"),
    [
        ({"offset": "99999999"}, "has 65536 bytes, must have at least 100065535"),
        ({"offset": "-4"}, "external offset is '-4', must be a number from 0"),
        ({"offset": str(2**64 - 4)}, "external offset is .* must be a number from 0"),
        ({"length": "12"}, "external length is 12, must be 65536"),
    ],
)
def test_places_outside_of_the_file_are_refused(tmp_path, entries, match):
    malformed(changed(with_data_beside(tmp_path), **entries), match)


def test_a_truncated_header_is_no_onnx_file():
    malformed(struct.pack("<I", 8) * 2, "must be")


def chain(count):
    nodes = [node("Relu", f"t{n}", f"t{n + 1}") for n in range(count)]
    return model(nodes, {"t0": real(2, 3)}, outputs=f"t{count}", infer=False)


def branches(count):
    def branch(op, n):
        return helper.make_graph([node(op, f"t{n}", "r")], "b", [], [helper.make_tensor_value_info("r", 1, None)])

    nodes = [node("If", "c", f"t{n + 1}", then_branch=branch("Relu", n), else_branch=branch("Neg", n))
             for n in range(count)]  # fmt: skip
    return model(nodes, {"t0": real(2, 3)}, {"c": np.array(True)}, f"t{count}", infer=False)


@pytest.mark.parametrize(("kind", "few"), [(chain, 250), (branches, 100)])
def test_reading_eight_times_the_nodes_is_about_eight_times_as_much_work(kind, few):
    labels = [open_source(kind(count).SerializeToString()) for count in (few, 8 * few)]
    work = [lines(partial(read, memory, label, None)) for label, memory in labels]
    assert work[1] < 10 * work[0]


def test_adding_one_row_eight_times_as_often_is_about_eight_times_as_much_work():
    work = []
    for count in (150, 1200):
        nodes = [node("Conv", "x w", "t0"), *(node("Add", f"t{n} t0", f"t{n + 1}") for n in range(count))]
        made = model(nodes, {"x": real(1, 2, 5)}, {"w": real(2, 2, 1)}, f"t{count}", infer=False)
        made.doc_string = "-" * 800_000  # so that it may have as many operations
        work.append(lines(partial(nnhal.load, made.SerializeToString())))
    assert work[1] < 10 * work[0]


@pytest.mark.parametrize("device", ["reference", "litert", "onnxruntime", "openvino"])
def test_a_size_of_0_in_the_file_is_an_empty_dimension(device):
    """As ONNX Runtime has it, which takes no other size: a cache before its first step."""
    inputs = {"past": np.zeros((1, 0, 2), np.float32), "x": np.ones((1, 4, 2), np.float32)}
    made = model([node("Concat", "past x", axis=1)], inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is taken as anything
        check(made, inputs, device=device)


def test_where_an_empty_dimension_stands_in_the_way_the_error_names_the_constant_that_helps():
    inputs = {"past": np.zeros((1, 0, 2), np.float32)}
    made = model([node("Einsum", "past past", equation="abc,abd->acd")], inputs)
    refused(made, r"'past' is empty in the file; values={'past': array} makes it a con")
