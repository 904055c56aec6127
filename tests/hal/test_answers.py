"""The limits of what devices, prepared models and fences may answer, to the very number, and what holds by default."""

import contextlib
import os
import threading
from collections import deque
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import DeviceStatus, ErrorStatus, OperandType, Preference, Priority
from nnhal.base.errors import ContractBroken, InvalidArgument, InvalidRequest, NnhalError, OperationFailed
from nnhal.base.levels import V1_1, V1_2
from nnhal.drivers.reference import Reference
from nnhal.hal import background
from nnhal.hal.answers import checked_capabilities, checked_memory_use, checked_status, driver_capabilities
from nnhal.hal.background import FencedExecution, hand_over, signal_after
from nnhal.hal.chain import checked_prepared, checked_reconfigure, pin_threads
from nnhal.hal.device import (
    LONGEST,
    MOST,
    MOST_THREADS,
    RELAXATIONS,
    Capabilities,
    Considered,
    Hints,
    OperationGroup,
    Performance,
    Prepared,
    ReusableWork,
    Verdict,
    each_operation,
    identity_of,
    layout_of,
)
from nnhal.hal.fence import fence_list, fence_pair
from nnhal.hal.host import ExclusiveUse, HostBuffer, contents_of, fill
from nnhal.hal.memory import MOST_BYTES, BufferDesc, BufferFacts, BufferRole, MemoryUse, check_use
from nnhal.hal.request import Control, Request, Signature
from nnhal.model.layouts import LAYOUTS
from tests.execution import run_python
from tests.hal.devices import LIMIT, X, adding, asked, device_of, prepare
from tests.models import make_model
from tests.waiting import Opened

F32 = OperandType.TENSOR_FLOAT32
NONE, FAILED = ErrorStatus.NONE, ErrorStatus.GENERAL_FAILURE


def saying(**said: Any) -> Reference:
    """The reference with other attributes and methods."""
    return type("Saying", (Reference,), {"name": "saying", **said})()


# ----------------------------------------------------------------------------------------------- what a device says


def test_names_may_have_256_characters_and_4096_extensions():
    assert (LONGEST, MOST, MOST_THREADS) == (256, 4096, 1024)
    assert identity_of(saying(version="v" * 256)).version == "v" * 256
    assert identity_of(saying(version="v")).version == "v"
    assert len(identity_of(saying(extensions=["com.example"] * 4096)).extensions) == 4096


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"version": "v" * 257}, "version is .*, must be a str of 1 to 256 printable characters"),
        ({"version": ""}, "version is '', must be a str of 1 to 256 printable characters"),
        ({"version": "a\nb"}, "version is .*, must be a str of 1 to 256 printable characters"),
        ({"extensions": ["com.example"] * 4097}, "extensions is .*, must be several str, at most 4096"),
        ({"extensions": "com.example"}, "extensions is 'com.example', must be several str"),
        ({"extensions": b"com"}, "extensions is b'com', must be several str"),
        ({"extensions": 3}, "extensions is 3, must be several str"),
        ({"extensions": ["one", 2]}, "extensions is .*, must be several str"),
        ({"extensions": ["one", ""]}, r"extensions\[1\] is '', must be a str"),
        ({"preferred_layout": "chwn"}, "preferred_layout is 'chwn', must be None or one of nhwc, nchw"),
        ({"preferred_layout": 1}, "preferred_layout is 1, must be None or one of"),
        ({"level": 4}, "level is 4, must be a Level"),
    ],
)
def test_what_a_device_cannot_be_is_told_by_its_name(said, says):
    with pytest.raises(InvalidArgument, match=f"device .*: {says}"):
        identity_of(saying(**said))


@pytest.mark.parametrize("layout", [None, *LAYOUTS])
def test_a_preferred_layout_holds_since_1_2(layout):
    assert layout_of(saying(preferred_layout=layout)) == layout
    assert layout_of(saying(preferred_layout=layout, level=V1_2)) == layout
    assert layout_of(saying(preferred_layout=layout, level=V1_1)) is None


def test_what_a_device_says_is_asked_again_where_an_extension_was_registered(monkeypatch):
    device = saying()
    first = identity_of(device)
    assert identity_of(device) is first
    monkeypatch.setitem(nnhal.hal.device.EXTENSIONS, "com.example.of_a_test", None)
    assert identity_of(device).extensions == (*first.extensions, "com.example.of_a_test")


def test_performance_may_be_stated_of_any_code_of_32_bits_and_of_4096():
    half = Performance(0.5, 0.5)
    found = checked_capabilities(Capabilities({0: half, 2**32 - 1: half}))
    assert found.operands == {0: half, 2**32 - 1: half}
    assert len(checked_capabilities(Capabilities(dict.fromkeys(range(4096), half))).operands) == 4096
    for table in ({2**32: half}, {-1: half}, {True: half}, {"a": half}, dict.fromkeys(range(4097), half), [half]):
        with pytest.raises(InvalidArgument, match="performance of"):
            checked_capabilities(Capabilities(table))  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["relaxed_scalar", "relaxed_tensor", "if_performance", "while_performance"])
def test_each_stated_figure_is_looked_at_and_kept_in_its_place(what):
    own = Performance(1, 2)
    found = driver_capabilities(saying(capabilities=lambda self: Capabilities(**{what: own})))
    assert found == Capabilities(**{what: own}) and type(getattr(found, what).exec_time) is float
    for figure in (0, -1.0, float("nan"), True, "1", None):
        for performance in (Performance(figure, 1.0), Performance(1.0, figure)):  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument, match="must be a number above 0"):
                checked_capabilities(Capabilities(**{what: performance}))
    with pytest.raises(InvalidArgument, match="must be a Performance"):
        checked_capabilities(Capabilities(**{what: (1.0, 1.0)}))


def test_relaxed_performance_is_of_float32_alone():
    scalar, tensor, plain = Performance(2.0), Performance(3.0), Performance(5.0)
    stated = Capabilities(dict.fromkeys(OperandType, plain), scalar, tensor)
    assert stated.of(F32, relaxed=True) == tensor and stated.of(OperandType.FLOAT32, relaxed=True) == scalar
    assert (
        stated.of(OperandType.TENSOR_FLOAT16, relaxed=True) == plain == stated.of(F32) == stated.of(OperandType.FLOAT32)
    )
    assert Capabilities().of(F32) is None and Capabilities.uniform(0.5).of(F32) == Performance(0.5, 1.0)


def test_defaults_are_those_of_the_definition():
    assert Performance() == (1.0, 1.0) and Verdict(True) == (True, "")
    hints = Hints()
    assert (hints.preference, hints.priority) == (Preference.FAST_SINGLE_ANSWER, Priority.MEDIUM)
    assert (hints.threads, hints.deadline, hints.options, hints.worked_out) == (0, None, {}, None)
    assert OperationGroup((0,), Performance()).at_least == 0 and set(RELAXATIONS) == {
        "clipped_nan",
        "float16",
        "infinities",
        "long_sums",
        "subnormals",
    }
    assert Considered([]).groups == () and Considered([]).worked_out is None
    assert Prepared.timely is Prepared.one_at_a_time is Prepared.weights_consumed is False
    assert Reference.one_at_a_time is False and saying().capabilities() == Capabilities.uniform(1.0)


def test_no_more_threads_than_this_process_has_cpus():
    cpus = len(os.sched_getaffinity(0))
    assert [pin_threads(Hints(threads=n)).threads for n in (0, 1, cpus, cpus + 1, 1024)] == [
        0,
        1,
        cpus,
        cpus,
        cpus,
    ]


def test_the_cpus_are_those_of_this_process(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", {0: {3, 5, 7}, os.getpid(): {3, 5, 7}}.__getitem__)
    assert [pin_threads(Hints(threads=n)).threads for n in (0, 3, 4)] == [0, 3, 3]


def test_what_was_worked_out_is_of_the_whole_or_of_a_part():
    model, kept = adding(), ["thing"]
    whole, part = ReusableWork(model, (0,), kept), ReusableWork(model, (), kept)
    assert whole.whole and not part.whole and whole.given == "thing"
    kept.clear()
    assert whole.given is None


@pytest.mark.parametrize(("judge", "verdict"), [(True, (True, "")), ("", (True, "")), ("no", (False, "no"))])
def test_operations_are_judged_one_by_one(judge, verdict):
    assert each_operation(adding(), lambda model, operation: judge) == [Verdict(*verdict)]
    assert each_operation(adding(), lambda model, operation: Verdict(False, "own")) == [Verdict(False, "own")]


def test_a_status_is_a_member():
    with pytest.raises(ContractBroken, match=r"status.. gave 1, must be a DeviceStatus"):
        checked_status(saying(status=lambda self: 1))
    for status in DeviceStatus:
        assert checked_status(saying(status=lambda self, status=status: status)) is status


# --------------------------------------------------------------------------------------------- what it has prepared


class Sure(Prepared):
    """Answers as it is told."""

    use: Any = MemoryUse()

    def run(self, request: Request, control: Any) -> None: ...

    def memory(self) -> Any:
        return self.use


@pytest.mark.parametrize("field", range(4))
def test_bytes_are_whole_numbers_from_0_to_the_most(field):
    prepared = Sure()
    for size in (0, 1, MOST_BYTES, None):
        prepared.use = MemoryUse(*(size if n == field else None for n in range(4)))
        assert checked_memory_use(prepared, "device mine") == prepared.use
    for wrong in (-1, MOST_BYTES + 1, 1.0, True, "1"):
        prepared.use = MemoryUse(*(wrong if n == field else None for n in range(4)))
        with pytest.raises(ContractBroken, match=f"gave {MemoryUse._fields[field]} = "):
            checked_memory_use(prepared, "device mine")


def test_a_prepared_model_is_given_once_and_says_once_what_it_is():
    prepared = Sure()
    prepared.changeable = ["speed"]
    device = saying(prepare=lambda self, model, hints: prepared)
    chain = checked_prepared(device, adding(), Hints())
    assert chain.inner is prepared
    assert (chain.weights_consumed, chain.changeable, chain.writes_later) == (False, ("speed",), False)
    with pytest.raises(ContractBroken, match="gave a Prepared that it gave before"):
        checked_prepared(device, adding(), Hints())


def test_options_are_taken_where_any_may_change():
    told: list[Any] = []
    prepared = Sure()
    prepared.changeable, prepared.reconfigure = ("speed",), told.append  # type: ignore[method-assign]
    chain = checked_prepared(saying(prepare=lambda self, model, hints: prepared), adding(), Hints())
    checked_reconfigure(chain, "device mine", {"speed": 2})
    assert told == [{"speed": 2}]
    fixed = checked_prepared(saying(prepare=lambda self, model, hints: Sure()), adding(), Hints())
    with pytest.raises(InvalidArgument, match="no option of it may change between executions"):
        checked_reconfigure(fixed, "device mine", {})


# -------------------------------------------------------------------------------------------------- driver memory


def test_a_buffer_has_a_number_of_its_own_and_its_roles():
    prepared = prepare(device_of("reference"), adding())
    one, other = (HostBuffer(BufferDesc(), [BufferRole(prepared, 0)]) for _ in range(2))
    assert 0 < one.token < other.token
    one.check_role(prepared, 0, False)
    for index, output, use in ((0, True, "output 0"), (1, False, "input 1")):
        with pytest.raises(InvalidRequest, match=f"is used as {use}, must be one of its roles: input 0"):
            one.check_role(prepared, index, output)
    assert str(BufferRole(prepared, 3, True)) == "output 3" and BufferRole(prepared, 0).frequency == 1.0


def test_facts_of_a_buffer_are_fixed_where_no_dimension_may_change():
    found = [BufferFacts(F32, d, 0.5, 3, None).fixed for d in ((2, 3), (2, 0), None, ())]
    assert found == [(2, 3), None, None, ()]
    assert BufferFacts(F32, (), 0.5, 3, None).stored == "TENSOR_FLOAT32 scale 0.5 zero point 3"


def test_contents_are_copies():
    prepared = prepare(device_of("reference"), adding())
    buffer = HostBuffer(BufferDesc(), [BufferRole(prepared, 0)])
    with pytest.raises(OperationFailed, match="has no contents, must be written or copied to first"):
        contents_of(buffer)
    given = X.copy()
    fill(buffer, given)
    copy = contents_of(buffer)
    given[:], copy[:] = 0, 1
    assert contents_of(buffer).tolist() == X.tolist() and buffer.shape == (3, 4)


def test_uses_of_several_buffers_are_all_looked_at():
    prepared = prepare(device_of("reference"), make_model(lambda b, x, y: [b.add(x, y), b.mul(x, y)], (4,), (4,)))
    roles = [BufferRole(prepared, n, output) for n in (0, 1) for output in (False, True)]
    one, two = HostBuffer(BufferDesc(), roles), HostBuffer(BufferDesc(), roles)
    signature = Signature.of(prepared.model)

    def uses(read: dict[int, Any], written: dict[int, Any]) -> Request:
        return signature.make(signature, [None, None], None, read, written)

    for read, written in (({0: one, 1: one}, {0: two}), ({}, {0: one, 1: two}), ({1: two}, {1: one}), ({0: one}, {})):
        check_use(prepared, uses(read, written))
    with pytest.raises(InvalidRequest, match="is input and output of one execution"):
        check_use(prepared, uses({0: two, 1: one}, {1: one}))
    with pytest.raises(InvalidRequest, match="is given for two outputs, must be given for one"):
        check_use(prepared, uses({}, {0: one, 1: one}))


def test_a_turn_is_had_by_one_until_he_gives_it_back_or_goes():
    class Who: ...

    turn, one, other = ExclusiveUse(), Who(), Who()
    assert not turn.taken and turn.take(one) and turn.taken and not turn.take(other) and not turn.take(one)
    turn.give_back(other)
    assert turn.taken
    turn.give_back(one)
    assert not turn.taken and turn.take(other)
    del other
    assert not turn.taken and turn.take(one)


# -------------------------------------------------------------------------------------------- fences and the background


def test_what_a_fence_shows_is_how_it_stands():
    fence, signal = fence_pair()
    assert repr(fence) == "Fence(pending)"
    signal.set(FAILED)
    assert repr(fence) == "Fence(GENERAL_FAILURE)"
    fence.close()
    assert repr(fence) == "Fence(GENERAL_FAILURE)"
    unseen, signal = fence_pair()
    unseen.close()
    assert repr(unseen) == "Fence(pending)"


def test_fences_to_wait_for_are_several_fences():
    fence, _signal = fence_pair()
    assert fence_list([fence]) == [fence] == fence_list((fence,)) == fence_list({fence}) and fence_list([]) == []
    for wrong in (fence, None, [fence, None], "ab", 3):
        with pytest.raises(InvalidArgument, match=r"wait_for is .*, must be a list of fences"):
            fence_list(wrong)


def test_a_signal_is_a_status():
    fence, signal = fence_pair()
    for wrong in (0, 1, None, "NONE"):
        with pytest.raises(InvalidArgument, match=r"fence: status is .*, must be an ErrorStatus"):
            signal.set(wrong)  # type: ignore[arg-type]
    assert fence.status() is None
    signal.set()
    fence.wait(0)


@pytest.mark.parametrize("timeout", [None, 2_000_000, 2_000_001, 3_000_000, 1e300, float("inf")])
def test_a_long_wait_ends_with_the_signal(timeout):
    fence, signal = fence_pair()
    threading.Timer(0.02, signal.set).start()
    fence.wait(timeout)


def test_a_joined_fence_tells_of_all_and_of_what_followed():
    for status, fails, wanted in ((NONE, None, NONE), (FAILED, None, FAILED), (NONE, OperationFailed("then"), FAILED)):
        pairs, done = [fence_pair() for _ in range(2)], list[int]()

        def then(fails: Any = fails, done: list[int] = done) -> None:
            done.append(1)
            if fails is not None:
                raise fails

        joined = signal_after([fence for fence, _ in pairs], then)
        pairs[0][1].set()
        assert joined.status() is None and not done
        pairs[1][1].set(status)
        try:
            joined.wait(LIMIT)
        except NnhalError:
            assert wanted != NONE
        assert joined.status() == wanted and done == ([1] if status == NONE else [])


@pytest.mark.parametrize("status", [NONE, FAILED, None])
def test_joined_fences_leave_no_descriptors(status):
    opened = Opened()
    for _ in range(20):
        fence, signal = fence_pair()
        joined = signal_after([fence], lambda: None)
        if status is not None:
            signal.set(status)
            with contextlib.suppress(NnhalError):
                joined.wait(LIMIT)
        del fence, signal, joined
    opened.closed()


def test_nothing_follows_where_nobody_holds_the_joined_fence():
    fence, signal = fence_pair()
    signal_after([fence], lambda: pytest.fail("done")).close()
    signal.set()


def test_a_fenced_execution_tells_its_end_once_to_each_who_asked():
    fence, _signal = fence_pair()
    execution = FencedExecution(fence)
    told: list[str] = []
    execution.when_ended(lambda: told.append("before"))
    assert not told and not execution.failed
    execution.finish(OperationFailed("no"), None)
    assert told == ["before"] and execution.failed
    execution.when_ended(lambda: told.append("after"))
    assert told == ["before", "after"]
    errors = []
    for _ in range(2):
        with pytest.raises(OperationFailed, match="no") as caught:
            execution.get_execution_info()
        errors.append(caught.value)
    assert errors[0] is not errors[1]


@pytest.fixture
def idle(monkeypatch) -> Any:
    """No worker is idle, but those that the test starts."""
    others = set(threading.enumerate())

    class Idle(deque[Any]):
        def append(self, worker: Any) -> None:  # in the worker's thread
            if threading.current_thread() not in others:
                super().append(worker)

    monkeypatch.setattr(background, "_idle", found := Idle())
    return found


def test_a_worker_without_work_ends_and_its_place_is_given_up(idle, monkeypatch):
    monkeypatch.setattr(background, "_LOOK", 0.01)
    monkeypatch.setattr(background, "_LOOKS", 3)
    threads: list[threading.Thread] = []
    assert hand_over(lambda: threads.append(threading.current_thread())) is None
    while not threads:
        pass
    threads[0].join(LIMIT)
    assert not threads[0].is_alive() and not idle


def test_a_worker_that_is_idle_for_a_while_is_still_there_for_the_next_work(idle, monkeypatch):
    monkeypatch.setattr(background, "_LOOK", 0.001)
    monkeypatch.setattr(background, "_LOOKS", 10**6)
    threads: list[threading.Thread] = []
    for _ in range(3):
        background.start(lambda: threads.append(threading.current_thread()))
        while not idle:
            pass
        threads[0].join(0.02)  # many looks
    assert threads[0] is threads[1] is threads[2] and threads[0].is_alive()
    monkeypatch.setattr(background, "_LOOKS", 0)
    threads[0].join(LIMIT)


FORKED = """
import os, threading
from nnhal.hal import background
there = threading.Event()
background.start(there.set)
assert there.wait(30)
while not background._idle:
    pass
child = os.fork()
there = threading.Event()
background.start(there.set)
came = there.wait(60)
if not child:
    os._exit(not came)
assert came and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_process_that_was_forked_has_no_idle_workers_of_its_parents():
    run_python(FORKED, timeout=LIMIT)


def test_what_is_called_at_the_end_is_asked_for_in_a_block() -> None:
    control = Control(cancelled=threading.Event())
    with control.on_cancel(print) as asked:
        assert asked is not None


ENDED = """
import threading
from nnhal.hal import background
from nnhal.hal.request import Control
there = threading.Event()

def for_ever():
    with Control(cancelled=threading.Event()).on_cancel(print):
        there.set()
        threading.Event().wait()

background.start(for_ever)
assert there.wait(30)
"""


def test_what_is_done_in_the_background_keeps_no_program_from_its_end():
    run_python(ENDED, timeout=LIMIT)


def test_a_worker_that_is_idle_does_the_next_work_though_the_last_one_failed(idle, caplog):
    threads: list[threading.Thread] = []

    def work(fails: bool) -> None:
        threads.append(threading.current_thread())
        if fails:
            raise ValueError("of the work")

    background.start(lambda: work(True))
    while not idle:
        pass
    gate = hand_over(lambda: work(False))
    assert gate is not None and not idle and len(threads) == 1
    gate.open()
    while not idle:
        pass
    assert threads[0] is threads[1] and "work in the background failed" in caplog.text


def test_an_execution_in_the_background_gives_what_a_plain_one_gives():
    prepared = prepare(device_of("reference"), adding())
    request, over = asked(prepared), threading.Event()
    prepared.execute(request, nnhal.hal.request.Control(), lambda error, timing: over.set())
    assert over.wait(LIMIT)
    np.testing.assert_array_equal(request.results[0], X + 1)
