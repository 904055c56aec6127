"""Bursts of HAL drivers (`configureExecutionBurst` of 1.2). A new one replaces a burst with an abandoned execution."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

from nnhal.base.answers import close_quietly
from nnhal.base.errors import NnhalError, OperationFailed
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.hal.burst import BurstExecutor
from nnhal.hal.hidl.arguments import PlacedRequest
from nnhal.hal.hidl.calls import LIMIT, Calls, wait_for_callback
from nnhal.hal.hidl.interfaces import newest_method
from nnhal.hal.hidl.packets import BurstRequest, Memories, PacketQueue
from nnhal.hal.request import Control, Request, Run, Timing

METHOD = "configureExecutionBurst"
Call = Callable[[PlacedRequest, Control], Any]  # one execution; returns the driver's answer
_log = logger("driver")


class HalBurst:
    """A burst that a driver has configured.

    An abandoned execution ends it, because its result may still come; the next execution opens another burst. plain:
    executes if the driver does not open another one.
    """

    def __init__(self, calls: Calls, prepared: object, plain: Call) -> None:
        """Configure the burst; raises the error if the driver refuses."""
        self._calls, self._prepared, self._plain, self._slots = calls, prepared, plain, count()
        self._where = f"driver {calls.device}: {METHOD}"
        self._open()

    def _open(self) -> None:
        self._requests, self._results, self._memories = PacketQueue(), PacketQueue(), Memories()
        (self._context,) = self._calls.answer(self._prepared, METHOD, 1, self._memories, self._requests, self._results)
        if not callable(getattr(self._context, "freeMemory", None)):
            raise OperationFailed(f"{self._where} gave {type(self._context).__name__}, must give a context: freeMemory")

    def exchange(self, laid: PlacedRequest, control: Control) -> Any:
        """Execute one request, and return the driver's answer."""
        if self._requests.closed:
            try:
                self._open()
            except NnhalError as error:
                self.close()
                _log.info("%s: no burst any more, a plain execution instead: %s", self._where, error)
                return self._plain(laid, control)
        request = laid.request
        slots = tuple(next(self._slots) for _ in request.pools)
        self._memories.known = dict(zip(slots, request.pools, strict=True))
        try:
            self._requests.writeBlocking(BurstRequest(control.measure, request.inputs, request.outputs, slots))
            return self._answer(control)
        except BaseException:
            self.close()
            raise
        finally:
            self._memories.known = {}
            for slot in slots:
                close_quietly(self._where, "freeMemory()", partial(self._context.freeMemory, slot))

    def _answer(self, control: Control) -> Any:
        seconds = wait_for_callback()
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            patience = control.patience()
            result = self._results.readBlocking(left if patience is None else min(left, patience))
            if result is not None:
                return result
            control.check()
        raise OperationFailed(
            f"{self._where}: no result came within {seconds:g} s, must, once ({LIMIT} sets the limit)"
        )

    def close(self) -> None:
        """End it: the driver reads None."""
        self._requests.close()
        self._results.close()

    def __del__(self) -> None:
        if hasattr(self, "_results"):
            self.close()


def burst_of(calls: Calls, prepared: object, plain: Call) -> HalBurst | None:
    """Return a burst of a driver's prepared model; None if its HAL version has none, or the driver refuses."""
    if newest_method(prepared, METHOD, calls.level) is None:
        return None
    try:
        return HalBurst(calls, prepared, plain)
    except NnhalError as error:
        _log.info("driver %s: no burst, plain executions instead: %s", calls.device, error)
        return None


class HalExecutor(BurstExecutor):
    """A driver's burst for executions from another process. Its slots differ from the client's, and last one execution."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def add(self, slot: int, memory: Memory) -> None:
        """Do nothing."""

    def remove(self, slot: int) -> None:
        """Do nothing."""

    def execute(self, request: Request, slots: Sequence[int], control: Control) -> Timing | None:
        """Execute through the driver's burst."""
        return self._run(request, control)
