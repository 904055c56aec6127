"""Imported `.onnx` models are kept as `.tflite` ones are; the files beside them that weights lie in belong to the entry."""

import os

import numpy as np
import onnx
import pytest

import nnhal
from tests.execution import run_python
from tests.frontends.onnx_models import model, node, saved

MISS = "miss: there is no entry"
RNG = np.random.default_rng(4)

pytestmark = [pytest.mark.cache, pytest.mark.usefixtures("state")]


def real(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def made():
    nodes = [node("Gemm", "x w b", "g", transB=1), node("Relu", "g")]
    return model(nodes, {"x": real(2, 64)}, {"w": real(256, 64), "b": real(256)}, shapes={"x": ["n", 64]})


def outcome(path, folder, **how):
    x = np.ones((2, 64), np.float32)
    loaded = nnhal.load(path, cache_dir=folder, shapes={"x": (2, 64)})
    with nnhal.compile(loaded, devices=["reference"]) as compiled:
        return compiled(x)


def said(path, folder):
    """What became of the model in the cache, and what it computes."""
    with nnhal.compile(str(path), devices=["reference"], cache_dir=folder) as compiled:
        return str(compiled.cache[0]), compiled(np.ones((1, 64), np.float32))


@pytest.mark.parametrize("outside", [False, True])
def test_a_file_is_imported_once_with_what_lies_beside_it(tmp_path, outside):
    how = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0} if outside else {}
    path = saved(made(), tmp_path, **how)
    (first, right), (second, again) = (said(path, tmp_path / "cache") for _ in range(2))
    assert (first, second) == (MISS, "hit")
    np.testing.assert_array_equal(again, right)


def test_a_file_beside_a_model_that_changed_is_a_miss_and_its_new_values_count(tmp_path):
    path = saved(made(), tmp_path, save_as_external_data=True, location="w.bin", size_threshold=0)
    _, before = said(path, tmp_path / "cache")
    weights = tmp_path / "w.bin"
    weights.write_bytes((np.frombuffer(weights.read_bytes(), np.float32) * 2).tobytes())
    why, after = said(path, tmp_path / "cache")
    assert why == "miss: 'w.bin' beside it has changed"
    np.testing.assert_allclose(after, before * 2, rtol=1e-5)
    assert said(path, tmp_path / "cache")[0] == "hit"


def test_a_file_beside_a_model_that_became_a_link_is_no_hit(tmp_path):
    path = saved(made(), tmp_path, save_as_external_data=True, location="w.bin", size_threshold=0)
    said(path, tmp_path / "cache")
    os.rename(tmp_path / "w.bin", tmp_path / "moved.bin")
    os.symlink("moved.bin", tmp_path / "w.bin")
    with pytest.raises(nnhal.BadFile, match="is or follows a link"):
        said(path, tmp_path / "cache")


def test_other_shapes_are_another_entry(tmp_path):
    path = saved(made(), tmp_path)
    assert outcome(path, tmp_path / "cache").shape == (2, 256)
    assert said(path, tmp_path / "cache")[0] == MISS


def test_a_hit_loads_no_importer(tmp_path):
    path = saved(made(), tmp_path, save_as_external_data=True, location="w.bin", size_threshold=0)
    program = (
        "import sys, nnhal, numpy as np\n"
        f"c = nnhal.compile({str(path)!r}, devices='reference', cache_dir={str(tmp_path / 'cache')!r})\n"
        "print(str(c.cache[0]), [m for m in sys.modules if m.startswith(('nnhal.frontends.onnx', 'onnx'))])"
    )
    _, second = (run_python(program).stdout for _ in range(2))
    assert second == "hit []\n"
    assert onnx.load(str(path)).graph.node
