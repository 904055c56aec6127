"""The death of a driver's process: every method answers DEAD_OBJECT, and a new process works."""

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import Closed, DeadObject, NnhalError, UnsupportedModel
from nnhal.base.levels import V1_2, V1_3
from nnhal.base.memory import Memory
from nnhal.conformance.differential import Outputs, arrays_of
from nnhal.conformance.draw import Call
from nnhal.conformance.suites.vts.promise import DRIVER, Look, Probe, chosen, named, promise
from nnhal.conformance.suites.vts.remote import opened, prepared_on
from nnhal.conformance.validate.trial import PLAIN, NotAsked, RequirementNotMet
from nnhal.hal.answers import fenced_by
from nnhal.hal.background import FencedExecution
from nnhal.hal.burst import Burst
from nnhal.hal.fence import fence_pair
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole
from nnhal.hal.request import UNLIMITED, Control, Request
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.prepared import RemotePrepared
from nnhal.model.graph import Model

WAIT = 20.0  # seconds for an answer after the death
AGAIN, IN_BURST = "a second time", "run-in-burst"


class _Doomed(NamedTuple):
    """A client's objects in a driver's process that ends."""

    probe: Probe
    device: RemoteDevice
    call: Call
    model: Model
    wanted: Outputs
    prepared: RemotePrepared

    def request(self) -> Request:
        """Return a request for one execution, with memory for its outputs."""
        return self.probe.with_rooms(self.prepared, self.call)

    def buffer(self, *, filled: bool = False) -> Buffer:
        """Return driver memory for the first input."""
        array = arrays_of(self.call)[0]
        buffer = self.device.allocate(BufferDesc(array.shape), [BufferRole(self.prepared, 0)])
        if filled:
            buffer.copy_from(Memory.from_array(array), array.shape)
        return buffer

    def die(self) -> None:
        """End the process, and wait until the kernel has ended it."""
        watch = os.pidfd_open(self.device.session.welcome.pid)
        try:
            signal.pidfd_send_signal(watch, signal.SIGKILL)
            poll = select.poll()
            poll.register(watch, select.POLLIN)
            if not poll.poll(WAIT * 1000):
                raise NotAsked(f"the driver's process has not ended within {WAIT:g} s of SIGKILL")
        finally:
            os.close(watch)


@contextmanager
def _doomed(probe: Probe) -> Iterator[_Doomed]:
    each = next(chosen(probe))
    call, model = each.closed()
    each.tries(call)
    wanted = each.alone(model, arrays_of(call))
    with opened(each) as device:
        prepared = prepared_on(device, model)
        yield _Doomed(each, device, call, model, wanted, prepared)


Held = Any
Method = tuple[str, Callable[[_Doomed], Held], Callable[[_Doomed, Held], object]]


def _nothing(_: _Doomed) -> None:
    pass


def _burst(doomed: _Doomed) -> Burst:
    doomed.probe.since(V1_2, "bursts")
    series = doomed.prepared.burst()
    doomed.request().execute(series.run, UNLIMITED)
    return series


def _buffer(doomed: _Doomed) -> Buffer:
    doomed.probe.since(V1_3, "driver memory")
    return doomed.buffer(filled=True)


def _callback(doomed: _Doomed, _: Held) -> None:
    came: list[NnhalError | None] = []
    done = threading.Event()

    def notify(error: NnhalError | None, timing: object) -> None:
        came.append(error)
        done.set()

    doomed.prepared.execute(doomed.request(), UNLIMITED, notify)
    if not done.wait(WAIT):
        raise RequirementNotMet(f"execute() has not notified within {WAIT:g} s after the death of its process")
    if came[0] is not None:
        raise came[0]


def _array(doomed: _Doomed) -> Any:
    return arrays_of(doomed.call)[0]


METHODS: tuple[Method, ...] = (
    ("status", _nothing, lambda d, _: d.device.status()),
    ("supports", _nothing, lambda d, _: d.device.supports(d.model)),
    ("consider", _nothing, lambda d, _: d.device.consider(d.model, PLAIN)),
    ("number_of_cache_files", _nothing, lambda d, _: d.device.number_of_cache_files()),
    ("prepare", _nothing, lambda d, _: d.device.prepare(d.model, PLAIN)),
    ("run", _nothing, lambda d, _: d.request().execute(d.prepared.run, UNLIMITED)),
    ("run-measured", _nothing, lambda d, _: d.request().execute(d.prepared.run, Control(measure=True))),
    ("execute", _nothing, _callback),
    ("memory", _nothing, lambda d, _: d.prepared.memory()),
    ("reconfigure", _nothing, lambda d, _: d.prepared.reconfigure({})),
    ("burst", _nothing, lambda d, _: d.prepared.burst().run(d.request(), UNLIMITED)),
    (IN_BURST, _burst, lambda d, burst: d.request().execute(burst.run, UNLIMITED)),
    ("allocate", lambda d: d.probe.since(V1_3, "driver memory"), lambda d, _: d.buffer()),
    ("copy_from", _buffer, lambda d, buffer: buffer.copy_from(Memory.from_array(_array(d)), _array(d).shape)),
    ("copy_to", _buffer, lambda d, buffer: buffer.copy_to(Memory.allocate(_array(d).nbytes, "nnhal-vts"))),
)


def _dead(name: str, hold: Callable[[_Doomed], Held], act: Callable[[_Doomed, Held], object]) -> Look:
    """Return a look at one method of a process that has ended."""

    def look(probe: Probe) -> int:
        with _doomed(probe) as doomed:
            with probe.stages.enter("prepare"):
                held = hold(doomed)
            doomed.die()
            for when in ("after the death of its process", AGAIN):
                try:
                    act(doomed, held)
                except DeadObject:
                    continue
                except Closed as error:
                    if when == AGAIN and name == IN_BURST:  # a burst ends with its process
                        continue
                    raise RequirementNotMet(f"{name}() {when}: {named(error)}, must be DeadObject") from error
                except UnsupportedModel as why:
                    raise NotAsked(str(why)) from why
                except NnhalError as error:
                    raise RequirementNotMet(f"{name}() {when}: {named(error)}, must be DeadObject") from error
                raise RequirementNotMet(f"{name}() {when} succeeds, must be DeadObject")
            doomed.prepared.close()
        return 2

    return look


for _name, _hold, _act in METHODS:
    promise(
        f"death/{_name}",
        "After the death of a driver's process, every method is DEAD_OBJECT.",
        DRIVER,
        isolated=True,
    )(_dead(_name, _hold, _act))


@promise(
    "death/fence",
    "The fence of an execution whose process dies signals DEAD_OBJECT, and so does its execution info.",
    DRIVER,
    isolated=True,
)
def fence(probe: Probe) -> int:
    probe.since(V1_3, "fenced executions")
    with _doomed(probe) as doomed:
        ready, signal_ = fence_pair()
        with probe.stages.enter("execute_fenced"):
            launched: FencedExecution = fenced_by(doomed.prepared, probe.where, doomed.request(), UNLIMITED, [ready])
        doomed.die()
        if launched.fence is None:
            raise RequirementNotMet("has ended before its fence was signalled")
        try:
            launched.fence.wait(WAIT)
        except DeadObject:
            pass
        except NnhalError as error:
            raise RequirementNotMet(
                f"the fence after the death of its process: {named(error)}, must be DeadObject"
            ) from error
        else:
            raise RequirementNotMet("the fence signals NONE after the death of its process, must be DEAD_OBJECT")
        if launched.fence.status() != ErrorStatus.DEAD_OBJECT:
            raise RequirementNotMet(f"the fence signals {launched.fence.status()}, must be DEAD_OBJECT")
        try:
            launched.get_execution_info()
        except NnhalError:
            pass
        else:
            raise RequirementNotMet("execution info is given after the death of its process, must be an error")
        signal_.set()
    return 3


@promise(
    "death/others",
    "The death of one process of a driver leaves the others as they were, and a new one works.",
    DRIVER,
    isolated=True,
)
def others(probe: Probe) -> int:
    with _doomed(probe) as living, _doomed(probe) as doomed:
        doomed.die()
        request = living.request()
        with probe.stages.enter("run"):
            request.execute(living.prepared.run, UNLIMITED)
        living.probe.same(living.call, living.wanted, request.results, "beside a process that died")
        living.prepared.close()
    with _doomed(probe) as other:
        request = other.request()
        with probe.stages.enter("run"):
            request.execute(other.prepared.run, UNLIMITED)
        other.probe.same(other.call, other.wanted, request.results, "in a new process after the death of another")
        other.prepared.close()
    return 2
