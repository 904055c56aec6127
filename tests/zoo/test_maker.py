"""The model maker: files that LiteRT runs with and without XNNPACK, with numbers that prove something."""

import hashlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflite
from ai_edge_litert import schema_py_generated as schema  # noqa: TID251 (the file format)

from nnhal.zoo import ZooError, by_name, maker, nets

NAMES = {
    tflite.BuiltinOperator.CONV_2D: "conv",
    tflite.BuiltinOperator.DEPTHWISE_CONV_2D: "depthwise",
    tflite.BuiltinOperator.FULLY_CONNECTED: "dense",
    tflite.BuiltinOperator.AVERAGE_POOL_2D: "pool",
    tflite.BuiltinOperator.UNIDIRECTIONAL_SEQUENCE_LSTM: "lstm",
}
MOBILENETS = tuple(name for name in maker.names() if name.startswith("mobilenet"))
QUANTISED = tuple(name for name in maker.names() if name.endswith("int8"))
OUTER_STEPS = 4  # how far apart correct engines may come out at the end of a deep random net


@pytest.fixture(scope="module")
def made() -> Any:
    """The bytes of models by name, each made once."""
    known: dict[str, bytes] = {}
    return lambda name: known.get(name) or known.setdefault(name, maker.make(name))


def operations(data: bytes) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Kind, inputs and outputs (tensors, None if omitted) of each operation of a file."""
    model = tflite.Model.GetRootAs(data)
    graph = model.Subgraphs(0)
    for n in range(graph.OperatorsLength()):
        operation = graph.Operators(n)
        code = model.OperatorCodes(operation.OpcodeIndex()).BuiltinCode()
        inputs = [graph.Tensors(i) if i >= 0 else None for i in operation.InputsAsNumpy()]
        yield NAMES.get(code, "other"), inputs, [graph.Tensors(i) for i in operation.OutputsAsNumpy()]


def scale_of(tensor: Any) -> Any:
    return tensor.Quantization().ScaleAsNumpy()


def zeros_of(tensor: Any) -> set[int]:
    return set(tensor.Quantization().ZeroPointAsNumpy().tolist())


def litert(data: bytes, delegate: bool = True, **options: Any) -> Any:
    """An interpreter, with XNNPACK or without."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType  # noqa: TID251 (the expected values)

    kind = OpResolverType.AUTO if delegate else OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    return Interpreter(model_content=data, experimental_op_resolver_type=kind, num_threads=2, **options)


def run(data: bytes, *inputs: np.ndarray, delegate: bool = True) -> list[np.ndarray]:
    """What comes out for each of the inputs, which are real: they are quantised as the model says."""
    engine = litert(data, delegate)
    (taken,), outputs = engine.get_input_details(), []
    if inputs[0].shape != tuple(taken["shape"]):
        engine.resize_tensor_input(taken["index"], inputs[0].shape)
    engine.allocate_tensors()
    for value in inputs:
        if taken["dtype"] != np.float32:
            scale, zero = taken["quantization"]
            limits = np.iinfo(taken["dtype"])
            value = np.clip(np.round(value / scale) + zero, limits.min, limits.max)  # noqa: PLW2901
        engine.set_tensor(taken["index"], value.astype(taken["dtype"]))
        engine.invoke()
        outputs.append(engine.get_tensor(engine.get_output_details()[0]["index"]))
    return outputs


def noise(data: bytes, seed: int = 0) -> np.ndarray:
    graph = tflite.Model.GetRootAs(data).Subgraphs(0)
    shape = graph.Tensors(graph.Inputs(0)).ShapeAsNumpy()
    return np.random.default_rng(seed).random(shape, np.float32) * 2 - 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in maker.names() if name != "add4"])
def test_xnnpack_and_the_builtin_kernels_agree_on_outputs_that_vary(name: str, made: Any):
    data = made(name)
    pictures = noise(data, 0), noise(data, 1)
    outputs = run(data, *pictures)
    assert not np.array_equal(*outputs)
    for given, expected in zip(outputs, run(data, *pictures, delegate=False), strict=True):
        if given.dtype == np.float32:
            np.testing.assert_allclose(given, expected, rtol=1e-3, atol=2e-5)
            assert len(np.unique(given)) > 0.99 * given.size
        else:
            assert np.abs(given.astype(int) - expected).max() <= OUTER_STEPS
            assert len(np.unique(given)) >= 8  # more than 22 values cannot be, as 1/256 steps sum up to 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "millions"),
    [
        *((name, 568.7 if "v1" in name else 300.8) for name in MOBILENETS),  # as their papers state
        ("speech_lstm_20", 302),
        ("speech_lstm_1", 15.1),
        ("synthesis_lstm_20", 120),
    ],
)
def test_multiplications_are_those_of_the_architecture(name: str, millions: float, made: Any):
    total = 0
    for kind, inputs, (output,) in operations(made(name)):
        weights = {"lstm": inputs[1:9], "pool": [], "other": []}.get(kind, inputs[1:2])
        sites = math.prod(output.ShapeAsNumpy().tolist()[:-1])  # or steps: each weight is used once in each
        total += sites * sum(math.prod(w.ShapeAsNumpy().tolist()) for w in weights)
    assert total / 1e6 == pytest.approx(millions, rel=0.005)


@pytest.mark.parametrize("base", ["tiny_conv", "mobilenet_v1", "mobilenet_v2"])
def test_quantised_twins_follow_the_float_net(base: str, made: Any):
    shape = getattr(nets, base)().shape
    pictures = [picture[None] for picture in nets.pictures(np.random.default_rng(9), shape)[1:4]]
    real = np.stack(run(made(base), *pictures)).ravel()
    for suffix in ("_int8", "_uint8"):
        stored = np.stack(run(made(base + suffix), *pictures)).ravel()
        assert np.corrcoef(real, stored)[0, 1] > 0.8


@pytest.mark.parametrize("name", QUANTISED)
def test_no_value_inside_collapses_or_saturates(name: str, made: Any):
    engine = litert(made(name), delegate=False, experimental_preserve_all_tensors=True)
    engine.allocate_tensors()
    (taken,) = engine.get_input_details()
    noise = np.random.default_rng(0).integers(0, 256, taken["shape"])
    engine.set_tensor(taken["index"], noise.astype(taken["dtype"]))
    engine.invoke()
    *inner, _ = [output.Name().decode() for _, _, (output,) in operations(made(name))]  # all but softmax
    numbers = {tensor["name"]: tensor["index"] for tensor in engine.get_tensor_details()}
    for value in inner:
        stored = engine.get_tensor(numbers[value])
        limits = np.iinfo(stored.dtype)
        assert len(np.unique(stored)) >= min(stored.size // 2, 40), value
        assert np.mean((stored == limits.min) | (stored == limits.max)) < 0.35, value


@pytest.mark.parametrize("name", QUANTISED)
def test_biases_are_in_steps_of_input_times_weights(name: str, made: Any):
    for kind, inputs, _ in operations(made(name)):
        if kind in {"conv", "depthwise", "dense"}:
            source, weights, bias = inputs
            np.testing.assert_array_equal(scale_of(bias), scale_of(source) * scale_of(weights))
            assert zeros_of(bias) == {0}
            assert bias.Type() == tflite.TensorType.INT32


@pytest.mark.parametrize("name", QUANTISED)
def test_products_are_finer_than_outputs_as_nnapi_1_0_asks(name: str, made: Any):
    for kind, inputs, (output,) in operations(made(name)):
        if kind in {"conv", "depthwise", "dense"}:
            assert np.all(scale_of(inputs[2]) < scale_of(output))


@pytest.mark.parametrize("name", [name for name in QUANTISED if name.endswith("_int8")])
def test_int8_weights_are_symmetric_and_per_channel_in_convolutions(name: str, made: Any):
    model = tflite.Model.GetRootAs(made(name))
    for kind, inputs, (output,) in operations(made(name)):
        if kind in {"conv", "depthwise", "dense"}:
            weights = inputs[1]
            assert zeros_of(weights) == {0}
            assert len(scale_of(weights)) == (1 if kind == "dense" else output.ShapeAsNumpy()[-1])
            assert weights.Quantization().QuantizedDimension() == (3 if kind == "depthwise" else 0)
            assert model.Buffers(weights.Buffer()).DataAsNumpy().view(np.int8).min() == -127


@pytest.mark.parametrize("name", [name for name in QUANTISED if name.endswith("_uint8")])
def test_uint8_weights_have_one_scale_and_a_zero_point(name: str, made: Any):
    for kind, inputs, _ in operations(made(name)):
        if kind in {"conv", "depthwise", "dense"}:
            assert len(scale_of(inputs[1])) == 1
            assert 0 < min(zeros_of(inputs[1])) < 255


@pytest.mark.parametrize("name", QUANTISED)
def test_softmax_and_average_have_the_quantisation_that_is_laid_down(name: str, made: Any):
    *_, (_, _, (probabilities,)) = operations(made(name))
    assert scale_of(probabilities).tolist() == [1 / 256]
    assert zeros_of(probabilities) == {-128 if name.endswith("_int8") else 0}
    for kind, (source, *_), (output,) in operations(made(name)):
        if kind == "pool":
            assert scale_of(source) == scale_of(output)
            assert zeros_of(source) == zeros_of(output)


@pytest.mark.parametrize("name", ["tiny_conv", "tiny_conv_int8", "tiny_lstm", "mobilenet_v1_uint8"])
def test_every_constant_is_aligned_to_16_bytes(name: str, made: Any):
    data = made(name)
    model, start = tflite.Model.GetRootAs(data), np.frombuffer(data, np.uint8).ctypes.data
    constants = [model.Buffers(n).DataAsNumpy() for n in range(1, model.BuffersLength())]
    assert constants
    assert all((c.ctypes.data - start) % 16 == 0 for c in constants)


@pytest.mark.parametrize("name", ["add4", "tiny_conv_int8", "tiny_dynamic", "tiny_lstm", "mobilenet_v2"])
def test_a_model_is_made_of_the_same_bytes_each_time(name: str, made: Any):
    first = made(name)
    nets.values.cache_clear()
    assert maker.make(name) == first


def test_add4_adds():
    engine = litert(maker.make("add4"))
    engine.allocate_tensors()
    for taken, value in zip(engine.get_input_details(), ([1, 2, 3, 4], [10, 20, 30, 40]), strict=True):
        engine.set_tensor(taken["index"], np.array(value, np.float32))
    engine.invoke()
    assert engine.get_tensor(engine.get_output_details()[0]["index"]).tolist() == [11, 22, 33, 44]


def test_tiny_conv_computes_what_its_layers_say():
    """The convolution written out, in double precision."""
    facts, picture = nets.values(nets.tiny_conv, 1), noise(maker.make("tiny_conv"))
    (weights, bias), (dense, offsets) = facts[1].constants, facts[2].constants
    padded = np.pad(picture[0].astype(float), [(1, 1), (1, 1), (0, 0)])
    hidden = np.array(
        [[(weights * padded[y : y + 3, x : x + 3]).sum((1, 2, 3)) + bias for x in range(8)] for y in range(8)]
    )
    logits = dense @ hidden.clip(0, 6).ravel() + offsets
    expected = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(run(maker.make("tiny_conv"), picture)[0][0], expected, rtol=1e-4)


def test_the_batch_of_tiny_dynamic_is_open():
    data = maker.make("tiny_dynamic")
    graph = tflite.Model.GetRootAs(data).Subgraphs(0)
    assert graph.Tensors(graph.Inputs(0)).ShapeSignatureAsNumpy().tolist() == [-1, 8, 8, 3]
    assert graph.Tensors(graph.Outputs(0)).ShapeSignatureAsNumpy().tolist() == [-1, 10]
    pictures = np.concatenate([noise(data, seed) for seed in range(3)])
    (together,) = run(data, pictures)
    np.testing.assert_allclose(together, np.concatenate(run(data, *pictures[:, None])), rtol=1e-5)


LSTMS = {"tiny_lstm": 2, "speech_lstm_1": 5, "synthesis_lstm_20": 3}


@pytest.mark.parametrize(("name", "layers"), LSTMS.items())
def test_lstm_state_is_kept_in_variable_tensors(name: str, layers: int, made: Any):
    stacked = [inputs for kind, inputs, _ in operations(made(name)) if kind == "lstm"]
    assert len(stacked) == layers
    assert all(t.IsVariable() for inputs in stacked for t in inputs[18:20])
    once, again = run(made(name), noise(made(name)), noise(made(name)))
    assert not np.array_equal(once, again)


def test_one_step_of_speech_is_the_first_of_twenty(made: Any):
    sound = noise(made("speech_lstm_20"))
    (whole,) = run(made("speech_lstm_20"), sound)
    steps = run(made("speech_lstm_1"), *sound[:, None])
    np.testing.assert_allclose(np.concatenate(steps), whole, atol=2e-5)


def test_without_litert_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    with pytest.raises(ZooError, match=r"cannot write .tflite files: .*pip install 'nnhal\[litert\]'"):
        maker.make("add4")


def test_an_unknown_name_is_answered_with_those_there_are():
    for ask in (maker.make, maker.path, maker.description):
        with pytest.raises(ZooError, match=r"'nothing' is not known, must be one of add4, .*mobilenet_v1,"):
            ask("nothing")


def test_a_made_model_is_kept_under_the_makers_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NNHAL_MODELS", str(tmp_path))
    said: list[str] = []
    kept = maker.path("add4", said.append)
    assert kept == tmp_path / "made" / str(maker.VERSION) / "add4.tflite"
    assert kept.read_bytes() == maker.make("add4")
    assert maker.path("add4", said.append) == kept
    assert said == [f"making add4 in {kept.parent}"]


def test_a_made_file_that_goes_while_it_is_opened_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def gone(*_: Any) -> Any:
        raise FileNotFoundError("gone")

    monkeypatch.setenv("NNHAL_MODELS", str(tmp_path))
    monkeypatch.setattr(maker.cache, "opened", gone)
    with pytest.raises(ZooError, match=r"maker: add4 was changed during the access: gone; must stay unchanged"):
        maker.opened("add4")


def test_every_model_has_a_line_about_it():
    lines = [maker.description(name) for name in maker.names()]
    assert len(set(lines)) == len(lines) and all(isinstance(line, str) and line.isprintable() for line in lines)


def test_shares_of_a_softmax_are_of_each_row():
    x = np.log([[1.0, 3.0], [2.0, 2.0], [9.0, 1.0]])
    assert np.allclose(nets._plain(nets.Layer("softmax", (0,)), [x]), [[0.25, 0.75], [0.5, 0.5], [0.9, 0.1]])


def test_pictures_are_noise_of_four_grains_each_in_two_contrasts():
    """Of half the contrast it lies about a level of each channel: with it between -1 and 1, and half as wide."""
    found = nets.pictures(np.random.default_rng(3), (8, 16, 3))
    assert found.shape == (8, 8, 16, 3) and np.abs(found).max() <= 1
    for n, picture in enumerate(found):
        grain = (1, 1, 2, 4)[n // 2]
        assert (picture.reshape(8 // grain, grain, 16 // grain, grain, 3).std((1, 3)) < 1e-12).all()
        assert np.ptp(picture, (0, 1)).max() <= (1 if n % 2 else 2)
    drawn = np.random.default_rng(3)
    _, _, noise, level = (drawn.random(shape) * 2 - 1 for shape in ((8, 16, 3), 3) * 2)
    assert np.allclose(found[1], (noise + level) / 2), "each level is drawn behind its noise"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NNHAL_MODELS", str(tmp_path / "file"))
    with pytest.raises(ZooError, match=r"cannot write add4 to .*file/made/.*NNHAL_MODELS"):
        maker.path("add4")


@pytest.mark.parametrize("planted", [b"another model", b""])
def test_a_made_file_that_is_not_what_was_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: bytes
):
    monkeypatch.setenv("NNHAL_MODELS", str(tmp_path))
    root = tmp_path / "made" / str(maker.VERSION)
    root.mkdir(parents=True)
    (root / "add4.tflite").write_bytes(planted)  # by whomever: nothing says what it should be
    assert maker.path("add4").read_bytes() == maker.make("add4")
    (root / "add4.tflite").write_bytes(planted)
    with maker.opened("add4") as file:
        assert file.read() == maker.make("add4")


def told(record: Any) -> Iterator[str]:
    """All that a record of the file says, but for scales and what is in buffers."""
    for name, value in sorted(vars(record).items()):
        if name in {"scale", "data"} or value is None or (np.isscalar(value) and not value):
            continue  # a field of a later schema has its default
        if isinstance(value, list | np.ndarray):
            whole = list(value)
            if whole and hasattr(whole[0], "__dict__"):
                for each in whole:
                    yield from told(each)
            else:
                yield f"{name} {list(map(int, whole))}"
        elif hasattr(value, "__dict__"):
            yield from told(value)
        else:
            yield f"{name} {value}"


def contents(data: bytes) -> tuple[str, float, float]:
    """A digest of how a file is built, the sum of the logarithms of its scales, and a sum of its constants by place."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data))
    built = hashlib.sha256("\n".join(told(model)).encode()).hexdigest()[:16]
    scales, sums = 0.0, 0.0
    for tensor in model.subgraphs[0].tensors:
        if tensor.quantization is not None and tensor.quantization.scale is not None:
            logs = np.log(tensor.quantization.scale.astype("f8"))
            scales += float(logs @ (1 + np.arange(len(logs)) % 7))
        raw = model.buffers[tensor.buffer].data
        if raw is not None and len(raw):
            kind = {0: "f4", 2: "i4", 3: "u1", 9: "i1"}[tensor.type]
            stored = np.asarray(raw, np.uint8).view(kind).astype("f8")
            sums += float(np.abs(stored) @ (1 + np.arange(stored.size) % 5))
    return built, scales, sums


# What the models of VERSION 1 hold: a change of it is another version, as cached files are used by their version.
VERSION_1: dict[str, tuple[str, float, float]] = {
    "add4": ("1b2e2cfc41c4f527", 0.0, 0.0),
    "tiny_conv": ("cad645c1f05dc613", 0.0, 904.2840951030521),
    "tiny_conv_int8": ("6db8fc1678c03c23", -443.24705040134944, 2238453.0),
    "tiny_conv_uint8": ("448d851178bbbe47", -47.31389638592868, 3728118.0),
    "tiny_dynamic": ("ea95b01e48708872", 0.0, 904.2840951030521),
    "tiny_lstm": ("6078acb4244a2394", 0.0, 3765.1351579485345),
    "mobilenet_v1": ("466f779863262bbb", 0.0, 601853.4120787834),
    "mobilenet_v1_int8": ("3c409e2acf0fff55", -771177.1007676253, 2486493109.0),
    "mobilenet_v1_uint8": ("9ff50d25a7c650b8", -519.1049644774724, 2581583558.0),
    "mobilenet_v2": ("7952e33dcc08de91", 0.0, 622130.3338122554),
    "mobilenet_v2_int8": ("f03e21c7434f248b", -1108822.5360735958, 1703507501.0),
    "mobilenet_v2_uint8": ("f0f452c0d044f599", -988.3813797864394, 1924592570.0),
    "speech_lstm_20": ("1c7169d0dba4bd2c", 0.0, 2745977.2086440427),
    "speech_lstm_1": ("e4e827640e8e8216", 0.0, 2745977.2086440427),
    "synthesis_lstm_20": ("6c1d920e28cf997a", 0.0, 1121689.8455923998),
}


@pytest.mark.parametrize("name", maker.names())
def test_a_version_of_the_maker_makes_the_same_models_for_ever(name: str, made: Any):
    assert maker.VERSION == 1
    built, scales, sums = contents(made(name))
    assert built == VERSION_1[name][0]
    assert (scales, sums) == pytest.approx(VERSION_1[name][1:], rel=1e-5)


@pytest.mark.parametrize(
    ("name", "random"),
    [("mobilenet_v1", True), ("mobilenet_v2_int8", True), ("tiny_conv", False), ("face_landmark", False)],
)
def test_models_that_look_trained_and_are_not_are_known(name: str, random: bool) -> None:
    assert by_name.has_random_weights(name) is random
