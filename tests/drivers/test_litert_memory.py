"""What the litert device holds: weights where they lie, one TFLite model for all interpreters, no more than are needed."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest

from nnhal.base.codes import OperandType
from nnhal.base.errors import MissedDeadline, OutOfMemory
from nnhal.base.memory import Memory
from nnhal.base.sealed import sealed
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.hal.request import Control, Request
from nnhal.ipc.client.process import ReconnectingDevice, start
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from tests import requests
from tests.models import make_model
from tests.waiting import together, until

litert = pytest.importorskip("nnhal.drivers.litert")
pytest.importorskip("ai_edge_litert")

from nnhal.drivers.kit import instance_pool  # noqa: E402
from nnhal.drivers.litert import content as contents  # noqa: E402
from nnhal.drivers.litert import engine  # noqa: E402
from nnhal.drivers.litert.lowering import lower  # noqa: E402
from tests.requests import output  # noqa: E402

UNITS = 512  # weights of UNITS * UNITS floats: 1 MiB, which is enough to be mapped
SIZE = 4 * UNITS * UNITS
NONE = 0  # the fused activation


def test_what_is_no_constant_is_zeros_whatever_the_room_held_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "_unwritten", lambda _, size: b"\xff" * size)
    pool = sealed(np.full(3 << 20, 5, np.uint8))
    mapped, small = pool.bytes()[contents.PAGE * 3 : SIZE * 2], np.full(5, 7, np.uint8)
    made, (first, second) = contents.joined(64, [small, mapped], [0, 8])
    found = np.frombuffer(bytes(made), np.uint8)
    wanted = np.zeros(len(made), np.uint8)
    wanted[first : first + 5] = 7
    wanted[second : second + mapped.size] = 5
    assert len(made.windows) == 1 and np.array_equal(found, wanted)


@pytest.fixture(scope="module")
def device() -> Device:
    return litert.device()


@pytest.fixture(scope="module", params=["in process", "isolated"])
def anywhere(request: pytest.FixtureRequest) -> Iterator[Device]:
    """The device, wherever it is."""
    if request.param == "in process":
        yield litert.device()
        return
    device = ReconnectingDevice("litert", lambda: start("litert"))
    yield device
    device.close()


def private(pid: int) -> int:
    """Bytes that a process shares with nobody."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def dense(*places: tuple[Memory, int]) -> Model:
    """A chain of FULLY_CONNECTED without bias, the weights of each in a pool at an offset."""
    b = ModelBuilder()
    kind = OperandType.TENSOR_FLOAT32
    pools = {memory: b.add_pool(memory) for memory in dict.fromkeys(memory for memory, _ in places)}
    x = y = b.operand(kind, (1, UNITS))
    for memory, offset in places:
        weights = b.reference(kind, (UNITS, UNITS), pools[memory], offset, SIZE)
        bias, activation = b.constant(kind, np.zeros(UNITS, np.float32)), b.constant(OperandType.INT32, NONE)
        source, y = y, b.operand(kind, (1, UNITS))
        b.operation("FULLY_CONNECTED", [source, weights, bias, activation], [y])
    return b.finish([x], [y])


def fill(memory: Memory, offset: int, seed: int) -> Any:
    """Small integers, whose products and sums float32 holds exactly, as weights at an offset."""
    weights = memory.view(offset, SIZE, np.float32, (UNITS, UNITS))
    weights[...] = np.random.default_rng(seed).integers(-2, 3, weights.shape)
    return weights


ONES = np.ones((1, UNITS), np.float32)

# --------------------------------------------------------------------------------------------------------------- weights


def test_weights_in_a_pool_are_the_pools_own_pages() -> None:
    memory = Memory.allocate(SIZE)
    weights = fill(memory, 0, 1)
    content = lower(dense((memory, 0))).packed
    at = bytes(content).index(weights.tobytes())
    weights[0, 0] = 77
    assert np.frombuffer(bytes(content), np.float32, 1, at) == 77


@pytest.mark.parametrize("offset", [0, 16, 4096, 5008])
def test_weights_anywhere_in_several_pools_are_computed_with(anywhere: Device, offset: int) -> None:
    first, second = Memory.allocate(SIZE + offset), Memory.allocate(2 * SIZE + offset)
    w = [fill(first, offset, 1), fill(second, SIZE + offset, 2), fill(second, offset, 3)]
    prepared = checked_prepared(anywhere, dense((first, offset), (second, SIZE + offset), (second, offset)), Hints())
    assert np.array_equal(output(prepared, ONES), ONES @ w[0].T @ w[1].T @ w[2].T)


@pytest.mark.nightly
def test_a_drivers_process_holds_the_clients_pages_and_no_copy_of_weights() -> None:
    memory, count = Memory.allocate(64 * SIZE), 64
    weights = [fill(memory, n * SIZE, n) for n in range(count)]
    device = ReconnectingDevice("litert", lambda: start("litert"))
    try:
        x = np.zeros((1, UNITS), np.float32)
        assert np.array_equal(output(checked_prepared(device, dense((memory, 0)), Hints()), ONES), ONES @ weights[0].T)
        before = private(device.pid)
        whole = dense(*((memory, n * SIZE) for n in range(count)))
        held = checked_prepared(device, whole, Hints(options={"xnnpack": False}))  # which packs a copy of its own
        assert np.array_equal(output(held, x), x)
        assert private(device.pid) - before < 8 * SIZE
    finally:
        device.close()


def test_weights_of_a_pool_inside_a_file_are_computed_with(anywhere: Device, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).integers(-2, 3, (UNITS, UNITS)).astype(np.float32)
    path = tmp_path / "weights"
    path.write_bytes(bytes(5008) + weights.tobytes())
    with path.open("rb") as file:
        memory = Memory.from_fd(file.fileno(), SIZE, 5008)
    assert np.array_equal(output(checked_prepared(anywhere, dense((memory, 0)), Hints()), ONES), ONES @ weights.T)


def test_weights_off_the_alignment_of_a_tflite_file_are_copied_to_one() -> None:
    memory = Memory.allocate(SIZE + 8)
    weights = fill(memory, 8, 1)
    before = weights.tobytes()
    content = lower(dense((memory, 8))).packed
    weights[...] = 0
    assert bytes(content).index(before) % 16 == 0


def test_few_constants_of_a_pool_are_copied_and_nothing_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory.allocate(SIZE)
    before = fill(memory, 0, 1).tobytes()
    monkeypatch.setattr(contents, "LEAST_MAPPED", SIZE + 1)
    content = lower(dense((memory, 0))).packed
    memory.bytes()[:] = 0
    assert before in bytes(content)


def test_weights_in_a_pool_that_is_no_file_are_copied() -> None:
    memory = Memory.allocate(SIZE)
    before = fill(memory, 0, 1).tobytes()
    own, memory.fd = memory.fd, os.pidfd_open(os.getpid())  # of no kind that is mapped privately, as a dma-buf
    try:
        assert before in bytes(lower(dense((memory, 0))).packed)
    finally:
        os.close(memory.fd)
        memory.fd = own


def test_the_pool_is_unmapped_when_the_model_goes() -> None:
    memory = Memory.allocate(SIZE, "nnhal-test-window")
    fill(memory, 0, 1)
    before = mappings("nnhal-test-window")
    lowered = lower(dense((memory, 0)))
    assert mappings("nnhal-test-window") == before + 1
    del lowered
    assert mappings("nnhal-test-window") == before


def test_the_bytes_that_were_given_to_an_interpreter_stay_while_it_does() -> None:
    memory = Memory.allocate(SIZE)
    before = fill(memory, 0, 1).tobytes()
    reader = lower(dense((memory, 0))).packed.pass_to(SimpleNamespace)  # of the content, nobody else has a hold
    assert before in reader.model_content


def mappings(name: str) -> int:
    return sum(name in line for line in Path("/proc/self/maps").read_text().splitlines())


ENDS = """
import numpy as np
import nnhal
b = nnhal.Builder()
x = b.input((1, 512))
model = b.finish([x], [b.fully_connected(x, np.ones((1024, 512), np.float32), np.zeros(1024, np.float32))])
compiled = nnhal.compile(model, devices="litert", threads=1)
print(compiled(np.ones((1, 512), np.float32)).sum())
"""


def test_a_process_may_end_with_a_prepared_model_and_an_allocator_that_writes_to_what_is_freed() -> None:
    env = os.environ | {"PYTHONMALLOC": "debug"}
    ended = subprocess.run([sys.executable, "-c", ENDS], check=False, capture_output=True, text=True, env=env)
    assert (ended.returncode, ended.stdout) == (0, f"{1024 * 512:.1f}\n")


def test_a_pool_may_be_closed_once_its_model_is_prepared(device: Device) -> None:
    memory = Memory.allocate(SIZE)
    weights = fill(memory, 0, 1).copy()
    prepared = checked_prepared(device, dense((memory, 0)), Hints())
    memory.close()
    assert np.array_equal(output(prepared, ONES), ONES @ weights.T)


def test_what_the_kernel_does_not_map_is_an_error_that_says_so() -> None:
    content = contents.Content(4 * os.sysconf("SC_PAGE_SIZE"))
    with pytest.raises(OutOfMemory, match="cannot map 4096 bytes of constants: Bad file descriptor"):
        content.map(content.page(0), Memory.wrap(np.zeros(4096, np.uint8)), 0, 4096)
    assert bytes(content) == bytes(len(content))


@pytest.mark.parametrize("offset", [-1, 7])
def test_nothing_is_written_outside_the_bytes_of_a_model(offset: int) -> None:
    with pytest.raises(IndexError, match=f"bytes {offset} to {offset + 2} must lie inside its 8"):
        contents.Content(8).write(offset, b"ab")


PAGE = os.sysconf("SC_PAGE_SIZE")


def content_of(room: int, *arrays: Any) -> tuple[Any, list[int]]:
    content, offsets = contents.joined(room, arrays, range(len(arrays)))
    for array, offset in zip(arrays, offsets, strict=True):
        assert bytes(content)[offset : offset + array.nbytes] == array.tobytes()
    return content, offsets


def test_copied_arrays_lie_behind_the_room_each_at_a_multiple_of_64() -> None:
    first, second = np.arange(5, dtype=np.uint8), np.arange(65, dtype=np.uint8)
    content, offsets = content_of(128, first, second, first)
    assert offsets == [128, 192, 320] and content.in_place == 0 and len(content) == 384


@pytest.mark.parametrize(("size", "mapped"), [(1 << 20, True), ((1 << 20) - 1, False)])
def test_a_pool_is_mapped_from_a_mebibyte_of_constants_on(size: int, mapped: bool) -> None:
    memory = Memory.allocate(2 << 20)
    memory.bytes()[:] = np.random.default_rng(0).integers(0, 256, 2 << 20, np.uint8)
    half = size // 2 // 16 * 16
    arrays = memory.view(0, half, np.uint8, (half,)), memory.view(half, size - half, np.uint8, (size - half,))
    assert content_of(64, *arrays)[0].in_place == size * mapped


def test_only_the_pages_with_constants_are_mapped() -> None:
    before = mappings("nnhal-test-pages")
    memory = Memory.allocate(4 << 20, "nnhal-test-pages")
    start, size = PAGE + 16, 1 << 20
    array = memory.view(start, size, np.uint8, (size,))
    content, (offset,) = content_of(64, array)
    assert offset % PAGE == (16 + content.page(0)) % PAGE, "where it lies in its page it lies in that of the content"
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if "nnhal-test-pages" in line]
    sizes = [int(end, 16) - int(begin, 16) for begin, _, end in (line.split()[0].partition("-") for line in lines)]
    assert sorted(sizes)[0] == (1 << 20) + PAGE and len(lines) == before + 2
    assert len(content) <= 64 + PAGE + size + PAGE


def test_constants_of_a_mapped_pool_and_of_none_stand_beside_one_another() -> None:
    memory, other = Memory.allocate(SIZE + 64), np.arange(100, dtype=np.uint8)
    weights = fill(memory, 16, 3)
    content, (first, second, third) = content_of(64, other, weights, other)
    assert content.in_place == SIZE and first == 64 and third == 192 and second >= third + 100


def test_content_is_zeros_until_it_is_written_and_pages_begin_where_they_do() -> None:
    content = contents.Content(3 * PAGE)
    assert len(content) == 3 * PAGE and not any(bytes(content))
    first = content.page(0)
    assert 0 <= first < PAGE and content.page(first) == first and content.page(first + 1) == first + PAGE
    content.write(3 * PAGE - 2, b"ab")
    content.write(0, np.uint16([0x6463]))
    assert bytes(content)[:2] + bytes(content)[-2:] == b"cdab"


def test_the_driver_tells_what_it_maps_and_no_more(device: Device) -> None:
    memory = Memory.allocate(SIZE)
    fill(memory, 0, 1)
    assert checked_prepared(device, dense((memory, 0)), Hints()).memory() == (None, SIZE, None, None)
    model = make_model(lambda b, x: b.relu(x), (4,))
    assert checked_prepared(device, model, Hints()).memory() == (None, 0, None, None)


# ---------------------------------------------------------------------------------------------------------- interpreters


class Counted(engine.EngineInstance):
    """Those that are alive, and executions that wait for one another."""

    alive: WeakSet[engine.EngineInstance]
    together: threading.Barrier

    def __init__(self, recipe: engine.Recipe) -> None:
        super().__init__(recipe)
        self.alive.add(self)

    def run(self, request: Request, measure: bool = False) -> int:
        self.together.wait(30)
        return super().run(request, measure)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Counted]]:
    Counted.alive = WeakSet()
    monkeypatch.setattr(engine, "EngineInstance", Counted)
    monkeypatch.setattr(instance_pool, "MOST_MEMBERS", 4)
    yield Counted


@pytest.fixture
def prepared(counted: type[Counted]) -> Prepared:
    """Of a device that has places for all executions of these tests, also where there are fewer cores."""
    device = litert.device()
    device.at_once = 8
    return checked_prepared(device, make_model(lambda b, x: b.relu(x), (1, UNITS)), Hints(threads=1))


def at_once(prepared: Prepared, number: int) -> None:
    """Executions that all run before one of them ends."""
    Counted.together = threading.Barrier(number)
    together([partial(output, prepared, ONES) for _ in range(number)])


def test_interpreters_are_as_many_as_executions_at_once(prepared: Prepared) -> None:
    seen = []
    for number in (1, 3, 4, 2):
        at_once(prepared, number)
        seen.append(len(Counted.alive))
    assert seen == [1, 3, 4, 4]


def test_an_execution_beyond_the_most_interpreters_waits_for_one(prepared: Prepared) -> None:
    Counted.together = threading.Barrier(5)  # four executions, and this test
    threads = [threading.Thread(target=output, args=(prepared, ONES)) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: Counted.together.n_waiting == 4, "all are inside")
    with pytest.raises(MissedDeadline):
        requests.run(prepared, [ONES], Control(deadline=time.monotonic_ns() + 100_000_000))
    assert len(Counted.alive) == 4
    Counted.together.wait(30)
    for thread in threads:
        thread.join()


def test_all_interpreters_read_one_tflite_model(prepared: Prepared) -> None:
    at_once(prepared, 4)
    assert len({id(interpreter._litert._model_content) for interpreter in Counted.alive}) == 1


def test_interpreters_that_recent_executions_did_not_need_are_dropped_all_but_one(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(instance_pool, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    at_once(prepared, 4)
    seen = []
    for after, number in ((9, 2), (2, 1), (7, 1), (1, 1), (11, 1), (11, 1)):
        clock[0] += after
        at_once(prepared, number)
        seen.append(len(Counted.alive))
    # two of four were needed at 9 s, one at 11 s, 18 s and later: at 10 s two become dispensable, at 19 s one more
    assert seen == [4, 2, 2, 1, 1, 1]


def test_as_many_are_made_again_when_they_are_needed_again(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(prepared, 4)
    monkeypatch.setattr(instance_pool, "KEPT_SECONDS", 0)
    at_once(prepared, 1)
    assert len(Counted.alive) == 1
    monkeypatch.setattr(instance_pool, "KEPT_SECONDS", 60)
    at_once(prepared, 3)
    assert len(Counted.alive) == 3


def test_an_idle_model_gives_back_all_interpreters_but_one_and_that_too_where_memory_is_short(
    prepared: Prepared,
) -> None:
    at_once(prepared, 4)
    seen = []
    for pressed in (False, True):
        assert prepared.trim_now(pressed=pressed)
        seen.append(len(Counted.alive))
        at_once(prepared, 1)
        seen.append(len(Counted.alive))
    at_once(prepared, 3)
    assert [*seen, len(Counted.alive)] == [1, 1, 0, 1, 3]


def test_interpreters_that_an_interrupt_lost_are_made_again(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    give, Counted.together = instance_pool.Team.give, threading.Barrier(1)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for _ in range(2 * instance_pool.MOST_MEMBERS):
        monkeypatch.setattr(instance_pool.Team, "give", interrupted)
        with pytest.raises(KeyboardInterrupt):
            output(prepared, ONES)
    monkeypatch.setattr(instance_pool.Team, "give", give)
    deadline = time.monotonic_ns() + 30_000_000_000
    requests.run(prepared, [ONES], Control(deadline=deadline))


def test_an_interrupt_while_memory_is_looked_at_leaves_the_arrays_there_were(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory.allocate(SIZE)
    weights = fill(memory, 0, 1)
    prepared = checked_prepared(device, dense((memory, 0)), Hints())
    view, looked = engine.EngineInstance._view, []

    def interrupted(self: engine.EngineInstance, tensor: int) -> Any:
        looked.append(tensor)
        if len(looked) == 2:
            raise KeyboardInterrupt
        return view(self, tensor)

    monkeypatch.setattr(engine.EngineInstance, "_view", interrupted)
    with pytest.raises(KeyboardInterrupt):
        output(prepared, ONES)
    monkeypatch.undo()
    assert np.array_equal(output(prepared, ONES), ONES @ weights.T)
