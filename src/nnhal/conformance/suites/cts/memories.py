"""Memory of every kind: arrays, shared memory, offsets, files, driver memory between executions, unaligned data."""

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import nnhal
from nnhal.base.operands import Array
from nnhal.conformance.suites.cts.area import AreaTrial, SampleModel, area
from nnhal.conformance.suites.suite import NotApplicable

GUARD, MARK = 64, 0xA5  # bytes around an output, and their value


def _compare_bytes(trial: AreaTrial, arrays: Sequence[Array], before: Sequence[bytes], where: str) -> None:
    for n, (x, wanted) in enumerate(zip(arrays, before, strict=True)):
        trial.require(x.tobytes() == wanted, f"{where}: input {n} was changed")


@area("memory/inputs-unchanged", "operation")
def inputs_unchanged(trial: AreaTrial) -> None:
    """An execution changes no input, read-only inputs serve, and one array may be several inputs."""
    sample = trial.sample()
    given = [x.copy() for x in sample.arrays]
    before = [x.tobytes() for x in given]
    sample.execute("call", lambda: sample.compiled(*given))
    _compare_bytes(trial, given, before, "call")
    for x in given:
        x.flags.writeable = False
    sample.execute("call with read-only inputs", lambda: sample.compiled(*given))
    _compare_bytes(trial, given, before, "call with read-only inputs")


@area("memory/results-kept", "operation")
def results_kept(trial: AreaTrial) -> None:
    """Results belong to the application: a later execution does not change them, nor they a later execution."""
    sample = trial.sample()
    other = sample.other()
    first = sample.execute("first execution")
    kept = [y.tobytes() for y in first]
    other.execute("second execution")
    for n, (y, wanted) in enumerate(zip(first, kept, strict=True)):
        trial.require(y.tobytes() == wanted, f"output {n} of the first execution was changed by the second")
        if y.flags.writeable:
            y.view(np.uint8 if y.ndim else y.dtype)[...] = 1
    other.execute("third execution, after the application wrote to results of the first")


@area("memory/strided", "operation")
def strided(trial: AreaTrial) -> None:
    """Inputs may have any strides: in column-major order, reversed, or with gaps."""
    sample = trial.sample()
    ways: dict[str, Callable[[Array], Array]] = {
        "column-major": np.asfortranarray,
        "reversed": _reversed,
        "gaps": _gaps,
    }
    for what, way in ways.items():
        given = [way(x) for x in sample.arrays]
        sample.execute(f"inputs {what}", partial(sample.compiled, *given))


def _reversed(x: Array) -> Array:
    turned: Array = np.ascontiguousarray(x[::-1]) if x.ndim else x
    return turned[::-1] if x.ndim else x


def _gaps(x: Array) -> Array:
    if not x.ndim:
        return x
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


@area("memory/unaligned", "operation")
def unaligned(trial: AreaTrial) -> None:
    """Inputs and outputs may begin at any byte."""
    sample = trial.sample()
    for offset in (1, 2, 4, 12):
        given = [_at(x, offset) for x in sample.arrays]
        sample.execute(f"inputs at offset {offset}", partial(sample.compiled, *given))
        rooms = [_at(np.zeros_like(w), offset) for w in sample.wanted]
        if not all(room.flags.aligned for room in rooms):  # output arrays have to be aligned to their elements
            continue
        where = f"inputs and outputs at offset {offset}"
        sample.execute(where, partial(sample.compiled, *given, out=rooms))


def _at(x: Array, offset: int) -> Array:
    """Return a copy of the array whose first byte is this many bytes after a multiple of 64."""
    whole = np.zeros(x.nbytes + 128, np.uint8)
    start = -whole.__array_interface__["data"][0] % 64 + offset
    placed = np.frombuffer(whole.data, x.dtype, x.size, start).reshape(x.shape)
    placed[...] = x
    return placed


@area("memory/out", "operation")
def out(trial: AreaTrial) -> None:
    """Outputs lie in the given arrays, and no byte around them changes."""
    sample = trial.sample()
    whole = [np.full(w.nbytes + 2 * GUARD, MARK, np.uint8) for w in sample.wanted]
    rooms = [
        np.frombuffer(bytes_.data, w.dtype, w.size, GUARD).reshape(w.shape)
        for bytes_, w in zip(whole, sample.wanted, strict=True)
    ]
    for each, where in ((sample, "first execution"), (sample.other(), "execution into the same arrays")):
        if [w.shape for w in each.wanted] != [room.shape for room in rooms]:
            continue
        results = each.execute(where, partial(each.compiled, *each.arrays, out=rooms))
        for n, (y, room) in enumerate(zip(results, rooms, strict=True)):
            trial.require(
                not y.size or np.shares_memory(y, room), f"{where}: output {n} lies elsewhere than in the given array"
            )
        each.check(rooms, f"{where}, in the given arrays")
        for n, bytes_ in enumerate(whole):
            around = np.concatenate([bytes_[:GUARD], bytes_[-GUARD:]])
            trial.require((around == MARK).all(), f"{where}: bytes around output {n} were changed")


def _pool(arrays: Sequence[Array], start: int, step: int) -> tuple[nnhal.Memory, list[Array]]:
    """Return a memory with views of these types and shapes, at multiples of `step` from `start` on; all bytes are MARK."""
    offsets, at = [], start
    for x in arrays:
        offsets.append(at)
        at += -(-(x.nbytes + GUARD) // step) * step
    pool = nnhal.Memory.allocate(at + GUARD, "cts")
    pool.writable()[...] = MARK
    return pool, [pool.view(at, x.nbytes, x.dtype, x.shape) for at, x in zip(offsets, arrays, strict=True)]


@area("memory/shared", "operation")
def shared(trial: AreaTrial) -> None:
    """All arguments lie in one shared memory, at offsets; bytes between them do not change."""
    sample = trial.sample()
    arrays = [*sample.arrays, *sample.wanted]
    count = len(sample.arrays)
    for start, step in ((0, 64), (GUARD, 16), (8, 8)):
        pool, views = _pool(arrays, start, step)
        for view, x in zip(views[:count], sample.arrays, strict=True):
            view[...] = x
        where = f"shared memory from offset {start}, every {step} bytes"
        before = pool.bytes().copy()
        results = sample.execute(where, partial(sample.compiled, *views[:count], out=views[count:]))
        sample.check(views[count:], f"{where}, in the memory")
        _compare_bytes(trial, views[:count], [x.tobytes() for x in sample.arrays], where)
        after = pool.bytes().copy()
        for view in views[count:]:
            begin = view.__array_interface__["data"][0] - pool.bytes().__array_interface__["data"][0]
            after[begin : begin + view.nbytes] = before[begin : begin + view.nbytes]
        trial.require((after == before).all(), f"{where}: bytes outside of the outputs were changed")
        del results, views
        pool.close()


@area("memory/file", "operation")
def file(trial: AreaTrial) -> None:
    """Inputs lie in a mapped file that is open for reading only."""
    sample = trial.sample()
    with tempfile.TemporaryFile() as stored:
        offsets = []
        for x in sample.arrays:
            offsets.append(stored.tell())
            stored.write(x.tobytes() + bytes(-x.nbytes % 64))
        stored.flush()
        pool = nnhal.Memory.from_fd(stored.fileno(), os.fstat(stored.fileno()).st_size)
        given = [pool.view(at, x.nbytes, x.dtype, x.shape) for at, x in zip(offsets, sample.arrays, strict=True)]
        sample.execute("inputs in a file", lambda: sample.compiled(*given))
        pool.close()


def _allocations(trial: AreaTrial, sample: SampleModel) -> tuple[list[nnhal.Allocation], list[nnhal.Allocation]]:
    compiled = sample.compiled
    with trial.at("allocate"):
        given = [nnhal.allocate([(compiled, "input", n)], x.shape) for n, x in enumerate(sample.arrays)]
        rooms = [nnhal.allocate([(compiled, "output", n)], w.shape) for n, w in enumerate(sample.wanted)]
    for each in (*given, *rooms):
        trial.held.callback(each.close)
    return given, rooms


@area("memory/driver-memory", "operation")
def driver_memory(trial: AreaTrial) -> None:
    """All arguments lie in memory of the driver; it keeps the contents between executions."""
    sample = trial.sample()
    given, rooms = _allocations(trial, sample)
    with trial.at("write"):
        for allocation, x in zip(given, sample.arrays, strict=True):
            allocation.write(x)
            trial.require(
                allocation.read().tobytes() == x.tobytes(), "contents of driver memory differ from those written"
            )
    for where in ("first execution", "second execution"):
        trial.execute(lambda: sample.compiled(*given, out=rooms))
        sample.check([each.read() for each in rooms], f"{where} in driver memory")
    for allocation, x in zip(given, sample.arrays, strict=True):
        trial.require(allocation.read().tobytes() == x.tobytes(), "an execution changed its input in driver memory")
    other = sample.other()
    for allocation, x in zip(given, other.arrays, strict=True):
        allocation.write(x)
    if [w.shape for w in other.wanted] == [w.shape for w in sample.wanted]:
        trial.execute(lambda: sample.compiled(*given, out=rooms))
        other.check([each.read() for each in rooms], "execution in driver memory with other contents")
    results = trial.execute(lambda: sample.compiled(*given))
    other.check(results, "inputs in driver memory, outputs in arrays")
    sample.execute("arrays after driver memory")


@area("memory/driver-memory-chain", "operation")
def chain(trial: AreaTrial) -> None:
    """The output of an execution in driver memory is the input of the next, without a copy by the application."""
    sample = trial.sample(lambda call: call.returns_to() is not None)
    call = sample.call
    to = call.returns_to()
    assert to is not None
    if sample.random:
        raise NotApplicable("the operation draws its results")
    place = call.given.index(to)
    compiled = sample.compiled
    with trial.at("allocate"):
        two = [nnhal.allocate([(compiled, "input", place), (compiled, "output", 0)]) for _ in range(2)]
    for each in two:
        trial.held.callback(each.close)
    arrays: list[Any] = list(sample.arrays)
    two[0].write(arrays[place])
    for turn in range(2):
        source, target = two[turn % 2], two[(turn + 1) % 2]
        before = source.read()
        given = [*arrays[:place], source, *arrays[place + 1 :]]
        trial.execute(partial(compiled, *given, out=target))
        plain = [*arrays[:place], before, *arrays[place + 1 :]]
        try:
            sample.wanted = trial.expected(sample.model, plain)
        except nnhal.NnhalError:  # values that the reference rejects
            return
        if not all(np.isfinite(w.astype("f8")).all() for w in sample.wanted if w.dtype.kind == "f"):
            return
        alone = trial.execute(partial(compiled, *plain))
        trial.require(
            alone[0].shape == target.read().shape and _alike(alone[0], target.read()),
            f"iteration {turn}: the result in driver memory differs from that in an array",
        )


def _alike(one: Array, other: Array) -> bool:
    """Whether two results of one device on the same inputs agree: the engine may order sums differently."""
    if one.dtype.kind == "f":
        small = 1e-2 if one.dtype == np.float16 else 1e-4
        return bool(np.allclose(one.astype("f8"), other.astype("f8"), small, small, equal_nan=True))
    return bool((np.abs(one.astype("i8") - other.astype("i8")) <= (1 if one.itemsize < 4 else 0)).all())


@area("memory/driver-memory-copies", "operation")
def copies(trial: AreaTrial) -> None:
    """Driver memory is copied to and from shared memory; its wrong uses are errors."""
    sample = trial.sample()
    given, rooms = _allocations(trial, sample)
    trial.must_raise(nnhal.OperationFailed, "reading driver memory without contents", rooms[0].read)
    trial.must_raise(
        (nnhal.OperationFailed, nnhal.InvalidRequest),
        "an input in driver memory without contents",
        lambda: sample.compiled(*given, out=rooms),
    )
    for allocation, x in zip(given, sample.arrays, strict=True):
        memory = nnhal.Memory.from_array(x)
        with trial.at("copy_from"):
            allocation.copy_from(memory, x.shape)
    small = nnhal.Memory.allocate(sample.arrays[0].nbytes + 1, "cts")
    trial.must_raise(nnhal.InvalidArgument, "a copy to memory of another size", lambda: given[0].copy_to(small))
    trial.execute(lambda: sample.compiled(*given, out=rooms))
    found = []
    for allocation, w in zip(rooms, sample.wanted, strict=True):
        memory = nnhal.Memory.allocate(max(1, w.nbytes), "cts")
        if not w.nbytes:
            raise NotApplicable("an output is empty")
        with trial.at("copy_to"):
            allocation.copy_to(memory)
        found.append(memory.view(0, w.nbytes, w.dtype, w.shape))
    sample.check(found, "outputs copied from driver memory")
    trial.must_raise(
        (nnhal.InvalidRequest, nnhal.InvalidArgument),
        "an input's memory as an output",
        lambda: sample.compiled(*sample.arrays, out=[given[0], *[None] * (len(rooms) - 1)]),
    )
    given[0].close()
    trial.must_raise(nnhal.Closed, "memory after close", lambda: sample.compiled(*given))
    sample.execute("arrays after wrong uses of driver memory")


@area("memory/bound", "operation")
def bound(trial: AreaTrial) -> None:
    """Bound arguments are read at each run, and outputs are written to the same arrays."""
    sample = trial.sample()
    given = [x.copy() for x in sample.arrays]
    rooms = [np.zeros_like(w) for w in sample.wanted]
    run = sample.compiled.bind(*given, out=rooms)
    sample.execute("first run", run)
    other = sample.other()
    for mine, x in zip(given, other.arrays, strict=True):
        mine[...] = x
    if [w.shape for w in other.wanted] != [w.shape for w in sample.wanted]:
        raise NotApplicable("other inputs have results of another shape")
    other.execute("run with changed contents", run)
    other.check(rooms, "run with changed contents, in the bound arrays")
