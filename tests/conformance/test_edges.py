"""Small things between suite, ways, selection and worker: what each takes, keeps, gives back and refuses."""

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nnhal.base.errors import DeviceUnavailable, InvalidArgument, OperationFailed
from nnhal.base.levels import V1_1, V1_2
from nnhal.conformance import suite
from nnhal.conformance.device_under_test import Subject
from nnhal.conformance.execution_paths import WAYS
from nnhal.conformance.selection import Item, Selection
from nnhal.conformance.suite import (
    ENDLESS_LOOP_TIMEOUT_NS,
    Outcome,
    read_only,
    run_vector,
)
from nnhal.conformance.verdict import outcome_of_text
from nnhal.conformance.worker import StageBoard, _told, process_of
from nnhal.hal.background import FencedExecution
from nnhal.hal.host import HostBuffer
from nnhal.hal.request import Control
from nnhal.hal.wrappers import Wrapper
from nnhal.ipc.client.process import ReconnectingModel
from nnhal.runtime import discovery
from tests.conformance.test_suite import vector
from tests.conformance.test_ways import doubling, request


class Own(Exception):
    """A driver's own."""


def test_a_board_tells_the_item_the_stage_and_since_when() -> None:
    memory = os.memfd_create("board")
    os.ftruncate(memory, StageBoard.FORM.size)
    ours, theirs = StageBoard(memory), StageBoard(memory)
    os.close(memory)
    assert theirs.read() == (0, "") and theirs.asked_ns == 0
    before = time.monotonic_ns()
    ours.write(7, "prepare")
    assert theirs.read() == (7, "prepare") and before <= theirs.asked_ns <= time.monotonic_ns()
    ours.write(8, "")
    assert theirs.read() == (8, "")


def test_errors_that_the_other_side_knows_are_told_as_they_are() -> None:
    known, own = OperationFailed("no"), type("Mine", (OperationFailed,), {})("mine")
    assert _told(known) is known
    for error in (own, Own("mine")):
        found = _told(error)
        assert type(found) is OperationFailed and "mine" in str(found)
    assert process_of(discovery.cpu()) is None


def test_what_a_dead_object_says_begins_with_the_process() -> None:
    end = ": driver process: it died or closed the connection"
    assert (
        outcome_of_text(f"device x: the driver process was killed by SIGSEGV{end}")
        == "the driver process was killed by SIGSEGV"
    )
    assert outcome_of_text("it is gone") == "it is gone"


def test_nothing_but_elements_needs_memory_that_cannot_be_written_to() -> None:
    nothing, empty = read_only([None, np.zeros((0, 2), np.float32)])
    assert nothing is None and empty.shape == (0, 2) and empty.dtype == np.float32
    several = read_only([np.int8([1, 2, 3]), None, np.float64([[4, 5]]), np.float32([6])])
    assert [None if x is None else x.tolist() for x in several] == [[1, 2, 3], None, [[4, 5]], [6]]
    assert [x.dtype.name for x in several if x is not None] == ["int8", "float64", "float32"]


class Seeing(Wrapper):
    """The reference, with what it is given to run."""

    def __init__(self, level: Any = None) -> None:
        super().__init__(discovery.cpu())
        self.level = level or self.level
        self.seen: list[Any] = []

    def prepare(self, model: Any, hints: Any) -> Any:
        prepared = super().prepare(model, hints)
        inner = prepared.run

        def run(request: Any, control: Any) -> Any:
            self.seen.append((request, control))
            return inner(request, control)

        prepared.run = run  # type: ignore[method-assign]
        return prepared


@pytest.mark.parametrize(
    ("level", "way", "rooms"),
    [
        (V1_2, "plain", False),
        (V1_1, "plain", True),
        (V1_2, "callback", False),
        (None, "burst", True),
        (None, "plain", False),
    ],
)
def test_outputs_have_room_of_their_shapes_where_the_level_or_the_way_wants_it(
    level: Any, way: str, rooms: bool
) -> None:
    device = Seeing(level)
    assert run_vector(vector(), device, way=way).verdict == "passed"
    assert [(room is not None) for asked, _ in device.seen for room in asked.rooms or [None]] == [rooms] * len(
        device.seen
    )


@pytest.mark.parametrize(
    ("must_fail", "operations", "endless"), [(True, ["WHILE"], True), (True, ["ADD"], False), (False, ["WHILE"], False)]
)
def test_a_loop_that_must_not_end_has_little_time_and_others_have_theirs(
    must_fail: bool, operations: list[str], endless: bool
) -> None:
    device = Seeing()
    run_vector(vector(expect_failure=must_fail, operations=operations), device)
    ((_, control),) = device.seen
    assert (control.loop_timeout == ENDLESS_LOOP_TIMEOUT_NS) is endless
    assert Control().loop_timeout > ENDLESS_LOOP_TIMEOUT_NS


# ----------------------------------------------------------------------------------------------------------------- ways


def test_a_fenced_execution_whose_fence_tells_an_error_is_asked_for_its_reason() -> None:
    prepared = doubling()

    def failing(given: Any, control: Any) -> None:
        raise OperationFailed("the reason itself")

    prepared._run = failing
    with pytest.raises(OperationFailed, match="the reason itself"):
        WAYS["fenced"](discovery.cpu(), prepared, request(prepared), Control())


def test_an_error_of_the_fence_alone_is_raised_and_without_a_fence_that_of_the_execution() -> None:
    def ended(error: Any, said: Any) -> Any:
        def wait() -> None:
            raise error

        def info() -> None:
            if said is not None:
                raise said

        fence = SimpleNamespace(wait=wait) if error is not None else None
        return lambda *_: SimpleNamespace(fence=fence, get_execution_info=info)

    for error, said, wanted in (
        (OperationFailed("the fence"), None, "the fence"),
        (OperationFailed("the fence"), OperationFailed("the execution"), "the execution"),
        (None, OperationFailed("the execution"), "the execution"),
    ):
        prepared = doubling()
        prepared.execute_fenced = ended(error, said)
        with pytest.raises(OperationFailed, match=wanted):
            WAYS["fenced"](discovery.cpu(), prepared, request(prepared), Control())
    assert FencedExecution(None).fence is None


def test_driver_memory_is_closed_when_its_contents_were_read() -> None:
    closed: list[HostBuffer] = []

    class Closing(HostBuffer):
        def close(self) -> None:
            closed.append(self)
            super().close()

    class Allocating(Wrapper):
        def allocate(self, desc: Any, roles: Any) -> Any:
            return Closing(desc, roles)

    prepared = doubling()
    asked = request(prepared)
    WAYS["memory"](Allocating(discovery.cpu()), prepared, asked, Control())
    assert asked.results[0].tolist() == [2, 4] and len(closed) == 2


def test_driver_memory_is_for_outputs_of_which_the_room_is_known() -> None:
    prepared = doubling()
    asked = prepared.request([np.float32([1, 2])])
    WAYS["memory"](discovery.cpu(), prepared, asked, Control())
    assert asked.results[0].tolist() == [2, 4]


# ------------------------------------------------------------------------------------------------------------ selection


@pytest.mark.parametrize("share", [0, -0.1, 1.0001])
def test_a_share_is_above_0_and_at_most_1(share: float) -> None:
    with pytest.raises(InvalidArgument, match=f"share is {share}, must be above 0 and at most 1"):
        Selection(Path("any"), share=share)
    assert all(Selection(Path("any"), share=1).takes(f"V1_0/a/{n}") for n in range(100))


def test_a_share_takes_about_its_part() -> None:
    half = Selection(Path("any"), share=0.5)
    assert 400 < sum(half.takes(f"V1_0/a/{n}") for n in range(1000)) < 600


def test_the_subject_is_named_by_its_driver_its_device_or_is_the_cpu() -> None:
    assert Subject(drivers=("a.py", "b.py"), device="x").named == "a.py"
    assert Subject(device="x").named == "x" and Subject().named == discovery.CPU == "reference"
    assert Subject().timeout == 10 and not Subject().isolate
    assert Item("V1_0/a/b", "", "ADD").primary == "ADD"
    assert Subject(level="1.2", isolate=True, options={"*": {"a": 1, "b": False}, "x": {"c": "d"}}).asked_for() == [
        *("--level", "1.2", "--option", "a=1", "--option", "b=false", "--option", "x:c=d", "--isolate"),
    ]
    with pytest.raises((InvalidArgument, DeviceUnavailable)):
        Subject(level="one")


# ---------------------------------------------------------------------------------------------------------------- vectors


def test_an_outcome_is_the_same_whatever_came_out_and_is_not_shown_with_it() -> None:
    one, other = (Outcome("V1_0/a/b", "failed", "why", outputs=(np.full(2, x),)) for x in (7, 8))
    assert one == other and one.nanoseconds == 0 and "7" not in repr(one)


def test_an_interrupt_is_not_the_vectors() -> None:
    def model(dynamic: bool, signed: bool) -> Any:
        raise KeyboardInterrupt

    stopped = vector()
    stopped.model = model
    with pytest.raises(KeyboardInterrupt):
        run_vector(stopped, discovery.cpu())


@pytest.mark.parametrize("alive", [True, False])
def test_a_prepared_model_of_another_process_is_ended_where_that_lives(alive: bool) -> None:
    did: list[str] = []

    class Remote(ReconnectingModel):
        def __init__(self) -> None:
            pass

        alive = property(lambda self: lives)  # type: ignore[assignment]

        def end(self) -> None:
            did.append("end")

        def close(self) -> None:
            did.append("close")

    lives = alive
    suite._close(discovery.cpu(), Remote(), did.append)
    assert did == (["close", "end"] if alive else [])  # the stage, and the end


def test_memory_that_cannot_be_made_read_only_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "_libc", SimpleNamespace(mprotect=lambda *_: -1))
    with pytest.raises(OSError, match="mprotect"):
        read_only([np.float32([1])])
    assert read_only([None, None]) == [None, None]  # for which no memory is made
