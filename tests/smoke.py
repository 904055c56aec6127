"""What works wherever nnhal is installed, in every way to execute: a program, run without pytest in fresh environments.

--without: the extensions in C must not be there, and isolation is refused; else they must be there.
"""

import importlib.util
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

import nnhal

EXTENSIONS = ("nnhal.base._gate", "nnhal.base._mapping", "nnhal.base._owner", "nnhal.ipc.transport._native")


def adds(count: int) -> tuple[nnhal.Model, np.ndarray]:
    """A model that adds 1, so many times; what it makes of 0, 1, 2, 3."""
    b = nnhal.Builder()
    y = x = b.input((4,))
    for _ in range(count):
        y = b.add(y, np.ones(4, np.float32))
    return b.finish([x], [y]), np.arange(4, dtype=np.float32) + count


def every_way(device: str) -> None:
    """Plain, with a deadline, submitted, over a burst, fenced."""
    model, expected = adds(3)
    x = np.arange(4, dtype=np.float32)
    with nnhal.compile(model, devices=[device]) as compiled:
        np.testing.assert_array_equal(compiled(x), expected)
        np.testing.assert_array_equal(compiled.submit(x, deadline=30).result(), expected)
        with compiled.burst() as run:
            np.testing.assert_array_equal(run(x), expected)
        np.testing.assert_array_equal(compiled.execute_fenced(x).result(), expected)


def stream(device: str) -> None:
    """An LSTM from a file, whose state goes on from step to step."""
    from nnhal.zoo import maker

    path = Path(tempfile.mkdtemp()) / "lstm.tflite"
    path.write_bytes(maker.path("tiny_lstm").read_bytes())
    compiled = nnhal.compile(nnhal.load(path), devices=[device])
    x = np.ones(compiled.inputs[0].shape, np.float32)
    session = compiled.stream()
    first, second = session(x), session(x)
    assert not np.array_equal(first, second), "the state did not go on"
    session.reset()
    np.testing.assert_array_equal(session(x), first)


def main() -> None:
    """Everything, on every device that is installed."""
    without = "--without" in sys.argv
    warnings.simplefilter("error")
    there = [name for name in EXTENSIONS if importlib.util.find_spec(name) is not None]
    assert there == ([] if without else list(EXTENSIONS)), f"extensions there: {there}"
    devices = [found.name for found in nnhal.devices() if found.device is not None]
    for device in devices:
        every_way(device)
        stream(device)
    try:
        compiled = nnhal.compile(adds(1)[0], devices=["reference"], isolation="process")
    except nnhal.DeviceUnavailable as error:
        assert without and "C compiler" in str(error), error
    else:
        assert not without
        np.testing.assert_array_equal(compiled(np.zeros(4, np.float32)), 1)
    print(f"nnhal {'without' if without else 'with'} extensions, Python {sys.version.split()[0]}: {', '.join(devices)}")


if __name__ == "__main__":
    main()
