"""A hostile client of a shared service: every call, field, descriptor and moment of the table in `hostile_client`."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from nnhal.base.errors import DeadObject
from nnhal.base.levels import V1_3
from nnhal.ipc.protocol import wire
from nnhal.ipc.service import connection
from tests.faults import hostile_client
from tests.faults.hostile_client import (
    DESCRIPTORS,
    FOREIGN,
    GOOD,
    KINDS,
    MOMENTS,
    RIGHT,
    SLOWLY_CLOSED,
    Case,
    Moment,
    World,
    asked,
    judge,
    table,
)
from tests.faults.support import Hostile, attempt, client_of, held, undisturbed, wait_until

FIELDS, CARRIED = table(hostile_client.fields()), table(hostile_client.carried())
DEEP = tuple(kind for kind in KINDS if any(case.deep and type(case.call) is kind for case in FIELDS))
QUERY = wire.encode(wire.GetVersionString())
OF_CACHES = wire.GetNumberOfCacheFiles, wire.HoldFiles, wire.PrepareModelFromCache
MARKED = [pytest.param(kind, marks=[pytest.mark.cache] * (kind in OF_CACHES), id=kind.__name__) for kind in KINDS]
WATCHED = "descriptors", "mappings", "threads"


class Arena:
    """A service with a neighbour whose results must stay what they are, and a look at what the service holds."""

    def __init__(self, name: str, watcher: Any, neighbour: World) -> None:
        self.name, self.watcher, self.neighbour = name, watcher, neighbour
        self.pid = watcher.session.welcome.pid
        self.foreign = {FOREIGN[what]: number for what, number in neighbour.objects.items()}
        self.clean = held(watcher)
        self._world: World | None = None

    def world(self) -> World:
        """A hostile client that no case has changed."""
        if self._world is None:
            self._world = World(self.name)
            self.base = held(self.watcher)
        return self._world

    def drop(self) -> None:
        """End the hostile client: the service holds what it held before it came."""
        world, self._world = self._world, None
        if world is not None:
            world.close()
        self.back_to(self.clean)

    def back_to(self, before: dict[str, int]) -> None:
        """Wait until the service holds no more than before."""
        wait_until(lambda: all(held(self.watcher)[what] <= before[what] for what in WATCHED), f"back to {before}")

    def unharmed(self) -> None:
        """The neighbour's results are bit by bit what they were, in the same process."""
        self.neighbour.computes()
        assert self.watcher.session.peer.dead is None and self.watcher.session.welcome.pid == self.pid

    def strike(self, case: Case) -> None:
        """One case, from the call to what is left of it."""
        if isinstance(case.call, wire.Hello):
            return self._greet(case)
        world = self.world()
        with contextlib.ExitStack() as ends:
            sent = [DESCRIPTORS[what](ends) for what in case.along]

            def given() -> None:
                if SLOWLY_CLOSED in case.along:  # the last to close it is the service
                    os.close(sent.pop(case.along.index(SLOWLY_CLOSED)))

            try:
                reply = asked(world.lane, world.data(case.raw, self.foreign), sent, given)
                ends.close()
                taken = judge(case.call, reply, case.wanted, case.words)
                if taken:
                    world.follow(case.call, reply, sent, right=case.wanted == "right")
                assert asked(world.lane, QUERY) == wire.TextReply("1")
            finally:
                for fd in sent:
                    os.close(fd)
        if taken:
            self.drop()
        else:
            self.back_to(self.base)
        self.unharmed()
        return None

    def _greet(self, case: Case) -> None:
        with contextlib.ExitStack() as ends, Hostile(self.name, greet=False) as client:
            sent = [DESCRIPTORS[what](ends) for what in case.along]
            try:
                reply = attempt(lambda: asked(client.channel, wire.encode(case.raw), sent))
                ended = isinstance(reply, DeadObject) and case.wanted == "refused"
                if not ended and judge(case.call, reply, case.wanted, case.words):
                    assert asked(client.channel, QUERY) == wire.TextReply("1")
            finally:
                for fd in sent:
                    os.close(fd)
        self.back_to(self.clean)
        self.unharmed()


@pytest.fixture(scope="module")
def arena(shared: str) -> Iterator[Arena]:
    """A service that outlives all cases."""
    with client_of(shared) as watcher, World(shared, first=300) as neighbour:
        yield Arena(shared, watcher, neighbour)


def all_of(arena: Arena, cases: dict[str, Callable[[], object]]) -> None:
    """Run cases one after the other; every one that fails is named."""
    failures = []
    with undisturbed(arena.name):
        arena.clean = held(arena.watcher)
        for name, case in cases.items():
            try:
                case()
            except Exception as error:
                failures.append(f"{name}: {type(error).__name__}: {str(error)[:400]}")
                with contextlib.suppress(AssertionError):
                    arena.drop()
                arena.clean = held(arena.watcher)
        arena.drop()
    assert not failures, f"{len(failures)} of {len(cases)}:\n" + "\n".join(failures)


def test_the_table_has_every_call_and_more_than_200_cases() -> None:
    assert {type(call) for call, _ in GOOD} == set(KINDS) == set(RIGHT)
    assert len(FIELDS) + len(CARRIED) + len(MOMENTS) * len(GOOD) > 200
    for cases in (FIELDS, CARRIED):
        assert {type(case.call) for case in cases} == set(KINDS)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", MARKED)
def test_a_call_with_a_broken_field_is_refused_by_name_or_right(arena: Arena, kind: type[wire.ClientCall]) -> None:
    cases = [case for case in FIELDS if type(case.call) is kind and not case.deep]
    all_of(arena, {case.name: partial(arena.strike, case) for case in cases})


@pytest.mark.nightly
@pytest.mark.parametrize("kind", DEEP, ids=[kind.__name__ for kind in DEEP])
def test_a_model_request_or_pool_with_a_broken_field_is_refused_by_name_or_right(
    arena: Arena, kind: type[wire.ClientCall]
) -> None:
    cases = [case for case in FIELDS if type(case.call) is kind and case.deep]
    all_of(arena, {case.name: partial(arena.strike, case) for case in cases})


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", MARKED)
def test_a_call_with_other_descriptors_is_refused_by_name_or_right(arena: Arena, kind: type[wire.ClientCall]) -> None:
    all_of(arena, {case.name: partial(arena.strike, case) for case in CARRIED if type(case.call) is kind})


@pytest.mark.sampled(8)
@pytest.mark.parametrize("how", MOMENTS)
def test_a_call_at_another_moment_has_its_own_answer_or_none(arena: Arena, how: str) -> None:
    def strike(call: wire.ClientCall, along: tuple[str, ...]) -> None:
        MOMENTS[how](Moment(arena.name, call, along))
        arena.back_to(arena.clean)
        arena.unharmed()

    all_of(arena, {f"{n} {type(call).__name__}": partial(strike, call, along) for n, (call, along) in enumerate(GOOD)})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_client_that_is_killed_or_stopped_after_any_call_harms_nobody(arena: Arena, how: signal.Signals) -> None:
    command = [sys.executable, "-m", "tests.faults.hostile_client", arena.name]
    peers = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with peers, peers.stdin as orders, peers.stdout as answers:  # type: ignore[union-attr]

        def strike(number: int) -> None:
            orders.write(f"{number} {int(how)}\n")
            orders.flush()
            pid = int(answers.readline())
            if how == signal.SIGSTOP:
                for _ in range(3):
                    arena.unharmed()
                os.kill(pid, signal.SIGKILL)
            arena.back_to(arena.clean)
            arena.unharmed()

        all_of(arena, {f"{n} {type(call).__name__}": partial(strike, n) for n, (call, _) in enumerate(GOOD)})


# ------------------------------------------------------------------------------------------------------------- numbers


def executed(world: World) -> Any:
    """The reply to an execution on a client's lane."""
    return asked(world.lane, wire.encode(wire.ExecuteSynchronously(V1_3, world.objects["binding"])))


def test_cancel_ends_what_goes_on_under_that_number_in_its_own_connection_and_nothing_else(arena: Arena) -> None:
    """Two clients with the same numbers. Numbers that never were, have ended, or are of objects change nothing."""
    others = [0, 2**63, 2**64 - 1, hostile_client.NEVER]
    with undisturbed(arena.name), World(arena.name) as one, World(arena.name) as other:
        assert one.objects == other.objects
        read, write = os.pipe()
        try:
            fenced = [
                world.make(wire.ExecuteFenced, world.objects["binding"], 1, fds=(read,)) for world in (one, other)
            ]
            assert fenced[0] == fenced[1]
            others += [number for what, number in one.objects.items() if what != "lane"]
            assert one.client.call(wire.Cancel(tuple(others))) == wire.Acknowledged()
            one.computes()
            assert one.client.call(wire.Cancel((fenced[0], one.objects["lane"]))) == wire.Acknowledged()
            assert one.info(fenced[0]).kind == executed(one).kind == "Cancelled"
            other.computes()
            os.write(write, b"\0")
            assert isinstance(other.info(fenced[1]), wire.ExecutionInfoReply)
        finally:
            os.close(read)
            os.close(write)


def test_cancel_ends_an_execution_in_the_background(arena: Arena) -> None:
    """Or comes too late for it, and changes nothing: its number is that of the next one."""
    with undisturbed(arena.name), World(arena.name) as world:
        slow = world.slow()
        world.made = number = 2**63

        def cancelled() -> bool:
            assert world.client.call(wire.Execute(number, V1_3, slow)) == wire.Acknowledged()
            assert asked(world.lane, wire.encode(wire.Cancel((number,)))) == wire.Acknowledged()
            result = world.notification(wire.NotifyExecuted)
            assert isinstance(result, wire.ExecutedReply) or result.kind == "Cancelled", result
            return isinstance(result, wire.Failed)

        wait_until(cancelled, "an execution that was cancelled")


def test_a_model_that_is_released_while_it_waits_to_be_prepared_is_not(arena: Arena) -> None:
    model = next(call.model for call, _ in GOOD if isinstance(call, wire.PrepareModel))
    with undisturbed(arena.name), World(arena.name) as world, contextlib.ExitStack() as ends:
        slow = world.slow()

        def released() -> bool:
            executions = [world.make(wire.Execute, V1_3, slow) for _ in range(2 * connection.WORKERS)]
            fd = DESCRIPTORS["a memory"](ends)
            number = world.make(wire.PrepareModel, V1_3, model, 1, 1, fds=(fd,))
            os.close(fd)
            assert asked(world.lane, wire.encode(wire.Release((number,)))) == wire.Acknowledged()
            notes = [world.client.notification() for _ in (*executions, number)]
            assert {note.object for note in notes} == {*executions, number}
            result = next(note.result for note in notes if note.object == number)
            if result == wire.Acknowledged():  # the release came too late
                return False
            assert "is not held" in world.client.bind(number, (), None).message
            return "was released before it began" in result.message

        wait_until(released, "a release before the preparation began")


def test_a_fenced_execution_under_a_number_that_is_held_does_not_begin(arena: Arena) -> None:
    with World(arena.name) as world:
        before = held(arena.watcher)
        read, write = os.pipe()
        try:
            call = wire.ExecuteFenced(world.objects["held"], world.objects["binding"], 1)
            assert "held already" in world.client.call(call, (read,)).message
            arena.back_to(before)
        finally:
            os.close(read)
            os.close(write)


def test_a_lane_under_a_number_that_is_taken_is_refused_and_none_is_given(arena: Arena) -> None:
    with World(arena.name) as world:
        before = held(arena.watcher)
        data = wire.encode(wire.AttachLane(world.objects["lane"], False))
        reply, fds = world.client.channel.call(data, (), int(hostile_client.LIMIT * 1e9))
        assert "is the number of work in progress" in wire.decode_reply(reply).message and not len(fds)
        arena.back_to(before)
        world.computes()
