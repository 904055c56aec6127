"""If and Loop, functions of the file's own, open dimensions, 64-bit integers."""

from itertools import pairwise

import numpy as np
import pytest
from onnx import TensorProto, helper

import nnhal
from nnhal.base.errors import ShapeNeeded
from nnhal.frontends.onnx.outline import refused_outline
from nnhal.frontends.source import open_source
from nnhal.model.file import write_model
from tests.frontends.cases import malformed, refused
from tests.frontends.onnx_models import by_nnhal, by_onnxruntime, check, check_nodes, model, node, operations

RNG = np.random.default_rng(9)


def real(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def graph(nodes, outputs, inputs=(), constants=None):
    from onnx import numpy_helper

    found = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    return helper.make_graph(nodes, "inner", list(inputs), list(outputs), found)


def info(name, kind=TensorProto.FLOAT, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


BRANCHES = {
    "then_branch": graph([node("Add", "x k", "t")], [info("t")], constants={"k": np.array([1, 2, 3], np.float32)}),
    "else_branch": graph([node("Mul", "x z", "e")], [info("e")]),
}


@pytest.mark.parametrize("condition", [True, False])
def test_an_if_takes_the_branch_of_its_condition_and_what_it_reads_of_the_graph_around(condition):
    inputs = {"c": np.array(condition), "x": real(2, 3), "z": real(2, 3)}
    check_nodes(node("If", "c", **BRANCHES), inputs, becomes=["IF"])


@pytest.mark.parametrize("condition", [True, False])
def test_the_condition_of_an_if_may_be_one_element_of_a_matrix(condition):
    """As of a comparison of a score, [1, 1], as wake-word models have it."""
    inputs = {"s": np.float32([[condition]]), "x": real(2, 3), "z": real(2, 3)}
    check_nodes([node("Greater", "s half", "c"), node("If", "c", **BRANCHES)], inputs, {"half": np.float32(0.5)})


@pytest.mark.parametrize("condition", [True, False])
def test_of_an_if_with_a_constant_condition_only_the_branch_is_left(condition):
    inputs = {"x": real(2, 3), "z": real(2, 3)}
    made = model([node("If", "c", **BRANCHES)], inputs, {"c": np.array(condition)})
    check(made, inputs, becomes=["ADD" if condition else "MUL"])


def test_a_value_that_several_branches_read_is_not_changed_by_one_of_them():
    branch = graph([node("Relu", "a", "t")], [info("t")])
    inputs = {"x": real(2, 3), "z": real(2, 3)}
    nodes = [node("Add", "x z", "a"), node("If", "c", "r", then_branch=branch, else_branch=branch), node("Sub", "r a")]
    check(model(nodes, inputs, {"c": np.array(True)}), inputs)


def loop_body(scan=False):
    nodes = [
        node("Mul", "v_in k", "v_out"),
        node("ReduceSum", "v_out", "total", keepdims=0),
        node("Less", "total limit", "goes"),
    ]
    outputs = [info("goes", TensorProto.BOOL, []), info("v_out")]
    if scan:
        nodes.append(node("Identity", "v_out", "each"))
        outputs.append(info("each"))
    inputs = [info("i", TensorProto.INT64, []), info("go_in", TensorProto.BOOL, []), info("v_in", shape=[3])]
    return graph(nodes, outputs, inputs, {"limit": np.array(1e6, np.float32)})


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("count", [1, 5])
def test_a_loop_runs_as_often_as_it_says(known, count):
    inputs = {"x": np.abs(real(3)), "k": np.full(3, 2, np.float32)}
    constants = {"go": np.array(True)}
    (constants if known else inputs)["n"] = np.array(count, np.int64)
    made = model([node("Loop", "n go x", body=loop_body())], inputs, constants)
    assert "WHILE" in operations(made)
    check(made, inputs)


def test_a_loop_ends_when_its_condition_does():
    inputs = {"x": np.full(3, 100, np.float32), "k": np.full(3, 10, np.float32)}
    (found,) = check_nodes(
        node("Loop", "n go x", body=loop_body()), inputs, {"n": np.array(50, np.int64), "go": np.array(True)}
    )
    assert found[0] == 1e6


def steady_body():
    nodes = [node("Add", "v_in i_real", "v_out"), node("Identity", "v_out", "each"), node("Identity", "go_in", "goes")]
    nodes.insert(0, node("Cast", "i", "i_real", to=TensorProto.FLOAT))
    inputs = [info("i", TensorProto.INT64, []), info("go_in", TensorProto.BOOL, []), info("v_in", shape=[2])]
    return graph(nodes, [info("goes", TensorProto.BOOL, []), info("v_out"), info("each")], inputs)


def test_a_loop_whose_steps_are_known_gives_the_list_of_what_each_gives():
    inputs = {"x": real(2)}
    constants = {"n": np.array(4, np.int64), "go": np.array(True)}
    made = model([node("Loop", "n go x", "v y", body=steady_body())], inputs, constants, "v y")
    assert "WHILE" not in operations(made)
    check(made, inputs)


def test_a_loop_with_a_list_and_unknown_steps_is_refused_by_name():
    inputs = {"x": real(2), "n": np.array(4, np.int64)}
    made = model([node("Loop", "n go x", "v y", body=steady_body())], inputs, {"go": np.array(True)}, "v y")
    refused(made, r"Loop #0: collects outputs of all iterations")


def test_the_outline_of_a_refused_file_names_what_a_loop_holds():
    body = graph([node("Det", "v", "w"), node("Identity", "go", "goes")], [info("goes", TensorProto.BOOL, []), info("w")],
                 [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("v", shape=[3])])  # fmt: skip
    made = model([node("Neg", "x", "z"), node("Loop", "n - z", body=body)], {"x": real(3)}, {"n": np.array(1 << 20)})
    label, memory = open_source(made.SerializeToString())
    with pytest.raises(nnhal.UnsupportedModel) as refused:
        nnhal.load(made.SerializeToString())
    found = refused_outline(label, memory, None, refused.value)
    assert [bool(each.refused) for each in found.nodes] == [False, True]
    assert "holds Det #0 of node 1 (Loop)" in found.nodes[1].refused


def counting_body(limit):
    """The body that converters of TensorFlow write: it counts by itself, and the condition ends the loop."""
    nodes = [
        node("Gather", "x at", "row"),
        node("Add", "v_in row", "v_out"),
        node("Identity", "v_out", "each"),
        node("Add", "at one", "next"),
        node("Less", f"next {limit}", "goes"),
    ]
    inputs = [info("i", TensorProto.INT64, []), info("go_in", TensorProto.BOOL, [])]
    inputs += [info("at", TensorProto.INT64, []), info("v_in", shape=[3])]
    outputs = [info("goes", TensorProto.BOOL, []), info("next", TensorProto.INT64, []), info("v_out"), info("each")]
    return graph(nodes, outputs, inputs, {"one": np.array(1, np.int64)})


COUNTING = {"go": np.array(True), "zero": np.array(0, np.int64), "most": np.array((1 << 63) - 1, np.int64)}


@pytest.mark.parametrize("count", ["-", "most"])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_loop_that_its_condition_ends_after_known_iterations_gives_the_list_of_what_each_gives(rows, count):
    inputs = {"x": real(rows, 3), "v": real(3)}
    nodes = [node("Shape", "x", "n", start=0, end=1), node("Squeeze", "n", "size")]
    nodes.append(node("Loop", f"{count} go zero v", "a b y", body=counting_body("size")))
    made = model(nodes, inputs, COUNTING, "b y")
    assert "WHILE" not in operations(made)
    check(made, inputs)


@pytest.mark.parametrize("kind", ["many", "open"])
def test_a_loop_with_a_list_that_its_condition_ends_late_or_by_a_value_is_refused_by_name(kind):
    inputs = {"x": real(300, 3), "v": real(3), **({"size": np.array(4, np.int64)} if kind == "open" else {})}
    constants = COUNTING | ({"size": np.array(300, np.int64)} if kind == "many" else {})
    constants["large"] = real(1 << 16, 1)  # a small file may have few operations
    nodes = [node("Loop", "- go zero v", "a b y", body=counting_body("size")), node("Add", "b large", "c")]
    refused(model(nodes, inputs, constants, "c y"), r"Loop #0: collects .* must be known and at most 256")


def test_a_function_of_the_file_stands_for_its_nodes():
    opsets = [helper.make_opsetid("", 17)]
    nodes = [helper.make_node("LeakyRelu", ["a"], ["t"]), helper.make_node("Add", ["t", "b"], ["c"])]
    nodes[0].attribute.append(onnx_reference("alpha", "slope"))
    function = helper.make_function("own", "Twice", ["a", "b"], ["c"], nodes, opsets, attributes=["slope"])
    inputs = {"x": real(2, 3), "z": real(2, 3)}
    calls = [node("Twice", "x z", "t", "own", slope=0.5), node("Twice", "t z", "y", "own", slope=0.25)]
    made = model(calls, inputs, functions=[function])
    check(made, inputs, becomes=["PRELU", "ADD", "PRELU", "ADD"])


def onnx_reference(name, of):
    from onnx import AttributeProto

    return AttributeProto(name=name, ref_attr_name=of, type=AttributeProto.FLOAT)


def test_a_function_that_calls_itself_is_refused():
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    again = helper.make_node("Again", ["a"], ["b"], domain="own")
    function = helper.make_function("own", "Again", ["a"], ["b"], [again], opsets)
    made = model([node("Again", "x", "y", "own")], {"x": real(2)}, functions=[function])
    malformed(made, "functions call one another deeper than 64")


# --------------------------------------------------------------------------------------------------------- dynamic batch


def pictures(batch):
    constants = {"w": real(4, 3, 3, 3), "k": real(64, 5), "s": np.array([0, -1], np.int64)}
    nodes = [node("Conv", "x w", "c"), node("Relu", "c", "r"), node("Reshape", "r s", "f"), node("MatMul", "f k")]
    inputs = {"x": real(batch, 3, 6, 6)}
    return model(nodes, inputs, constants, shapes={"x": ["batch", 3, 6, 6]}), inputs


def test_an_open_batch_is_taken_as_1_and_said():
    made, inputs = pictures(1)
    assert nnhal.load(made.SerializeToString()).notes[0].startswith("input 'x' [batch, 3, 6, 6] is open in the file")
    check(made, inputs)


def test_a_batch_may_be_said():
    check(*pictures(4), shapes={"x": (4, 3, 6, 6)})


@pytest.mark.parametrize("batch", [1, 3])
def test_a_batch_may_be_left_open_until_execution(batch):
    made, inputs = pictures(batch)
    (found,) = by_nnhal(made, inputs, shapes={"x": (0, 3, 6, 6)})
    assert np.allclose(found, by_onnxruntime(made, inputs)[0], atol=1e-4)


def test_dimensions_of_one_name_are_of_one_size():
    inputs = {"a": real(3, 4), "b": real(3, 4)}
    made = model([node("Add", "a b")], inputs, shapes={"a": ["n", 4], "b": ["n", 4]})
    check(made, inputs, shapes={"a": (3, 4)})


def test_a_dimension_that_the_file_says_cannot_be_another():
    made, _ = pictures(1)
    refused(made, "dimension 1 of x is 4, must be 3 as in the file", nnhal.InvalidArgument, shapes={"x": (1, 4, 6, 6)})


def test_a_size_that_no_guess_can_be_right_for_is_asked_for():
    made = model(
        [node("Conv", "x w")], {"x": real(1, 3, 8, 8)}, {"w": real(4, 3, 5, 5)}, shapes={"x": [1, 3, "h", "w"]}
    )
    refused(made, r"input 'x' \[1, 3, h, w\] is open in the file, must be given", ShapeNeeded)


# -------------------------------------------------------------------------------------------------------- wide integers


def test_shapes_that_are_computed_become_constants():
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s one", "d"),
        node("Mul", "d two", "m"),
        node("Concat", "m rest", "w", axis=0),
        node("Reshape", "x w"),
    ]
    constants = {"one": np.array([1], np.int64), "two": np.array([2], np.int64), "rest": np.array([-1], np.int64)}
    check_nodes(nodes, {"x": real(4, 3)}, constants, becomes=["RESHAPE"])


def test_an_input_of_64_bits_is_taken_where_it_fits_and_refused_where_not():
    made = model([node("Max", "x x")], {"x": np.array([1, -5], np.int64)})
    compiled = nnhal.compile(nnhal.load(made.SerializeToString()), devices=["reference"])
    assert compiled(np.array([7, -9])).tolist() == [7, -9]
    with pytest.raises(nnhal.InvalidRequest, match="must"):
        compiled(np.array([2**40, 0]))


@pytest.mark.parametrize(
    ("nodes", "bits"),
    [
        ([node("Identity", "x")], 0),
        ([node("Add", "x x")], 30),
        ([node("Add", "x x", "s"), node("Mul", "s c")], 24),
        ([node("Mul", "x x", "m"), node("Add", "m x")], 10),
        ([node("ReduceMean", "x", keepdims=0)], 24),
    ],
)
def test_an_input_of_64_bits_is_taken_as_far_as_sums_of_it_fit_32_bits(nodes, bits, tmp_path):
    most = (1 << bits) - 1 if bits else 2**31 - 1
    inputs = {"x": np.array([1, -5, most, -most], np.int64)}
    made = model(nodes, inputs, {"c": np.array(60)})
    check(made, inputs)
    read = nnhal.load(made.SerializeToString())
    told = f"values of x must be from -{most} to {most}, so that sums and products fit 32 bits"
    assert read.notes == ((told,) if bits else ())
    write_model(read, tmp_path / "saved.nnhal")
    saved = nnhal.load(tmp_path / "saved.nnhal")
    for each in (read, saved):
        compiled = nnhal.compile(each, devices=["reference"])
        for beyond in (most + 1, -most - 2):
            with pytest.raises(nnhal.InvalidRequest, match=f"{beyond}, must be"):
                compiled(np.array([0, 1, 2, beyond]))
        if bits:
            memory = nnhal.allocate([(compiled, "input", 0)])
            memory.write(np.array([0, 1, most + 1, 2], np.int32))
            with pytest.raises(nnhal.InvalidRequest, match=f"{most + 1}, must be"):
                compiled(memory)
            memory.write(np.array([0, 1, 2, most], np.int32))
            assert compiled(memory).tolist() == compiled(np.array([0, 1, 2, most])).tolist()


def test_only_the_inputs_that_are_added_up_take_fewer_bits():
    """As the positions of transformers are counted: the sum of a mask, times the mask."""
    nodes = [
        node("CumSum", "m a", "s"),
        node("Mul", "s m", "p"),
        node("Gather", "t p", "e"),
        node("Gather", "w x", "f"),
        node("Add", "e f"),
    ]
    inputs = {"x": np.array([[1, 5, 3, 0]]), "m": np.array([[1, 1, 1, 0]])}
    made = model(nodes, inputs, {"a": np.array(1), "t": real(5, 3), "w": real(6, 3)})
    check(made, inputs)
    (note,) = nnhal.load(made.SerializeToString()).notes
    assert note == "values of m must be from -1023 to 1023, so that sums and products fit 32 bits"


def test_integers_of_32_bits_keep_their_range_on_the_way_to_64():
    nodes = [
        node("Not", "b", "n"),
        node("Cast", "n", "i", to=TensorProto.INT32),
        node("CumSum", "i a", "s"),
        node("Mul", "s i", "p"),
        node("Cast", "p", "q", to=TensorProto.INT64),
        node("Add", "q c"),
    ]
    inputs = {"b": np.array([[True, False, False]])}
    made = model(nodes, inputs, {"a": np.array(1), "c": np.array(2)})
    check(made, inputs)
    assert nnhal.load(made.SerializeToString()).notes == ()


def test_sums_that_may_need_64_bits_are_refused_by_name():
    made = model(
        [node("Mul", "x x", "m"), node("Mul", "m m", "n"), node("Mul", "n n")], {"x": np.array([1, -5], np.int64)}
    )
    refused(made, r"Mul #0: is of INT64 and may need more than the 32 bits")


def test_all_nodes_that_cannot_be_expressed_are_listed_at_once():
    nodes = [
        node("NonZero", "x", "a"),
        node("Det", "z", "b"),
        node("Unknown", "x", "c", "elsewhere"),
        node("Relu", "x"),
    ]
    made = model(nodes, {"x": real(2, 2), "z": real(2, 2)}, outputs="a b c y")
    with pytest.raises(nnhal.UnsupportedModel) as caught:
        nnhal.load(made.SerializeToString())
    assert [(name, place) for name, place, _ in caught.value.refused] == [
        ("NonZero", "#0"), ("Det", "#1"), ("elsewhere.Unknown", "#2"),
    ]  # fmt: skip


@pytest.mark.parametrize("limit", [2**31, 2**63 - 1])
def test_a_loop_whose_limit_nobody_reaches_ends_when_its_condition_does(limit):
    inputs = {"x": np.full(3, 100, np.float32), "k": np.full(3, 10, np.float32)}
    constants = {"n": np.array(limit), "go": np.array(True)}
    (found,) = check(model([node("Loop", "n go x", body=loop_body())], inputs, constants), inputs)
    assert found[0] == 1e6


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.BOOL])
def test_a_loop_lists_integers_and_booleans_too(kind):
    compared = node("Add", "i x", "each") if kind == TensorProto.INT64 else node("Less", "i x", "each")
    given = [info("i", TensorProto.INT64, []), info("go_in", TensorProto.BOOL, [])]
    body = graph(
        [node("Identity", "go_in", "goes"), compared], [info("goes", TensorProto.BOOL, []), info("each", kind)], given
    )
    nodes = [node("ArgMax", "z", "x", axis=1, keepdims=0), node("Loop", "n go", body=body)]
    check_nodes(nodes, {"z": real(3, 5)}, {"n": np.array(4), "go": np.array(True)})


def two_outputs(overload="", op="Relu"):
    opsets = [helper.make_opsetid("", 17)]
    nodes = [node(op, "a", "b"), node("Add", "b a", "c")]
    return helper.make_function("own", "Two", ["a"], ["b", "c"], nodes, opsets, overload=overload)


def test_an_output_of_a_function_that_nobody_asks_for_is_there_within():
    inputs = {"x": real(2, 3)}
    check(model([node("Two", "x", "- y", "own")], inputs, functions=[two_outputs()]), inputs)


def test_of_functions_of_one_name_a_node_says_which():
    inputs = {"x": real(2, 3)}
    calls = [node("Two", "x", "a b", "own"), node("Two", "x", "c d", "own")]
    calls[0].overload, calls[1].overload = "one", "other"
    made = model(calls, inputs, outputs="b d", functions=[two_outputs("one"), two_outputs("other", "Neg")])
    made.ir_version = 10
    check(made, inputs)


OPEN = [
    ("TopK", "x two", "y i", {}),
    ("LayerNormalization", "x six", "y", {}),
    ("InstanceNormalization", "x four four", "y", {}),
    ("Softmax", "x", "y", {"axis": 1}),
    ("MaxPool", "x", "y", {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    ("ConvTranspose", "x w", "y", {"strides": [2, 2]}),
    ("MatMul", "x t", "y", {}),
    ("Resize", "x - scales", "y", {"mode": "linear"}),
    ("Resize", "x - scales", "y", {"mode": "cubic"}),
]


@pytest.mark.parametrize(("op", "names", "outputs", "how"), OPEN, ids=[f"{each[0]} {each[3]}" for each in OPEN])
def test_a_node_that_works_on_each_of_a_batch_leaves_the_batch_open(op, names, outputs, how):
    constants = {"two": np.array([2]), "six": real(6), "four": real(4), "w": real(4, 2, 2, 2)}
    constants["scales"] = np.array((1, 1, 2, 2), np.float32)
    nodes = [node("Transpose", "x", "t", perm=[0, 1, 3, 2]), node(op, names, outputs, **how)]
    opset = 11 if op == "Softmax" else 17
    made = model(nodes, {"x": real(1, 4, 5, 6)}, constants, outputs, opset, shapes={"x": ["N", 4, 5, 6]})
    imported = nnhal.load(made.SerializeToString(), shapes={"x": (0, 4, 5, 6)})
    compiled = nnhal.compile(imported, devices="reference")
    for batch in (1, 3):
        x = real(batch, 4, 5, 6)
        found, expected = compiled(x), by_onnxruntime(made, {"x": x})
        for mine, theirs in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
            assert np.abs(mine - theirs).max() < 1e-4


def test_a_loop_whose_steps_are_more_than_a_file_may_have_is_no_list_of_them():
    names = ["v_in", *(f"t{n}" for n in range(99)), "v_out"]
    nodes = [node("Relu", before, after) for before, after in pairwise(names)]
    given = [info("i", TensorProto.INT64, []), info("go_in", TensorProto.BOOL, []), info("v_in", shape=[3])]
    nodes.append(node("Identity", "go_in", "goes"))
    body = graph(nodes, [info("goes", TensorProto.BOOL, []), info("v_out")], given)
    inputs = {"x": real(3)}
    made = model([node("Loop", "n go x", body=body)], inputs, {"n": np.array(200), "go": np.array(True)})
    check(made, inputs, becomes=["WHILE"])


def test_a_loop_lists_what_has_more_than_four_dimensions():
    body = graph(
        [node("Identity", "go_in", "goes"), node("Relu", "x", "each")],
        [info("goes", TensorProto.BOOL, []), info("each")],
        [info("i", TensorProto.INT64, []), info("go_in", TensorProto.BOOL, [])],
    )
    check_nodes(node("Loop", "n go", body=body), {"x": real(2, 1, 3, 2)}, {"n": np.array(3), "go": np.array(True)})


def choice(*nodes):
    """An If of two branches, and nodes behind it."""
    kinds = [info(name, TensorProto.INT64) for name in "te"]
    branches = {"then_branch": graph([node("Identity", "x", "t")], kinds[:1])}
    branches["else_branch"] = graph([node("Neg", "z", "e")], kinds[1:])
    return [node("ArgMax", "p", "z", axis=1), node("If", "c", "r", **branches), *nodes]


def test_what_an_if_gives_of_64_bits_has_the_range_of_both_branches():
    inputs = {"x": np.array([[10**6]]), "p": real(1, 5), "c": np.array(True)}
    refused(model(choice(node("Mul", "r k")), inputs, {"k": np.array(10**4)}), r"Mul #2: .*32 bits")


@pytest.mark.parametrize("taken", [True, False])
def test_an_index_that_an_if_gives_may_count_from_the_end(taken):
    inputs = {"x": np.array([[-2]]), "p": real(1, 3), "c": np.array(taken), "d": real(4, 2)}
    check(model(choice(node("Gather", "d r")), inputs), inputs)


def test_bytes_that_a_loop_carries_are_dequantised_inside_it_and_stay_plain_outside():
    carried = [info("b", TensorProto.UINT8, [4]), info("sum", TensorProto.FLOAT, [4])]
    inner = [
        *(node("DequantizeLinear", "b s z", "r"), node("Add", "sum r", "sum_out")),
        *(node("Identity", "b", "b_out"), node("Identity", "go_in", "goes")),
    ]
    body = graph(
        inner,
        [info("goes", TensorProto.BOOL, []), info("b_out", TensorProto.UINT8, [4]), info("sum_out", shape=[4])],
        [info("i", TensorProto.INT64, []), info("go_in", TensorProto.BOOL, []), *carried],
        {"s": np.array(0.5, np.float32), "z": np.array(10, np.uint8)},
    )
    inputs = {"n": np.array(3), "x": np.array([10, 11, 20, 0], np.uint8)}
    constants = {"go": np.array(True), "zeros": np.zeros(4, np.float32)}
    made = model([node("Loop", "n go x zeros", "same y", body=body)], inputs, constants)
    assert check(made, inputs)[0].tolist() == [0, 1.5, 15, -15]
