"""What an application gave up writes nothing to its memory afterwards, whichever engine is still at it, and however."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import nnhal
from nnhal.frontends.python import Builder, Tensor
from nnhal.model.graph import Model
from tests.execution import PROGRAM_LIMIT

X = np.full((8, 256), 3, np.float32)
ATTEMPTS, ENOUGH = 500, 30


def layers(b: Builder, rows: int | None) -> tuple[Tensor, Tensor]:
    """Twenty matrix products that change nothing: what goes in and what comes out."""
    x = y = b.input((rows, 256))
    for _ in range(20):
        y = b.fully_connected(y, b.constant(np.eye(256, dtype=np.float32)), b.constant(np.zeros(256, np.float32)))
    return x, y


def plain(rows: int | None) -> Model:
    b = Builder("layers")
    x, y = layers(b, rows)
    return b.finish([x], [y])


def branching() -> Model:
    """The same, once the runtime has chosen a branch: the memory of the output belongs to what is inside."""
    b = Builder("branching")
    first, x = b.input((1,), "TENSOR_BOOL8"), b.input((8, 256))
    sides = []
    for _ in range(2):
        inside = b.subgraph()
        given, y = layers(inside, 8)
        sides.append(inside.finish_subgraph([given], [y]))
    return b.finish([first, x], [b.if_(first, *sides, [x], out_type="TENSOR_FLOAT32")])


def by_deadline(compiled: nnhal.Compiled, given: list[np.ndarray], out: np.ndarray, seconds: float) -> None:
    compiled.run(*given, out=out, deadline=max(seconds, 1e-5))


def by_cancel(compiled: nnhal.Compiled, given: list[np.ndarray], out: np.ndarray, seconds: float) -> None:
    execution = compiled.submit(*given, out=out)
    threading.Timer(seconds, execution.cancel).start()  # somewhere inside
    execution.result()


def by_burst(compiled: nnhal.Compiled, given: list[np.ndarray], out: np.ndarray, seconds: float) -> None:
    with compiled.burst() as burst:
        burst.run(*given, out=out, deadline=max(seconds, 1e-5))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("give_up", [by_deadline, by_cancel, by_burst])
@pytest.mark.parametrize("kind", ["fixed", "open", "branch"])
@pytest.mark.parametrize("device", ["litert", "openvino", "onnxruntime"])
def test_nothing_is_written_after_the_end(
    device: str, kind: str, give_up: Callable[[nnhal.Compiled, list[np.ndarray], np.ndarray, float], None]
) -> None:
    pytest.importorskip({"litert": "ai_edge_litert"}.get(device, device))
    model = branching() if kind == "branch" else plain(8 if kind == "fixed" else None)
    given = [np.ones(1, bool), X] if kind == "branch" else [X]
    random, ended = np.random.default_rng(1), 0
    fallback = "allow" if kind == "branch" else "forbid"
    with nnhal.compile(model, devices=device, fallback=fallback, cache_dir=False) as compiled:
        compiled(*given)
        start = time.perf_counter()
        compiled(*given)
        took = time.perf_counter() - start
        for _ in range(ATTEMPTS):
            if ended == ENOUGH:
                break
            out = np.full(X.shape, -9, np.float32)
            try:
                give_up(compiled, given, out, random.random() * 0.9 * took)
                took *= 0.99  # until some are early enough, however slow that one was
            except (nnhal.MissedDeadline, nnhal.Cancelled):
                ended += 1
                found = out.copy()
                out[...] = 111  # it is the application's again
                compiled(*given)  # what is still inside has come back by then
                assert (out == 111).all(), found
    assert ended


ENDING = """
import atexit, sys, threading, time
import numpy as np, nnhal
from tests.drivers.test_given_up import plain

device, how, array = *sys.argv[1:], np.full((4096, 256), 3, np.float32)
if how == "at exit":
    atexit.register(lambda: print(compiled(array)[0, 0], "at exit"))
compiled = nnhal.compile(plain(4096), devices=device, cache_dir=False)
compiled(array)
start = time.perf_counter()
compiled(array)
took = time.perf_counter() - start
if how == "missed":
    try:
        compiled.run(array, deadline=took / 3)
    except nnhal.MissedDeadline:
        pass
elif how == "submitted":
    kept = [compiled.submit(array) for _ in range(4)]
    time.sleep(took / 3)  # one of them is inside
elif how == "goes on":
    begun = threading.Event()
    def go():
        try:
            while True:
                compiled(array[:64])
                begun.set()
        except nnhal.Closed as error:
            assert "the program ends" in str(error)
    compiled = nnhal.compile(plain(64), devices=device, cache_dir=False)
    threading.Thread(target=go, daemon=True).start()
    begun.wait()
atexit._run_exitfuncs()
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("programs", [1, pytest.param(10, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("how", ["missed", "submitted", "goes on", "at exit"])
@pytest.mark.parametrize("device", ["litert", "openvino", "onnxruntime"])
def test_the_program_ends_well_while_an_engine_is_still_at_it(device: str, how: str, programs: int) -> None:
    pytest.importorskip({"litert": "ai_edge_litert"}.get(device, device))
    for _ in range(programs):
        command = [sys.executable, "-c", ENDING, device, how]
        found = subprocess.run(command, check=False, capture_output=True, timeout=PROGRAM_LIMIT)
        printed = b"3.0 at exit\n" if how == "at exit" else b""
        assert (found.returncode, found.stdout, found.stderr) == (0, printed, b""), found.stderr.decode()
