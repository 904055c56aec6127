"""What a service does for each call of a client, without a socket between them: answers, what counts, what is left."""

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import DeviceStatus, DeviceType, OperandType
from nnhal.base.errors import (
    Cancelled,
    Closed,
    InvalidArgument,
    InvalidModel,
    NnhalError,
    OperationFailed,
    ResourceExhausted,
)
from nnhal.base.levels import V1_0, V1_2, V1_3
from nnhal.base.memory import Memory
from nnhal.hal.device import MOST_THREADS, Hints, Prepared
from nnhal.hal.fence import Fence, fence_pair
from nnhal.hal.request import Control, Timing
from nnhal.ipc.client.pools import ClientPools, Packing
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import model_to_wire, timing_to_wire
from nnhal.ipc.service.binding import LaunchedRequest
from nnhal.ipc.service.executions import control_of
from nnhal.ipc.transport import _native
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from tests.ipc.alone import PLAIN, Service, came, modelled, sent_along
from tests.ipc.support import LIMIT, numbers, wait_until
from tests.models import doubling, make_model, relus
from tests.waiting import Opened


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.handler.close()
    made.driver.models.clear()
    made.driver.hints.clear()
    if made.driver.afters:  # the threads of fenced executions let go when they come to it
        wait_until(lambda: made.used() == made.first, "all is given back")
    assert made.used() == made.first  # whatever the test did, nothing is left


def pooling() -> Model:
    """A model that a device which prefers NCHW gets with TRANSPOSEs."""
    return make_model(lambda b, x: b.max_pool_2d(x, padding="valid", stride=2, filter_size=2), (1, 4, 4, 2))


# ------------------------------------------------------------------------------------------------------------- queries


def test_a_device_is_asked_and_what_it_says_is_the_answer(service: Service) -> None:
    driver = service.driver
    for call, answer in (
        (wire.GetStatus(), wire.TextReply(DeviceStatus.BUSY)),
        (wire.GetVersionString(), wire.TextReply("7")),
        (wire.GetType(), wire.TextReply(DeviceType.ACCELERATOR)),
        (wire.GetSupportedExtensions(), wire.NamesReply(tuple(driver.extensions))),
        (wire.GetRelaxations(), wire.NamesReply(tuple(driver.relaxations))),
        (wire.GetSupportedOperations(V1_3, modelled(doubling())), wire.Verdicts(((True, "said"),))),
    ):
        assert service.call(call) == answer
    stated = service.call(wire.GetCapabilities(V1_0))
    assert set(stated.operands) == {OperandType.TENSOR_FLOAT32, OperandType.TENSOR_QUANT8_ASYMM}
    with pytest.raises(InvalidArgument, match="the connection was greeted before, must be once"):
        service.call(wire.Hello(wire.VERSION, 1))


def test_a_driver_gets_models_as_they_came(service: Service) -> None:
    """Layouts are the client's business: it has laid the model out already."""
    model, driver = pooling(), service.driver
    service.call(wire.GetSupportedOperations(V1_3, modelled(model)))
    service.call(wire.Consider(1, modelled(model), 1, 1))
    service.prepared(2, model)
    assert [seen.main.operations for seen in driver.models] == [model.main.operations] * 3


def test_a_driver_is_not_asked_about_what_is_no_model(service: Service) -> None:
    good = modelled(doubling())
    graph = wire.WireSubgraph(good.subgraphs[0].operands, (wire.WireOperation(0, (0, 99, 1), (2,)),), (0,), (2,))
    bad = wire.WireModel((graph,), good.values, (), False, ())
    for call in (wire.GetSupportedOperations(V1_3, bad), wire.Consider(1, bad, 1, 1)):
        with pytest.raises(InvalidModel):
            service.call(call)
    assert service.call(wire.PrepareModel(1, V1_3, bad)) is wire.DONE
    assert service.client.works.pop()()[0].result.kind == "InvalidModel"
    assert service.driver.models == []


def shared() -> Model:
    """y = x + 1, with the 1 in a memory that could be written to."""
    b = ModelBuilder()
    one = Memory.allocate(4)
    one.bytes().view(np.float32)[:] = 1
    x, y = (b.operand(OperandType.TENSOR_FLOAT32, (1,)) for _ in range(2))
    constant = b.reference(OperandType.TENSOR_FLOAT32, (1,), b.add_pool(one), 0, 4)
    b.operation("ADD", [x, constant, b.constant(OperandType.INT32, 0)], [y])
    return b.finish([x], [y])


def test_constants_are_mapped_for_reading_and_keep_a_descriptor_only_where_they_are_prepared(service: Service) -> None:
    model = shared()
    for call in (
        lambda m: wire.GetSupportedOperations(V1_3, m),
        lambda m: wire.Consider(1, m, 1, 1),
    ):
        packing = Packing(ClientPools(shared=False))
        service.call(call(model_to_wire(model, packing.pool)), sent_along(packing))
    service.prepared(2, model)
    asked, considered, prepared = (seen.pools[0] for seen in service.driver.models)
    assert asked.readonly and considered.readonly and prepared.readonly
    assert asked.fd < 0 <= considered.fd and prepared.fd >= 0


# --------------------------------------------------------------------------------------------------------- compilation


def test_a_model_counts_for_its_constants_and_forty_times_what_else_came(service: Service) -> None:
    model = doubling()
    size, values = 1000, len(model.values)
    assert values > 0
    held = service.cost(prepared=1, objects=1, memory=values + 40 * (size - values))
    assert service.call(wire.PrepareModel(1, V1_3, modelled(model)), size=size) is wire.DONE
    assert service.more() == held
    notice, _ = service.client.works.pop()()
    assert notice == wire.NotifyPrepared(1, wire.DONE) and service.more() == held
    service.call(wire.Release((1,)))
    assert service.more() == {} and service.driver.closed == 1
    assert service.call(wire.Consider(3, modelled(model), 1, 1), size=size).kept is True
    assert service.more() == service.cost(considered=1, objects=1, memory=values + 40 * (size - values))


def test_a_preparation_that_fails_leaves_nothing_and_its_number_is_free(service: Service) -> None:
    service.driver.fails = OperationFailed("no such engine")
    for _ in range(2):
        service.call(wire.PrepareModel(1, V1_3, modelled(doubling())))
        work = service.client.works.pop()
        notice, given = work()
        assert isinstance(notice.result, wire.Failed) and "no such engine" in notice.result.message
        assert given == () and service.more() == {} and work is not None  # while the work itself still is


def test_a_preparation_that_was_released_before_it_begins_is_none(service: Service) -> None:
    service.call(wire.PrepareModel(1, V1_3, modelled(doubling())))
    service.call(wire.Release((1,)))
    notice, _ = service.client.works.pop()()
    assert isinstance(notice.result, wire.Failed) and notice.result.kind == "Cancelled"
    assert service.driver.models == []


def test_a_model_that_is_released_while_it_is_prepared_is_closed(service: Service) -> None:
    prepare = service.driver.prepare

    def released_meanwhile(model: Model, hints: Hints) -> Prepared:
        prepared: Prepared = prepare(model, hints)
        service.call(wire.Release((1,)))
        return prepared

    service.driver.prepare = released_meanwhile
    service.call(wire.PrepareModel(1, V1_3, modelled(doubling())))
    notice, _ = service.client.works.pop()()
    assert notice.result.kind == "Closed" and service.driver.closed == 1 and service.more() == {}


@pytest.mark.parametrize("what", ["prepare", "execute"])
def test_what_gets_no_thread_in_the_background_leaves_nothing_and_its_number_is_free(
    service: Service, what: str
) -> None:
    service.prepared()
    service.bound()
    call = wire.PrepareModel(3, V1_3, modelled(doubling())) if what == "prepare" else wire.Execute(3, V1_3, 2)
    service.mark()
    service.client.refuses = True
    with pytest.raises(ResourceExhausted, match="too much"):
        service.call(call)
    assert service.more() == {}
    service.client.refuses = False
    assert service.call(call) is wire.DONE
    service.client.works.pop()()


def test_what_a_model_says_of_itself_comes_with_its_notification(service: Service) -> None:
    for consumes, changes in ((True, ()), (False, ("speed",)), (True, ("speed", "power"))):
        service.driver.consumes, service.driver.changes = consumes, changes
        service.call(wire.PrepareModel(1, V1_3, modelled(doubling())))
        notice, _ = service.client.works.pop()()
        assert notice == wire.NotifyPrepared(1, wire.PreparedTraits(consumes, changes))
        service.call(wire.Release((1,)))


def test_constants_that_a_driver_needs_no_more_are_let_go(service: Service) -> None:
    model = make_model(lambda b, x: b.add(x, np.arange(64, dtype=np.float32)), (64,))
    service.driver.consumes = True
    service.prepared(1, model)
    (seen,) = service.driver.models
    with pytest.raises(NnhalError, match="it declares weights_consumed"):
        seen.pools[0].bytes()


def test_hints_come_as_they_were_given_and_the_usual_ones_where_none_were(service: Service) -> None:
    def hints(**fields: Any) -> tuple[Any, ...]:
        service.prepared(1, **fields)
        service.call(wire.Release((1,)))
        h = service.driver.hints.pop()
        return int(h.preference), int(h.priority), h.threads, h.deadline, dict(h.options)

    assert hints() == (1, 1, 0, None, {})  # FAST_SINGLE_ANSWER, MEDIUM
    late = 2**62
    assert hints(preference=0, priority=0, deadline=late, threads=1, options=b'{"a": 1}') == (0, 0, 1, late, {"a": 1})
    assert hints(preference=2, priority=2, threads=MOST_THREADS)[:2] == (2, 2)
    for field, value, says in (
        ("preference", 3, "preference is 3, must be one of LOW_POWER, FAST_SINGLE_ANSWER, SUSTAINED_SPEED"),
        ("priority", 3, "priority is 3, must be one of LOW, MEDIUM, HIGH"),
        ("threads", MOST_THREADS + 1, f"threads is {MOST_THREADS + 1}, must be at most {MOST_THREADS}"),
        ("options", b"[]", "options: must be a JSON object"),
        ("options", b"{", "options: .*must be a JSON object"),
    ):
        with pytest.raises(InvalidArgument, match=says):
            service.call(wire.PrepareModel(1, V1_3, modelled(doubling()), **{field: value}))


def test_a_considered_model_is_prepared_whole_or_by_operations_in_order(service: Service) -> None:
    driver = service.driver
    claimed = service.call(wire.Consider(1, modelled(relus(3)), 2, 2, 0, 1, b'{"a": 1}'))
    assert claimed.kept is True and claimed.verdicts == ((True, "said"),) * 3
    for number, places in enumerate([(), (0, 1, 2), (0,), (1, 2)], 2):
        driver.models.clear()
        assert service.call(wire.PrepareConsidered(number, 1, places)) is wire.DONE
        assert service.client.works.pop()()[0].result == wire.DONE
        hints = driver.hints[-1]
        assert len(driver.models[0].main.operations) == len(places or range(3))
        assert (int(hints.preference), int(hints.priority), hints.options) == (2, 2, {"a": 1})
        assert hints.worked_out.given == "thoughts" and hints.worked_out.operations == (places or (0, 1, 2))
        assert hints.worked_out.whole == (len(places) in (0, 3))
        service.call(wire.Release((number,)))
    for wrong in ((0, 0), (1, 0), (3,), (0, 3), (2**32 - 1,)):
        with pytest.raises(InvalidArgument, match="must be in order, each once, and below 3"):
            service.call(wire.PrepareConsidered(9, 1, wrong))
    with pytest.raises(InvalidArgument, match="considered model 7 is not held"):
        service.call(wire.PrepareConsidered(9, 7))


def test_a_considered_model_that_there_is_no_room_for_is_not_kept(service: Service) -> None:
    most = service.client.share.quotas.table.rows["considered"].most
    kept = [service.call(wire.Consider(n, modelled(relus(1)), 1, 1)).kept for n in range(1, most + 2)]
    assert kept == [True] * most + [False]


def test_memory_and_options_of_a_model_are_its_drivers(service: Service) -> None:
    service.driver.changes = ("speed",)
    service.prepared()
    assert service.call(wire.GetMemoryUse(1)) == wire.WireMemoryUse(1, 2, 3, 4)
    assert service.call(wire.Reconfigure(1, b'{"speed": 2}')) is wire.DONE
    assert service.driver.options == [{"speed": 2}]
    service.call(wire.Release((1,)))
    for call in (wire.GetMemoryUse(1), wire.Reconfigure(1, b"{}")):
        with pytest.raises(InvalidArgument, match="prepared model 1 is not held"):
            service.call(call)


# ----------------------------------------------------------------------------------------------------------- execution


def test_a_binding_counts_for_forty_times_what_came_until_it_is_released(service: Service) -> None:
    service.prepared()
    service.mark()
    service.bound()
    held = service.more()
    cost = service.cost(bindings=1, memory=40 * 1000, objects=1, memories=1, addresses=4096)
    assert held == cost
    service.call(wire.Release((2,)))
    assert service.more() == {}
    for call in (wire.ExecuteSynchronously(V1_3, 2), wire.Execute(3, V1_3, 2), wire.ExecuteFenced(3, 2, 0)):
        with pytest.raises(
            InvalidArgument, match="binding 2 is not held by this connection, must be one that it holds"
        ):
            service.call(call)
    with pytest.raises(InvalidArgument):
        service.call(wire.Bind(2, 1, wire.WireRequest((), (), ())), size=1000)
    assert service.more() == {}


def test_only_what_is_written_is_mapped_for_writing(service: Service) -> None:
    service.prepared()
    given, taken = Memory.allocate(16), Memory.allocate(16)
    packing = Packing(ClientPools(shared=False))
    pools = tuple(wire.MemoryPool(packing.pool(memory)) for memory in (given, taken))
    request = wire.WireRequest((wire.WireArgument(0, 0, 16, (4,)),), (wire.WireArgument(1, 0, 16, (4,)),), pools)
    service.call(wire.Bind(2, 1, request), sent_along(packing))
    assert [memory.readonly for memory in service.handler._executions.binding(2).memories] == [True, False]
    given.bytes()[:] = numbers().view(np.uint8)
    assert service.call(wire.ExecuteSynchronously(V1_3, 2)) == wire.DONE
    assert np.array_equal(taken.bytes().view(np.float32), 2 * numbers())


def test_an_execution_that_measures_or_provides_is_told_and_a_plain_one_is_acknowledged(service: Service) -> None:
    service.prepared()
    memory = service.bound()
    memory.bytes()[:16] = numbers().view(np.uint8)
    assert service.call(wire.ExecuteSynchronously(V1_3, 2)) is wire.DONE
    measured = service.call(wire.ExecuteSynchronously(V1_3, 2, True))
    assert measured == wire.ExecutedReply(((4,),), (True,), timing_to_wire(Timing(10, 20)))
    service.bound(3, memory, provided=True)
    told = service.call(wire.ExecuteSynchronously(V1_3, 3))
    assert told == wire.ExecutedReply(((4,),), (True,), wire.WireTiming(), (0,), (2 * numbers()).tobytes())


def test_an_execution_has_the_limits_of_its_call(service: Service) -> None:
    service.prepared()
    service.bound()
    limits = ({}, {"measure": True}, {"deadline": 2**62}, {"loop_timeout": 15_000_000_000})
    for fields in limits:
        service.call(wire.ExecuteSynchronously(V1_3, 2, **fields))
    plain, measured, until, loop = service.driver.controls
    assert plain is PLAIN
    assert [c.cancelled for c in (measured, until, loop)] == [PLAIN.cancelled] * 3
    assert [(c.deadline, c.loop_timeout, c.measure) for c in (measured, until, loop)] == [
        (None, 2_000_000_000, True),
        (2**62, 2_000_000_000, False),
        (None, 15_000_000_000, False),
    ]
    with pytest.raises(InvalidArgument, match="loop_timeout is 15000000001 ns, must be at most 15000000000"):
        control_of(wire.ExecuteSynchronously(V1_3, 2, False, 0, 15_000_000_001), PLAIN)


@pytest.mark.parametrize("form", [V1_0, V1_2, V1_3])
def test_before_1_2_a_notification_of_an_execution_says_no_more_than_that_it_succeeded(
    service: Service, form: int
) -> None:
    service.prepared(1, doubling(0))
    memory = service.bound()
    service.call(wire.Execute(3, form, 2, measure=form >= V1_2))
    notice, given = service.client.works.pop()()
    whole = wire.ExecutedReply(((4,),), (True,), wire.WireTiming(10, 20))
    assert notice == wire.NotifyExecuted(3, wire.ExecutedReply() if form == V1_0 else whole) and given == ()
    service.prepared(4)
    service.bound(5, memory, 4)
    service.call(wire.Execute(3, form, 5))
    assert service.client.works.pop()()[0] == wire.NotifyExecuted(3, wire.ExecutedReply())


def test_a_number_is_taken_while_an_execution_goes_on_under_it_and_it_ends_where_that_is_cancelled(
    service: Service,
) -> None:
    service.prepared()
    service.bound()
    for _ in range(2):
        assert service.call(wire.Execute(3, V1_3, 2)) is wire.DONE
        with pytest.raises(InvalidArgument, match="3 is the number of work in progress"):
            service.call(wire.Execute(3, V1_3, 2))
        service.call(wire.Cancel((4, 3)))
        notice, _ = service.client.works.pop()()
        assert notice.result.kind == "Cancelled"
        cancelled = service.driver.controls[-1].cancelled
        assert cancelled is not None and cancelled.is_set()
    for call in (wire.Execute(3, V1_3, 2, False, 0, 2**62), wire.ExecuteFenced(3, 2, 0, False, 0, 2**62)):
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="loop_timeout"):
                service.call(call)
    assert service.call(wire.Execute(3, V1_3, 2)) is wire.DONE
    service.client.works.pop()()


def test_an_execution_whose_call_the_client_abandoned_is_cancelled_from_its_start(service: Service) -> None:
    service.prepared()
    service.bound()
    abandoned = threading.Event()
    abandoned.set()
    plain = Control(cancelled=abandoned)
    service.call(wire.Execute(3, V1_3, 2), plain=plain)
    service.client.works.pop()()
    service.call(wire.ExecuteFenced(4, 2, 0), plain=plain)
    execution = service.handler._exports.get(4, LaunchedRequest, "execution").execution
    ended = threading.Event()
    execution.when_ended(ended.set)
    assert ended.wait(LIMIT) and isinstance(execution.error, Cancelled)
    controls = service.driver.controls
    assert controls and all(control.cancelled.is_set() for control in controls)


def test_outputs_in_the_drivers_memory_are_in_the_answer_up_to_32_kib_and_else_in_a_memory(service: Service) -> None:
    service.prepared(1, doubling(0))
    for count, inline in ((8192, True), (8193, False)):
        memory = Memory.from_array(np.arange(count, dtype=np.float32))
        packing = Packing(ClientPools(shared=False))
        given, taken = wire.WireArgument(0, 0, 4 * count, (count,)), wire.WireArgument(-1, 0, 0, ())
        request = wire.WireRequest((given,), (taken,), (wire.MemoryPool(packing.pool(memory)),))
        service.call(wire.Bind(2, 1, request), sent_along(packing))
        opened = Opened()
        reply, fds = service.handler.answer(wire.ExecuteSynchronously(V1_3, 2), _native.NONE, PLAIN, 10)
        wanted = 2 * np.arange(count, dtype=np.float32)
        assert isinstance(reply, wire.ExecutedReply) and reply.shapes == ((count,),) and reply.provided == (0,)
        assert len(fds) == (0 if inline else 1)
        opened.closed(but=len(fds))
        data = reply.data if inline else os.pread(fds[0], 4 * count, 0)
        assert data == wanted.tobytes() and (inline or reply.data == b"")
        for fd in fds:
            os.close(fd)
        service.call(wire.Release((2,)))


# ------------------------------------------------------------------------------------------------------------- fenced


def test_a_fenced_execution_counts_with_its_fences_until_it_has_ended_and_its_fence_until_it_is_released(
    service: Service,
) -> None:
    service.prepared()
    service.bound()
    service.mark()
    first, signal = fence_pair()
    second, other = fence_pair()
    fds = came(os.dup(first.fileno()), os.dup(second.fileno()))
    reply, given = service.handler.answer(wire.ExecuteFenced(3, 2, 2, after=2**40), fds, PLAIN, 10)
    assert reply is wire.DONE and len(given) == 1
    assert service.more() == service.cost(fenced=1, fences=2, objects=1, descriptors=1)
    with pytest.raises(InvalidArgument, match="3 is"):
        service.call(wire.Execute(3, V1_3, 2))
    signal.set()
    other.set()
    fence = Fence(given[0])
    fence.wait(LIMIT)
    execution = service.handler._exports.get(3, LaunchedRequest, "execution").execution
    ended = threading.Event()
    execution.when_ended(ended.set)
    assert ended.wait(LIMIT)
    assert service.more() == service.cost(objects=1, descriptors=1)
    assert service.call(wire.GetExecutionInfo(3)).shapes == ()
    assert service.driver.afters == [2**40]
    service.call(wire.Release((3,)))
    assert service.more() == {}
    service.call(wire.Execute(3, V1_3, 2))  # nothing goes on under the number
    service.client.works.pop()()


def test_a_fenced_execution_that_is_not_launched_leaves_nothing(service: Service) -> None:
    service.prepared()
    service.bound()
    service.mark()
    for call in (
        wire.ExecuteFenced(3, 2, 1),
        wire.ExecuteFenced(3, 2, 0, False, 0, 2**62),
        wire.ExecuteFenced(3, 9, 0),
    ):
        with pytest.raises(
            InvalidArgument, match=r"0 descriptors are attached, must be 1 fences|loop_timeout|binding 9"
        ):
            service.call(call)
        assert service.more() == {}
    with pytest.raises(InvalidArgument, match="1 descriptors are attached, must be 0 fences"):
        service.call(wire.ExecuteFenced(3, 2, 0), came(os.open("/dev/null", os.O_RDONLY)))
    service.handler._executions.binding(2).entry.release()
    with pytest.raises(Closed):
        service.call(wire.ExecuteFenced(3, 2, 0))
    assert service.call(wire.Cancel((3,))) is wire.DONE
    assert not service.client.wanted.begin(3).is_set()


def test_the_shapes_of_a_fenced_execution_are_told_where_the_model_does_not_say_them(service: Service) -> None:
    service.prepared(1, doubling(0))
    service.bound()
    reply, given = service.handler.answer(wire.ExecuteFenced(3, 2, 0, True), _native.NONE, PLAIN, 10)
    for fd in given:
        Fence(fd).wait(LIMIT)
    info = service.call(wire.GetExecutionInfo(3))
    assert reply is wire.DONE and info.shapes == ((4,),) and info.launched.in_driver != wire.NOT_MEASURED
    assert service.driver.afters == [None]


# ---------------------------------------------------------------------------------------------------------- burst


def test_a_burst_needs_the_descriptor_of_its_queues_in_an_ordinary_memory(service: Service) -> None:
    service.prepared()
    service.mark()
    for fds, says in (
        (_native.NONE, "no descriptor is attached, must be that of the queues"),
        (came(os.open("/dev/null", os.O_RDONLY)), "burst: "),
    ):
        with pytest.raises(InvalidArgument, match=says):
            service.call(wire.ConfigureExecutionBurst(2, 1), fds)
        assert service.more() == {}
    opened = Opened()
    assert service.call(wire.ConfigureExecutionBurst(2, 1), came(_native.create_queues(16, 16))) is wire.DONE
    assert service.more() == service.cost(bursts=1, objects=1)
    service.call(wire.Release((2, 1)))
    for thread in threading.enumerate():
        if thread.name == "nnhal-burst":
            thread.join(LIMIT)
    assert service.driver.closed == 1
    opened.closed()


# ------------------------------------------------------------------------------------------------------ driver memory


def test_a_buffer_counts_for_its_size_until_it_is_closed(service: Service) -> None:
    service.prepared()
    service.mark()
    assert service.call(wire.Allocate(2, (4,), ((1, 0, False, 1.0),))) is wire.DONE
    assert service.more() == service.cost(buffers=1, objects=1, memory=16)
    memory = Memory.from_array(numbers().view(np.uint8))
    assert service.call(wire.GetShape(2)) == wire.Shape(None)
    service.call(wire.CopyFrom(2, wire.Pool("ashmem", 16, 0, False), (4,)), came(os.dup(memory.fd)))
    assert service.call(wire.GetShape(2)) == wire.Shape((4,))
    room = Memory.allocate(16)
    told = service.call(wire.CopyTo(2, wire.Pool("ashmem", 16, 0, False)), came(os.dup(room.fd)))
    assert told == wire.Shape((4,)) and np.array_equal(room.bytes(), memory.bytes())
    assert service.more() == service.cost(buffers=1, objects=1, memory=16)
    service.call(wire.Release((2,)))
    assert service.more() == {}


def test_arguments_lie_in_memories_and_in_buffers(service: Service) -> None:
    service.prepared()
    service.call(wire.Allocate(2, (4,), ((1, 0, False, 1.0),)))
    service.call(wire.Allocate(3, (4,), ((1, 0, True, 1.0),)))
    memory, room = Memory.from_array(numbers().view(np.uint8)), Memory.allocate(16)
    service.call(wire.CopyFrom(2, wire.Pool("ashmem", 16, 0, False), (4,)), came(os.dup(memory.fd)))
    whole = wire.WireArgument(0, 0, 0, ())
    pools = (wire.BufferPool(2), wire.MemoryPool(wire.Pool("ashmem", 16, 0, False)), wire.BufferPool(3))
    to_memory = wire.WireRequest((whole,), (wire.WireArgument(1, 0, 16, (4,)),), pools)
    to_buffer = wire.WireRequest((whole,), (wire.WireArgument(2, 0, 0, ()),), pools)
    for number, request in ((4, to_memory), (5, to_buffer)):
        service.call(wire.Bind(number, 1, request), came(os.dup(room.fd)))
        assert len(service.handler._executions.binding(number).memories) == 1
        assert isinstance(service.call(wire.ExecuteSynchronously(V1_3, number)), wire.Acknowledged | wire.ExecutedReply)
    assert np.array_equal(room.bytes().view(np.float32), 2 * numbers())
    room.bytes()[:] = 0
    service.call(wire.CopyTo(3, wire.Pool("ashmem", 16, 0, False)), came(os.dup(room.fd)))
    assert np.array_equal(room.bytes().view(np.float32), 2 * numbers())
    wrong = wire.WireRequest((whole,), (whole,), (wire.BufferPool(1),))
    with pytest.raises(InvalidArgument, match="buffer 1 is not held"):
        service.call(wire.Bind(6, 1, wrong))


def test_a_buffer_of_open_shape_counts_for_what_was_copied_in_last(service: Service) -> None:
    service.prepared(1, doubling(0))
    service.mark()
    service.call(wire.Allocate(2, (), ((1, 0, False, 1.0),)))
    assert service.more() == service.cost(buffers=1, objects=1)
    for count in (4, 2):
        memory = Memory.from_array(numbers(count).view(np.uint8))
        pool = wire.Pool("ashmem", 4 * count, 0, False)
        service.call(wire.CopyFrom(2, pool, (count,)), came(os.dup(memory.fd)))
        assert service.more() == service.cost(buffers=1, objects=1, memory=4 * count)
        assert service.call(wire.GetShape(2)) == wire.Shape((count,))


def test_a_buffer_that_there_is_no_memory_for_is_refused_and_the_process_is_sound(service: Service) -> None:
    service.prepared()
    service.mark()
    for error in (MemoryError(), MemoryError("4 GiB")):
        service.driver.fails = error
        with pytest.raises(ResourceExhausted, match=r"allocate: device watched: allocate\(\) ran out of memory"):
            service.call(wire.Allocate(2, (4,), ((1, 0, False, 1.0),)))
        assert service.more() == {}
    service.driver.fails = None


# ------------------------------------------------------------------------------------------------------------ objects


def test_what_is_held_for_later_messages_is_an_object_until_it_is_released(service: Service) -> None:
    memories = [Memory.allocate(8) for _ in range(2)]
    pools = tuple(wire.Pool("ashmem", 8, 0, False) for _ in memories)
    service.call(wire.Hold(1, pools), came(*(os.dup(m.fd) for m in memories)))
    assert service.more() == service.cost(objects=1, memories=2, addresses=2 * 4096)
    service.call(wire.Release((7, 1)))  # there is no 7
    assert service.more() == {}


def test_what_was_released_has_ended_when_that_is_waited_for(service: Service) -> None:
    gate, ended, done = threading.Event(), threading.Event(), threading.Event()

    def later(end: Callable[[], object]) -> None:
        threading.Thread(target=lambda: (gate.wait(LIMIT), end(), ended.set())).start()

    service.client.ends = later  # type: ignore[method-assign]
    waiter = threading.Thread(target=lambda: (service.handler.settle(), done.set()))
    waiter.start()
    assert not done.wait(0.02)
    gate.set()
    assert done.wait(LIMIT) and ended.wait(LIMIT)
    waiter.join(LIMIT)


def test_quotas_and_what_each_client_holds_are_told(service: Service) -> None:
    service.prepared()
    told = service.call(wire.GetUsage())
    rows = service.client.share.quotas.table.rows
    assert told.most == service.client.share.quotas.table.clients
    assert [(q.name, q.most, q.own, q.common) for q in told.quotas] == [
        (name, row.most, row.own, row.common) for name, row in rows.items()
    ]
    ((client),) = told.clients
    assert client.pid == 1 and dict(zip(rows, client.used, strict=True)) == service.used()
