"""The ways to execute on a driver: plain calls, bursts, fences, driver memory, callbacks.

None has a time limit: the caller ends hanging processes.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from nnhal.base.errors import ContractBroken, NnhalError
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.base.operands import Array, is_tensor
from nnhal.hal.answers import allocated_by
from nnhal.hal.device import Device, Prepared
from nnhal.hal.fence import fence_pair
from nnhal.hal.host import contents_of, run_resolved
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole
from nnhal.hal.prepared import unwrapped
from nnhal.hal.request import Control, Request
from nnhal.hal.wrappers import Wrapper
from nnhal.ipc.client.process import ReconnectingModel
from nnhal.runtime import discovery

SYNC = "NNHAL_SYNC_EXEC"  # 0: HAL objects are executed with callbacks, even if they have executeSynchronously
NOT_USED = {"fenced": "executeFenced", "memory": "allocate"}  # methods of HAL objects that nnhal does not call
Way = Callable[[Device, Prepared, Request, Control], None]


def close_and_wait(prepared: Prepared) -> None:
    """Close, and return after the driver's own `close`, also in another process."""
    if isinstance(inner := unwrapped(prepared), ReconnectingModel) and inner.alive:
        inner.end()
    else:
        prepared.close()


def plain(_: Device, prepared: Prepared, request: Request, control: Control) -> None:
    """Execute with one call that waits."""
    request.execute(partial(run_resolved, prepared), control)


def burst(_: Device, prepared: Prepared, request: Request, control: Control) -> None:
    """Execute twice in one burst: the second time, whose results count, uses the burst's cache."""
    with prepared.burst() as series:
        request.inside(request.given, request.rooms).execute(series.run, control)
        request.execute(series.run, control)


def fenced(_: Device, prepared: Prepared, request: Request, control: Control) -> None:
    """Execute after a fence that is signalled after the launch."""
    ready, signal = fence_pair()
    execution = prepared.execute_fenced(request, control, [ready])
    signal.set()
    if execution.fence is not None:
        try:
            execution.fence.wait()
        except NnhalError:
            execution.get_execution_info()  # it raises the reason itself
            raise
    execution.get_execution_info()


def callback(_: Device, prepared: Prepared, request: Request, control: Control) -> None:
    """Execute with a callback that must come exactly once.

    A HAL object prepared inside `by_callbacks` uses its own callback too.
    """
    came: list[NnhalError | None] = []
    done = threading.Event()

    def notify(error: NnhalError | None, timing: object) -> None:
        came.append(error)
        done.set()

    prepared.execute(request, control, notify)
    done.wait()
    if len(came) > 1:
        raise ContractBroken(f"callback: came {len(came)} times, must come once")
    if came[0] is not None:
        raise came[0]


def memory(device: Device, prepared: Prepared, request: Request, control: Control) -> None:
    """Execute with every tensor input and output in memory that the driver allocates."""
    main = prepared.model.main
    given: dict[int, Buffer] = {}
    taken: dict[int, Buffer] = {}
    arrays: list[Array | None] = list(request.given)
    rooms: list[Array | None] = list(request.rooms or [None] * len(request.shapes))
    for n, array in enumerate(arrays):
        if array is not None and array.size and is_tensor(main.operands[main.inputs[n]].type):
            given[n] = allocated_by(device, BufferDesc(array.shape), [BufferRole(prepared, n)])
            given[n].copy_from(Memory.from_array(array), array.shape)
            arrays[n] = None
    for n, array in enumerate(rooms):
        if array is not None and array.size:
            taken[n] = allocated_by(device, BufferDesc(array.shape), [BufferRole(prepared, n, output=True)])
            rooms[n] = None
    inner = request.inside(arrays, rooms, input_buffers=given, output_buffers=taken)
    inner.execute(partial(run_resolved, prepared), control)
    request.adopt(inner)
    for n, buffer in taken.items():
        if buffer.shape is None:
            raise ContractBroken(f"driver memory of output {n} has no contents after the execution")
        request.results[n] = contents_of(buffer)
    for buffer in (*given.values(), *taken.values()):
        buffer.close()


WAYS: dict[str, Way] = {"plain": plain, "burst": burst, "fenced": fenced, "memory": memory, "callback": callback}


def not_used(device: Device, way: str) -> str:
    """Return why a way to execute does not test a driver; "" if it does.

    nnhal never calls executeFenced and allocate of a HAL object: it does both itself.
    """
    from nnhal.hal.hidl.adapters import Adapted

    method = NOT_USED.get(way)
    here = discovery.registered(device.name) or device  # of an isolated device: one that was loaded here, too
    while isinstance(here, Wrapper):
        here = here.inner
    if method is None or not isinstance(here, Adapted):
        return ""
    return f"nnhal does not call {method} of HAL objects: it does that itself"


@contextmanager
def by_callbacks() -> Iterator[list[str]]:
    """Make HAL objects that prepare inside execute with callbacks. Yields warnings of repeated or late notifications.

    An isolated driver logs in its own process, so its warnings are not seen.
    """
    heard: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if "notified again or too late" in text:
                heard.append(text)

    ear, log, before = Ear(), logger("driver"), os.environ.get(SYNC)
    level = log.level
    log.addHandler(ear)
    log.setLevel(logging.WARNING)
    os.environ[SYNC] = "0"
    try:
        yield heard
    finally:
        log.removeHandler(ear)
        log.setLevel(level)
        os.environ.pop(SYNC)
        if before is not None:
            os.environ[SYNC] = before
