"""Driver memory at the API: where it lies, what it may be used for, its states, and streams that keep their state in it."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperandType
from nnhal.base.errors import Cancelled, Closed, DeadObject, MissedDeadline, OperationFailed
from nnhal.base.memory import Memory
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole
from nnhal.hal.request import Control, Request
from nnhal.hal.wrappers import WithHalLevel
from nnhal.ipc.client import peer
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import State
from nnhal.runtime import discovery
from nnhal.runtime.allocation import Allocation, PoolBuffer
from tests.hal.devices import OwnBuffer
from tests.models import make_model
from tests.runtime.devices import Fake, failing, for_nothing, to_be_killed
from tests.runtime.graphs import FLOATS, SHAPE, counter, sums
from tests.runtime.test_execution import two_outputs
from tests.waiting import LIMIT, NS, pass_time, until

X, B = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
HOLDING = Path(__file__).parent / "drivers" / "holding.py"
WAYS = pytest.mark.parametrize("isolation", ["none", "process"])


@pytest.fixture(params=["none", "process"])
def compiled(request) -> nnhal.Compiled:
    return nnhal.compile(sums(), devices="reference", isolation=request.param)


# ------------------------------------------------------------------------------------------------------------ in use


def test_an_allocation_stands_for_an_input_and_for_an_output(compiled):
    a, b = (nnhal.allocate([(compiled, "input", 0), (compiled, "output", 0)]) for _ in range(2))
    assert (a.device, a.reason) == ("reference", "") and a.token != b.token
    a.write(X)
    assert compiled(a, B, out=b) is b
    assert (b.read() == X + 1).all() and b.shape == SHAPE
    compiled(b, B, out=a)
    assert (a.read() == X + 2).all()


def test_roles_are_named_by_number_or_name(compiled):
    allocation = nnhal.allocate([(compiled, "input", "b"), (compiled, "output", "y", 0.5)])
    allocation.write(B)
    assert (compiled(X, allocation) == X + 1).all()


@pytest.mark.parametrize("method", ["submit", "bind"])
def test_allocations_are_bound_and_submitted_like_arrays(compiled, method):
    given, taken = nnhal.allocate([(compiled, "input", 0)]), nnhal.allocate([(compiled, "output", 0)])
    given.write(X)
    run = getattr(compiled, method)(given, B, out=taken)
    assert (run() if method == "bind" else run.result(10)) is taken
    assert (taken.read() == X + 1).all()


def test_open_dimensions_change_from_use_to_use():
    compiled = nnhal.compile(make_model(lambda b, x: b.relu(x, name="y"), name="open", x=(0,)), devices="reference")
    allocation = nnhal.allocate([(compiled, "input", 0)])
    for size in (3, 5):
        allocation.write(np.full(size, -1, np.float32))
        assert compiled(allocation).tolist() == [0] * size
    fixed = nnhal.allocate([(compiled, "input", 0)], shape=[2])
    with pytest.raises(nnhal.InvalidArgument, match=r"\[3\].*must agree with.*\[2\]"):
        fixed.write(np.zeros(3, np.float32))


# ------------------------------------------------------------------------------------------------------------ refused


def test_one_allocation_is_not_read_and_written_at_once(compiled):
    a = nnhal.allocate([(compiled, "input", 0), (compiled, "output", 0)])
    a.write(X)
    with pytest.raises(nnhal.InvalidRequest, match="also another output or an input"):
        compiled(a, B, out=a)
    assert (a.read() == X).all()


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ([("c", "inputs", 0)], "must be 'input' or 'output'"),
        ([("c", "input", "z")], r"must be one of 0 \('x'\), 1 \('b'\)"),
        ([("c", "input", 0), ("c", "input", 0)], "a role is given twice"),
        ([("c", "input", 0, 1.5)], "frequency of input 0 is 1.5"),
    ],
)
def test_roles_that_make_no_sense_are_refused(roles, words):
    compiled = nnhal.compile(sums(), devices="reference")
    named = [tuple(compiled if x == "c" else x for x in role) for role in roles]
    with pytest.raises(nnhal.InvalidArgument, match=words):
        nnhal.allocate(named)


@pytest.mark.parametrize("given", [lambda c: c, lambda c: (c, "input", 0), lambda c: None, lambda c: {(c, "input", 0)}])
def test_what_is_no_list_of_roles_is_named(compiled, given):
    with pytest.raises(
        nnhal.InvalidArgument,
        match=r"^allocate: roles are .*, must be a list of \(compiled, 'input' or 'output', number or name\)$",
    ):
        nnhal.allocate(given(compiled))


def test_of_no_roles_the_form_of_one_is_told():
    with pytest.raises(nnhal.InvalidArgument, match=r"^allocate: no role is given, must be at least one \(compiled,"):
        nnhal.allocate([])


def test_a_role_is_a_list_as_well_and_its_number_one_of_numpys(compiled):
    allocation = nnhal.allocate([[compiled, "input", np.int64(1)]])
    allocation.write(B)
    assert (compiled(X, allocation) == X + 1).all()


def test_roles_of_different_types_are_refused(compiled):
    other = nnhal.compile(make_model(lambda b, x: b.add(x, x), (SHAPE, "TENSOR_INT32")), devices="reference")
    with pytest.raises(nnhal.InvalidArgument, match="must be as the first role"):
        nnhal.allocate([(compiled, "input", 0), (other, "input", 0)])


def test_contents_of_another_type_or_shape_are_refused(compiled):
    a = nnhal.allocate([(compiled, "input", 0)])
    with pytest.raises(nnhal.InvalidArgument, match="what is written is float64, must be float32"):
        a.write(X.astype(np.float64))
    with pytest.raises(nnhal.InvalidArgument, match="must agree with"):
        a.write(np.zeros(5, np.float32))


# ----------------------------------------------------------------------------------------------------- a shared pool


def test_roles_on_two_devices_become_a_shared_pool_with_the_reason():
    one = nnhal.compile(sums(), devices="reference")
    other = nnhal.compile(sums(), devices=[Fake()])
    a = nnhal.allocate([(one, "output", 0), (other, "input", 0)])
    assert a.device is None and a.reason == "the roles lie on reference and fake, must be on one device"
    one(X, B, out=a)
    assert (other(a, B) == X + 2).all()


def test_a_driver_of_a_level_without_buffers_leaves_a_shared_pool():
    compiled = nnhal.compile(sums(), devices=[WithHalLevel(discovery.cpu(), nnhal.Level.parse("1.2"))])
    a = nnhal.allocate([(compiled, "input", 0)])
    assert a.device is None and "allocate needs level 1.3" in a.reason
    a.write(X)
    assert (compiled(a, B) == X + 1).all()


@pytest.mark.parametrize("answer", [failing(ValueError("no room")), lambda: "memory"])
def test_a_driver_that_fails_to_allocate_leaves_a_shared_pool(answer):
    device = Fake()
    device.allocate = lambda *_: answer()
    compiled = nnhal.compile(sums(), devices=[device])
    a = nnhal.allocate([(compiled, "output", 0)])
    assert a.device is None and a.reason.startswith("fake refused: ")
    assert (compiled(X, B, out=a).read() == X + 1).all()


def test_a_pool_travels_to_another_process_without_being_copied():
    one = nnhal.compile(sums(), devices="reference", isolation="process")
    other = nnhal.compile(sums(), devices=[Fake()])
    a = nnhal.allocate([(one, "output", 0), (other, "output", 0)])
    one(X, B, out=a)
    assert a.device is None and (a.read() == X + 1).all()
    array = a._buffer.array()
    assert nnhal.Memory.of(array) is not None


# --------------------------------------------------------------------------------------------- several steps, failures


@WAYS
def test_a_model_over_two_devices_reads_and_writes_allocations(isolation, monkeypatch):
    for_nothing(monkeypatch)
    compiled = nnhal.compile(sums(3), devices=[Fake(takes=lambda n: n == 1), "reference"], isolation=isolation)
    assert [s.device.name for s in compiled._caller.plan.steps] == ["reference", "fake", "reference"]
    a, y = nnhal.allocate([(compiled, "input", "x")]), nnhal.allocate([(compiled, "output", "y")])
    shared = nnhal.allocate([(compiled, "input", "b")])
    assert a.device == y.device == "reference" and shared.device is None
    a.write(X)
    shared.write(B)
    assert (compiled(a, shared, out=y).read() == X + 3).all()


def test_a_step_that_fails_after_another_wrote_leaves_no_output_half_visible():
    device = Fake(takes=lambda n: n == 1)
    compiled = nnhal.compile(two_outputs(), devices=[device, "reference"])
    outputs = [nnhal.allocate([(compiled, "output", n)]) for n in range(2)]
    device.prepared[0].before = failing(OperationFailed("broken"))
    with pytest.raises(OperationFailed, match="broken"):
        compiled(X, out=outputs)
    assert [o.shape for o in outputs] == [None, None]


def test_a_fallback_to_the_cpu_copies_driver_buffers():
    device = Fake()
    compiled = nnhal.compile(sums(), devices=[device], fallback="allow")
    a, y = nnhal.allocate([(compiled, "input", 0)]), nnhal.allocate([(compiled, "output", 0)])
    assert a.device == y.device == "fake"
    a.write(X)
    device.prepared[0].before = failing(OperationFailed("broken"))
    assert (compiled(a, B, out=y).read() == X + 1).all()


def test_a_fallback_copies_buffers_that_lie_in_another_process():
    compiled = nnhal.compile(
        sums(),
        devices="faulty",
        isolation="process",
        fallback="allow",
        driver_options={"faulty": {"run": "fail"}},
    )
    a, y = nnhal.allocate([(compiled, "input", 0)]), nnhal.allocate([(compiled, "output", 0)])
    assert a.device == y.device == "faulty"
    a.write(X)
    assert (compiled(a, B, out=y).read() == X + 1).all()


SETS = {  # the contents of both allocations, after their memory was lost
    "write": lambda compiled, a, y, bound: (a.write(X), y.write(X + 1)),
    "copy": lambda compiled, a, y, bound: [z.copy_from(nnhal.Memory.from_array(v)) for z, v in ((a, X), (y, X + 1))],
    "call": lambda compiled, a, y, bound: (a.write(X), compiled(X, B, out=y)),
    "submit": lambda compiled, a, y, bound: (a.write(X), compiled.submit(a, B, out=y).result(LIMIT)),
    "fenced": lambda compiled, a, y, bound: (a.write(X), compiled.execute_fenced(X, B, out=y).result(LIMIT)),
    "bind": lambda compiled, a, y, bound: (a.write(X), bound()),
}


@pytest.mark.parametrize("fallback", ["forbid", "allow"])
@pytest.mark.parametrize("way", SETS)
def test_memory_that_was_lost_with_the_drivers_process_is_allocated_again_where_its_contents_are_set(way, fallback):
    compiled = nnhal.compile(sums(), devices=[to_be_killed()], fallback=fallback)
    device = compiled._caller.plan.steps[0].device
    a, y = nnhal.allocate([(compiled, "input", 0)]), nnhal.allocate([(compiled, "output", 0)])
    bound, tokens = compiled.bind(a, B, out=y), (a.token, y.token)
    for _ in range(2):
        SETS[way](compiled, a, y, bound)
        assert (a.read() == X).all() and (y.read() == X + 1).all() and (compiled(a, B) == X + 1).all()
        assert (a.device, y.device, a.token, y.token) == (device.name, device.name, *tokens)
        device._remote.session.peer.give_up("the test ends it")
        assert a.shape is None is y.shape and repr(a).endswith("no contents: input 0>")
        for use in (a.read, y.read, lambda: compiled(a, B), lambda: compiled(a, B, out=y), bound):
            text = (
                f"buffer [0-9]+ on {device.name}: has no contents since the driver's process ended with its memory; set"
            )
            with pytest.raises(DeadObject, match=text):
                use()


def test_memory_that_was_lost_is_not_allocated_again_for_a_closed_model():
    compiled = nnhal.compile(sums(), devices=[to_be_killed()])
    device, a = compiled._caller.plan.steps[0].device, nnhal.allocate([(compiled, "input", 0)])
    compiled.close()
    device._remote.session.peer.give_up("the test ends it")
    for _ in range(2):
        with pytest.raises(Closed, match="its prepared model was closed"):
            a.write(X)


@pytest.mark.parametrize("fallback", ["forbid", "allow"])
def test_an_execution_that_ends_the_process_with_its_memory_leaves_no_output(fallback):
    compiled = nnhal.compile(
        sums(), devices="faulty", isolation="process", fallback=fallback, driver_options={"faulty": {"run": "exit"}}
    )
    y = nnhal.allocate([(compiled, "output", 0)])
    assert y.device == "faulty"
    with pytest.raises(DeadObject):
        compiled(X, B, out=y)
    with pytest.raises(OperationFailed, match="has no contents since an execution that was to write it failed"):
        y.read()
    assert y.shape is None


# ------------------------------------------------------------------------------------------------------------ streams


@WAYS
def test_a_stream_keeps_its_state_in_buffers_of_the_driver(isolation):
    stream = nnhal.compile(counter(), devices="reference", isolation=isolation).stream()
    assert [tuple(p) for p in stream.state_placement] == [("total", "reference", "")]
    assert [stream(np.full(SHAPE, v, np.float32))[0] for v in (1, 2, 3)] == [2, 6, 12]
    stream.reset()
    assert stream(np.ones(SHAPE, np.float32))[0] == 2


def test_a_stream_without_driver_buffers_keeps_its_state_in_a_pool_and_says_why():
    device = Fake()
    device.allocate = failing(OperationFailed("none left"))
    stream = nnhal.compile(counter(), devices=[device]).stream()
    assert [tuple(p) for p in stream.state_placement] == [("total", None, "fake refused: none left")]
    assert [stream(np.ones(SHAPE, np.float32))[0] for _ in range(3)] == [2, 4, 6]


def test_a_step_of_a_stream_that_fails_leaves_the_state_as_it_was():
    device = Fake()
    stream = nnhal.compile(counter(), devices=[device]).stream()
    one = np.ones(SHAPE, np.float32)
    assert stream(one)[0] == 2
    device.prepared[0].before = failing(OperationFailed("broken"))
    with pytest.raises(OperationFailed, match="broken"):
        stream(one)
    device.prepared[0].before = lambda: None
    assert stream(one)[0] == 4


def test_a_stream_whose_driver_died_says_so_until_it_is_reset():
    compiled = nnhal.compile(counter(), devices=[to_be_killed()])
    stream, one = compiled.stream(), np.ones(SHAPE, np.float32)
    stream(one)
    os.kill(compiled._caller.plan.steps[0].device.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(nnhal.DeadObject):
            stream(one)
    stream.reset()
    assert [stream(one)[0] for _ in range(2)] == [2, 4]


@pytest.mark.parametrize("steps", [1, 2])
def test_a_stream_is_usable_after_two_deaths_of_its_drivers_process(steps):
    """It is opened while the first process is dead, so its allocations are the first to notice.

    An even number of steps leaves the other buffer to be read next.
    """
    compiled = nnhal.compile(counter(), devices=[to_be_killed()])
    device, one = compiled._caller.plan.steps[0].device, np.ones(SHAPE, np.float32)
    processes = [device.pid]
    os.kill(device.pid, signal.SIGKILL)
    stream = compiled.stream()
    for _ in range(2):
        assert [stream(one)[0] for _ in range(steps)] == [2, 4][:steps]
        assert all(t.read[1].device == device.name for t in stream._turns)
        processes.append(device.pid)
        os.kill(device.pid, signal.SIGKILL)
        with pytest.raises(DeadObject):
            stream(one)
        stream.reset()
    assert [stream(one)[0] for _ in range(3)] == [2, 4, 6]
    assert len({*processes, device.pid}) == 4


def begun(compiled: nnhal.Compiled, given: Any, out: nnhal.Allocation, deadline: float) -> Any:
    """An execution that has begun to write before its deadline: where it was too late, the next has longer."""
    before = out._writer
    execution = compiled.submit(given, B, out=out, deadline=deadline)
    until(lambda: out._writer is not before or execution.done(), "it begins")
    return execution if out._writer is not before else begun(compiled, given, out, 2 * deadline)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("given_up_by", ["deadline", "cancel", "another execution"])
@WAYS
def test_contents_that_began_last_stay_whatever_becomes_of_who_began_before(isolation, given_up_by, monkeypatch):
    monkeypatch.setattr(peer, "HUNG_NS", int(LIMIT * NS))  # the process is held by this test
    nnhal.load_driver(HOLDING)
    slow = nnhal.compile(sums(), devices="holding", isolation=isolation, fallback="forbid")
    a, held = nnhal.allocate([(slow, "output", 0)]), Memory.allocate(X.nbytes).view(0, X.nbytes, np.float32, X.shape)
    held[:] = -1
    device = slow._caller.plan.steps[0].device

    def runs() -> list[int]:
        """How many executions that are held began in the driver, and how many ended."""
        return [int(n) for n in device.supports(sums())[0].reason.split()]

    before = sum(runs())
    execution = begun(slow, held, a, LIMIT if given_up_by == "cancel" else 0.6)
    until(lambda: sum(runs()) > before, "it begins in the driver")
    if given_up_by == "another execution":
        assert slow.submit(X, B, out=a).result(LIMIT) is a
        expected = X + 1
    else:
        a.write(X * 7)
        expected = X * 7
    if given_up_by == "cancel":
        execution.cancel()
    with pytest.raises((MissedDeadline, Cancelled)):
        execution.result(LIMIT)
    held[:] = 1
    until(lambda: len(set(runs())) == 1, "it ends")
    pass_time(0.05)  # and writes what it has
    assert (a.read() == expected).all()


@WAYS
def test_asking_again_for_a_fenced_execution_that_failed_spoils_nothing_that_was_written_later(isolation):
    options = {"faulty": {"run": "fail"}}
    failing_ = nnhal.compile(sums(), devices="faulty", isolation=isolation, fallback="forbid", driver_options=options)
    a = nnhal.allocate([(failing_, "output", 0)])
    fenced = failing_.execute_fenced(X, B, out=a)
    for _ in range(2):
        with pytest.raises(nnhal.NnhalError):
            fenced.result()
        a.write(X * 7)
        assert (a.read() == X * 7).all()
    with pytest.raises(nnhal.NnhalError):
        fenced.result()
    assert (a.read() == X * 7).all()


@pytest.mark.parametrize("dead", [0, 1])
def test_a_stream_of_which_one_buffer_has_died_is_reset_as_a_whole(monkeypatch, dead):
    """The other one may lie in a pool, as one that was allocated while the process was away."""
    from nnhal.runtime import stream as streams

    compiled = nnhal.compile(counter(), devices=[to_be_killed()])
    allocated, made, one = streams.allocate_for, [], np.ones(SHAPE, np.float32)

    def in_turns(uses):
        made.append(allocated(uses))
        if len(made) - 1 != dead:
            desc = BufferDesc()
            made[-1] = Allocation(
                PoolBuffer(desc, made[-1]._buffer.roles), made[-1]._roles, None, "the process was away"
            )
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(streams, "allocate_for", in_turns)
        stream = compiled.stream()
    first = stream(one)
    device = compiled._caller.plan.steps[0].device
    device._remote.session.peer.give_up("the test ends it")
    with pytest.raises(DeadObject):
        for _ in range(2):
            stream(one)
    stream.reset()
    steps = [stream(one) for _ in range(3)]
    assert np.array_equal(steps[0], first) and (steps[2] > steps[1]).all()
    assert all(t.read[1].device for t in stream._turns)


def test_the_first_to_notice_a_death_allocates_in_the_next_process(monkeypatch):
    compiled = nnhal.compile(counter(), devices=[to_be_killed()])
    device = compiled._caller.plan.steps[0].device
    allocate, died = device.allocate, []

    def dying(desc, roles):
        if not died:
            died.append(True)
            device._remote.session.peer.give_up("the test ends it")
            raise DeadObject("the test ends it")
        return allocate(desc, roles)

    monkeypatch.setattr(device, "allocate", dying)
    stream = compiled.stream()
    assert died and [place.device for place in stream.state_placement] == [device.name]


def test_a_reset_of_a_stream_that_is_interrupted_can_be_done_again(monkeypatch):
    from nnhal.runtime import stream as streams

    compiled = nnhal.compile(counter(), devices="reference", isolation="process", fallback="forbid")
    stream, one = compiled.stream(), np.ones_like(X)
    first = stream(one)
    os.kill(compiled._caller.plan.steps[0].device.pid, signal.SIGKILL)
    with pytest.raises(DeadObject):
        stream(one)
    made = []

    def interrupted(uses):
        if made:
            raise KeyboardInterrupt
        made.append(streams_allocate(uses))
        return made[0]

    streams_allocate = streams.allocate_for
    monkeypatch.setattr(streams, "allocate_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stream.reset()
    monkeypatch.undo()
    with pytest.raises(Closed):
        made[0].read()
    with pytest.raises(DeadObject):
        stream(one)
    assert [place.name for place in stream.state_placement]
    stream.reset()
    assert np.array_equal(stream(one), first)


def test_a_buffer_that_is_read_and_one_that_is_written_are_told_apart_where_an_input_may_be_left_out():
    """In a process of its own: an omitted input beside an output in a buffer is not that buffer as the input."""
    n, rng = 4, np.random.default_rng(0)

    def weights(*shape):
        return rng.uniform(-0.5, 0.5, shape).astype(np.float32)

    b = nnhal.Builder()
    projection, x = b.input((n, n)), b.input((n, n))
    gates = [f"{s}_to_{g}" for s in ("input", "state") for g in ("input", "forget", "cell", "output")]
    arguments = {gate: weights(n, n) for gate in gates}
    arguments |= {f"bias_{g}": weights(n) for g in ("input", "forget", "cell", "output")}
    outputs = b.lstm(
        x,
        projection=projection,
        state=weights(n, n),
        cell_state=weights(n, n),
        activation_kind=4,
        cell_clip=0.0,
        projection_clip=0.0,
        **arguments,
    )
    model = b.finish([projection, x], [outputs[3]])
    given, p = weights(n, n), np.eye(n, dtype=np.float32) * 2
    expected = nnhal.compile(model, devices="reference")(p, given)
    compiled = nnhal.compile(model, devices="reference", isolation="process", fallback="forbid")
    a = nnhal.allocate([(compiled, "input", 0), (compiled, "output", 0)])
    compiled(None, given, out=a)
    a.write(p)
    assert np.array_equal(compiled(a, given), expected) and np.array_equal(a.read(), p)


# ------------------------------------------------------------------------------------------------ what a driver is asked


class Noting(Fake):
    """Grants memory of its own, and keeps what it was asked for."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.asked: list[tuple[BufferDesc, list[BufferRole]]] = []

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
        self.asked.append((desc, list(roles)))
        return OwnBuffer(desc, roles)


def told(device: Noting) -> list[tuple[int, bool, float]]:
    ((_, roles),) = device.asked
    return [(role.index, role.output, role.frequency) for role in roles]


def test_a_driver_is_told_the_arguments_of_its_own_prepared_models():
    device = Noting()
    compiled = nnhal.compile(sums(), devices=[device])
    nnhal.allocate([(compiled, "input", "b", 0.25), (compiled, "output", 0), (compiled, "input", 0, 0.5)])
    assert told(device) == [(1, False, 0.25), (0, True, 1.0), (0, False, 0.5)]
    ((desc, roles),) = device.asked
    assert desc.dimensions == () and all(role.prepared is device.prepared[0] for role in roles)


def test_every_step_that_reads_or_writes_it_is_a_role(monkeypatch):
    for_nothing(monkeypatch)
    device = Noting()
    other = Fake(takes=lambda n: n == 1)
    device.takes, other.name = lambda n: n != 1, "other"
    compiled = nnhal.compile(sums(3), devices=[device, other])
    assert len(compiled.placement.steps) == 3
    shared = nnhal.allocate([(compiled, "input", "b")])
    assert (shared.device, shared.reason) == (None, "the roles lie on fake and other, must be on one device")
    nnhal.allocate([(compiled, "input", "x"), (compiled, "output", "y")])
    assert told(device) == [(0, False, 1.0), (0, True, 1.0)]
    ((_, roles),) = device.asked
    assert [role.prepared for role in roles] == device.prepared


def test_an_output_that_a_later_step_reads_has_a_role_in_both(monkeypatch):
    for_nothing(monkeypatch)
    device = Noting()
    device.takes = lambda n: n in (0, 2)
    b = nnhal.Builder()
    x = b.input(SHAPE, name="x")
    first = b.add(x, x, name="first")
    model = b.finish([x], [first, b.mul(b.relu(x), first, name="second")])
    steps = nnhal.compile(model, devices=[device, "reference"])
    places = [s.operations for s in steps.placement.steps]
    assert len([s for s in steps.placement.steps if s.device == "fake"]) == 2, places
    a = nnhal.allocate([(steps, "output", "first")])
    assert a.device == "fake" and sorted(output for _, output, _ in told(device)) == [False, True]


def test_an_input_that_no_step_reads_lies_in_a_pool(monkeypatch):
    for_nothing(monkeypatch)
    model = make_model(lambda b, x, unread: b.relu(b.relu(x)), x=SHAPE, unread=SHAPE)
    compiled = nnhal.compile(model, devices=[Noting(takes=lambda n: n == 0), "reference"])
    a = nnhal.allocate([(compiled, "input", "unread")])
    assert (a.device, a.reason) == (None, "no operation reads it")
    a.write(X)
    assert compiled(X, a).tolist() == [0, 1, 2, 3]


def test_what_the_application_says_of_the_shape_is_told_and_no_more_can_be_had_than_there_is():
    device = Noting()
    compiled = nnhal.compile(sums(1, (0,)), devices=[device])
    nnhal.allocate([(compiled, "input", 0)], shape=[7])
    assert device.asked[0][0].dimensions == (7,)
    with pytest.raises(nnhal.InvalidArgument):
        nnhal.allocate([(compiled, "input", 0)], shape=[2**32 - 1])


def test_what_is_closed_gives_the_drivers_memory_back():
    device = Noting()
    a = nnhal.allocate([(nnhal.compile(sums(), devices=[device]), "input", 0)])
    a.close()
    assert a._buffer.closed == 1


@pytest.mark.parametrize(
    "roles", [lambda c: (c,), lambda c: [(c, "input")], lambda c: [(c, "input", 0, 1.0, 1)], lambda c: [c]]
)
def test_a_role_of_too_few_or_too_many_parts_is_refused(compiled, roles):
    with pytest.raises(nnhal.InvalidArgument, match=r"^allocate: role 0 is .*, must be \(compiled, 'input' or"):
        nnhal.allocate(roles(compiled))


@pytest.mark.parametrize("place", [True, False, -1, 2, 0.0, None, "y"])
def test_a_role_is_for_an_argument_that_there_is(compiled, place):
    with pytest.raises(
        nnhal.InvalidArgument, match=r"^allocate: role 1 is for input .*, must be one of 0 \('x'\), 1 \('b'\)$"
    ):
        nnhal.allocate([(compiled, "input", 0), (compiled, "input", place)])
    with pytest.raises(nnhal.InvalidArgument, match=r"role 0 is for output 1, must be one of 0 \('y'\)$"):
        nnhal.allocate([(compiled, "output", 1)])


@pytest.mark.parametrize("name", ["refill", "copy"])
def test_new_contents_end_what_a_failed_execution_left(name):
    device = Fake()
    compiled = nnhal.compile(sums(), devices=[device])
    a = nnhal.allocate([(compiled, "output", 0), (compiled, "input", 0)])
    a.write(X)
    device.prepared[0].before = failing(OperationFailed("broken"))
    with pytest.raises(OperationFailed):
        compiled(X, B, out=a)
    assert a.shape is None and "no contents" in repr(a)
    for use in (a.read, lambda: compiled(a, B), lambda: a.copy_to(nnhal.Memory.allocate(16))):
        with pytest.raises(OperationFailed, match="has no contents since an execution that was to write it failed"):
            use()
    if name == "copy":
        a.copy_from(nnhal.Memory.from_array(B))
    else:
        a.write(B)
    device.prepared[0].before = lambda: None
    assert a.shape == SHAPE and a.read().tolist() == [1] * 4 and compiled(a, B).tolist() == [2] * 4


def test_contents_of_an_open_shape_are_copied_with_their_dimensions():
    compiled = nnhal.compile(sums(1, (0,)), devices="reference")
    a = nnhal.allocate([(compiled, "input", 0)])
    a.copy_from(nnhal.Memory.from_array(X[:3]), [3])
    assert a.shape == (3,) and a.read().tolist() == [0, 1, 2]


def test_an_allocation_says_where_it_is_and_what_for():
    compiled = nnhal.compile(sums(), devices="reference")
    a = nnhal.allocate([(compiled, "input", 0), (compiled, "output", 0)])
    assert repr(a) == f"<Allocation {a.token} on reference, FLOAT32[4], open: input 0, output 0>"
    assert str(a) == f"buffer {a.token} on reference" and a.token > 0
    one = nnhal.allocate([(compiled, "output", 0), (nnhal.compile(sums(), devices=[Fake()]), "input", 0)])
    assert str(one) == f"buffer {one.token} in a shared pool" and " on a shared pool, " in repr(one)
    one.close()
    assert ", closed: " in repr(one)


@pytest.mark.parametrize("at", ["input", "output"])
def test_memory_of_a_drivers_own_is_an_argument_of_the_step_that_it_is_for(at, monkeypatch):
    for_nothing(monkeypatch)
    device = Noting(takes=lambda n: n == (0 if at == "input" else 1))
    compiled = nnhal.compile(sums(2), devices=[device, "reference"])
    seen = []

    def run(request: Request, control: Control) -> None:
        seen.append((list(request.input_buffers), list(request.output_buffers)))
        x = request.input_buffers[0].contents if at == "input" else request.inputs[0]
        if at == "input":
            request.write(0, x + request.inputs[1])
        else:
            request.output_buffers[0].contents = x + request.inputs[1]
            request.filled(0, SHAPE)

    device.prepared[0].inner.run = run  # type: ignore[method-assign]
    a = nnhal.allocate([(compiled, at, "x" if at == "input" else "y")])
    assert a.device == "fake"
    if at == "input":
        a.write(X)
        assert compiled(a, B).tolist() == [2, 3, 4, 5] and seen == [([0], [])]
    else:
        assert compiled(X, B, out=a) is a and a.read().tolist() == [2, 3, 4, 5] and seen == [([], [0])]


# ---------------------------------------------------------------------------------------- states in memory of a driver's


class Carrying(Noting):
    """Runs `counter` with its state in memory of its own."""

    def prepare(self, model: nnhal.Model, hints: Hints) -> Prepared:
        prepared: Any = super().prepare(model, hints)
        self.seen: list[Any] = []

        def run(request: Request, control: Control) -> None:
            self.before()
            (before,) = request.input_buffers.values()
            (after,) = request.output_buffers.values()
            self.seen.append((before, after, list(request.input_buffers), list(request.output_buffers)))
            after.contents = before.contents + request.inputs[0]
            request.write(0, 2 * after.contents)
            request.filled(1, SHAPE)

        prepared.run = run
        return prepared

    def before(self) -> None:
        pass


def test_a_state_in_memory_of_a_drivers_own_is_carried_from_one_to_the_other():
    device = Carrying()
    stream = nnhal.compile(counter(), devices=[device]).stream()
    assert stream.state_placement == (("total", "fake", ""),)
    assert [stream(B)[0] for _ in range(4)] == [2, 4, 6, 8]
    (first, second), *_ = [each[:2] for each in device.seen]
    assert [each[:2] for each in device.seen] == [(first, second), (second, first)] * 2
    assert {(tuple(read), tuple(written)) for *_, read, written in device.seen} == {((1,), (1,))}
    stream.reset()
    assert stream(B)[0] == 2 and len(device.asked) == 2
    stream.close()
    assert (first.closed, second.closed) == (1, 1)


def test_a_reset_after_the_memory_was_lost_takes_other_memory_and_closes_the_first():
    device = Carrying()
    stream = nnhal.compile(counter(), devices=[device]).stream()
    stream(B)
    lost = device.seen[0][:2]
    for buffer in lost:
        buffer.copy_from = failing(DeadObject("gone"))
    stream.reset()
    assert [stream(B)[0] for _ in range(2)] == [2, 4]
    assert [buffer.closed for buffer in lost] == [1, 1] and not set(lost) & set(device.seen[-1][:2])


def test_a_step_that_failed_in_memory_of_a_drivers_own_leaves_the_state_as_it_was():
    device = Carrying()
    stream = nnhal.compile(counter(), devices=[device]).stream()
    assert stream(B)[0] == 2
    device.before = failing(OperationFailed("broken"))  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(OperationFailed, match="broken"):
            stream(B)
    del device.before
    assert [stream(B)[0] for _ in range(2)] == [4, 6]


def test_an_input_of_a_stream_may_be_an_allocation():
    for devices in ([Carrying()], "reference"):
        compiled = nnhal.compile(counter(), devices=devices)
        a = nnhal.allocate([(compiled, "input", 0)])
        a.write(B)
        if devices == "reference":
            stream = compiled.stream()
            assert [stream(a)[0] for _ in range(3)] == [2, 4, 6] and stream(B)[0] == 8


def test_a_state_starts_where_the_model_says_and_one_without_a_name_has_a_number():
    b = ModelBuilder("running sum")
    x, total, following = (b.operand(FLOATS, SHAPE, name=name) for name in ("x", "", ""))
    b.operation("ADD", [x, total, b.constant(OperandType.INT32, 0)], [following])
    y = b.operand(FLOATS, SHAPE, name="y")
    b.operation("RELU", [following], [y])
    model = b.finish([x, total], [following, y], states=[State(1, 0, np.full(SHAPE, 40, np.float32))])
    stream = nnhal.compile(model, devices="reference").stream()
    assert [place.name for place in stream.state_placement] == ["state 0"]
    assert [stream(B)[0] for _ in range(2)] == [41, 42]
    assert repr(stream) == "<Stream of 'running sum', 1 state, open>"
    stream.close()
    for use in (stream.reset, lambda: stream(B), lambda: stream.state_placement):
        with pytest.raises(Closed, match=r"^stream: used after close, open another$"):
            use()


@pytest.mark.parametrize("devices", [1, 2], ids=["of a device", "in a pool"])
def test_a_forked_child_cannot_use_what_its_parent_allocated(devices: int) -> None:
    models = [nnhal.compile(sums(), devices=[Fake()]) for _ in range(devices)]
    allocation = nnhal.allocate([(each, "input", 0) for each in models])
    allocation.write(X)
    child = os.fork()
    if child == 0:  # no pytest in here
        refused = 0
        for use in (allocation.read, lambda: allocation.write(X * 9), lambda: allocation.shape):
            try:
                use()
            except nnhal.Closed:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    np.testing.assert_array_equal(allocation.read(), X)
    allocation.close()
    with pytest.raises(nnhal.Closed, match="used after close"):
        allocation.read()
