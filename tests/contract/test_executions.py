"""The contract of an execution, broken in every way on every way: a right result or a named error, and nothing afterwards.

The matrix is breaches (`drivers.hostile`) x ways x in process and isolated.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperandType
from nnhal.ipc.client.process import ReconnectingDevice, start
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import State
from tests.contract.drivers.hostile import BREACHES, LATE
from tests.waiting import pass_time

DRIVER = Path(__file__).parent / "drivers" / "hostile.py"
SHAPE = (2, 3)
W = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
ZERO = np.zeros(SHAPE, np.float32)
FLOATS = OperandType.TENSOR_FLOAT32


def model(states: bool) -> nnhal.Model:
    """y = x + w, t = s + x."""
    b = ModelBuilder("contract")
    x, s = (b.operand(FLOATS, SHAPE, name=name) for name in "xs")
    y, t = (b.operand(FLOATS, SHAPE, name=name) for name in "yt")
    w, none = b.constant(FLOATS, W), b.constant(OperandType.INT32, 0)
    b.operation("ADD", [x, w, none], [y])
    b.operation("ADD", [s, x, none], [t])
    return b.finish([x, s], [y, t], states=[State(1, 1, ZERO)] if states else [])


@pytest.fixture(scope="module", autouse=True)
def driver() -> Iterator[None]:
    """The hostile driver by its name, in process and isolated."""
    nnhal.load_driver(DRIVER)
    yield
    from nnhal.runtime import discovery

    discovery._registered.pop("hostile", None)


Run = Callable[[Any, Any], Any]  # x and s to arrays y and t


def call(c: nnhal.Compiled) -> Run:
    return c


def measured(c: nnhal.Compiled) -> Run:
    return lambda x, s: c.run(x, s, measure=True)[0]


def deadline(c: nnhal.Compiled) -> Run:
    return lambda x, s: c.run(x, s, deadline=60.0)[0]


def out(c: nnhal.Compiled) -> Run:
    return lambda x, s: c(x, s, out=[np.full(SHAPE, -1, np.float32), np.full(SHAPE, -1, np.float32)])


def in_bytes(c: nnhal.Compiled) -> Run:
    return lambda x, s: c(x, s, out=[np.zeros(40, np.uint8), None])


def bind(c: nnhal.Compiled) -> Run:
    return lambda x, s: c.bind(x, s)()


def submit(c: nnhal.Compiled) -> Run:
    return lambda x, s: c.submit(x, s).result(60)


def burst(c: nnhal.Compiled) -> Run:
    opened = c.burst()
    return opened


def fenced(c: nnhal.Compiled) -> Run:
    return lambda x, s: c.execute_fenced(x, s).result(60)


def memory(c: nnhal.Compiled) -> Run:
    def run(x: Any, s: Any) -> Any:
        given, taken = nnhal.Memory.from_array(x), nnhal.Memory.allocate(24)
        result = c(given.view(0, 24, np.float32, SHAPE), s, out=[taken.view(0, 24, np.float32, SHAPE), None])
        assert (given.view(0, 24, np.float32, SHAPE) == x).all()
        return result

    return run


def allocation(c: nnhal.Compiled) -> Run:
    taken, given = nnhal.allocate([(c, "output", 0)]), nnhal.allocate([(c, "input", 0)])

    def run(x: Any, s: Any) -> Any:
        given.write(x)
        try:
            t = c(given, s, out=[taken, None])[1]
        except BaseException:
            with pytest.raises(nnhal.NnhalError):  # an execution that failed leaves no contents
                taken.read()
            raise
        finally:
            assert (given.read() == x).all()
        return taken.read(), t

    return run


def stream(c: nnhal.Compiled) -> Run:
    """The state is t: s + x, so that a stream that begins at 0 has s = 0 in its first call."""

    def run(x: Any, s: Any) -> Any:
        opened = c.stream()
        y = opened(x)
        return y, None

    return run


WAYS = call, measured, deadline, out, in_bytes, bind, submit, burst, fenced, memory, allocation, stream
IN_THE_BACKGROUND = deadline, submit, fenced


def test_the_matrix_is_as_large_as_it_is_said_to_be():
    assert len(BREACHES) >= 60 and len(WAYS) == 12


@pytest.mark.sampled(4)
@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("breach", BREACHES)
def test_a_result_is_right_or_an_error_has_a_name(breach, way, isolation):
    named: Any = "hostile"
    if breach == "memory-error" and isolation == "process":  # such a process is replaced, which adds up to a quarantine
        named = ReconnectingDevice("hostile", lambda: start(str(DRIVER)))
    compiled = nnhal.compile(
        model(way is stream), devices=named, isolation=isolation, driver_options={"hostile": {"breach": breach}}
    )
    x, s = np.arange(6, dtype=np.float32).reshape(SHAPE) + 1, np.full(SHAPE, 0.5, np.float32)
    given = x.copy(), s.copy()
    run = way(compiled)
    if BREACHES[breach].well:
        results = run(x, s)
        kept = [None if r is None else r.copy() for r in results]
        assert (results[0] == x + W).all() and (results[1] is None or (results[1] == s + x).all())
        again = run(x * 2, s)
        assert (again[0] == 2 * x + W).all()
        if breach.startswith("late"):
            pass_time(2 * LATE)
        for result, before in zip(results, kept, strict=True):
            assert result is None or (result == before).all()
        assert not any(np.shares_memory(r, i) for r in results if r is not None for i in (x, s))
    else:
        interrupted = breach == "keyboard-interrupt" and isolation == "none"  # which may be the application's own
        own = (KeyboardInterrupt,) if interrupted else ()
        with pytest.raises((nnhal.NnhalError, *own)) as caught:
            run(x, s)
        assert isinstance(caught.value, own) or "hostile" in str(caught.value)
    assert (x == given[0]).all() and (s == given[1]).all()
    compiled.close()
    if named != "hostile":
        named.close()


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_nothing_is_written_to_the_callers_memory_after_an_error(isolation):
    compiled = nnhal.compile(
        model(False), devices="hostile", isolation=isolation, driver_options={"hostile": {"breach": "late-only"}}
    )
    rooms = [np.full(SHAPE, -1, np.float32), np.full(SHAPE, -1, np.float32)]
    with pytest.raises(nnhal.NnhalError, match=r"output 0 \(y\) was not written, must be"):
        compiled(ZERO, ZERO, out=rooms)
    pass_time(3 * LATE)
    assert all((room == -1).all() for room in rooms)
