"""A hostile driver's process against its client: every answer and notification of the table in `hostile_driver`."""

import gc
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import Cancelled, DriverFailed, NnhalError, OutputInsufficientSize
from nnhal.base.memory import Memory
from nnhal.frontends.python import Builder
from nnhal.hal.answers import (
    allocated_by,
    cache_files_by,
    checked_info,
    checked_memory_use,
    checked_status,
    driver_capabilities,
    fenced_by,
)
from nnhal.hal.cache.files import Cache
from nnhal.hal.chain import checked_burst, checked_prepared
from nnhal.hal.claims import consider_support, query_verdicts
from nnhal.hal.device import Hints, Prepared, Verdict, identity_of
from nnhal.hal.fence import fence_pair
from nnhal.hal.memory import BufferDesc, BufferRole
from nnhal.hal.request import UNLIMITED, Control, Request
from nnhal.hal.wrappers import Wrapper
from nnhal.ipc.client import session as client_session
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.process import start
from nnhal.ipc.client.session import Session
from nnhal.ipc.protocol import wire
from nnhal.model.graph import Model
from nnhal.model.parts import outline
from nnhal.runtime.tracing.perfetto import read
from tests import requests
from tests.faults.hostile_driver import ANSWERS, CASES, NEVER, Case
from tests.faults.support import LIMIT, X
from tests.models import doubling
from tests.waiting import Opened, Started, until

PATIENCE_NS = 200_000_000
MANY = 70  # memories, more than go with one message
Operation = Callable[[RemoteDevice, Control], bool]  # whether the results are right


def prepared(device: RemoteDevice, control: Control, model: Model | None = None) -> Prepared:
    return checked_prepared(device, model or doubling(64), Hints(deadline=control.deadline))


def right(model: Prepared, control: Control = UNLIMITED, x: np.ndarray = X, *, room: bool = True) -> bool:
    return taken(requests.run(model, [x], control, [np.full_like(x, np.nan)] if room else None), x)


def taken(request: Request, x: np.ndarray = X) -> bool:
    """Whether the results are right, as far as their shape goes where the model leaves that to the driver."""
    if request.small:  # as the runtime tells its caller
        raise OutputInsufficientSize("output: its room is said to be too small", request.shapes)
    expected = (x + x).tobytes()
    if request.signature.outputs[0].fixed is None:
        expected = expected[: request.results[0].nbytes]
    return bool(request.results[0].tobytes() == expected)


def executes(device: RemoteDevice, control: Control) -> bool:
    identity_of(device)
    driver_capabilities(device)
    model = prepared(device, control)
    return right(model, control) and right(model)


class Asked(Wrapper):
    """By `supports` alone."""

    def supports(self, model: Model) -> list[Verdict]:
        return list(self.inner.supports(model))


def asks(device: RemoteDevice, control: Control) -> bool:
    checked_status(device)
    return len(query_verdicts(Asked(device), doubling(64))) == 1 and executes(device, control)


def considers(device: RemoteDevice, control: Control) -> bool:
    model, hints = doubling(64), Hints(deadline=control.deadline)
    claims = consider_support(device, model, hints)
    return right(checked_prepared(device, model, claims.hints(hints)), control) and executes(device, control)


def sees_usage(device: RemoteDevice, control: Control) -> bool:
    device.session.call(wire.GetUsage(), wire.Usage, Control(control.deadline))
    return executes(device, control)


def measures(device: RemoteDevice, control: Control) -> bool:
    return right(prepared(device, control), Control(measure=True))


def provided(size: int) -> Operation:
    def operation(device: RemoteDevice, control: Control) -> bool:
        b = Builder()
        x = b.input((0,))
        model, given = prepared(device, control, b.finish([x], [b.add(x, x)])), np.arange(size, dtype=np.float32)
        return right(model, x=given, room=False) and right(model, x=given)

    return operation


def holds(device: RemoteDevice, control: Control) -> bool:
    b = Builder()
    given = [b.input((1,)) for _ in range(MANY)]
    total = given[0]
    for x in given[1:]:
        total = b.add(total, x)
    model = prepared(device, control, b.finish(given, [total]))
    inputs = [Memory.from_array(np.float32([n])).view(0, 4, np.float32, (1,)) for n in range(MANY)]
    return bool(requests.run(model, inputs, rooms=[np.zeros(1, np.float32)]).results[0][0] == MANY * (MANY - 1) / 2)


def in_the_background(device: RemoteDevice, control: Control) -> bool:
    model = prepared(device, control)
    request, came = model.request([X], [np.full_like(X, np.nan)]), list[NnhalError | None]()
    there = threading.Event()

    def notify(error: NnhalError | None, _: object) -> None:
        came.append(error)
        there.set()

    model.execute(request, control, notify)
    assert there.wait(LIMIT), "no notification"
    assert len(came) == 1
    if came[0] is not None:
        raise came[0]
    return taken(request) and right(model)


def fenced(device: RemoteDevice, control: Control) -> bool:
    model = prepared(device, control)
    request = model.request([X], [np.full_like(X, np.nan)])
    execution = fenced_by(model, "peer", request, Control(control.deadline, measure=True), [])
    if execution.fence is not None:
        execution.fence.wait(PATIENCE_NS / 1e9)
    else:
        until(lambda: "not ended" not in str(_tried(lambda: checked_info(execution, "peer"))), "the end")
    checked_info(execution, "peer")
    return taken(request) and right(model)


def cancels(device: RemoteDevice, control: Control) -> bool:
    """A fenced execution that nobody wants any more, behind a fence that is never signalled."""
    model, unwanted = prepared(device, control), threading.Event()
    request, (waited, signal) = model.request([X], [np.full_like(X, np.nan)]), fence_pair()
    execution = fenced_by(model, "peer", request, Control(cancelled=unwanted), [waited])
    unwanted.set()
    until(lambda: "not ended" not in str(_tried(lambda: checked_info(execution, "peer"))), "the end")
    with pytest.raises(Cancelled):
        checked_info(execution, "peer")
    signal.set()
    return right(model)


def _tried(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except NnhalError as error:
        return error


def bursts(measure: bool) -> Operation:
    def operation(device: RemoteDevice, control: Control) -> bool:
        with checked_burst(prepared(device, control), "peer") as burst:
            for n in range(3):
                x = X + np.float32(n)
                request = burst._prepared.request([x], [np.full_like(x, np.nan)])  # type: ignore[attr-defined]
                request.execute(burst.run, Control(measure=measure))
                if not taken(request, x):
                    return False
        return True

    return operation


def copies(device: RemoteDevice, control: Control) -> bool:
    model = prepared(device, control)
    buffer = allocated_by(device, BufferDesc(), [BufferRole(model, 0)])
    try:
        buffer.copy_from(Memory.from_array(X), (64,))
        room = Memory.allocate(256)
        buffer.copy_to(room)
        if room.bytes().tobytes() != X.tobytes() or buffer.shape not in ((64,), None):
            return False
        request = model.request([None], [np.full_like(X, np.nan)], input_buffers={0: buffer})
        request.execute(model.run, Control())
        return taken(request)
    finally:
        buffer.close()


def tells_memory(device: RemoteDevice, control: Control) -> bool:
    model = prepared(device, control)
    use = checked_memory_use(model, "peer")
    return all(size is None or 0 <= size < 2**63 for size in use) and right(model)


def reconfigures(device: RemoteDevice, control: Control) -> bool:
    model = prepared(device, control)
    model.reconfigure({"gain": 1})
    return right(model)


def keeps(device: RemoteDevice, control: Control) -> bool:
    """Prepared, saved, and restored."""
    whole = doubling(64)
    if not cache_files_by(device):  # it may say so
        return right(prepared(device, control, whole))
    with tempfile.TemporaryFile(buffering=0) as file:
        hints = Hints(deadline=control.deadline, cache=Cache(bytes(32), (file.fileno(),)))
        saved = checked_prepared(device, whole, hints)
        restored = checked_prepared(device, outline(whole), hints, restore=True)
    return right(saved) and right(restored)


def traces(device: RemoteDevice, control: Control) -> bool:
    """A trace, and its file."""
    with tempfile.TemporaryDirectory() as folder:
        with nnhal.trace(Path(folder, "trace")):
            done = right(prepared(device, control))
        assert read(Path(folder, "trace").read_bytes(), "trace").spans
    return done


OPERATIONS: dict[str, Operation] = {
    "WriteTrace": traces,
    "GetNumberOfCacheFiles": keeps,
    "HoldFiles": keeps,
    "PrepareModelFromCache": keeps,
    "Hold": holds,
    "GetStatus": asks,
    "GetUsage": sees_usage,
    "GetSupportedOperations": asks,
    "Consider": considers,
    "PrepareConsidered": considers,
    "ExecuteSynchronously measured": measures,
    "ExecuteSynchronously provided": provided(64),
    "ExecuteSynchronously provided by memory": provided(20000),
    "Execute": in_the_background,
    "NotifyExecuted": in_the_background,
    "ExecuteFenced": fenced,
    "GetExecutionInfo": fenced,
    "ConfigureExecutionBurst": bursts(False),
    "PACKET": bursts(False),
    "PACKET measured": bursts(True),
    "Cancel": cancels,
    "Allocate": copies,
    "CopyTo": copies,
    "CopyFrom": copies,
    "GetShape": copies,
    "GetMemoryUse": tells_memory,
    "Reconfigure": reconfigures,
}


class Drivers:
    """Processes of hostile drivers, one for each case, and another device whose results must stay what they are."""

    def __init__(self, orders: socket.socket, other: RemoteDevice) -> None:
        self._orders, self._other = orders, checked_prepared(other, doubling(64), Hints())

    def strike(self, case: Case) -> None:
        """One case, from the connection to what is left of it."""
        opened, started, others = Opened(), Started(), weakref.WeakSet(client_session._sessions)
        outcome: list[Any] = []
        thread = threading.Thread(target=lambda: outcome.append(self._outcome(case)), name="case", daemon=True)
        thread.start()
        thread.join(LIMIT)
        if not outcome:
            stack = traceback.format_stack(sys._current_frames()[thread.ident or 0])
            raise AssertionError("the client hangs:\n" + "".join(stack[-4:]))
        result = outcome[0]
        if isinstance(result, BaseException):
            assert isinstance(result, NnhalError) and not isinstance(result, DriverFailed), f"{type(result)}: {result}"
            assert str(result)
        else:
            assert result is True, "a wrong result"
            assert not case.wrong, "nobody found it out"
        del result
        outcome.clear()
        assert right(self._other)
        until(lambda: gc.collect() >= 0 and others.issuperset(client_session._sessions), "sessions end")
        started.ended()
        opened.closed()

    def _outcome(self, case: Case) -> Any:
        """Whether the results were right, or the error."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        struck = os.eventfd(0, os.EFD_NONBLOCK)
        try:
            with theirs:
                socket.send_fds(self._orders, [case.name.encode()], [theirs.fileno(), struck])
            late = case.how == NEVER
            with pytest.MonkeyPatch.context() as patch:
                if late:
                    patch.setattr(client_session, "QUERY_NS", 4 * PATIENCE_NS)
                    patch.setattr(client_session, "GREETING_NS", 4 * PATIENCE_NS)
                control = Control(time.monotonic_ns() + 4 * PATIENCE_NS) if late else Control()
                result = self._operated(case, ours, control)
            if late and not _count(struck):  # the machine was too busy to come so far by the deadline
                return self._outcome(case)
            if not late:
                until(lambda: _count(struck) == 1, "the strike itself")
            return result
        except Exception as error:
            return error
        finally:
            os.close(struck)

    def _operated(self, case: Case, sock: socket.socket, control: Control) -> Any:
        try:
            session = Session(sock, "peer")
        except Exception as error:
            return error.with_traceback(None)
        try:
            return OPERATIONS.get(case.answer, executes)(RemoteDevice(session), control)
        except Exception as error:
            return error.with_traceback(None)
        finally:
            session.close()


def _count(fd: int) -> int:
    try:
        return os.eventfd_read(fd)
    except BlockingIOError:
        return 0


@pytest.fixture(scope="module")
def drivers(runtime_directory: Path) -> Iterator[Drivers]:
    """Forks a process for each case; short waits for what never comes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.faults.hostile_driver", str(theirs.fileno())]
    other = RemoteDevice(start("reference"))
    with ours, theirs, subprocess.Popen(command, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        try:
            assert ours.recv(16) == b"ready"
            yield Drivers(ours, other)
        finally:
            ours.close()
            other.close()
            assert process.wait(LIMIT) == 0


def test_the_table_has_every_answer_and_notification_and_more_than_200_cases() -> None:
    assert len(CASES) > 200
    rights = {type(right) for _, right, _ in ANSWERS.values() if right is not None}
    assert rights | {wire.Failed} == {*get_args(wire.Replies), *get_args(wire.ServiceCalls)}
    asked = {kind for kind, _, _ in ANSWERS.values()} - {type(None)}
    assert asked == {*get_args(wire.ClientCalls), *get_args(wire.ServiceCalls)}


def strike_all(drivers: Drivers, cases: list[Case]) -> None:
    """One case after the other; every one that fails is named."""
    failures = []
    for case in cases:
        try:
            drivers.strike(case)
        except Exception as error:
            failures.append(f"{case.name}: {type(error).__name__}: {str(error)[:900]}")
            del error
    assert not failures, f"{len(failures)} of {len(cases)}:\n" + "\n".join(failures)


MARKED = [pytest.param(answer, marks=[pytest.mark.cache] * (OPERATIONS.get(answer) is keeps)) for answer in ANSWERS]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("answer", MARKED)
def test_an_answer_in_another_way_gives_a_right_result_or_an_error_with_a_name(drivers: Drivers, answer: str) -> None:
    """Another message, other descriptors, twice, never, split, by memory, with the hang-up or death of its sender."""
    strike_all(drivers, [case for case in CASES.values() if case.answer == answer and not case.field])


@pytest.mark.nightly
@pytest.mark.parametrize("answer", MARKED)
def test_an_answer_with_a_broken_field_gives_a_right_result_or_an_error_with_a_name(
    drivers: Drivers, answer: str
) -> None:
    strike_all(drivers, [case for case in CASES.values() if case.answer == answer and case.field])
