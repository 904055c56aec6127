"""In process and in another one alike: the same call on the same driver gives the same result, or the same class of error.

The table is cases (what a request holds) x ways (how it is executed).
"""

import queue
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import ErrorStatus, OperandType
from nnhal.base.errors import NnhalError
from nnhal.base.memory import Memory
from nnhal.base.operands import Array
from nnhal.drivers.reference import Reference
from nnhal.frontends.python import Builder
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.hal.fence import fence_pair
from nnhal.hal.request import Control, Request
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.process import start
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from tests.ipc.support import LIMIT
from tests.models import doubling, make_model, one_operation

FLOATS = OperandType.TENSOR_FLOAT32
MANY = 70  # more than the descriptors of one message


def unary(*shape: int) -> Model:
    """y = |x|, whose shape is not known, or its rank is not."""
    return one_operation("ABS", (FLOATS, shape), output=(FLOATS, shape))


def two_outputs() -> Model:
    return make_model(lambda b, x: [b.add(x, x), b.mul(x, x)], (4,))


def optional() -> Model:
    """A fully connected layer with all of its inputs given at the execution."""
    b = ModelBuilder()
    x, w, bias = b.operand(FLOATS, (1, 3)), b.operand(FLOATS, (2, 3)), b.operand(FLOATS, (2,))
    y = b.operand(FLOATS, (1, 2))
    b.operation("FULLY_CONNECTED", [x, w, bias, b.constant(OperandType.INT32, 0)], [y])
    return b.finish([x, w, bias], [y])


def scalar() -> Model:
    """y = x + x, fused with what a scalar says."""
    b = ModelBuilder()
    x, fuse, y = b.operand(FLOATS, (2, 3)), b.operand(OperandType.INT32), b.operand(FLOATS, (2, 3))
    b.operation("ADD", [x, x, fuse], [y])
    return b.finish([x, fuse], [y])


def many() -> Model:
    b = Builder()
    inputs = [b.input((2,)) for _ in range(MANY)]
    return b.finish(inputs, [b.concatenation(inputs, axis=0)])


MODELS: dict[str, Callable[[], Model]] = {
    "known": lambda: doubling(2, 3),
    "unknown": lambda: unary(0, 3),
    "unranked": unary,
    "two": two_outputs,
    "optional": optional,
    "scalar": scalar,
    "many": many,
}
X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def floats(*shape: int) -> Array:
    return np.full(shape, -1, np.float32)


def pool(array: Array, at: int = 0, spare: int = 64) -> Array:
    """A copy in a sealed memory, that far into it."""
    view = Memory.allocate(at + array.nbytes + spare).view(at, array.nbytes)
    view[:] = array.reshape(-1).view(np.uint8)
    return np.ndarray(array.shape, array.dtype, view)


Given = tuple[list[Any], list[Any] | None]
UNKNOWN = "unknown", "unranked"


def of_file(array: Array) -> Array:
    """A copy in a file that somebody may yet shrink."""
    with tempfile.TemporaryFile() as file:
        file.write(array.tobytes())
        file.flush()
        memory = Memory.from_fd(file.fileno(), array.nbytes, readonly=False)
    return memory.view(0, array.nbytes, array.dtype, array.shape)


def in_one_pool(step: int) -> Given:
    """Input and output in one memory, that many bytes apart."""
    memory = Memory.allocate(256)
    x = memory.view(0, 24, np.float32, (2, 3))
    x[...] = X
    return [x], [memory.view(step, 24, np.float32, (2, 3))]


def two_in_one_pool(step: int) -> Given:
    memory = Memory.allocate(256)
    return [X.ravel()[:4].copy()], [memory.view(at, 16, np.float32, (4,)) for at in (0, step)]


def itself() -> Given:
    x = X.copy()
    return [x], [x]


def with_gaps() -> Array:
    return np.full((2, 6), -1, np.float32)[:, ::2]


def readonly() -> Array:
    array = floats(2, 3)
    array.setflags(write=False)
    return array


EMPTY = np.zeros((0, 3), np.float32)
# What an output may be given as room; the value has the shape (2, 3).
ROOMS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "typed": lambda: floats(2, 3),
    "typed in another shape": lambda: floats(3, 2),
    "typed and flat": lambda: floats(6),
    "typed and larger": lambda: floats(4, 3),
    "typed and smaller": lambda: floats(1, 3),
    "typed and empty": lambda: floats(0, 3),
    "a number": lambda: np.float32(-1).reshape(()),
    "of another type": lambda: np.full((2, 3), -1, np.int32),
    "bytes": lambda: np.zeros(24, np.uint8),
    "more bytes": lambda: np.zeros(100, np.uint8),
    "fewer bytes": lambda: np.zeros(23, np.uint8),
    "no bytes": lambda: np.zeros(0, np.uint8),
    "with gaps": with_gaps,
    "for reading": readonly,
    "pool": lambda: pool(floats(2, 3)),
    "pool in another shape": lambda: pool(floats(3, 2)),
    "pool and larger": lambda: pool(floats(4, 3)),
    "pool in bytes": lambda: pool(np.zeros(24, np.uint8)),
    "pool in more bytes": lambda: pool(np.zeros(100, np.uint8)),
    "pool in fewer bytes": lambda: pool(np.zeros(23, np.uint8)),
    "pool out of line": lambda: pool(floats(2, 3), 3),
    "file": lambda: of_file(floats(2, 3)),
}
# What may be given as an input of the shape (2, 3), or instead of it.
INPUTS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "array": X.copy,
    "empty": EMPTY.copy,
    "of another type": lambda: X.astype(np.int32),
    "of another shape": lambda: X.reshape(3, 2).copy(),
    "of another rank": lambda: X.reshape(-1).copy(),
    "a number": lambda: np.float32(-1).reshape(()),
    "with gaps": lambda: np.repeat(X, 2, axis=1)[:, ::2],
    "turned": lambda: np.asfortranarray(X),
    "pool": lambda: pool(X),
    "pool out of line": lambda: pool(X, 3),
    "file": lambda: of_file(X),
}
ROW, W, BIAS = X[:1], X, np.float32([1, 2])
NUMBERS = [np.array(1, np.int32), np.array(0, np.int32), np.array(9, np.int32)]
NO_NUMBERS = [np.array([1], np.int32), np.array(1, np.int64), np.array(1, np.float32)]
PROPER = "none", "array", "empty", "with gaps", "turned", "pool", "pool out of line", "file"
OTHERS, UNFIT = ("of another shape", "of another rank"), ("of another type", "a number")
FIRST = X.ravel()[:4]


def given(inputs: Sequence[Any], rooms: Callable[[], list[Any] | None] = lambda: None) -> Callable[[], Given]:
    return lambda: ([None if x is None else x.copy() for x in inputs], rooms())


def with_input(name: str) -> Callable[[], Given]:
    return lambda: ([INPUTS[name]()], None)


def with_room(x: Array, name: str) -> Callable[[], Given]:
    return lambda: ([x.copy()], [ROOMS[name]()])


def pools_of(
    make: Callable[[Array], Array], rooms: Callable[[], list[Any] | None] = lambda: None
) -> Callable[[], Given]:
    return lambda: ([make(np.float32([n, -n])) for n in range(MANY)], rooms())


Cases = dict[str, tuple[str, Callable[[], Given]]]
# What a device may be given.
CASES: Cases = {
    **{f"{model}, room {name}": (model, with_room(X, name)) for model in ("known", *UNKNOWN) for name in ROOMS},
    **{f"{model}, empty, room {name}": (model, with_room(EMPTY, name)) for model in UNKNOWN for name in ROOMS},
    **{f"known, input {name}": ("known", with_input(name)) for name in PROPER if name != "empty"},
    **{f"{model}, input {name}": (model, with_input(name)) for model in UNKNOWN for name in PROPER},
    **{f"unranked, input {name}": ("unranked", with_input(name)) for name in OTHERS},
    **{f"known, {step} bytes apart": ("known", partial(in_one_pool, step)) for step in (24, 64, 67)},
    **{f"two, {step} bytes apart": ("two", partial(two_in_one_pool, step)) for step in (16, 64)},
    "two, in one room": ("two", lambda: ([FIRST.copy()], [floats(4)] * 2)),
    "two, one open": ("two", given([FIRST], lambda: [None, floats(4)])),
    "two, one too small": ("two", given([FIRST], lambda: [np.zeros(3, np.uint8), floats(4)])),
    "optional, all": ("optional", given([ROW, W, BIAS])),
    **{f"optional, no {n}": ("optional", given([*[ROW, W, BIAS][:n], None, *[ROW, W, BIAS][n + 1 :]])) for n in range(3)},
    **{f"scalar {value!r}": ("scalar", given([X, value], lambda: [floats(2, 3)])) for value in NUMBERS},
    "scalar, none": ("scalar", given([X, None], lambda: [floats(2, 3)])),
    "scalar, in a pool": ("scalar", lambda: ([X.copy(), pool(NUMBERS[0])], None)),
    "many, arrays": ("many", pools_of(np.copy)),
    "many, pools": ("many", pools_of(pool)),
    "many, files": ("many", pools_of(of_file, lambda: [floats(2 * MANY)])),
}  # fmt: skip
# What the runtime does not let through to one.
WRONG: Cases = {
    **{f"{model}, input {name}": (model, with_input(name)) for model in ("known", "unknown") for name in OTHERS},
    **{f"{model}, input {name}": (model, with_input(name)) for model in ("known", *UNKNOWN) for name in UNFIT},
    "known, input empty": ("known", with_input("empty")),
    "known, two inputs": ("known", given([X, X])),
    "known, no input": ("known", given([])),
    "known, two rooms": ("known", given([X], lambda: [floats(2, 3), floats(2, 3)])),
    "known, no room": ("known", given([X], list)),
    "known, onto itself": ("known", itself),
    **{f"known, {step} bytes apart": ("known", partial(in_one_pool, step)) for step in (0, 8)},
    **{f"two, {step} bytes apart": ("two", partial(two_in_one_pool, step)) for step in (0, 8)},
    **{f"scalar {value!r}": ("scalar", given([X, value], lambda: [floats(2, 3)])) for value in NO_NUMBERS},
}  # fmt: skip


def ending(request: Request, run: Callable[[], object]) -> tuple[Any, ...]:
    """What became of a request: the class of the error, or shapes and outputs."""
    try:
        run()
    except NnhalError as error:
        return type(error).__name__, str(error)
    results = [None if x is None else (x.dtype.str, x.shape, x.tobytes()) for x in request.results]
    return "well", request.shapes, sorted(request.small), results


def plain(prepared: Prepared, request: Request) -> None:
    request.execute(prepared.run, Control())


def measured(prepared: Prepared, request: Request) -> None:
    request.execute(prepared.run, Control(measure=True))


def limited(prepared: Prepared, request: Request) -> None:
    request.execute(prepared.run, Control(time.monotonic_ns() + int(LIMIT * 1e9)))


def notified(prepared: Prepared, request: Request) -> None:
    told: queue.SimpleQueue[NnhalError | None] = queue.SimpleQueue()
    prepared.execute(request, Control(), lambda error, timing: told.put(error))
    error = told.get(timeout=LIMIT)
    if error is not None:
        raise error


def in_a_burst(prepared: Prepared, request: Request) -> None:
    burst = prepared.burst()
    with closing(burst):
        request.execute(burst.run, Control())


def fenced(prepared: Prepared, request: Request) -> None:
    execution = prepared.execute_fenced(request, Control())
    if execution.fence is not None:
        with suppress(NnhalError):
            execution.fence.wait(LIMIT)
    execution.get_execution_info()


def behind(prepared: Prepared, request: Request, fences: int = 1, status: ErrorStatus = ErrorStatus.NONE) -> None:
    """With fences that are signalled after the launch, the last one with this status; inputs get their values in between."""
    pairs = [fence_pair() for _ in range(fences)]
    execution = prepared.execute_fenced(request, Control(), [fence for fence, _ in pairs])
    for x in request.given:
        if isinstance(x, np.ndarray) and x.size and x.flags.writeable:
            np.add(x, 1, out=x, casting="unsafe")
    for n, (_, signal) in enumerate(pairs):
        signal.set(status if n == fences - 1 else ErrorStatus.NONE)
    assert execution.fence is not None
    with suppress(NnhalError):
        execution.fence.wait(LIMIT)
    execution.get_execution_info()


WAYS: dict[str, Callable[[Prepared, Request], None]] = {
    "plain": plain,
    "measured": measured,
    "limited": limited,
    "notified": notified,
    "in a burst": in_a_burst,
    "fenced": fenced,
    "behind a fence": behind,
    "behind many fences": partial(behind, fences=MANY),
    "behind one that fails": partial(behind, status=ErrorStatus.DEVICE_UNAVAILABLE),
    "behind one that dies": partial(behind, status=ErrorStatus.DEAD_OBJECT),
}


@pytest.fixture(scope="module")
def devices() -> Iterator[list[Device]]:
    """The same driver here and in a process of its own."""
    remote = RemoteDevice(start("reference"))
    yield [Reference(), remote]
    remote.close()


@pytest.fixture(scope="module")
def prepared(devices: list[Device]) -> dict[str, list[Prepared]]:
    return {name: [checked_prepared(device, make(), Hints()) for device in devices] for name, make in MODELS.items()}


def compare(ends: Sequence[Any]) -> None:
    here, there = ends
    assert here[0] == there[0] and (here[0] != "well" or here == there), f"{here}\n{there}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_a_request_ends_alike_here_and_in_another_process(name, way, prepared):
    model, make = CASES[name]
    ends = []
    for each in prepared[model]:
        request = each.request(*make())
        ends.append(ending(request, partial(WAYS[way], each, request)))
    compare(ends)


# ------------------------------------------------------------------------------------------------- what applications call


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[nnhal.Compiled]]:
    both: list[Any] = ["none", "process"]
    return {
        name: [nnhal.compile(make(), devices="reference", isolation=isolation) for isolation in both]
        for name, make in MODELS.items()
    }


Call = Callable[[nnhal.Compiled, list[Any], Any], Any]
CALLS: dict[str, Call] = {
    "call": lambda c, given, out: c(*given, out=out),
    "measured": lambda c, given, out: c.run(*given, out=out, measure=True)[0],
    "submit": lambda c, given, out: c.submit(*given, out=out).result(LIMIT),
    "bind": lambda c, given, out: c.bind(*given, out=out)(),
    "burst": lambda c, given, out: c.burst()(*given, out=out),
    "fenced": lambda c, given, out: c.execute_fenced(*given, out=out).result(LIMIT),
}


def gives(call: Callable[[], Any]) -> tuple[Any, ...]:
    """What a call gives, or the class of the error."""
    try:
        results = call()
    except NnhalError as error:
        return type(error).__name__, str(error)
    results = results if isinstance(results, tuple) else (results,)
    return "well", [(x.dtype.str, x.shape, x.tobytes()) for x in results]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", CASES | WRONG)
def test_a_call_gives_alike_here_and_in_another_process(name, call, compiled):
    model, make = (CASES | WRONG)[name]
    ends = [gives(partial(CALLS[call], each, *make())) for each in compiled[model]]
    compare(ends)
    if name in WRONG:
        assert ends[0][0] != "well"
