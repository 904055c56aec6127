"""Under exact numerics results of 8 bits are the same on every device, and those of TensorFlow Lite's own kernels."""

import warnings
from collections.abc import Iterator
from contextlib import closing
from functools import cache

import numpy as np
import pytest

import nnhal
from nnhal.api import Numerics
from nnhal.base.operands import Array
from nnhal.conformance.differential import arrays_of, model_of, open_masks, run, with_other_values
from nnhal.conformance.draw import Cell, cells, draw
from nnhal.hal.answers import can_be_exact
from nnhal.hal.chain import checked_prepared
from nnhal.hal.claims import consider_support
from nnhal.hal.device import Hints
from nnhal.ops.schema import Q8, Q8S
from nnhal.runtime import discovery
from nnhal.runtime.compilation import Fallback
from nnhal.zoo import maker
from tests.differential.drawing import DRAWS, seeds
from tests.frontends.flat import Writer, litert
from tests.matrix.devices import INSTALLED
from tests.models import make_model

EXACT = Hints(options={"numerics": "exact"})
DEVICES = [name for name, device in INSTALLED.items() if can_be_exact(device)]
ENGINES = [name for name in DEVICES if name != "reference"]
CELLS = [cell for cell in cells() if cell.kind in (Q8, Q8S) or cell.op.name == "QUANTIZE"]
WHOLE_NETS = ["tiny_conv_uint8", "mobilenet_v2_int8"]
COMMON = [
    "CONV_2D",
    "DEPTHWISE_CONV_2D",
    "FULLY_CONNECTED",
    "ADD",
    "MUL",
    "AVERAGE_POOL_2D",
    "MEAN",
    "SOFTMAX",
    "QUANTIZE",
]
RERUNS = 3


def differing(device: str, cell: Cell) -> Iterator[str]:
    """Where drawn calls of a device and of the reference are not the same; nothing is said of those that it refuses."""
    rng, (theirs,) = np.random.default_rng(seeds(cell)), discovery.select([device])
    for _ in range(DRAWS):
        call = draw(cell, rng)
        model = model_of(call)
        claims = consider_support(theirs, model, EXACT)
        hints = claims.hints(EXACT)
        if claims.refused():
            claims.release_work()
            continue
        with (
            closing(checked_prepared(discovery.cpu(), model, EXACT)) as mine,
            closing(checked_prepared(theirs, model, hints)) as prepared,
        ):
            claims.release_work()
            for _ in range(RERUNS):
                wanted, found = run(mine, arrays_of(call)), run(prepared, arrays_of(call))
                for w, g, left_open in zip(wanted, found, open_masks(call, len(wanted)), strict=True):
                    assert w is not None and g is not None
                    if w.dtype.itemsize == 1 and (bad := (w != g) & ~np.asarray(left_open, bool)).any():
                        at = np.unravel_index(int(bad.argmax()), bad.shape)
                        yield f"{cell}: {int(bad.sum())} of {bad.size} differ, first {g[at]}, must be {w[at]}"
                call = with_other_values(call, rng)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("device", ENGINES)
@pytest.mark.parametrize("operation", dict.fromkeys(cell.op.name for cell in CELLS))
def test_results_of_8_bits_are_the_references_bit_for_bit(device: str, operation: str) -> None:
    """Among the classes of values are exact halves of steps."""
    problems = [found for cell in CELLS if cell.op.name == operation for found in differing(device, cell)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("operation", COMMON)
def test_litert_takes_common_operations(operation: str) -> None:
    """A device that refused everything would be exact too."""
    (litert,) = discovery.select(["litert"])
    taken = 0
    for cell in (cell for cell in CELLS if cell.op.name == operation and cell.values == "ordinary"):
        claims = consider_support(litert, model_of(draw(cell, np.random.default_rng(seeds(cell)))), EXACT)
        claims.release_work()
        taken += not claims.refused()
    assert taken


@cache
def file(name: str) -> bytes:
    return maker.make(name)


@cache
def own_results(name: str) -> tuple[list[Array], list[Array]]:
    """Pictures, and what LiteRT's interpreter makes of the file by its own kernels."""
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    plain = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    engine = litert.Interpreter(model_content=file(name), experimental_op_resolver_type=plain)
    engine.allocate_tensors()
    (given,), (taken,) = engine.get_input_details(), engine.get_output_details()
    limits, rng = np.iinfo(given["dtype"]), np.random.default_rng(3)
    pictures = [rng.integers(limits.min, limits.max + 1, given["shape"]).astype(given["dtype"]) for _ in range(2)]
    results = []
    for picture in pictures:
        engine.set_tensor(given["index"], picture)
        engine.invoke()
        results.append(engine.get_tensor(taken["index"]).copy())
    return pictures, results


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WHOLE_NETS)
@pytest.mark.parametrize("device", DEVICES)
def test_a_whole_net_of_8_bits_is_what_its_own_engine_makes_of_it(device: str, name: str) -> None:
    pictures, wanted = own_results(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = nnhal.compile(file(name), devices=[device], fallback="allow", numerics="exact")
    with compiled:
        for picture, result in zip(pictures, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(compiled(picture)), result)


@pytest.mark.parametrize("alpha", [0.005, 0.0111, 0.03])
@pytest.mark.parametrize("scale, out", [(0.0117, 0.03), (0.02, 0.02), (0.05, 0.0123)])
@pytest.mark.parametrize("kind, zero", [("u1", 128), ("i1", 0)])
def test_a_prelu_is_that_of_the_files_own_engine(kind: str, zero: int, scale: float, out: float, alpha: float) -> None:
    """Each side of 0 has its own factor of 31 bits: of 256 values 29 were a step away."""
    x = np.arange(256).astype(np.uint8).view(kind).reshape(1, 8, 8, 4)
    writer = Writer()
    given = writer.tensor(x.shape, kind, scale=scale, zero=zero + 7)
    slopes = writer.tensor((1, 1, 4), kind, [zero + 20, zero - 30, zero + 90, zero + 3], scale=alpha, zero=zero)
    result = writer.tensor(x.shape, kind, scale=out, zero=zero - 5)
    writer.operator("PRELU", [given, slopes], [result])
    writer.ends([given], [result])
    content = writer.bytes()
    with nnhal.compile(content, devices=DEVICES, numerics="exact") as compiled:
        np.testing.assert_array_equal(compiled(x), litert(content, x)[0])


GREAT = [np.inf, 3.4e38, 2.0**31, 1e10, 65504, 300, 255.5]
SMALL = [np.nan, 2.0**31 - 128, -128.7, 127.9, -0.5, 0.5, 1e-45, -1e-45, -0.0]
SPECIAL = np.array([*SMALL, *GREAT, *(-x for x in GREAT), 0.0], np.float32)
TO_8_BITS = [
    ("TENSOR_QUANT8_ASYMM", 0.5, 3),
    ("TENSOR_QUANT8_ASYMM_SIGNED", 2.0**-20, -7),
    ("TENSOR_QUANT8_ASYMM", 2.0**20, 0),
]


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "scale", "zero"), TO_8_BITS)
@pytest.mark.parametrize("rank", [2, 7])
def test_quantize_saturates_and_takes_nan_for_0(
    device: str, kind: str, scale: float, zero: int, numerics: Numerics, rank: int
) -> None:
    x = SPECIAL.reshape((1,) * (rank - 1) + (-1,))
    model = make_model(lambda b, given: b.quantize(given, out_type=kind, scale=scale, zero_point=zero), x.shape)
    low = 0 if kind == "TENSOR_QUANT8_ASYMM" else -128
    real = np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=1e39, neginf=-1e39)
    wanted = np.clip(np.rint(real / scale) + zero, low, low + 255)
    fallback: Fallback = "forbid" if numerics == "fast" else "allow"
    with nnhal.compile(model, devices=[device], fallback=fallback, numerics=numerics) as compiled:
        np.testing.assert_array_equal(np.asarray(compiled(x)), wanted)


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["TENSOR_INT32", "TENSOR_QUANT8_ASYMM"])
def test_cast_truncates_saturates_and_takes_nan_for_0(device: str, kind: str, numerics: Numerics) -> None:
    x = SPECIAL.reshape(2, -1)
    quant = {"scale": 0.25, "zero_point": 9} if kind == "TENSOR_QUANT8_ASYMM" else {}
    model = make_model(lambda b, given: b.cast(given, out_type=kind, **quant), x.shape)
    low, high = (0, 255) if quant else (-(2**31), 2**31 - 1)
    whole = [0 if np.isnan(v) else low if v < low else high if v > high else int(v) for v in x.ravel().tolist()]
    with nnhal.compile(model, devices=[device], fallback="allow", numerics=numerics) as compiled:
        assert np.asarray(compiled(x)).ravel().tolist() == whole
