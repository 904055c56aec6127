"""What one operation in one thread does not show: graphs, widths, slow growth, the process left changed."""

import ctypes
import os
import signal
import struct
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnhal.base.codes import Lifetime, OperandType
from nnhal.base.errors import OperationFailed
from nnhal.base.memory import address
from nnhal.base.operands import Array
from nnhal.hal.cache.files import CacheContent
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import Model
from nnhal.ops.schema import Bound

from .faults import CONTRACT, RANDOM, STRESS, VTS, fault
from .healthy import Arithmetic, Engine, Healthy
from .kept import Keeping, KeptEngine

TILE = 64  # channels
LITTLE = 4096  # bytes
COUNTER = 1 << 16  # executions
UPWARD = 0x800  # FE_UPWARD of x86-64
CONTROL_AT, FLUSH = 28, 1 << 15  # MXCSR in a fenv_t of x86-64, and its bit
_libc = ctypes.CDLL(None)
_libm = ctypes.CDLL("libm.so.6")
_kept: list[Any] = []


class Arena(Engine):
    """An engine that keeps intermediates in memory that it reuses."""

    def __init__(self, device: Healthy, model: Model) -> None:
        super().__init__(device, model)
        self.arena: dict[int, Any] = {}

    def place(self, arrays: dict[int, Any], step: int, index: int, result: Array) -> None:
        """Store an operation's result."""
        arrays[index] = result

    def memory(self) -> dict[int, Any]:
        """The memory of one execution."""
        return {}

    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        arrays = self.memory()
        arrays.update({**self.constants, **dict(zip(self.main.inputs, inputs, strict=True))})
        with np.errstate(all="ignore"):
            for step, (operation, a) in enumerate(zip(self.main.operations, self.bound, strict=True)):
                control.check()
                tensors = a.form.tensors([arrays.get(i) for i in operation.inputs])
                self.place(arrays, step, operation.outputs[0], self.kernels[a.op.name](a, *tensors))
        return [arrays[i] for i in self.main.outputs]


@fault("arena-shared", "executions of a graph share one arena", "", (RANDOM, STRESS), numbers=True)
class ArenaShared(Arena):
    """Every second execution takes longer, so that executions with the same inputs do not only meet one another."""

    def __init__(self, device: Healthy, model: Model) -> None:
        super().__init__(device, model)
        self.own, self.number = threading.local(), 0

    def memory(self) -> dict[int, Any]:
        self.number += 1
        self.own.pause = (0.0005, 0.002)[self.number % 2]
        return self.arena

    def place(self, arrays: dict[int, Any], step: int, index: int, result: Array) -> None:
        super().place(arrays, step, index, result)
        time.sleep(self.own.pause)  # others run meanwhile


@fault("arena-early", "an intermediate's memory is given away after its first reader", "", (RANDOM,), numbers=True)
class ArenaEarly(Arena):
    def place(self, arrays: dict[int, Any], step: int, index: int, result: Array) -> None:
        super().place(arrays, step, index, result)
        inner = {i for each in self.main.operations for i in each.outputs} - set(self.main.outputs)
        for read in inner & set(self.main.operations[step].inputs) & arrays.keys():
            arrays[read] = np.zeros_like(arrays[read])


@fault("same-operand", "an operand that is read twice is read once: ADD(x, x) is x", "", (RANDOM,))
class SameOperand(Arithmetic):
    def add(self, a: Bound, x: Array, y: Array) -> Array:
        return self.finished(a, self.real(a, 0, x) + (0 if x is y else self.real(a, 1, y)))


@fault("wide-tail", "channels past a tile of 64 are computed without bias", "", (RANDOM,), operation="CONV_2D")
class WideTail(Arithmetic):
    def convolve(self, a: Bound, x: Array, weights: Array, bias: Array) -> Array:
        kept = bias.copy()
        if len(kept) > TILE:
            kept[TILE:] = 0
        return super().convolve(a, x, weights, kept)


@fault("wide-vector", "elements of an ADD past a multiple of 16 are not added if there are more than 64", "", (RANDOM,))
class WideVector(Arithmetic):
    def add(self, a: Bound, x: Array, y: Array) -> Array:
        result = super().add(a, x, y)
        if result.size > TILE and result.size % 16 and x.shape == y.shape and a.inputs[0][1] == a.inputs[1][1]:
            result.reshape(-1)[result.size - result.size % 16 :] = 0
        return result


@fault("broadcast-left", "a tensor of lower rank is aligned at the first dimension, where it fits there", "", (RANDOM,))
class BroadcastLeft(Arithmetic):
    def add(self, a: Bound, x: Array, y: Array) -> Array:
        if 0 < y.ndim < x.ndim and y.shape == x.shape[: y.ndim]:
            y = y.reshape(y.shape + (1,) * (x.ndim - y.ndim))
        return super().add(a, x, y)


@fault(
    "unaligned",
    "an input that does not begin at a multiple of 16 bytes is read from the one before",
    "",
    (RANDOM,),
    numbers=True,
)
class Unaligned(Engine):
    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        return super().computed([self.read(x) for x in inputs], control)

    def read(self, x: Array | None) -> Array | None:
        if x is None or not x.size or address(x) % 16 == 0 or x.itemsize > 16:
            return x
        return np.roll(x.reshape(-1), (address(x) % 16) // x.itemsize).reshape(x.shape)


@fault("constants-aligned", "constants of pools are read from the 64-byte boundary before them", "", (STRESS,))
class ConstantsAligned(Engine):
    def __init__(self, device: Healthy, model: Model) -> None:
        super().__init__(device, model)
        for place, operand in enumerate(self.main.operands):
            at = operand.location
            if operand.lifetime == Lifetime.CONSTANT_REFERENCE and operand.type == OperandType.TENSOR_FLOAT32:
                raw = model.pools[at.pool].view(at.offset // 64 * 64, at.length)
                self.constants[place] = raw.view(np.float32).reshape(operand.dimensions)


@fault(
    "second-pool",
    "constants of the second memory pool are read from the first",
    "constants-pools",
    (CONTRACT,),
    numbers=True,
    operation="CONV_2D",
)
class SecondPool(Engine):
    def __init__(self, device: Healthy, model: Model) -> None:
        super().__init__(device, model)
        for place, operand in enumerate(self.main.operands):
            at = operand.location
            if operand.lifetime == Lifetime.CONSTANT_REFERENCE and at.pool == 1 and operand.dimensions:
                kept = self.constants[place]
                raw = model.pools[0].view(at.offset, at.length)
                self.constants[place] = raw.view(kept.dtype).reshape(kept.shape)


@fault("leaks-little", "keeps 4 KiB of every execution", "", (STRESS,))
class LeaksLittle(Engine):
    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        _kept.append(np.ones(LITTLE, np.uint8))
        return super().computed(inputs, control)


@fault("leaks-per-thread", "keeps a descriptor of each thread that executes", "", (STRESS,))
class LeaksPerThread(Engine):
    own = threading.local()

    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        if not hasattr(self.own, "file"):
            self.own.file = os.memfd_create("faulty")
        return super().computed(inputs, control)


@fault("latency-drifts", "each execution looks through what all before it left", "", (STRESS,))
class LatencyDrifts(Engine):
    def __init__(self, device: Healthy, model: Model) -> None:
        super().__init__(device, model)
        self.times = 0

    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        self.times += 1
        for _ in range(10 * self.times):
            pass
        return super().computed(inputs, control)


@fault("counts-16-bits", "results are zeros from execution 65,536 of a model on", "", (STRESS,), numbers=True)
class Counts16Bits(Engine):
    def __init__(self, device: Healthy, model: Model) -> None:
        super().__init__(device, model)
        self.times = 0

    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        self.times += 1
        return [y if self.times < COUNTER else np.zeros_like(y) for y in super().computed(inputs, control)]


class Changing(Engine):
    """An engine that leaves the process changed."""

    def change(self) -> None:
        """Change it."""

    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        results = super().computed(inputs, control)
        self.change()
        return results


@fault("leaves-rounding", "leaves the processor rounding upward", "", (VTS,), numbers=True, survives=False)
class LeavesRounding(Changing):
    def change(self) -> None:
        _libm.fesetround(UPWARD)


@fault("leaves-umask", "sets the process's umask", "", (VTS,), survives=False)
class LeavesUmask(Changing):
    def change(self) -> None:
        os.umask(0o077)


@fault("leaves-folder", "changes the process's working directory", "", (VTS,), survives=False)
class LeavesFolder(Changing):
    def change(self) -> None:
        os.chdir("/")


@fault("leaves-handler", "handles SIGTERM of the process from then on", "", (VTS,), survives=False)
class LeavesHandler(Changing):
    def change(self) -> None:
        handler = ctypes.cast(_libc.abs, ctypes.c_void_p)
        _libc.signal.restype = ctypes.c_void_p
        _libc.signal(signal.SIGTERM, handler)


@fault("leaves-subnormals", "leaves the processor flushing subnormal results to zero", "", (VTS,), survives=False)
class LeavesSubnormals(Changing):
    def change(self) -> None:
        environment = ctypes.create_string_buffer(256)
        _libm.fegetenv(environment)
        (control,) = struct.unpack_from("<I", environment.raw, CONTROL_AT)
        struct.pack_into("<I", environment, CONTROL_AT, control | FLUSH)
        _libm.fesetenv(environment)


@fault("leaves-variable", "sets an environment variable of the process", "", (VTS,))
class LeavesVariable(Changing):
    def change(self) -> None:
        os.environ["FAULTY_THREADS"] = "1"


@fault("leaves-files", "leaves a temporary file of each model that it prepares", "", (VTS,))
class LeavesFiles(Healthy):
    def prepare(self, model: Model, hints: Hints) -> Prepared:
        file, _ = tempfile.mkstemp(prefix="faulty-")
        os.close(file)
        return super().prepare(model, hints)


class HereEngine(KeptEngine):
    def save(self, files: CacheContent) -> bool:
        super().save(files)
        files.model[0]["process"] = str(os.getpid()).encode()
        return True


@fault("restores-here", "restores only in the process that prepared", "", (VTS,), alone=True)
class RestoresHere(Keeping):
    engine = HereEngine

    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Prepared:
        process = bytes(files.model[0].pop("process")).decode()
        if process != str(os.getpid()):
            raise OperationFailed(f"device {self.name}: restore(): process {process} saved it")
        return super().restore(files, token, hints)


class Timed(Engine):
    """An engine that tells its times. unit: in nanoseconds."""

    unit = 1.0

    def run(self, request: Request, control: Control) -> Timing | None:
        begin = time.monotonic_ns()
        super().run(request, control)
        told = int((time.monotonic_ns() - begin) / self.unit)
        return Timing(told, told)


@fault("times-in-microseconds", "reports times in microseconds where nanoseconds are asked", "", (VTS,))
class TimesInMicroseconds(Timed):
    unit = 1e3


@fault("times-in-picoseconds", "reports times in picoseconds where nanoseconds are asked", "", (VTS,))
class TimesInPicoseconds(Timed):
    unit = 1e-3
