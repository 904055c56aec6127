"""Sessions with real service processes: parallel calls, notifications, deadlines, fences, driver memory, releases."""

import gc
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from nnhal.base.errors import (
    Cancelled,
    Closed,
    InvalidArgument,
    InvalidModel,
    MissedDeadline,
    NnhalError,
    OperationFailed,
)
from nnhal.base.memory import Memory
from nnhal.hal.device import Hints
from nnhal.hal.fence import fence_pair
from nnhal.hal.memory import BufferDesc, BufferRole
from nnhal.hal.request import Control
from nnhal.ipc import wire
from nnhal.ipc.channel import Channel
from nnhal.ipc.client import RemoteDevice
from nnhal.model.graph import Model, Operation, Subgraph
from tests import requests
from tests.ipc.support import LIMIT, doubling, inside, numbers, own_process, prepare, request_for, run, wait_until


@pytest.fixture(scope="module")
def device() -> Iterator[RemoteDevice]:
    """The probe driver in a process of its own; tests leave nothing behind in it."""
    with own_process() as device:
        yield device


# --------------------------------------------------------------------------------------------------------------- calls


def test_calls_of_eight_threads_are_inside_the_driver_at_once(device: RemoteDevice) -> None:
    prepared = prepare(device, meet=8)
    with ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(lambda n: run(prepared, numbers(start=n)), range(8)))
    for n, y in enumerate(outputs):
        assert np.array_equal(y, 2 * numbers(start=n))


def test_lanes_are_used_again() -> None:
    with own_process() as device:
        prepared = prepare(device, meet=8)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: run(prepared, numbers(start=n)), range(8)))
            lanes = inside(device)["threads"]
            list(pool.map(lambda n: run(prepared, numbers(start=n)), range(80)))
        for n in range(200):
            run(prepare(device), numbers(start=n))
        assert inside(device)["threads"] == lanes


def test_more_threads_than_lanes_are_all_answered(device: RemoteDevice) -> None:
    prepared = prepare(device, sleep=0.01)
    with ThreadPoolExecutor(40) as pool:
        outputs = list(pool.map(lambda n: run(prepared, numbers(start=n)), range(80)))
    assert all(np.array_equal(y, 2 * numbers(start=n)) for n, y in enumerate(outputs))


def test_the_same_request_again_gives_results_of_its_own_inputs(device: RemoteDevice) -> None:
    prepared = prepare(device)
    for n in range(20):
        assert np.array_equal(run(prepared, numbers(start=n)), 2 * numbers(start=n))


def test_requests_of_changing_shapes_do_not_mix(device: RemoteDevice) -> None:
    from nnhal.frontends.python import Builder

    b = Builder()
    x = b.input((0,))
    prepared = prepare(device, b.finish([x], [b.add(x, x)]))
    for n in range(60):
        x = numbers(1 + n * 7 % 23, n)
        assert np.array_equal(run(prepared, x), 2 * x)


def test_an_output_without_memory_is_provided_by_the_driver(device: RemoteDevice) -> None:
    for size in (4, 100_000):  # in the message, and by a descriptor
        done = requests.run(prepare(device, doubling(size)), [numbers(size)])
        assert np.array_equal(done.results[0], 2 * numbers(size))


def test_an_output_that_is_too_small_is_told_its_shape(device: RemoteDevice) -> None:
    room = np.zeros(16, np.uint8)
    done = requests.run(prepare(device, doubling(8)), [numbers(8)], rooms=[room])
    assert done.shapes == [(8,)] and done.sufficient == [False] and not room.any()


def test_room_of_another_shape_takes_the_result_wherever_it_lies(device: RemoteDevice) -> None:
    pool, prepared = Memory.allocate(64), prepare(device)
    shared = [pool.view(0, 36, np.float32, (9,)), pool.view(0, 16, np.float32, (2, 2)), pool.view(0, 40)]
    for room in (np.zeros(9, np.float32), np.zeros((2, 2), np.float32), np.zeros(40, np.uint8), *shared):
        done = requests.run(prepared, [numbers()], rooms=[room])
        assert np.array_equal(done.results[0], 2 * numbers()) and np.shares_memory(done.results[0], room)


def test_arguments_in_shared_memory_are_written_where_they_lie(device: RemoteDevice) -> None:
    memory = Memory.allocate(32)
    x, y = memory.view(0, 16, np.float32, (4,)), memory.view(16, 16, np.float32, (4,))
    x[:] = numbers()
    prepared = prepare(device)
    for n in range(3):
        x[0] = n
        requests.run(prepared, [x], rooms=[y])
        assert np.array_equal(memory.view(16, 16, np.float32), [2 * n, 2, 4, 6])


def test_timing_is_given_where_it_is_asked_for(device: RemoteDevice) -> None:
    prepared = prepare(device)
    assert request_for(prepared, numbers()).execute(prepared.run, Control()) is None
    timing = request_for(prepared, numbers()).execute(prepared.run, Control(measure=True))
    assert timing is None or timing.in_driver is None or timing.in_driver > 0


def test_errors_of_the_driver_keep_class_and_text(device: RemoteDevice) -> None:
    prepared = prepare(device, fail=1)
    for _ in range(2):
        with pytest.raises(OperationFailed, match="probe: failed on command"):
            run(prepared, numbers())
    assert np.array_equal(run(prepare(device), numbers()), 2 * numbers())


def test_a_model_that_is_not_valid_is_refused_by_the_service(device: RemoteDevice) -> None:
    good = doubling()
    main = Subgraph(good.main.operands, (Operation(0, (0, 99, 1), (2,)),), good.main.inputs, good.main.outputs)
    with pytest.raises(InvalidModel):
        device.prepare(Model(main, values=good.values), Hints())


def test_numbers_of_objects_that_were_not_given_out_are_refused(device: RemoteDevice) -> None:
    with pytest.raises(InvalidArgument, match="prepared model 999 is not held by this connection"):
        device.session.call(wire.ConfigureExecutionBurst(999), wire.Object, fds=(0,))
    with pytest.raises(InvalidArgument, match="buffer 999 is not held by this connection"):
        device.session.call(wire.GetShape(999), wire.Shape)


# ------------------------------------------------------------------------------------------------------- notifications


def test_notifications_come_exactly_once(device: RemoteDevice) -> None:
    prepared, failing = prepare(device), prepare(device, fail=1)
    came: Counter[int] = Counter()
    errors: dict[int, NnhalError | None] = {}
    each = [failing if n % 5 == 4 else prepared for n in range(100)]
    launched = [request_for(p, numbers(start=n)) for n, p in enumerate(each)]
    for n, request in enumerate(launched):

        def notify(error: NnhalError | None, _: object, n: int = n) -> None:
            came[n] += 1
            errors[n] = error

        each[n].execute(request, Control(), notify)
    wait_until(lambda: len(came) == 100, "notifications")
    inside(device)  # a second notification of one would have come before this answer
    assert set(came.values()) == {1}
    for n, request in enumerate(launched):
        if n % 5 == 4:
            assert isinstance(errors[n], OperationFailed)
        else:
            assert errors[n] is None and np.array_equal(request.results[0], 2 * numbers(start=n))


def test_executions_in_the_background_end_in_error_when_the_session_dies() -> None:
    with own_process() as device:
        came: list[NnhalError | None] = []
        prepared = prepare(device, sleep=LIMIT)
        for _ in range(5):
            prepared.execute(request_for(prepared, numbers()), Control(), lambda error, _: came.append(error))
        device.session.give_up("the test ends it")
        wait_until(lambda: len(came) == 5, "notifications of death")
        assert {type(error).__name__ for error in came} == {"DeadObject"}


# ------------------------------------------------------------------------------------------------------- time and will


def test_a_deadline_ends_an_execution_and_leaves_the_session_usable(device: RemoteDevice) -> None:
    slow, quick = prepare(device, sleep=LIMIT), prepare(device)
    with pytest.raises(MissedDeadline):
        run(slow, numbers(), Control(deadline=time.monotonic_ns() + 50_000_000))
    assert np.array_equal(run(quick, numbers()), 2 * numbers())
    wait_until(lambda: inside(device)["inside"] == 0, "the driver sees the deadline itself")


def test_a_deadline_that_has_passed_is_missed_at_once(device: RemoteDevice) -> None:
    with pytest.raises(MissedDeadline):
        run(prepare(device), numbers(), Control(deadline=time.monotonic_ns() - 1))


def test_a_deadline_ends_a_preparation() -> None:
    with own_process() as device:
        with pytest.raises(MissedDeadline, match="by the deadline"):
            device.prepare(doubling(), Hints(options={"busy": 0.5}, deadline=time.monotonic_ns() + 50_000_000))
        later = prepare(device, busy=0.5)  # begins later, so ends later
        wait_until(lambda: inside(device)["prepared"] == 1, "what comes too late is given back")
        assert np.array_equal(run(later, numbers()), 2 * numbers())


def test_a_cancelled_execution_ends_and_its_lane_serves_again(device: RemoteDevice) -> None:
    prepared, cancelled = prepare(device, sleep=1), threading.Event()
    threading.Timer(0.05, cancelled.set).start()
    with pytest.raises(Cancelled):
        run(prepared, numbers(), Control(cancelled=cancelled))
    wait_until(lambda: inside(device)["inside"] == 0, "the execution ends in the driver")
    for n in range(50):
        assert np.array_equal(run(prepare(device), numbers(start=n)), 2 * numbers(start=n))


def test_a_loop_time_out_past_the_limit_is_refused(device: RemoteDevice) -> None:
    with pytest.raises(InvalidArgument, match="loop_timeout is 16000000000 ns, must be at most 15000000000"):
        run(prepare(device), numbers(), Control(loop_timeout=16_000_000_000))


# -------------------------------------------------------------------------------------------------------------- fences


def test_a_fenced_execution_waits_for_its_fences(device: RemoteDevice) -> None:
    prepared = prepare(device)
    ready, signal = fence_pair()
    request = request_for(prepared, numbers())
    runs = inside(device)["runs"]
    execution = prepared.execute_fenced(request, Control(), [ready])
    with pytest.raises(OperationFailed, match="has not ended"):
        execution.get_execution_info()
    assert inside(device)["runs"] == runs
    signal.set()
    assert execution.fence is not None
    execution.fence.wait(LIMIT)
    execution.get_execution_info()
    assert np.array_equal(request.results[0], 2 * numbers())


def test_executions_chain_by_their_fences(device: RemoteDevice) -> None:
    prepared, memory = prepare(device), Memory.allocate(64)
    cells = [memory.view(16 * n, 16, np.float32, (4,)) for n in range(4)]
    cells[0][:] = 1
    ready, signal = fence_pair()
    executions, before = [], ready
    for source, target in itertools.pairwise(cells):
        executions.append(prepared.execute_fenced(prepared.request([source], [target]), Control(), [before]))
        assert executions[-1].fence is not None
        before = executions[-1].fence
    signal.set()
    before.wait(LIMIT)
    for execution in executions:
        execution.get_execution_info()
    assert [cell.tolist() for cell in cells] == [[1] * 4, [2] * 4, [4] * 4, [8] * 4]


def test_a_fence_tells_that_its_execution_failed(device: RemoteDevice) -> None:
    failing = prepare(device, fail=1)
    execution = failing.execute_fenced(request_for(failing, numbers()), Control())
    assert execution.fence is not None
    with pytest.raises(OperationFailed):
        execution.fence.wait(LIMIT)
    with pytest.raises(OperationFailed, match="probe: failed on command"):
        execution.get_execution_info()


def test_timings_of_a_fenced_execution_are_of_launch_and_of_fences(device: RemoteDevice) -> None:
    ready, signal = fence_pair()
    prepared = prepare(device)
    execution = prepared.execute_fenced(request_for(prepared, numbers()), Control(measure=True), [ready])
    time.sleep(0.1)
    signal.set()
    assert execution.fence is not None
    execution.fence.wait(LIMIT)
    launched, fenced = execution.get_execution_info()
    assert launched.in_driver is not None and fenced.in_driver is not None
    assert launched.in_driver - fenced.in_driver > 50_000_000


# ------------------------------------------------------------------------------------------------------- driver memory


def test_driver_memory_carries_values_between_executions(device: RemoteDevice) -> None:
    prepared = prepare(device)
    first = device.allocate(BufferDesc(), [BufferRole(prepared, 0)])
    second = device.allocate(BufferDesc(), [BufferRole(prepared, 0, output=True)])
    assert first.shape is None

    def execute() -> None:
        request = prepared.request([None], input_buffers={0: first}, output_buffers={0: second})
        request.execute(prepared.run, Control())

    with pytest.raises(OperationFailed, match="has no contents"):
        execute()
    first.copy_from(Memory.from_array(numbers()), (4,))
    execute()
    assert first.shape == second.shape == (4,)
    room = Memory.allocate(16)
    second.copy_to(room)
    assert np.array_equal(room.bytes().view(np.float32), 2 * numbers())


def test_driver_memory_is_refused_in_a_role_that_it_was_not_made_for(device: RemoteDevice) -> None:
    prepared = prepare(device)
    buffer = device.allocate(BufferDesc((4,)), [BufferRole(prepared, 0)])
    with pytest.raises(InvalidArgument, match="must be one of its roles"):
        prepared.request([numbers()], output_buffers={0: buffer}).execute(prepared.run, Control())
    with pytest.raises(InvalidArgument, match="must agree with"):
        device.allocate(BufferDesc((5,)), [BufferRole(prepared, 0)])


def test_driver_memory_copies_to_and_from_ordinary_arrays(device: RemoteDevice) -> None:
    prepared = prepare(device)
    buffer = device.allocate(BufferDesc((4,)), [BufferRole(prepared, 0)])
    x, y = numbers(start=5), np.zeros(4, np.float32)
    for _ in range(2):
        buffer.copy_from(Memory.wrap(x), (4,))
        room = Memory.wrap(y)
        buffer.copy_to(room)
        assert np.array_equal(y, x)
        x += 1


# ------------------------------------------------------------------------------------------------------------ releases


def test_what_the_client_drops_is_closed_in_the_service() -> None:
    with own_process() as device:
        clean = inside(device)
        keep = [prepare(device) for _ in range(20)]
        buffers = [device.allocate(BufferDesc(), [BufferRole(p, 0)]) for p in keep]
        memory = [Memory.from_array(numbers(start=n)) for n in range(20)]
        for p, m in zip(keep, memory, strict=True):
            requests.run(p, [m.view(0, 16, np.float32, (4,))], rooms=[np.zeros(4, np.float32)])
        executions = [p.execute_fenced(request_for(p, numbers()), Control()) for p in keep]
        held = inside(device)
        assert (held["prepared"], held["buffers"], held["executions"]) == (20, 20, 20)
        assert held["memories"] >= clean["memories"] + 40
        for execution in executions:
            assert execution.fence is not None
            execution.fence.wait(LIMIT)
        del execution, executions, p, keep, buffers, m, memory
        gc.collect()

        def empty() -> bool:
            now = inside(device)
            return (now["prepared"], now["buffers"], now["executions"], now["memories"]) == (0, 0, 0, clean["memories"])

        wait_until(empty, "the export table is empty")


def test_releases_travel_in_batches(device: RemoteDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[wire.Release] = []
    send = Channel.send

    def watched(self: Channel, data: bytes, fds: tuple[int, ...] = ()) -> None:
        message = wire.decode_call(data) if data[:1] != b"\xc1" else None
        if isinstance(message, wire.Release):
            sent.append(message)
        send(self, data, fds)

    many = [prepare(device) for _ in range(200)]
    before = inside(device)["prepared"]
    monkeypatch.setattr(Channel, "send", watched)
    for p in many:
        p.close()
    wait_until(lambda: inside(device)["prepared"] <= before - 200, "releases")
    assert sum(len(message.objects) for message in sent) >= 200
    assert len(sent) <= 20


def test_a_model_that_is_dropped_while_it_runs_is_closed_after_the_run() -> None:
    with own_process() as device:
        prepared = prepare(device, sleep=0.3)
        outputs: list[np.ndarray] = []
        thread = threading.Thread(target=lambda: outputs.append(run(prepared, numbers())))
        thread.start()
        wait_until(lambda: inside(device).get("inside", 0) == 1, "the run has begun")
        prepared.close()
        thread.join(LIMIT)
        assert np.array_equal(outputs[0], 2 * numbers())
        wait_until(lambda: inside(device)["prepared"] == 0, "the model is closed")
        assert inside(device)["closed while running"] == 0


def test_a_closed_session_says_so_and_ends_its_process() -> None:
    with own_process() as device:
        prepared = prepare(device)
        device.close()
        device.close()
        with pytest.raises(Closed, match="was closed"):
            run(prepared, numbers())
        with pytest.raises(Closed, match="was closed"):
            device.supports(doubling())
        prepared.close()
        assert device.session.process is not None and device.session.process.wait(LIMIT) == 0


def test_methods_that_were_called_are_counted_by_their_hal_names() -> None:
    with own_process(level="1.1") as device:
        run(prepare(device), numbers())
        assert device.session.calls["prepareModel_1_1"] == device.session.calls["execute"] == 1
        assert not [name for name in device.session.calls if "1_2" in name or "1_3" in name or "ynchronous" in name]
