"""Nonsense of every kind in every place of the API: an error of nnhal's that names the place, or an answer; nothing else."""

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.zoo import maker
from tests.runtime.graphs import counter, sums

X, B = np.arange(4, dtype=np.float32), np.ones(4, np.float32)


class Unreadable:
    """Says that it is an array, and is none."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no array")


NONSENSE: tuple[Any, ...] = (
    *(None, True, 5, -1, 1.5, 2**31, 2**63, 2**70, 10**400, 1e300, float("nan"), float("inf"), 1j),
    *("a", "1", "", "a\0b", "/", b"abc", bytearray(b"abc"), memoryview(b"abc"), object(), int, Unreadable()),
    *(Fraction(1, 2), Decimal(1), np.float32(1), np.int64(4), np.array(4), np.array(1.5), np.array(["a", "b"])),
    *([], [None], [True], [1.5], ["a"], [5], [2**40], [2**70], [[1], [2, 3]], [Unreadable()], (4.0,), {5}, {"a": 1}),
    *(X.astype(">f4"), X.astype(object), X[:3], X.reshape(2, 2), np.ma.masked_array(X, [0, 0, 0, 1], hard_mask=True)),
    *(nnhal.Level.parse("1.2"), nnhal.NnhalError, nnhal.InvalidArgument("a")),
)


@pytest.fixture(scope="module")
def compiled() -> nnhal.Compiled:
    return nnhal.compile(sums(), devices="reference")


MODEL, OPEN = sums(), sums(1, (0,))
FILE = maker.path("tiny_conv").read_bytes()


def pool() -> nnhal.Memory:
    return nnhal.Memory.allocate(16)


def buffer(compiled: nnhal.Compiled) -> nnhal.Allocation:
    made = nnhal.allocate([(compiled, "input", 0)])
    made.write(X)
    return made


def wait(fence: nnhal.Fence, timeout: Any) -> None:
    """But not where the wait is for ever, or for long."""
    if not (isinstance(timeout, int | float | Fraction) and timeout > 1) and timeout is not None:
        fence.wait(timeout)


CALLS: dict[str, Callable[[nnhal.Compiled, Any], Any]] = {
    "input": lambda c, v: c(v, B),
    "inputs": lambda c, v: c(v),
    "out": lambda c, v: c(X, B, out=v),
    "out, bound": lambda c, v: c.bind(X, B, out=v)(),
    "out, fenced": lambda c, v: c.execute_fenced(X, B, out=v).result(),
    "deadline": lambda c, v: c.run(X, B, deadline=v),
    "loop_timeout": lambda c, v: c.run(X, B, loop_timeout=v),
    "submit's deadline": lambda c, v: c.submit(X, B, deadline=v).result(),
    "result's timeout": lambda c, v: c.submit(X, B).result(v),
    "fenced deadline": lambda c, v: c.execute_fenced(X, B, deadline=v).result(),
    "fenced after": lambda c, v: c.execute_fenced(X, B, after=v).result(),
    "fenced timeout": lambda c, v: c.execute_fenced(X, B).result(v),
    "fence's timeout": lambda c, v: wait(nnhal.fence_pair()[0], v),
    "status": lambda c, v: nnhal.fence_pair()[1].set(v),
    "wait_for": lambda c, v: c.execute_fenced(X, B, wait_for=v).result(),
    "wait_for several": lambda c, v: c.execute_fenced(X, B, wait_for=[v]).result(),
    "stream": lambda c, v: nnhal.compile(counter(), devices="reference").stream()(v),
    "burst": lambda c, v: c.burst()(v, B),
    "freed memory": lambda c, v: c.burst().free_memory(v),
    "roles": lambda c, v: nnhal.allocate(v),
    "role": lambda c, v: nnhal.allocate([v]),
    "role's model": lambda c, v: nnhal.allocate([(v, "input", 0)]),
    "role's kind": lambda c, v: nnhal.allocate([(c, v, 0)]),
    "role's place": lambda c, v: nnhal.allocate([(c, "input", v)]),
    "frequency": lambda c, v: nnhal.allocate([(c, "input", 0, v)]),
    "shape": lambda c, v: nnhal.allocate([(c, "input", 0)], shape=v),
    "open shape": lambda c, v: nnhal.allocate([(nnhal.compile(OPEN, devices="reference"), "input", 0)], shape=v),
    "write": lambda c, v: buffer(c).write(v),
    "copy_to": lambda c, v: buffer(c).copy_to(v),
    "copy_from": lambda c, v: buffer(c).copy_from(v),
    "dimensions": lambda c, v: buffer(c).copy_from(pool(), v),
    "compile": lambda c, v: nnhal.compile(v),
    **{
        f"compile {name}": lambda c, v, name=name: nnhal.compile(MODEL, **{"devices": "reference", name: v})
        for name in ("devices", "preference", "priority", "fallback", "threads", "relaxed", "deadline")
    },
    "compile driver_options": lambda c, v: nnhal.compile(MODEL, driver_options=v),
    "compile isolation": lambda c, v: nnhal.compile(MODEL, isolation=v),
    "options": lambda c, v: nnhal.compile(MODEL, devices="litert", driver_options={"litert": v}),
    "threads of litert": lambda c, v: nnhal.compile(MODEL, devices="litert", threads=v),
    "load": lambda c, v: nnhal.load(v),
    "shapes": lambda c, v: nnhal.load(FILE, shapes=v),
    "shapes, one": lambda c, v: nnhal.load(FILE, shapes=[v]),
    "signature": lambda c, v: nnhal.load(FILE, signature=v),
    "validate": lambda c, v: nnhal.validate(v),
    "level_of": lambda c, v: nnhal.level_of(v),
    "load_driver": lambda c, v: nnhal.load_driver(v),
    "Memory.allocate": lambda c, v: nnhal.Memory.allocate(v),
    "Memory.blob": lambda c, v: nnhal.Memory.hardware_buffer_blob(v),
    "view's offset": lambda c, v: pool().view(v, 4),
    "view's length": lambda c, v: pool().view(0, v),
    "view's type": lambda c, v: pool().view(0, 16, v),
    "view's shape": lambda c, v: pool().view(0, 16, np.float32, v),
    "Memory.copy_to": lambda c, v: pool().copy_to(v),
    "from_array": lambda c, v: nnhal.Memory.from_array(v),
    "wrap": lambda c, v: nnhal.Memory.wrap(v),
    "from_fd": lambda c, v: nnhal.Memory.from_fd(-1 if isinstance(v, int | np.integer) else v, 4),
    "from_fd's size": lambda c, v: nnhal.Memory.from_fd(pool().fd, v),
    "from_file": lambda c, v: nnhal.Memory.from_file(v),
}


@pytest.mark.filterwarnings("ignore:Data type alias")
@pytest.mark.parametrize("call", CALLS)
def test_nonsense_is_an_error_that_is_nnhals_own(call, compiled):
    """TimeoutError is what waiting no longer raises; MemoryError is OutOfMemory."""
    raised = []
    for value in NONSENSE:
        try:
            CALLS[call](compiled, value)
        except (nnhal.NnhalError, TimeoutError) as error:
            assert len(str(error)) < 2000 and str(error)
        except Exception as error:
            raised.append(f"{value!r:.60}: {type(error).__name__}: {error}")
    assert not raised, "\n".join(raised)


MUST = {
    "view's length": (4.0, "a", 17, -1),
    "shape": (4, [5], [4.0], [True], "4", [2**40]),
    "open shape": ([4.0], [True], [2**40], [2**31]),
    "write": ([[1], [2, 3]], np.ma.masked_array(X, [0, 0, 0, 1]), X.astype(np.float64)),
    "out": (True, 5, "abcd", np.ma.masked_array(X.copy(), [0, 0, 0, 1]), {"y": X}),
    "shapes, one": ((1.9, 8, 8, 3), (True, 8, 8, 3), ("2", 8, 8, 3), (-3, 8, 8, 3), (2**40, 8, 8, 3), None),
    "threads of litert": (2**31, -1, True, 1.5),
    "wait_for": (None, 5, "a", nnhal.fence_pair()[0]),
    "fence's timeout": (float("nan"), "1", True, [1]),
}


@pytest.mark.parametrize(("call", "value"), [(call, value) for call, values in MUST.items() for value in values])
def test_what_only_looks_like_it_is_refused(call, value, compiled):
    with pytest.raises(nnhal.InvalidArgument, match=r"must|are no array"):
        CALLS[call](compiled, value)


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 2**63, Fraction(20), np.float32(20), np.int64(20), 20])
def test_a_timeout_is_any_number_of_seconds_and_infinity_is_no_limit(timeout, compiled):
    assert (compiled.submit(X, B).result(timeout) == X + 1).all()
    assert (compiled.execute_fenced(X, B).result(timeout) == X + 1).all()


def test_lists_are_written_to_driver_memory_as_they_are_given_to_a_call(compiled):
    allocation = buffer(compiled)
    allocation.write([4, 3, 2.5, 1])
    assert allocation.read().tolist() == [4, 3, 2.5, 1]
