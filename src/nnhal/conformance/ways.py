"""The ways in which a driver can be made to execute: plain calls, bursts, fences, driver memory, callbacks."""

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from nnhal.base.errors import NnhalError, OperationFailed
from nnhal.base.memory import Memory
from nnhal.base.operands import Array, dtype_of, is_tensor
from nnhal.hal.buffers import Buffer, BufferDesc, BufferRole, run_resolved
from nnhal.hal.device import Device, Prepared
from nnhal.hal.request import Control, Request

WAIT = 60.0  # seconds until an execution in the background counts as lost
Way = Callable[[Device, Prepared, Request, Control], None]


def plain(_: Device, prepared: Prepared, request: Request, control: Control) -> None:
    """One call that waits."""
    run_resolved(prepared, request, control)


def burst(_: Device, prepared: Prepared, request: Request, control: Control) -> None:
    """Twice in one burst: the second time, whose results count, what the burst keeps is used."""
    with prepared.burst() as series:
        outputs = [None if x is None else x.copy() for x in request.outputs]
        series.run(replace(request, outputs=outputs, shapes=[], sufficient=[]), control)
        series.run(request, control)


def fenced(_: Device, prepared: Prepared, request: Request, control: Control) -> None:
    """Behind a fence that is signalled after the launch."""
    from nnhal.hal.fence import fence_pair

    ready, signal = fence_pair()
    execution = prepared.execute_fenced(request, control, [ready])
    signal.set()
    if execution.fence is not None:
        try:
            execution.fence.wait(WAIT)
        except NnhalError:
            execution.get_execution_info()  # raises the reason itself
            raise
    execution.get_execution_info()


def callback(_: Device, prepared: Prepared, request: Request, control: Control) -> None:
    """With a callback that has to come exactly once."""
    came: list[NnhalError | None] = []
    done = threading.Event()

    def notify(error: NnhalError | None, timing: object) -> None:
        came.append(error)
        done.set()

    prepared.execute(request, control, notify)
    if not done.wait(WAIT):
        raise OperationFailed(f"callback: did not come within {WAIT:.0f} s")
    if len(came) > 1:
        raise OperationFailed(f"callback: came {len(came)} times, must come once")
    if came[0] is not None:
        raise came[0]


def memory(device: Device, prepared: Prepared, request: Request, control: Control) -> None:
    """Every tensor input and output in memory that the driver allocates for it."""
    main = prepared.model.main
    given: dict[int, Buffer] = {}
    taken: dict[int, Buffer] = {}
    inputs: list[Array | None] = list(request.inputs)
    outputs = list(request.outputs)
    for n, array in enumerate(inputs):
        if array is not None and array.size and is_tensor(main.operands[main.inputs[n]].type):
            given[n] = device.allocate(BufferDesc(array.shape), [BufferRole(prepared, n)])
            given[n].copy_from(Memory.from_array(array), array.shape)
            inputs[n] = None
    for n, array in enumerate(outputs):
        if array is not None and array.size:
            taken[n] = device.allocate(BufferDesc(array.shape), [BufferRole(prepared, n, output=True)])
            outputs[n] = None
    inner = Request(inputs, outputs, input_buffers=given, output_buffers=taken)
    run_resolved(prepared, inner, control)
    request.outputs[:] = inner.outputs
    for n, buffer in taken.items():
        shape = buffer.shape
        if shape is None:
            raise OperationFailed(f"driver memory of output {n}: has no contents after the execution")
        dtype = dtype_of(main.operands[main.outputs[n]].type)
        room = Memory.allocate(max(1, int(np.prod(shape)) * dtype.itemsize))
        buffer.copy_to(room)
        request.outputs[n] = room.bytes().view(dtype).reshape(shape)
    for buffer in (*given.values(), *taken.values()):
        buffer.close()


WAYS: dict[str, Way] = {"plain": plain, "burst": burst, "fenced": fenced, "memory": memory, "callback": callback}
