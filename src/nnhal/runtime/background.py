"""Executions that are waited for: with a callback, and no longer than their deadline."""

import threading
from functools import partial

import numpy as np

from nnhal.base.errors import NnhalError
from nnhal.base.log import logger
from nnhal.base.operands import Array
from nnhal.hal.calls import Callback
from nnhal.hal.device import Prepared
from nnhal.hal.fenced import asynchronous, run_in_background
from nnhal.hal.request import Control, Request, Timing

_log = logger("execution")


class Background:
    """Executions of one prepared model in the background.

    A driver may go on past its deadline: then it writes to arrays of its own, and the model is closed when it has ended.
    """

    def __init__(self, prepared: Prepared, device: str) -> None:
        self._prepared, self._where = prepared, f"device {device}: execute"
        # A deadline is no reason to have a driver launch: one in another process ends a call in time by itself.
        self._launch = prepared.execute if asynchronous() else partial(run_in_background, prepared)
        self._lock, self._running, self._closing = threading.Lock(), 0, False

    def run(self, request: Request, control: Control) -> Timing | None:
        """As `Prepared.run`; MissedDeadline and Cancelled when it is time, whatever the driver does."""
        control.check()
        bounded = control.deadline is not None or control.cancelled is not None
        inner = _apart(request) if bounded else request
        callback = Callback(self._where)
        ended = threading.Lock()

        def notify(error: NnhalError | None, timing: Timing | None) -> None:
            callback.notify(error, timing)
            if ended.acquire(blocking=False):
                self._left()

        with self._lock:
            self._running += 1
        try:
            self._launch(inner, control, notify)
        except BaseException:
            callback.close()
            if ended.acquire(blocking=False):
                self._left()
            raise
        error, timing = callback.wait(control.deadline, control.cancelled)
        if error is not None:
            raise error
        if bounded:
            _take(request, inner)
        return timing

    def _left(self) -> None:
        with self._lock:
            self._running -= 1
            last = self._closing and not self._running
        if last:
            _log.info("%s: ended long after its deadline; its model is closed now", self._where)
            self._prepared.close()

    def close(self) -> None:
        """Close the prepared model, at once or when what still runs in it has ended."""
        with self._lock:
            self._closing = True
            if self._running:
                return
        self._prepared.close()


def _apart(request: Request) -> Request:
    """The request with arrays of its own to write to."""
    outputs: list[Array | None] = [None if x is None else np.empty(x.shape, x.dtype) for x in request.outputs]
    return Request(request.inputs, outputs, input_buffers=request.input_buffers, output_buffers=request.output_buffers)


def _take(request: Request, inner: Request) -> None:
    """What an execution wrote to arrays of its own."""
    request.shapes[:], request.sufficient[:] = inner.shapes, inner.sufficient
    for index, (target, source) in enumerate(zip(request.outputs, inner.outputs, strict=True)):
        if target is None:
            request.outputs[index] = source
        elif source is not None and (index >= len(inner.sufficient) or inner.sufficient[index]):
            np.copyto(target, source)
