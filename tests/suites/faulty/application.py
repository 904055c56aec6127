"""An application that runs over a device with a fault: what comes of it, in which time."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import nnhal
from nnhal.hal.device import Device
from nnhal.ipc.client.process import ReconnectingDevice, start
from tests.models import make_model
from tests.suites.faulty import driver
from tests.suites.faulty.driver.faults import Fault

DRIVER = Path(driver.__file__).parent
COMPILE, RUN = 10.0, 0.3  # seconds that the application allows
WHERE_IT_HANGS = 0.5  # to compile, where it is known to be in vain
X = np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6)
SCALE = np.linspace(0.5, 2, 6, dtype=np.float32)
SHIFT = np.linspace(-1, 1, 6, dtype=np.float32)
RUNS = 4


def model(name: str) -> nnhal.Model:
    """y = relu6(x * scale) + shift - x: the last operation is none of the driver's."""
    return make_model(lambda b, x: b.sub(b.add(b.mul(x, SCALE, activation="relu6"), SHIFT), x), name=name, x=X.shape)


def right(x: Any) -> Any:
    """What the model gives, by its formula."""
    return np.clip(x * SCALE, np.float32(0), np.float32(6)) + SHIFT - x


@dataclass(frozen=True)
class Came:
    """What came of an application: results that were right, and others; the errors that were raised.

    seconds: the longest that `compile` and `run` took.
    """

    right: int
    wrong: int
    errors: tuple[BaseException, ...]
    seconds: tuple[float, float]


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """An environment variable for a moment."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def plain(compiled: nnhal.Compiled, x: Any) -> Any:
    return compiled.run(x, deadline=RUN)[0]


def callback(compiled: nnhal.Compiled, x: Any) -> Any:
    return compiled.run(x, deadline=RUN)[0]


def burst(compiled: nnhal.Compiled, x: Any) -> Any:
    with compiled.burst() as run:
        run(x * 2)
        return run(x)


def fenced(compiled: nnhal.Compiled, x: Any) -> Any:
    return compiled.execute_fenced(x, deadline=RUN).result(100 * RUN)


def memory(compiled: nnhal.Compiled, x: Any) -> Any:
    given = nnhal.allocate([(compiled, "input", 0)])
    given.write(x)
    return compiled.run(given, deadline=RUN)[0]


WAYS: dict[str, Callable[[nnhal.Compiled, Any], Any]] = {
    "plain": plain,
    "burst": burst,
    "fenced": fenced,
    "memory": memory,
    "callback": callback,
}


def application(device: Device, fault: Fault) -> Came:
    """Compile with fallback, run a few times on other inputs each, close; twice, with a cache, for a fault of that."""
    if not fault.check.startswith("cache-"):
        return _application(device, fault)
    with tempfile.TemporaryDirectory() as folder, variable("NNHAL_CACHE_DIR", os.path.join(folder, "cache")):
        first, second = (_application(device, fault) for _ in range(2))
    longest = max(first.seconds[0], second.seconds[0]), max(first.seconds[1], second.seconds[1])
    return Came(first.right + second.right, first.wrong + second.wrong, first.errors + second.errors, longest)


def _application(device: Device, fault: Fault) -> Came:
    good, wrong, errors, longest = 0, 0, [], 0.0
    with variable("NNHAL_SYNC_EXEC", "0" if fault.way == "callback" else "1"):
        begin = time.monotonic()
        try:
            limit = WHERE_IT_HANGS if fault.hangs else COMPILE
            compiled = nnhal.compile(model(fault.name), devices=[device], fallback="allow", deadline=limit)
        except nnhal.NnhalError as error:
            return Came(0, 0, (error,), (time.monotonic() - begin, 0.0))
        compiling = time.monotonic() - begin
        for n in range(RUNS):
            x = X + np.float32(n)
            begin = time.monotonic()
            try:
                result = WAYS[fault.way](compiled, x)
                if np.allclose(result, right(x), rtol=1e-5, atol=1e-5):
                    good += 1
                else:
                    wrong += 1
            except nnhal.NnhalError as error:
                errors.append(error)
            longest = max(longest, time.monotonic() - begin)
        assert (x == X + np.float32(n)).all()
        compiled.close()
    return Came(good, wrong, tuple(errors), (compiling, longest))


def isolated(fault: Fault) -> Came:
    """The application over the fault in a process of its own; where that does not start, its error."""
    begin = time.monotonic()
    try:
        device = start_alone(fault.name)
    except nnhal.NnhalError as error:
        return Came(0, 0, (error,), (time.monotonic() - begin, 0.0))
    try:
        return application(device, fault)
    finally:
        device.close()


def start_alone(fault: str) -> Device:
    """A device with the fault in a process of its own."""
    with variable(driver.VARIABLE, fault):
        return ReconnectingDevice(f"faulty-{fault}", lambda: start(str(DRIVER)))


def in_process(fault: Fault) -> Came:
    """The application over the fault in this process."""
    with variable(driver.VARIABLE, fault.name):
        try:
            device = nnhal.load_driver(DRIVER)
        except nnhal.NnhalError as error:
            return Came(0, 0, (error,), (0.0, 0.0))
    return application(device, fault)
