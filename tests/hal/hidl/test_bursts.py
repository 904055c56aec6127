"""`configureExecutionBurst` of drivers of 1.2: called where there is one, with a fallback where the driver refuses."""
# ruff: noqa: N802, N803 - the methods have the HAL's names

import random
import threading

import numpy as np
import pytest

import nnhal
from nnhal.base import time as base_time
from nnhal.base.errors import Cancelled, DriverFailed, MissedDeadline, OperationFailed
from nnhal.base.levels import V1_1
from nnhal.base.memory import Memory
from nnhal.drivers.samples import full
from nnhal.hal import request as request_module
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints
from nnhal.hal.hidl.adapters import adapt
from nnhal.hal.hidl.arguments import HalTiming
from nnhal.hal.request import Control
from nnhal.runtime import discovery, isolation
from tests.hal.hidl.old_drivers import FAILED, NONE, X, tiled
from tests.models import doubling
from tests.waiting import LIMIT, Clock, jitter, together, until

DRIVER = """
import threading
from nnhal.base.codes import ErrorStatus
from nnhal.drivers.samples import full

class Prepared(full.PreparedV1_2):
    def configureExecutionBurst(self, callback, requestChannel, resultChannel):
        def work():
            while (packet := requestChannel.readBlocking()) is not None:
                print("a packet came", flush=True)
                form = packet.over(callback.getMemories(packet.slots)[1])
                resultChannel.writeBlocking(self.executeSynchronously(form, packet.measure))
        threading.Thread(target=work, daemon=True).start()
        return ErrorStatus.NONE, self

    def freeMemory(self, slot):
        pass

class Driver(full.FullV1_2):
    name = "bursting"

    def notified(self, notify, _, model):
        return super().notified(notify, Prepared, model)

device = Driver
"""


class Prepared(full.PreparedV1_2):
    """Executes bursts on a thread; `told` notes what it is asked."""

    told: list

    def configureExecutionBurst(self, callback, requestChannel, resultChannel):
        context = Context(self, callback, requestChannel, resultChannel)
        threading.Thread(target=context.work, daemon=True).start()
        self.told.append("opened")
        return NONE, context

    def answered(self, request, measure):
        return self.executeSynchronously(request, measure)


class Context:
    def __init__(self, prepared, callback, requests, results):
        self.prepared, self.callback, self.requests, self.results = prepared, callback, requests, results
        self.memories = {}

    def work(self):
        while (packet := self.requests.readBlocking()) is not None:
            status, memories = self.callback.getMemories(packet.slots)
            assert status == NONE
            self.memories.update(zip(packet.slots, memories, strict=True))
            form = packet.over([self.memories[slot] for slot in packet.slots])
            self.prepared.told.append("packet")
            self.results.writeBlocking(self.prepared.answered(form, packet.measure))
        self.prepared.told.append("ended")

    def freeMemory(self, slot):
        del self.memories[slot]


class Bursting(full.FullV1_2):
    """A driver with bursts. kind: of its prepared models."""

    name, kind = "plain", Prepared

    def __init__(self):
        self.told: list = []

    def notified(self, notify, _, model):
        made = type("Told", (self.kind,), {"told": self.told})
        return super().notified(notify, made, model)


def driver(**methods) -> Bursting:
    class Changed(Bursting):
        kind = type("Changed", (Prepared,), methods)

    return Changed()


def model_of(made, model=None):
    return checked_prepared(adapt(made), model or doubling(3, 4), Hints())


def executed(prepared, burst, control=None):
    request = prepared.request([X])
    timing = request.execute(burst.run, control or Control())
    return request.results[0], timing


def test_executions_of_a_burst_are_packets_and_its_end_is_told():
    made = driver()
    prepared = model_of(made)
    with prepared.burst() as burst:
        for _ in range(3):
            assert executed(prepared, burst)[0].tolist() == (X + X).tolist()
        assert executed(prepared, burst, Control(measure=True))[1].in_driver is not None
        assert made.told == ["opened", *["packet"] * 4]
    until(lambda: "ended" in made.told, "ended")


def test_memories_are_freed_after_each_execution():
    contexts = []

    def configure(self, *arguments):
        answer = Prepared.configureExecutionBurst(self, *arguments)
        contexts.append(answer[1])
        return answer

    made = driver(configureExecutionBurst=configure)
    prepared = model_of(made)
    with prepared.burst() as burst:
        executed(prepared, burst)
        assert contexts[0].memories == {} and contexts[0].callback.getMemories([0])[0] != NONE


def test_an_application_runs_bursts_on_such_a_driver():
    made = Bursting()
    with nnhal.compile(doubling(3, 4), devices=[adapt(made)]) as run, run.burst() as burst:
        assert burst(X).tolist() == (X + X).tolist()
    until(lambda: made.told == ["opened", "packet", "ended"], "its end")


def test_in_a_process_of_its_own_too(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(discovery, "_registered", {})
    (tmp_path / "bursting.py").write_text(DRIVER)
    nnhal.load_driver(tmp_path / "bursting.py")
    with caplog.at_level("INFO", "nnhal.driver"):
        with nnhal.compile(doubling(3, 4), devices=["bursting"], isolation="process") as run, run.burst() as burst:
            for _ in range(3):
                assert burst(X).tolist() == (X + X).tolist()
        isolation.close_all()
        until(lambda: caplog.text.count("a packet came") >= 3, "what the driver prints")
    assert caplog.text.count("a packet came") == 3


def test_executions_that_come_from_another_process_go_by_a_burst_of_the_drivers_as_well():
    made = driver()
    prepared = model_of(made)

    def two() -> None:
        executor = prepared.burst_executor()
        executor.add(7, Memory.allocate(48))  # nothing comes of it: the driver's slots are other ones
        for measure in (False, True):
            request = prepared.request([X])
            timing = request.execute(lambda r, control: executor.execute(r, [7], control), Control(measure=measure))
            assert request.results[0].tolist() == (X + X).tolist() and (timing is not None) == measure
        executor.remove(7)
        assert made.told == ["opened", "packet", "packet"]

    two()
    until(lambda: "ended" in made.told, "ended")


def configured(contexts, refuse=lambda: False):
    """A method `configureExecutionBurst` that notes the contexts it gives; where `refuse`, it fails."""

    def configure(self, *arguments):
        if refuse():
            return FAILED, None
        answer = Prepared.configureExecutionBurst(self, *arguments)
        contexts.append(answer[1])
        return answer

    return configure


def test_a_slot_is_a_memory_of_one_execution():
    slots = []

    def answered(self, request, measure):
        return self.executeSynchronously(request, measure)

    class Noting(Context):
        def work(self):
            while (packet := self.requests.readBlocking()) is not None:
                slots.append(packet.slots)
                form = packet.over(self.callback.getMemories(packet.slots)[1])
                self.results.writeBlocking(self.prepared.answered(form, packet.measure))

        def freeMemory(self, slot):
            freed.append(slot)

    freed = []

    def configure(self, *arguments):
        context = Noting(self, *arguments)
        threading.Thread(target=context.work, daemon=True).start()
        return NONE, context

    prepared = model_of(driver(configureExecutionBurst=configure, answered=answered))
    with prepared.burst() as burst:
        for _ in range(3):
            executed(prepared, burst)
    every = [slot for each in slots for slot in each]
    assert [len(each) for each in slots] == [2] * 3 and len(set(every)) == 6 and freed == every


def test_a_context_that_fails_to_free_a_memory_fails_nothing_else(caplog):
    def fall(slot):
        raise KeyError(slot)

    def configure(self, *arguments):
        answer = Prepared.configureExecutionBurst(self, *arguments)
        answer[1].freeMemory = fall
        return answer

    prepared = model_of(driver(configureExecutionBurst=configure))
    with caplog.at_level("INFO", "nnhal"), prepared.burst() as burst:
        for _ in range(2):
            assert executed(prepared, burst)[0].tolist() == (X + X).tolist()
    assert "driver plain: configureExecutionBurst" in caplog.text and "freeMemory()" in caplog.text


@pytest.mark.parametrize("why", ["given up", "a wrong result"])
def test_where_another_burst_is_refused_executions_are_plain_until_one_is_not(why, caplog):
    contexts, refuses, wrong, over, cancelled = [], [], [True], threading.Event(), threading.Event()

    def answered(self, request, measure):
        if wrong:
            wrong.clear()
            if why == "given up":
                cancelled.set()
                over.wait(LIMIT)
            return 7
        return self.executeSynchronously(request, measure)

    made = driver(configureExecutionBurst=configured(contexts, lambda: bool(refuses)), answered=answered)
    prepared = model_of(made)
    with caplog.at_level("INFO", "nnhal.driver"), prepared.burst() as burst:
        refuses.append(True)
        with pytest.raises(Cancelled if why == "given up" else OperationFailed):
            executed(prepared, burst, Control(cancelled=cancelled) if why == "given up" else None)
        over.set()
        if why == "given up":
            first = contexts[0]
            assert first.requests.closed and first.results.closed  # what comes late goes nowhere
            for _ in range(2):
                assert executed(prepared, burst)[0].tolist() == (X + X).tolist()
            assert made.told.count("packet") == 1
            assert "driver plain: configureExecutionBurst: no burst any more, a plain execution instead" in caplog.text
            refuses.clear()
            assert executed(prepared, burst)[0].tolist() == (X + X).tolist()
            assert made.told.count("packet") == 2 and len(contexts) == 2
        else:
            assert executed(prepared, burst)[0].tolist() == (X + X).tolist()
            assert made.told.count("packet") == 2 and len(contexts) == 1


def test_an_execution_that_was_cancelled_before_does_not_reach_the_burst():
    made, event = driver(), threading.Event()
    event.set()
    prepared = model_of(made)
    with prepared.burst() as burst:
        with pytest.raises(Cancelled):
            executed(prepared, burst, Control(cancelled=event))
        assert made.told == ["opened"]


def test_a_context_is_needed_for_a_burst(caplog):
    made = driver(configureExecutionBurst=lambda self, *_: (NONE, type("Context", (), {"freeMemory": 3})()))
    prepared = model_of(made)
    with caplog.at_level("INFO", "nnhal.driver"), prepared.burst() as burst:
        executed(prepared, burst)
    says = "driver plain: configureExecutionBurst gave Context, must give a context: freeMemory"
    assert f"driver plain: no burst, plain executions instead: {says}" in caplog.text


def test_below_1_2_there_are_no_bursts():
    made = driver()
    made.level = V1_1
    made.kind = type("Old", (Prepared,), {})
    prepared = model_of(made)
    with prepared.burst() as burst:
        assert executed(prepared, burst)[0].tolist() == (X + X).tolist()
    assert prepared.burst_executor() is None and "opened" not in made.told


REFUSALS = {
    "a status": lambda self, *_: (FAILED, None),
    "no context": lambda self, *_: (NONE, None),
    "nonsense": lambda self, *_: 7,
    "an exception": lambda self, *_: {}["burst"],
}


@pytest.mark.parametrize("how", REFUSALS)
def test_a_driver_that_refuses_gets_plain_executions(how, caplog):
    made = driver(configureExecutionBurst=REFUSALS[how])
    prepared = model_of(made)
    with caplog.at_level("INFO", "nnhal.driver"), prepared.burst() as burst:
        assert executed(prepared, burst)[0].tolist() == (X + X).tolist()
    assert "no burst, plain executions instead" in caplog.text and prepared.burst_executor() is None


def test_a_driver_without_bursts_gets_plain_executions():
    prepared = model_of(full.FullV1_2())
    with prepared.burst() as burst:
        assert executed(prepared, burst)[0].tolist() == (X + X).tolist()
    assert prepared.burst_executor() is None


@pytest.mark.parametrize("kind", ["deadline", "cancelled"])
def test_an_execution_that_is_given_up_leaves_its_late_result_behind(kind, monkeypatch):
    slow, over, event = [True], threading.Event(), threading.Event()
    clock = Clock().play(monkeypatch, request_module, base_time)

    def answered(self, request, measure):
        if slow.pop() if slow else False:
            clock.advance(1)
            event.set()
            over.wait(LIMIT)
            return FAILED, (), HalTiming()
        return self.executeSynchronously(request, measure)

    made = driver(answered=answered)
    prepared = model_of(made)
    with prepared.burst() as burst:
        with pytest.raises((MissedDeadline, Cancelled)):
            executed(prepared, burst, clock.within(0.1) if kind == "deadline" else Control(cancelled=event))
        for _ in range(3):
            assert executed(prepared, burst)[0].tolist() == (X + X).tolist()
        over.set()
        until(lambda: "ended" in made.told, "the late result")
        assert executed(prepared, burst)[0].tolist() == (X + X).tolist()
    assert made.told.count("opened") == 2


def test_a_burst_without_a_result_ends_by_a_limit(monkeypatch):
    monkeypatch.setenv("NNHAL_NOTIFIED_WITHIN", "0.3")
    prepared = model_of(driver(configureExecutionBurst=lambda self, *_: (NONE, Context(self, *[None] * 3))))
    with pytest.raises(OperationFailed, match=r"no result came within 0\.3 s"):
        executed(prepared, prepared.burst())


def test_a_result_is_waited_for_until_the_limit(monkeypatch):
    monkeypatch.setenv("NNHAL_NOTIFIED_WITHIN", "30")
    prepared = model_of(driver())
    with prepared.burst() as burst:
        assert executed(prepared, burst)[0].tolist() == (X + X).tolist()


@pytest.mark.parametrize(
    "result", [7, (NONE,), (99, (), HalTiming()), (NONE, 3, HalTiming()), (FAILED, (), HalTiming())]
)
def test_a_wrong_result_is_an_error(result):
    prepared = model_of(driver(answered=lambda *_: result))
    with prepared.burst() as burst, pytest.raises(OperationFailed) as told:
        executed(prepared, burst)
    assert not isinstance(told.value, DriverFailed)


def test_outputs_whose_shape_turns_out_come_over_bursts_too():
    prepared = model_of(driver(), tiled())
    with prepared.burst() as burst:
        request = prepared.request([X, np.int32([40, 50])])
        request.execute(burst.run, Control())
        assert request.results[0].tolist() == np.tile(X, (40, 50)).tolist()
        small = prepared.request([X, np.int32([2, 2])], [np.empty((3, 4), np.float32)])
        small.execute(burst.run, Control())
        assert small.small == (0,)


def test_one_at_a_time_holds_for_bursts():
    inside, most, dice = [], [], random.Random(1)

    def answered(self, request, measure):
        inside.append(1)
        most.append(len(inside))
        jitter(dice, 0.02)
        result = self.executeSynchronously(request, measure)
        inside.pop()
        return result

    made = driver(answered=answered)
    made.one_at_a_time = True
    device = adapt(made)
    models = [checked_prepared(device, doubling(3, 4), Hints()) for _ in range(4)]
    together([lambda m=m: executed(m, m.burst()) for m in models])
    assert most == [1] * 4
