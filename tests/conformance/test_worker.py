"""What a process that runs items says, when, and what it does where the driver forked, died or closed its descriptors."""

import faulthandler
import gc
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nnhal.base.errors import DeviceUnavailable, InvalidArgument, OperationFailed
from nnhal.base.stacks import TELL
from nnhal.conformance import worker
from nnhal.conformance.device_under_test import Bundle, Subject
from nnhal.conformance.differential import arrays_of
from nnhal.conformance.selection import Item, Selection
from nnhal.conformance.suite import Outcome
from nnhal.conformance.validate import drawing as validate_drawing
from nnhal.conformance.validate import worker as checking
from nnhal.conformance.validate.check import CHECKS, CheckOutcome
from nnhal.conformance.validate.drawing import Drawing
from nnhal.conformance.validate.run import CheckItem, Validation
from nnhal.conformance.validate.trial import Trial
from nnhal.conformance.worker import Answer, Ready, StageBoard, Worker, process_of, serve_with
from nnhal.drivers.reference import Reference
from nnhal.hal.wrappers import WithOptions, Wrapper
from nnhal.ipc.client.process import ReconnectingDevice
from nnhal.runtime import discovery, isolation

TOGETHER_NS = 20_000_000
DRIVER = """
from nnhal.drivers.reference import Reference

class Named(Reference):
    name = {!r}

device = Named
"""


class Exit(BaseException):
    """The process ends, with a status."""


class Scripted(Worker):
    """Its items are what each does."""

    begun: list[bool]
    seen: list[Any]

    def begin(self) -> None:
        self.begun = [hasattr(self, "device")]
        self.seen = []

    def run(self, of: Any, items: Sequence[Any]) -> Iterator[Any]:
        self.seen.append((of, threading.current_thread().name, threading.current_thread().daemon))
        for item in items:
            if callable(item):
                item()
            yield Outcome("V1_0/a/b", item if isinstance(item, str) else "passed")


class Ends:
    """A worker in this process, and the other side of what it has."""

    def __init__(self, subject: Subject, kind: type[Worker] = Scripted) -> None:
        self.connection, theirs = Pipe()
        memory = os.memfd_create("board")
        os.ftruncate(memory, StageBoard.FORM.size)
        self.board, board = StageBoard(memory), StageBoard(memory)
        os.close(memory)
        self.connection.send(subject)
        self.worker: Any = kind(theirs, board)
        self.theirs = theirs

    def run(self, *items: Any) -> list[list[Any]]:
        """The messages about a bundle."""
        self.worker._run(Bundle("of", items))
        found = []
        while self.connection.poll():
            found.append(self.connection.recv())
        return found


class Given(Wrapper):
    """The reference, as often as it is asked for. closed: how many of them were."""

    closed: list["Given"]

    def close(self) -> None:
        self.closed.append(self)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What devices are asked for, which were made, which were closed."""
    found = SimpleNamespace(wanted=[], made=[], closed=[])

    def at_level(name: str, level: str = "", **named: Any) -> Any:
        found.wanted.append((name, level, named))
        found.made.append(type("Other", (Given,), {"closed": found.closed})(discovery.cpu()))
        return found.made[-1]

    monkeypatch.setattr(isolation, "at_level", at_level)
    return found


# ----------------------------------------------------------------------------------------------------------- what it runs on


def test_the_device_is_the_one_named_else_that_of_the_first_driver_else_the_cpu(asked: Any, tmp_path: Path) -> None:
    drivers = []
    for name in ("first", "second"):
        drivers.append(str(tmp_path / f"{name}.py"))
        Path(drivers[-1]).write_text(DRIVER.format(name))
    for subject, wanted in (
        (Subject(), "reference"),
        (Subject(device="null"), "null"),
        (Subject(drivers=tuple(drivers)), "first"),
        (Subject(drivers=tuple(drivers), device="second"), "second"),
    ):
        asked.wanted.clear()
        assert Ends(subject).worker.begun == [False]  # before there is a device
        assert asked.wanted == [(wanted, "", {"own_process": False, "options": {}})]


def test_a_level_a_process_and_options_are_asked_for_and_a_devices_own_options_win(asked: Any) -> None:
    options = {"*": {"a": 1, "b": 1}, "reference": {"b": 2, "c": 2}, "other": {"d": 3}}
    Ends(Subject(device="reference", level="1.2", isolate=True, options=options))
    assert asked.wanted == [("reference", "1.2", {"own_process": True, "options": {"a": 1, "b": 2, "c": 2}})]


def test_a_process_of_the_devices_own_is_found_under_its_options() -> None:
    own = object.__new__(ReconnectingDevice)
    assert process_of(own) is own
    under = object.__new__(WithOptions)
    under.inner = own
    assert process_of(under) is own
    assert process_of(discovery.cpu()) is None and process_of(WithOptions(discovery.cpu(), {})) is None


# ------------------------------------------------------------------------------------------------------------- what it says


def test_it_says_that_it_is_ready_and_answers_until_there_is_nothing_more_to_do() -> None:
    ends = Ends(Subject(device="reference"))
    thread = threading.Thread(target=ends.worker.serve)
    thread.start()
    assert ends.connection.recv() == Ready("reference")
    for items in (("passed", "failed"), ("passed",)):
        ends.connection.send(Bundle("what", items))
        came: list[Answer] = []
        while len(came) < len(items):
            came += ends.connection.recv()
        assert came == [Answer(Outcome("V1_0/a/b", verdict), Counter()) for verdict in items]
    ends.connection.close()
    thread.join(30)
    assert not thread.is_alive()
    assert [of for of, *_ in ends.worker.seen] == ["what", "what"]


def test_the_board_has_the_place_of_the_item_and_what_is_asked_for_it() -> None:
    ends = Ends(Subject(device="reference"))
    seen: list[Any] = []

    def item() -> None:
        seen.append(ends.board.read())
        ends.worker.at("run")
        seen.append(ends.board.read())

    for _ in range(2):
        ends.run(item, item, item)
        assert ends.board.read() == (2, "")
    stages = [(0, "run"), (0, ""), (1, "run"), (1, ""), (2, "run")]
    assert seen == [(0, ""), *stages, (2, ""), *stages]


def test_answers_within_20_ms_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10**15]
    ends = Ends(Subject(device="reference"))
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic_ns=lambda: now[0]))

    def after(nanoseconds: int) -> Any:
        return lambda: now.__setitem__(0, now[0] + nanoseconds)

    def counts(*times: int) -> list[int]:
        return [len(message) for message in ends.run(*map(after, times))]

    assert counts(0, TOGETHER_NS, 0) == [3]
    assert counts(0, TOGETHER_NS, 1, TOGETHER_NS, 1, 0) == [3, 2, 1]
    assert counts(TOGETHER_NS + 1, TOGETHER_NS + 1) == [1, 1]  # and nothing behind them


def test_calls_are_told_once_with_the_outcome_that_they_came_before(
    asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = SimpleNamespace(calls=Counter(prepare=2), health=SimpleNamespace(total=0))
    monkeypatch.setattr(worker, "process_of", lambda device: process)
    ends = Ends(Subject())
    ((first, second, third),) = ends.run(
        lambda: process.calls.update(run=1, prepare=1), lambda: None, lambda: process.calls.update(run=3)
    )
    assert [first.calls, second.calls, third.calls] == [Counter(run=1, prepare=1), Counter(), Counter(run=3)]
    assert all(isinstance(each, Answer) for each in (first, second, third))


@pytest.mark.parametrize(
    ("own", "verdict", "deaths", "anew"),
    [
        *(
            (True, "crashed", 0, True),
            (True, "passed", 1, True),
            (True, "crashed", 1, True),
            (True, "failed", 0, False),
        ),
        *((False, "crashed", 0, False), (False, "passed", 0, False)),
    ],
)
def test_a_device_whose_process_died_is_closed_and_made_anew_which_is_told_at_once(
    own: bool, verdict: str, deaths: int, anew: bool, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = SimpleNamespace(calls=Counter(), health=SimpleNamespace(total=deaths)) if own else None
    monkeypatch.setattr(worker, "process_of", lambda device: process)
    ends = Ends(Subject())
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic_ns=lambda: 0))
    (first,) = asked.made
    assert ends.worker.device is first
    messages = ends.run(verdict)
    assert [[answer.outcome.verdict for answer in each] for each in messages] == [[verdict]]
    assert (len(asked.made) == 2, asked.closed == [first], ends.worker.device is asked.made[-1]) == (anew, anew, True)
    if anew:
        assert asked.wanted[0] == asked.wanted[1]
    assert [len(each) for each in ends.run("passed", verdict, "passed")] == (
        [3] if not anew else [1, 1, 1] if deaths else [2, 1]
    )


# -------------------------------------------------------------------------------------------------- what drivers do to it


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(status: int) -> None:
        raise Exit(status)

    monkeypatch.setattr(os, "_exit", leave)


def test_a_copy_that_the_driver_forked_ends_and_answers_nothing(exits: None) -> None:
    ends = Ends(Subject(device="reference"))
    ends.worker._process += 1
    with pytest.raises(Exit) as found:
        ends.run("passed", "passed")
    assert found.value.args == (0,) and not ends.connection.poll()


@pytest.mark.parametrize("act", ["closed", "another"])
def test_a_driver_that_closes_the_connection_ends_the_process_with_the_item_in_hand(
    act: str, exits: None, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = Ends(Subject(device="reference"))
    fd = ends.theirs.fileno()

    def item() -> None:
        ends.worker.at("run")
        kept.append(os.dup(fd))
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, fd)
        os.close(null)
        if act == "closed":
            os.close(fd)

    kept: list[int] = []
    try:
        with pytest.raises(Exit) as found:
            ends.run("passed", item, "passed")
    finally:
        os.dup2(kept[0], fd)
        os.close(kept[0])
    assert found.value.args == (1,) and ends.board.read() == (1, "run")
    said = "the driver closed the suite's descriptor for results\n"
    assert capsys.readouterr().err == said


# ----------------------------------------------------------------------------------------------------- published vectors


def vectors_of(monkeypatch: pytest.MonkeyPatch, selection: Selection, outcome: Outcome) -> Any:
    """A worker for vectors, on an archive of three and a suite that gives this outcome and takes 7 ns."""
    now = [0]

    def run_vector(vector: Any, device: Any, variant: str, way: str, at: Any) -> Outcome:
        now[0] += 7
        at("build")
        return replace(outcome, id=vector.id, variant=variant, reason=way)

    there = [SimpleNamespace(id=f"V1_0/a/{name}") for name in "xyz"]
    monkeypatch.setattr(worker, "read_member", lambda archive, member: iter(there))
    monkeypatch.setattr(worker, "run_vector", run_vector)
    ends = Ends(selection, worker._Vectors)
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic_ns=lambda: now[0]))
    ends.worker._place = 5
    return ends


def test_vectors_run_in_their_order_and_variant_the_way_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    selection = Selection(Path("any"), way="burst", device="reference")
    ends = vectors_of(monkeypatch, selection, Outcome("", "passed"))
    items = [Item("V1_0/a/z", "signed", "ADD"), Item("V1_0/a/x", "", "MUL")]
    found = list(ends.worker.run((Path("V1_0.zip"), "a.json"), items))
    assert [(o.id, o.variant, o.primary, o.reason, o.nanoseconds) for o in found] == [
        ("V1_0/a/z", "signed", "ADD", "burst", 7),
        ("V1_0/a/x", "", "MUL", "burst", 7),
    ]
    assert ends.board.read() == (5, "build")
    with pytest.raises(InvalidArgument, match=r"V1_0/a/w is in index\.json, must also be in V1_0\.zip"):
        list(ends.worker.run((Path("V1_0.zip"), "a.json"), [Item("V1_0/a/w", "", "ADD")]))


@pytest.mark.parametrize(("given", "wanted", "kept"), [((1,), True, (1,)), ((1,), False, ()), ((), False, ())])
def test_outputs_travel_where_they_are_wanted(
    given: tuple[Any, ...], wanted: bool, kept: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = Selection(Path("any"), device="reference", outputs=wanted)
    ends = vectors_of(monkeypatch, selection, Outcome("", "failed", outputs=given))
    (found,) = ends.worker.run((Path("V1_0.zip"), "a.json"), [Item("V1_0/a/x", "", "ADD")])
    assert found.outputs == kept


# ------------------------------------------------------------------------------------------------------------------ checks


def test_drawings_of_the_last_three_operations_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []

    def drawing(operation: str, seed: int, draws: int, drawing: Any) -> Any:
        drawn.append((operation, seed, draws))
        return SimpleNamespace(operation=operation)

    monkeypatch.setattr(gc, "freeze", lambda: None)
    ends = Ends(Validation(device="reference", seed=4, draws=3), checking._Checker)
    monkeypatch.setattr(validate_drawing, "Drawing", drawing)
    first = ends.worker._drawn("A")
    for operation in ("A", "B", "C", "A"):
        ends.worker._drawn(operation)
    assert ends.worker._drawn("A") is first and drawn == [(operation, 4, 3) for operation in "ABC"]
    ends.worker._drawn("D")  # B was used longest ago
    for operation in ("A", "C", "D"):
        ends.worker._drawn(operation)
    assert [operation for operation, *_ in drawn] == ["A", "B", "C", "D"]
    ends.worker._drawn("B")
    assert [operation for operation, *_ in drawn] == ["A", "B", "C", "D", "B"]


def test_a_check_has_the_device_the_drawing_and_the_board_and_tells_what_it_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def look(trial: Any) -> int:
        seen.append((trial.device, trial.operation, trial.isolated))
        with trial.stages.enter("prepare"):
            seen.append((*ends.board.read(), ends.board.type))
        seen.append((*ends.board.read(), ends.board.type))
        trial.found = ("one", "two")
        return 1

    monkeypatch.setattr(gc, "freeze", lambda: None)
    ends = Ends(Validation(device="reference", draws=1), checking._Checker)
    monkeypatch.setitem(CHECKS, "looking", replace(CHECKS["runs"], look=look))
    times = iter((100, 107))
    monkeypatch.setattr(checking, "time", SimpleNamespace(monotonic_ns=lambda: next(times)))
    ends.worker._place = 3
    types = "TENSOR_FLOAT32", "TENSOR_FLOAT16"
    assert list(ends.worker.run("FLOOR", [CheckItem("looking", "FLOOR")])) == [
        CheckOutcome("looking", "FLOOR", "passed", "", "", 7, ("one", "two"), types=dict.fromkeys(types, "passed"))
    ]
    assert seen[::3] == [(ends.worker.device, "FLOOR", False)] * len(types)
    assert seen[1::3] == [(3, "prepare", each) for each in types]
    assert seen[2::3] == [(3, "after prepare", each) for each in types]


def test_the_suite_is_at_work_when_no_thread_asks_the_driver_any_more_and_for_each_result_of_the_reference() -> None:
    stages: list[str] = []
    trial = Trial(Reference(), Drawing("FLOOR", 0, 1), stages.append, isolated=False)
    call, model = trial.calls.drawing.calls[0]
    with trial.stages.enter("run"):
        with trial.stages.enter("run"):
            pass
        trial.calls.wanted(model, arrays_of(call))
    assert stages == ["run", "run", "after run"]
    trial.calls.wanted(model, arrays_of(call))
    assert stages[3:] == ["after run"]


def test_each_call_that_is_drawn_has_its_own_time() -> None:
    drawn: list[None] = []
    drawing = Drawing("FLOOR", 0, 2, lambda: drawn.append(None))
    assert len(drawn) == len(drawing.calls) > 2
    assert len(list(drawing.more(drawing.calls))) == len(drawn) - len(drawing.calls)


# -------------------------------------------------------------------------------------------------------------- processes


@pytest.fixture
def alone(exits: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """This process as if it were one of its own: the connection to it, and what is done to it."""
    done: list[Any] = []
    connection, theirs = Pipe()
    memory = os.memfd_create("board")
    os.ftruncate(memory, StageBoard.FORM.size)
    monkeypatch.setattr(faulthandler, "enable", lambda: done.append("enable"))
    monkeypatch.setattr(faulthandler, "register", lambda number: done.append(("register", number)))
    monkeypatch.setattr(worker, "_libc", SimpleNamespace(prctl=lambda *given: done.append(("prctl", *given))))
    ours = str(os.dup(theirs.fileno()))
    argv = ["-c", ours, str(memory), str(os.getppid())]
    out = SimpleNamespace(flush=lambda: done.append("flush"))
    monkeypatch.setattr(worker, "sys", SimpleNamespace(argv=argv, stdout=out))
    theirs.close()
    yield SimpleNamespace(connection=connection, done=done, argv=argv)
    connection.close()
    os.close(memory)


BEGUN = ["enable", ("register", TELL), ("prctl", 1, signal.SIGKILL)]  # PR_SET_PDEATHSIG is 1


def test_items_run_on_a_thread_of_their_own_and_the_process_ends_when_all_is_done(alone: Any) -> None:
    came: list[Any] = []
    made: list[Any] = []

    class Ending(Scripted):
        def _run(self, task: Bundle) -> None:
            made.append(self)
            super()._run(task)
            came.extend(alone.connection.recv() for _ in range(2))
            alone.connection.close()

    alone.connection.send(Subject(device="reference"))
    alone.connection.send(Bundle("of", ("passed",)))
    with pytest.raises(Exit) as found:
        serve_with(Ending)
    assert found.value.args == (0,) and alone.done == [*BEGUN, "flush"]
    assert came[0] == Ready("reference") and [answer.outcome.verdict for answer in came[1]] == ["passed"]
    assert made[0].seen == [("of", "nnhal-items", True)]


def test_a_process_whose_parent_is_gone_ends_at_once(alone: Any) -> None:
    alone.argv[3] = str(os.getppid() + 1)
    with pytest.raises(Exit) as found:
        serve_with(Scripted)
    assert found.value.args == (1,) and alone.done == BEGUN


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (DeviceUnavailable("no such device"), DeviceUnavailable, "no such device"),
        (InvalidArgument("no such option"), InvalidArgument, "no such option"),
        (ValueError("oops"), OperationFailed, "ValueError: oops"),
    ],
)
def test_what_a_driver_raises_as_it_loads_is_told(error: Exception, kind: Any, said: str, alone: Any) -> None:
    class Failing(Scripted):
        def begin(self) -> None:
            raise error

    alone.connection.send(Subject())
    serve_with(Failing)
    found = alone.connection.recv()
    assert type(found) is kind and said in str(found)


@pytest.mark.parametrize("error", [InvalidArgument("not in the archive"), BrokenPipeError(), ConnectionResetError()])
def test_an_error_of_the_work_itself_is_told_and_a_pool_that_is_gone_is_no_error(error: Exception, alone: Any) -> None:
    class Failing(Scripted):
        def _run(self, task: Bundle) -> None:
            raise error

    alone.connection.send(Subject(device="reference"))
    alone.connection.send(Bundle("of", ("passed",)))
    with pytest.raises(Exit):
        serve_with(Failing)
    assert alone.connection.recv() == Ready("reference")
    if isinstance(error, InvalidArgument):
        found = alone.connection.recv()
        assert type(found) is InvalidArgument and str(found) == "not in the archive"
    else:
        assert not alone.connection.poll()


def test_there_is_a_program_for_vectors_and_one_for_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr(worker, "serve_with", served.append)
    monkeypatch.setattr(checking, "serve_with", served.append)
    worker.main()
    checking.main()
    assert served == [worker._Vectors, checking._Checker]
