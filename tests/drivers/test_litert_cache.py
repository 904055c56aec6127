"""What `litert` keeps of a compilation: the model as TFLite, with large weights left where they are."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")
from ai_edge_litert import schema_py_generated as tfl  # noqa: TID251

import nnhal
from nnhal.base.codes import OperandType
from nnhal.base.errors import OperationFailed
from nnhal.base.memory import Memory
from nnhal.base.sealed import sealed
from nnhal.drivers.litert import content as contents
from nnhal.drivers.litert.lowering import recipe_of
from nnhal.drivers.litert.recipe import Settings, restore, save
from nnhal.hal.cache.files import CacheContent, CacheFiles
from nnhal.model.graph import Model
from tests.models import make_model

pytestmark = [pytest.mark.cache, pytest.mark.usefixtures("state")]


def layered(size: int) -> Model:
    """A fully connected layer of `size` outputs, with weights that lie in the builder's memory."""
    b = nnhal.Builder("layered")
    x = b.input((2, 600))
    w = b.constant(np.random.default_rng(1).standard_normal((size, 600), np.float32))
    return b.finish([x], [b.fully_connected(x, w, b.constant(np.arange(size, dtype=np.float32)))])


def recurrent() -> Model:
    """A layer with a state, which is reset before every run."""
    b = nnhal.Builder("recurrent")
    x, state = b.input((1, 3)), b.constant(np.float32([[0.5, -0.5]]))
    w, r, bias = (b.constant(np.full(shape, 0.25, np.float32)) for shape in ((2, 3), (2, 2), (2,)))
    return b.finish([x], list(b.rnn(x, w, r, bias, state, "tanh")))


MODELS = {"small": lambda: layered(3), "mapped": lambda: layered(1000), "recurrent": recurrent}


def run_of(model: Model, folder: Path, threads: int = 0) -> tuple[str, list[np.ndarray], int]:
    with nnhal.compile(model, devices="litert", cache_dir=folder, threads=threads) as compiled:
        x = np.random.default_rng(2).standard_normal(compiled.inputs[0].shape, np.float32)
        results = [compiled(x) for _ in range(2)][-1]
        in_place = compiled.memory.steps[0].use.weights_in_place
        return str(compiled.cache[0]), list(results) if isinstance(results, tuple) else [results], in_place or 0


@pytest.mark.parametrize("name", MODELS)
def test_what_is_restored_computes_the_same_to_the_bit(tmp_path, name):
    first, second = (run_of(MODELS[name](), tmp_path / "cache") for _ in range(2))
    assert (first[0], second[0]) == ("miss: there is no entry", "hit")
    for a, b in zip(first[1], second[1], strict=True):
        assert a.tobytes() == b.tobytes() and a.shape == b.shape


def test_large_weights_are_not_kept_a_second_time(tmp_path):
    run_of(layered(1000), tmp_path / "cache")
    kept = sum(file.stat().st_size for file in (tmp_path / "cache").iterdir())
    assert kept < 100_000 < 600 * 1000 * 4
    told, _, in_place = run_of(layered(1000), tmp_path / "cache")
    assert told == "hit" and in_place >= 600 * 1000 * 4


def content_of(model: Model) -> CacheContent:
    files = CacheContent.empty(CacheFiles(1, 1), model.pools)
    assert save(recipe_of(model, Settings()), files)
    return CacheContent(
        [{k: bytes(v) for k, v in files.model[0].items()}],
        [{k: bytes(v) for k, v in files.data[0].items()}],
        model.pools,
    )


def weights_in(lowered, model: Model) -> list[bytes]:
    """What the buffers of a TFLite model hold, read as the schema says."""
    data = lowered.content
    read = tfl.Model.GetRootAs(data, 0)
    buffers = [read.Buffers(n) for n in range(read.BuffersLength())]
    return [data[buffer.Offset() : buffer.Offset() + buffer.Size()] for buffer in buffers]


@pytest.mark.parametrize("shift", [0, 1, 64, 4095])
def test_the_restored_model_has_the_same_constants_wherever_pages_begin(monkeypatch, shift):
    model = layered(1000)
    wanted = recipe_of(model, Settings()).lowered
    kept = content_of(model)
    facts = json.loads(kept.model[0]["facts"])
    kept.model[0]["facts"] = json.dumps(facts | {"size": facts["size"] + shift}).encode()
    real = contents.Content.page
    if shift:
        monkeypatch.setattr(contents.Content, "page", lambda self, at: real(self, at + shift))
    again = restore(kept, Settings()).lowered
    assert again.packed.windows[0].at != 0 and weights_in(again, model) == weights_in(wanted, model)


def test_of_a_pool_without_a_descriptor_the_weights_are_copied():
    model = layered(1000)
    wanted, kept = recipe_of(model, Settings()).lowered, content_of(model)
    kept.pools = tuple(Memory.wrap(pool.bytes().copy()) for pool in model.pools)
    again = restore(kept, Settings()).lowered
    assert not again.packed.windows and weights_in(again, model) == weights_in(wanted, model)


def test_memory_that_is_another_than_then_is_refused():
    kept = content_of(layered(1000))
    for pools in ((), (sealed(bytes(4096)),)):
        with pytest.raises(OperationFailed, match="the model's memory has changed since the cache entry"):
            restore(CacheContent(kept.model, kept.data, pools), Settings())


def test_weights_in_memory_that_is_not_the_models_are_not_kept():
    model = layered(1000)
    files = CacheContent.empty(CacheFiles(1, 1), (Memory.allocate(1 << 20),))
    assert not save(recipe_of(model, Settings()), files)


def test_open_shapes_keep_nothing(tmp_path):
    model = make_model(lambda b, x: b.relu(x), ((None, 3), OperandType.TENSOR_FLOAT32), name="open")
    for _ in range(2):
        with nnhal.compile(model, devices="litert", cache_dir=tmp_path / "cache") as compiled:
            assert compiled(np.float32([[1, -1, 2]])).tolist() == [[1, 0, 2]]
            assert str(compiled.cache[0]) == "miss: there is no entry; the device kept nothing of it"


def test_threads_and_options_are_those_of_this_compilation(tmp_path):
    for threads in (1, 2):
        assert [run_of(layered(3), tmp_path / "cache", threads)[0] for _ in range(2)] == [
            "miss: there is no entry",
            "hit",
        ]
