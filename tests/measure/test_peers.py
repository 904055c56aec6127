"""A peer engine is called as its users call it, and no more is done for it."""

import sys

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import BadFile, DeviceUnavailable, InvalidArgument
from nnhal.measure import peers
from nnhal.measure.peers import peer
from nnhal.zoo import maker

litert = pytest.importorskip("ai_edge_litert.interpreter")


@pytest.fixture(scope="module")
def path():
    return maker.path("tiny_conv")


def given(engine: peers.LiteRT) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, tuple(engine.inputs[0]["shape"])).astype(np.float32)


def test_a_peer_computes_what_the_reference_does_from_a_file_and_from_its_bytes(path):
    for source in (path, path.read_bytes()):
        engine = peer("litert", source, 1)
        x = given(engine)
        (y,) = engine([x])
        expected = nnhal.compile(nnhal.load(path), devices="reference")(x)
        assert np.allclose(y, expected, atol=1e-4) and not np.allclose(y, engine([x / 2])[0], atol=1e-6)
        with pytest.raises(ValueError, match="longer"):
            engine([x, x])


@pytest.mark.parametrize(
    ("name", "file", "others"),
    [
        ("litert", "a.onnx", "openvino or onnxruntime"),
        ("onnxruntime", "a.tflite", "litert or openvino"),
    ],
)
def test_a_model_of_a_format_that_an_engine_does_not_read_names_those_that_do(name, file, others, tmp_path):
    with pytest.raises(
        InvalidArgument, match=f"^{name} reads .* this is {tmp_path.joinpath(file).suffix}: .*{others}$"
    ):
        peer(name, tmp_path / file, 1)


def test_the_format_of_bytes_is_read_from_them(path):
    with pytest.raises(InvalidArgument, match=r"this is \.tflite"):
        peer("onnxruntime", path.read_bytes(), 1)


def test_other_shapes_are_ready_to_run(path):
    engine = peer("litert", path, 1)
    x = given(engine)
    engine.resize([(3, *x.shape[1:])])
    (y,) = engine([np.concatenate([x] * 3)])
    assert y.shape[0] == 3 and np.allclose(y, y[:1], atol=1e-6)
    with pytest.raises(ValueError, match="longer"):
        engine.resize([x.shape, x.shape])


class Engine:
    """In the place of LiteRT's interpreter: notes what is called, and takes two time units for each."""

    def __init__(self, **how) -> None:
        self.how, self.calls = how, []
        Engine.last = self
        Engine.now += 20

    def allocate_tensors(self) -> None:
        self.calls.append("allocate")
        Engine.now += 300

    def reset_all_variables(self) -> None:
        self.calls.append("reset")

    def get_input_details(self):
        return []

    get_output_details = get_input_details


@pytest.fixture
def engine(monkeypatch):
    peers._greeted()
    Engine.now = 1000
    monkeypatch.setattr(litert, "Interpreter", Engine)
    monkeypatch.setattr(peers.time, "perf_counter_ns", lambda: Engine.now)


def test_reading_and_preparing_are_timed_apart(engine):
    made = peer("litert", b"model", 2)
    assert (made.load_ns, made.compile_ns) == (20, 300)


def test_the_peer_runs_as_users_run_it_with_its_delegate_unless_told_otherwise(engine, path):
    peer("litert", path, 3)
    kinds = litert.OpResolverType
    assert Engine.last.how == {"model_path": str(path), "num_threads": 3, "experimental_op_resolver_type": kinds.AUTO}
    peers.LiteRT(b"model", 1, xnnpack=False)
    none = kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    assert Engine.last.how == {"model_content": b"model", "num_threads": 1, "experimental_op_resolver_type": none}


def test_a_reset_is_the_engines(engine):
    made = peer("litert", b"model", 1)
    made.reset()
    assert Engine.last.calls == ["allocate", "reset"]


def test_a_peer_that_is_none_or_is_not_installed_is_named(monkeypatch):
    with pytest.raises(InvalidArgument, match="peer is 'abacus', must be one of litert, openvino, onnxruntime"):
        peer("abacus", b"", 1)
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    with pytest.raises(DeviceUnavailable, match=r"needs ai-edge-litert: pip install 'nnhal\[litert\]'"):
        peer("litert", b"", 1)


def test_each_engine_computes_what_the_reference_does_on_the_files_that_it_reads(path):
    x = given(peer("litert", path, 1))
    expected = nnhal.compile(nnhal.load(path), devices="reference")(x)
    engine = peer("openvino", path, 1)
    assert engine.shapes == [list(x.shape)] and engine.load_ns > 0 < engine.compile_ns
    for again in (x, x / 2, x):
        (y,) = engine([again])
    assert np.allclose(y, expected, atol=1e-4) and not np.allclose(y, engine([x / 2])[0], atol=1e-6)


def test_onnx_runtime_runs_in_memory_of_its_own_from_the_second_call_on():
    helper = pytest.importorskip("onnx").helper
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "double",
        [helper.make_tensor_value_info("x", 1, ["n"])],
        [helper.make_tensor_value_info("y", 1, ["n"])],
    )
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    engine = peer("onnxruntime", content, 1)
    assert engine.shapes == [[-1]]
    results = [engine([np.full(3, n, np.float32)])[0] for n in range(3)]
    assert [y.tolist() for y in results] == [[0] * 3, [2] * 3, [4] * 3]
    engine.resize([[2]])
    assert engine.shapes == [[2]] and engine([np.ones(2, np.float32)])[0].tolist() == [2, 2]


@pytest.mark.parametrize("name", ["litert", "openvino", "onnxruntime"])
def test_a_file_that_an_engine_cannot_read_is_named(name):
    with pytest.raises(BadFile, match=f"^{name} cannot read the model: "):
        peer(name, b"no model", 1)
