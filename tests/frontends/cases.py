"""Files of one operator, and whether nnhal and LiteRT's own kernels give the same on them."""

import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

import nnhal
from nnhal.frontends.tflite import load
from tests.frontends.flat import litert, one_operator, tensor
from tests.requests import compute

RANDOM = np.random.default_rng(7)
Case = tuple[Any, ...]  # name, inputs, outputs, options, their fields


def begin(name: str) -> None:
    """Draw from numbers of a name, whatever was drawn before: each module does, and each test."""
    RANDOM.bit_generator.state = np.random.default_rng(zlib.crc32(name.encode())).bit_generator.state


class X(NamedTuple):
    """A tensor of a case: its value, type and quantisation, whether it is constant. A value of None is an output."""

    data: Any
    kind: str = "f4"
    scale: Any = None
    zero: Any = 0
    constant: bool = False
    shape: tuple[int, ...] = ()
    axis: int = 0

    def in_file(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The tensor of a file: an input has no value there."""
        shape = self.shape if self.data is None else self.data.shape
        axis = {"axis": self.axis} if self.scale is not None else {}
        return tensor(shape, self.kind, self.data if self.constant else None, self.scale, self.zero, **axis)


def f(*shape: int, low: float = -2, high: float = 2) -> X:
    return X(RANDOM.uniform(low, high, shape).astype("f4"))


def i(*shape: int, low: int = -9, high: int = 9) -> X:
    return X(RANDOM.integers(low, high, shape, np.int32), "i4")


def b(*shape: int) -> X:
    return X(RANDOM.integers(0, 2, shape).astype(bool), "b1")


def q(*shape: int, scale: float = 0.05, zero: int = 3, kind: str = "i1", constant: bool = False) -> X:
    limits = np.iinfo(kind)
    data = RANDOM.integers(limits.min, limits.max + 1, shape).astype(kind)
    return X(data, kind, scale, zero, constant)


def c(data: Any, kind: str = "i4") -> X:
    return X(np.asarray(data, kind), kind, constant=True)


def const(x: X) -> X:
    return x._replace(constant=True)


def channels(shape: tuple[int, ...], axis: int) -> X:
    return X(
        RANDOM.integers(-127, 128, shape).astype("i1"),
        "i1",
        RANDOM.uniform(0.005, 0.02, shape[axis]).astype("f4"),
        0,
        True,
        axis=axis,
    )


def out(*shape: int, kind: str = "f4", scale: Any = None, zero: int = 0) -> X:
    return X(None, kind, scale, zero, shape=shape)


def bias(count: int, scale: Any) -> X:
    return X(RANDOM.integers(-500, 500, count).astype("i4"), "i4", scale, 0, True)


def file_of(
    name: str,
    inputs: Sequence[X | None],
    outputs: Sequence[X],
    options: str = "",
    case: Mapping[str, Any] | None = None,
    **fields: Any,
) -> tuple[bytes, list[Any]]:
    """Return a file of one operator and the arrays of its inputs. `file_of(*case)` takes a `Case`; fields come last."""
    given = [None if x is None else x.in_file() for x in inputs]
    content = one_operator(name, given, [x.in_file() for x in outputs], options, **(case or {}), **fields)
    return content, [x.data for x in inputs if x is not None and not x.constant]


def run(content: bytes, fed: list[Any]) -> list[Any]:
    return compute(load(content), *map(np.asarray, fed), devices="reference")


def refused(file: Any, match: str | None = None, error: type[Exception] = nnhal.UnsupportedModel, **how: Any) -> str:
    """Loading a file, or a model of the onnx package, fails with a text that matches. Returns the text."""
    source = file.SerializeToString() if hasattr(file, "SerializeToString") else file
    with pytest.raises(error, match=match) as caught:
        nnhal.load(source, **how)
    return str(caught.value)


malformed = partial(refused, error=nnhal.BadFile)


def agrees(content: bytes, fed: list[Any], steps: int = 1) -> None:
    """steps: that a quantised element may be off."""
    for actual, expected in zip(run(content, fed), litert(content, *fed), strict=True):
        assert actual.dtype == expected.dtype
        assert actual.shape == expected.shape
        distance = np.abs(actual.astype("f8") - expected.reshape(actual.shape).astype("f8")).max()
        if expected.dtype.kind == "f":
            assert distance <= 1e-5 * max(1, np.abs(expected).max())
        elif expected.dtype.itemsize == 1 and expected.dtype != bool:
            assert distance <= steps
        else:
            assert distance == 0


def check(case: Case) -> None:
    """Run a case."""
    agrees(*file_of(*case))
