"""Attention with caches of keys and values, as decoders of ONNX Runtime's tools, optimum and PyTorch have it."""

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import nnhal
from nnhal.runtime.random_inputs import random_inputs
from tests.frontends.cases import refused
from tests.frontends.onnx_models import by_nnhal, by_onnxruntime, check, model, node

RNG = np.random.default_rng(3)
DEVICES = "reference", "litert", "onnxruntime", "openvino"
CASES = {}


def real(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def case(name, op, names, outputs, inputs, constants=None, **how):
    CASES[name] = node(op, names, outputs, "com.microsoft", **how), inputs, constants or {}, outputs


PAST = {"p": real(2, 2, 3, 4), "r": real(2, 2, 3, 4)}
THREE = {name: real(2, 2, 8) for name in "qkv"}
MASKS = {
    "2": np.int32([[1, 1, 0, 1, 1], [1] * 5]),
    "3": RNG.integers(0, 2, (2, 2, 5)).astype(np.int32),
    "lengths": np.int32([4, 5]),
    "ends and beginnings": np.int32([4, 5, 1, 0]),
    "packed": np.int32([4, 5, 0, 2, 4, 0, 4, 9]),
}
HEADS = "MultiHeadAttention"
case(f"{HEADS}, past", HEADS, "q k v - - - p r", "y s t", THREE | PAST, num_heads=2)
case(f"{HEADS}, causal", HEADS, "q k v - - - p r", "y s t", THREE | PAST, num_heads=2, unidirectional=1)
case(f"{HEADS}, biases", HEADS, "q k v b - - p r", "y s t", THREE | PAST, {"b": real(24)}, num_heads=2)
for name, mask in MASKS.items():
    if name == "ends and beginnings":
        continue  # ONNX Runtime has these for Attention only
    masked = THREE | {"m": mask} | PAST
    case(f"{HEADS}, mask {name}", HEADS, "q k v - m - p r", "y s t", masked, num_heads=2, unidirectional=1)
added = THREE | {"a": real(1, 2, 2, 5)} | PAST
case(f"{HEADS}, added", HEADS, "q k v - - a p r", "y s t", added, num_heads=2, scale=0.3)
case(f"{HEADS}, products", HEADS, "q k v - - a p r", "y s t u", added, num_heads=2, unidirectional=1)
others = {"q": real(2, 2, 8), "k": real(2, 2, 5, 4), "v": real(2, 2, 5, 4)}
case(f"{HEADS}, of another sequence", HEADS, "q k v", "y", others, num_heads=2)
case(f"{HEADS}, of another sequence, biases", HEADS, "q k v b", "y", others, {"b": real(24)}, num_heads=2)
longer = {"q": real(2, 3, 8), "k": real(2, 5, 8), "v": real(2, 5, 8)}
case(f"{HEADS}, causal, more keys", HEADS, "q k v", "y", longer, num_heads=2, unidirectional=1)
ROW, WEIGHTS = {"x": real(2, 2, 8)}, {"w": real(8, 24), "b": real(24)}
for causal in (0, 1):
    both = {"x": ROW["x"], "p": real(2, 2, 2, 3, 4)}
    case(
        f"Attention, past, {causal}", "Attention", "x w b - p", "y s", both, WEIGHTS, num_heads=2, unidirectional=causal
    )
for name, mask in MASKS.items():
    both = {"x": ROW["x"], "m": mask, "p": real(2, 2, 2, 3, 4)}
    case(f"Attention, mask {name}", "Attention", "x w b m p", "y s", both, WEIGHTS, num_heads=2, unidirectional=1)
case("Attention, present", "Attention", "x w b", "y s", ROW, WEIGHTS, num_heads=2)

GROUPED = "GroupQueryAttention"
GROUP = {"num_heads": 4, "kv_num_heads": 2}
KEPT = np.arange(6)[:, None] < np.int32([3, 1]).reshape(2, 1, 1, 1)  # ONNX Runtime clears what is behind the lengths
BUFFERS = {name: np.where(KEPT, real(2, 2, 6, 16), 0).astype(np.float32) for name in "pr"}
ANGLES = {"c": real(9, 8), "s": real(9, 8)}


def grouped(name, rest, rows, lengths, total, more=None, constants=None, past=BUFFERS, packed=False, **how):
    inputs = {"q": real(2, rows, 64), "k": real(2, rows, 32), "v": real(2, rows, 32)}
    if packed:
        inputs = {"q": real(2, rows, 128)}
    names = f"{'q - -' if packed else 'q k v'} {'p r' if past else '- -'} l n {rest}"
    inputs |= past | {"l": np.int32(lengths)} | (more or {})
    case(f"{GROUPED}, {name}", GROUPED, names, "y t u", inputs, {"n": np.array(total, np.int32)} | (constants or {}),
         **GROUP, **how)  # fmt: skip


grouped("first", "", 4, [3, 3], 4, past={})
grouped("first, rotated from 2 on", "c s i", 4, [3, 3], 4, {"i": np.full((2, 4), 2)}, ANGLES, {}, do_rotary=1)
grouped("first, into a buffer", "", 4, [3, 3], 4)
grouped("next, of the same lengths", "", 1, [3, 3], 4)
grouped("next, of other lengths", "", 1, [3, 1], 6)
grouped("next, of a growing cache", "", 1, [3, 3], 4, past={name: real(2, 2, 3, 16) for name in "pr"})
grouped("next, packed", "", 1, [3, 2], 4, packed=True)
grouped("next, rotated", "c s", 1, [3, 2], 4, constants=ANGLES, do_rotary=1)
grouped("next, in pairs", "c s", 1, [3, 2], 4, constants=ANGLES, do_rotary=1, rotary_interleaved=1)
grouped("next, rotated by positions", "c s i", 1, [3, 2], 4, {"i": np.int64([[8], [2]])}, ANGLES, do_rotary=1)
grouped("next, in a window", "", 1, [3, 1], 6, local_window_size=2)
grouped("next, capped", "", 1, [3, 2], 4, softcap=0.5, scale=0.4)
grouped("next, added", "- - - a", 1, [3, 1], 4, {"a": real(2, 4, 1, 4)})
grouped("next, smooth", "", 1, [3, 1], 4, smooth_softmax=1)
grouped("next, sinks", "- - - - h", 1, [3, 1], 4, constants={"h": real(4)})
grouped("all keys", "", 3, [2, 2], 3, past={}, causal=0)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_attention_with_a_cache_is_that_of_onnx_runtime(name, device):
    made, inputs, constants, outputs = CASES[name]
    check(model([made], inputs, constants, outputs), inputs, device=device)


def test_a_chunk_of_several_lengths_is_written_behind_each_cache():
    """Rows behind the length of a chunk, and those behind the length of a cache, have no meaning."""
    pasts, counts = np.int32([3, 1]), np.int32([1, 3])
    inputs = {"q": real(2, 3, 64), "k": real(2, 3, 32), "v": real(2, 3, 32)} | BUFFERS
    inputs |= {"l": pasts + counts - 1, "m": counts}
    names = "q k v p r l n - - - - - - - - - m"
    made = model(
        [node(GROUPED, names, "y t u", "com.microsoft", **GROUP)], inputs, {"n": np.array(6, np.int32)}, "y t u"
    )
    found, wanted = by_nnhal(made, inputs), by_onnxruntime(made, inputs)
    for batch, (past, count) in enumerate(zip(pasts, counts, strict=True)):
        np.testing.assert_allclose(found[0][batch, :count], wanted[0][batch, :count], atol=1e-5)
        for place in (1, 2):
            here = found[place][batch, :, : past + count], wanted[place][batch, :, : past + count]
            np.testing.assert_allclose(*here, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_lengths_that_do_not_fit_the_cache_fail(device):
    made, inputs, constants, outputs = CASES[f"{GROUPED}, next, of other lengths"]
    imported = nnhal.load(model([made], inputs, constants, outputs).SerializeToString())
    compiled = nnhal.compile(imported, devices=[device], fallback="forbid")
    compiled.run(*(inputs | {"l": np.int32([5, 1])}).values())
    with pytest.raises(nnhal.OperationFailed):
        compiled.run(*(inputs | {"l": np.int32([6, 1])}).values())


def decoder(rows):
    """A layer of a decoder with its embedding: the lengths of the cache are those of a mask, as its exporters write."""
    inputs = {"ids": np.zeros((1, rows), np.int64), "mask": np.ones((1, 6), np.int64)}
    inputs |= {name: np.zeros((1, 2, 6, 16), np.float32) for name in ("pk", "pv")}
    constants = {"table": real(11, 32), "wq": real(32, 64), "wk": real(32, 32), "wv": real(32, 32), "wo": real(64, 11)}
    constants |= {"one": np.int64([1]), "axis": np.int64(1), "c": real(9, 8), "s": real(9, 8)}
    nodes = [
        node("Gather", "table ids", "x"),
        *[node("MatMul", f"x w{each}", each) for each in "qkv"],
        node("ReduceSum", "mask one", "count", keepdims=0),
        node("Sub", "count one", "last"),
        node("Cast", "last", "lengths", to=6),
        node("Shape", "mask", "shape"),
        node("Gather", "shape axis", "whole", axis=0),
        node("Cast", "whole", "total", to=6),
        node(GROUPED, "q k v pk pv lengths total c s", "a nk nv", "com.microsoft", do_rotary=1, **GROUP),
        node("MatMul", "a wo", "y"),
    ]
    return model(nodes, inputs, constants, "y nk nv", shapes={"mask": [1, "total"], "ids": [1, rows]}), inputs


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", DEVICES)
def test_a_decoder_gives_the_same_position_by_position_as_onnx_runtime(device):
    made, inputs = decoder(1)
    compiled = nnhal.compile(
        nnhal.load(made.SerializeToString(), shapes={"mask": (1, 6)}), devices=[device], fallback="forbid"
    )
    mine, theirs = [inputs["pk"], inputs["pv"]], [inputs["pk"], inputs["pv"]]
    for place, token in enumerate((3, 7, 1, 10)):
        given = {"ids": np.int64([[token]]), "mask": np.int64(np.arange(6) <= place)[None]}
        found, *mine = compiled.run(*given.values(), *mine)[0]
        wanted, *theirs = by_onnxruntime(made, given | dict(zip(("pk", "pv"), theirs, strict=True)))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_an_empty_cache_is_a_constant():
    inputs = THREE | {name: np.zeros((2, 2, 0, 4), np.float32) for name in "pr"}
    made = model([node(HEADS, "q k v - - - p r", "y s t", "com.microsoft", num_heads=2)], inputs, {}, "y s t")
    wanted = by_onnxruntime(made, inputs)
    imported = nnhal.load(made.SerializeToString(), values={name: inputs[name] for name in "pr"})
    found, _ = nnhal.compile(imported, devices=["reference"]).run(*THREE.values())
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("count", [3, 2])
def test_packed_queries_keys_and_values_are_those_of_separate_ones(count, biased, device):
    """ONNX Runtime has these on other processors only."""
    bias = {"b": real(24)} if biased else {}
    wanted = by_onnxruntime(
        model([node(HEADS, f"q k v {'b' if biased else '-'}", "y", "com.microsoft", num_heads=2)], THREE, bias), THREE
    )
    packed = np.stack([THREE[name].reshape(2, 2, 2, 4) for name in "qkv"[3 - count :]], axis=3)
    inputs = {"p": packed} if count == 3 else {"q": THREE["q"], "p": packed}
    names = f"{' '.join(inputs)} {'- -' if count == 3 else '-'} {'b' if biased else '-'}"
    found = by_nnhal(model([node(HEADS, names, "y", "com.microsoft", num_heads=2)], inputs, bias), inputs, device)
    np.testing.assert_allclose(found[0], wanted[0], atol=1e-5)


@pytest.mark.parametrize("past", [1, 4])
def test_a_cache_of_open_length_grows(past):
    inputs = {name: real(1, 1, 8) for name in "qkv"} | {name: real(1, 2, past, 4) for name in "pr"}
    shapes = {name: [1, 2, "past", 4] for name in "pr"}
    made = model(
        [node(HEADS, "q k v - - - p r", "y s t", "com.microsoft", num_heads=2)], inputs, {}, "y s t", shapes=shapes
    )
    wanted = by_onnxruntime(made, inputs)
    for mine, theirs in zip(by_nnhal(made, inputs, shapes=dict.fromkeys("pr", (1, 2, 0, 4))), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


QUANTISED = {"w": RNG.integers(-64, 64, (8, 24)).astype(np.int8), "b": real(24), "t": np.float32(0.02)}
COLUMNS = {"t": np.linspace(0.01, 0.03, 24, dtype=np.float32), "y": RNG.integers(-5, 5, 24).astype(np.int8)}
STEPS = {"s": np.float32(0.03), "z": np.uint8(120)}
SHARED = {"m": MASKS["lengths"], "p": real(2, 2, 2, 3, 4)}
PROJECTED = {
    "one scale": ("x w b s t", {}, {}, {}),
    "zero points": ("x w b s t - z k", {}, {"k": np.int8(3)}, {}),
    "columns": ("x w b s t - z y", {}, COLUMNS, {}),
    "columns of one zero point": ("x w b s t - z k", {}, {"t": COLUMNS["t"], "k": np.int8([3])}, {}),
    "columns of one scale": ("x w b s t - z y", {}, {"y": COLUMNS["y"]}, {}),
    "a mask and a cache": ("x w b s t m z y p", SHARED, COLUMNS, {"unidirectional": 1}),
    "a scale of the products": (
        "x w b s t m z",
        {"m": np.int32([2, 1])},
        {},
        {"scale": 0.7, "mask_filter_value": -50.0},
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("name", PROJECTED)
def test_attention_with_a_quantised_projection_is_that_of_onnx_runtime(name, dynamic, device):
    """The quantiser of ONNX Runtime writes a node for the scale before it, or a constant scale."""
    names, more, constants, how = PROJECTED[name]
    constants = QUANTISED | constants
    outputs = "a present" if "p" in more else "a"
    nodes = [node("QAttention", names, outputs, "com.microsoft", num_heads=2, **how)]
    if dynamic:
        nodes[0].input[0] = "q"
        inputs = {"x": ROW["x"]} | more
        nodes.insert(0, node("DynamicQuantizeLinear", "x", "q s z"))
    else:
        inputs = {"x": RNG.integers(0, 256, (2, 2, 8)).astype(np.uint8)} | more
        constants |= STEPS
    check(model(nodes, inputs, constants, outputs), inputs, device=device, tolerance=2e-5)


def unexpressed(names, why, rows=1, constants=None, op=GROUPED, **how):
    inputs = (
        {"q": real(2, rows, 64), "k": real(2, rows, 32), "v": real(2, rows, 32)} | BUFFERS | {"l": np.int32([3, 2])}
    )
    given = {name: array for name, array in inputs.items() if name in names.split()}
    constants = {"n": np.array(6, np.int32), "w": real(16)} | (constants or {})
    return pytest.param(node(op, names, "y", "com.microsoft", **GROUP | how), given, constants, why, id=why)


@pytest.mark.parametrize(
    ("made", "inputs", "constants", "why"),
    [
        unexpressed("q k v p r l l", "total_sequence_length is computed at execution, must be constant"),
        unexpressed("q k v p r l n - - - - - w w", "has quantised caches, must have caches of reals"),
        unexpressed("q k v p r l n", "has caches of a window, must have all positions", sliding_window_cache=1),
        unexpressed("q k v p r l n - - - - - - - w w", "normalises queries and keys, must do so in nodes before it"),
        unexpressed("q k v p - l n", "has a past key or value without the other"),
        unexpressed("q k q p r l n", r"has keys of \[\(2, 1, 32\), \(2, 1, 64\)\], must be of \[2, 1, 32\]"),
        unexpressed("q k v - - - - - n", "writes its cache in place, must give it as an output", op=HEADS),
        unexpressed("q p r - - - p r", r"has keys by heads and a past", op=HEADS),
        unexpressed("q w w n n", "rotates, must not", op="QAttention", do_rotary=1),
    ],
)
def test_a_cache_that_is_not_expressed_is_refused_by_name(made, inputs, constants, why):
    refused(model([made], inputs, constants, infer=False), why)


SCATTERS = {
    "from the first on": ((2, 3, 5, 4), (2, 3, 2, 4), None, {}),
    "behind others": ((2, 3, 5, 4), (2, 3, 2, 4), [3, 0], {"mode": "linear"}),
    "in a circle": ((2, 3, 5, 4), (2, 3, 2, 4), [4, 12], {"mode": "circular"}),
    "along the last": ((2, 5), (2, 5), [0, 0], {"axis": -1}),
    "along axis 1": ((2, 5, 3, 2), (2, 1, 3, 2), [4, 2], {"axis": 1}),
}


@pytest.mark.parametrize(
    ("name", "device"),  # OpenVINO has no division of integers, which goes in a circle
    [(name, device) for name in SCATTERS for device in DEVICES if (name, device) != ("in a circle", "openvino")],
)
def test_positions_are_scattered_as_by_onnx_runtime(name, device):
    past, new, first, how = SCATTERS[name]
    inputs = {"x": real(*past), "u": real(*new)} | ({} if first is None else {"w": np.int64(first)})
    check(model([node("TensorScatter", " ".join(inputs), **how)], inputs, opset=24), inputs, device=device)


LENGTHS = {
    "lengths": ({}, {}),
    "lengths below the queries, causal": ({"is_causal": 1}, {}),
    "left and right": ({"left_window_size": 1, "right_window_size": 2}, {}),
    "mask": ({"is_causal": 1}, {"m": RNG.integers(0, 2, (5, 7)) > 0}),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", LENGTHS)
def test_attention_to_a_part_of_a_cache_is_that_of_the_specification(name, device):
    attributes, given = LENGTHS[name]
    inputs = {"q": real(3, 4, 5, 8), "k": real(3, 2, 7, 8), "v": real(3, 2, 7, 6)} | given | {"l": np.int64([7, 3, 0])}
    names = f"q k v {'m' if given else '-'} - - l"
    made = model([node("Attention", names, **attributes)], inputs, {}, opset=25)
    found, wanted = by_nnhal(made, inputs, device), ReferenceEvaluator(made).run(None, inputs)
    np.testing.assert_allclose(found[0], wanted[0], atol=2e-6)


def test_attention_with_a_past_and_a_length_is_refused():
    inputs = {"q": real(1, 2, 1, 8), "k": real(1, 2, 1, 8), "v": real(1, 2, 1, 8), "l": np.int64([1])}
    made = model([node("Attention", "q k v - k v l")], inputs, {}, opset=25, infer=False)
    refused(made, "has a past key and nonpad_kv_seqlen, must have one of both")


@pytest.mark.parametrize("device", DEVICES)
def test_a_decoder_runs_on_random_inputs_and_a_failure_names_its_node_and_input(device):
    """The mask of ones fills the cache; one more position is beyond the rotation's 9 positions."""
    made, _ = decoder(1)
    made.graph.node[-2].name = "layers.0/attention"
    imported = nnhal.load(made.SerializeToString(), shapes={"mask": (1, 6)})
    ids, mask, *_ = drawn = random_inputs(imported, np.random.default_rng(0))
    assert mask.tolist() == [[1] * 6] and 0 <= ids.min() <= ids.max() < 10
    with nnhal.compile(imported, devices=[device], fallback="forbid") as compiled:
        compiled(*drawn)
        wanted = r"GATHER #\d+ \"RotaryEmbedding #10/\d+ \(com.microsoft.GroupQueryAttention layers.0/attention\)\""
        said = f"{wanted}: .*; this follows from the values of input mask: give others"
        if device != "reference":  # engines have other words, or none
            said = f"the values of input mask break a rule, give others: {wanted}"
        with pytest.raises(nnhal.OperationFailed, match=said):
            compiled(ids, mask + 1, *drawn[2:])
