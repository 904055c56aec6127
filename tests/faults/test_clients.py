"""Faults of clients: killed in the middle of compilations, coming and going, using what is closed (48 to 50)."""

import gc
import os
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import BadState, Closed, NnhalError
from nnhal.hal.request import Control
from nnhal.ipc import names
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.process import ReconnectingDevice, start
from tests.faults.support import (
    LIMIT,
    WITNESS,
    X,
    asked_to_execute,
    attempt,
    back_to,
    client_of,
    held,
    prepared,
    request,
    run,
    undisturbed,
    wait_until,
    works,
)
from tests.models import doubling
from tests.waiting import jitter

EXPECTED = (X + X).tobytes()

# ------------------------------------------------------------------------------------------------------------- item 48


COMPILING = """
import sys, threading
from nnhal.ipc import names
from nnhal.ipc.client.device import RemoteDevice
from tests.faults.support import prepared
from tests.models import doubling
device = RemoteDevice(names.connect(sys.argv[1]))
def work(size):
    while True:
        prepared(device, doubling(size))
for n in range(4):
    threading.Thread(target=work, args=(1 << (6 + n),), daemon=True).start()
print("compiling", flush=True)
threading.Event().wait()
"""


def test_a_client_killed_while_four_threads_compile_does_not_touch_another(shared: str) -> None:
    """48: eight times, at different moments; the probe beside it is served all the while, nothing stays behind."""
    dice = random.Random(48)
    with client_of(shared) as watcher, undisturbed(shared) as neighbour:
        assert works(watcher)
        before = held(watcher)
        for _ in range(8):
            client = subprocess.Popen([sys.executable, "-c", COMPILING, shared], stdout=subprocess.PIPE)
            assert client.stdout is not None
            with client, client.stdout:
                assert client.stdout.readline() == b"compiling\n"
                jitter(dice, 0.1)
                client.kill()
            neighbour.still_served()
        back_to(before, watcher)
        assert works(watcher)


# ------------------------------------------------------------------------------------------------------------- item 49


WARM, ROUNDS = 1000, 500  # what the allocator takes at most, measured, it has after a thousand


def _resident() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _round(name: str) -> None:
    device = RemoteDevice(names.connect(name))
    try:
        assert run(prepared(device), X).tobytes() == EXPECTED
    finally:
        device.close()


def test_clients_come_compile_and_go_and_nothing_stays(shared: str) -> None:
    """49: descriptors, mappings and threads of the service are back at the base line."""
    with client_of(shared) as watcher:
        for _ in range(20):
            _round(shared)
        assert works(watcher)
        before = held(watcher)
        for _ in range(60):
            _round(shared)
        back_to(before, watcher)
        assert works(watcher)


@pytest.mark.nightly
def test_a_thousand_clients_come_compile_and_go_and_no_memory_grows(shared: str) -> None:
    """49: resident bytes of the service and of this process grow by less than a page a round: a thread's stack, a frame, a
    lane's buffer or a model that stayed would each be more.
    """
    with client_of(shared) as watcher:
        for _ in range(WARM):
            _round(shared)
        assert works(watcher)
        gc.collect()
        before, ours = held(watcher), _resident()
        for _ in range(ROUNDS):
            _round(shared)
        back_to(before, watcher)
        gc.collect()
        assert held(watcher)["resident"] - before["resident"] < ROUNDS * 4096
        assert _resident() - ours < ROUNDS * 4096
        assert works(watcher)


def test_a_driver_process_that_comes_and_goes_leaves_nothing_behind() -> None:
    """49: the same with processes of the client's own, which end with it. The fixture counts what stays here."""
    pids = []
    for _ in range(5):
        device = RemoteDevice(start(WITNESS))
        pids.append(device.session.welcome.pid)
        assert works(device)
        device.close()
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


# ------------------------------------------------------------------------------------------------------------- item 50


def witness(**options: object) -> tuple[nnhal.Compiled, ReconnectingDevice]:
    """The doubling model on a witness of its own."""
    device = ReconnectingDevice("witness", lambda: start(WITNESS))
    options_of = {"witness": options}
    return nnhal.compile(doubling(64), devices=[device], isolation="process", driver_options=options_of), device


def test_a_device_closed_under_executions_ends_them_with_a_named_error() -> None:
    """50: whoever waits gets an error at once, none hangs, and the death counts as none."""
    compiled, device = witness(sleep=10 * LIMIT)
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(compiled, X) for _ in range(4)]
        wait_until(lambda: asked_to_execute(device.remote().session) == 4, "all run")
        device.close()
        for r in running:
            assert isinstance(r.exception(LIMIT), NnhalError), r.exception()
    assert device.health.total == 0
    with pytest.raises(Closed):
        compiled(X)
    compiled.close()


def test_closing_twice_does_nothing() -> None:
    """50: models, bursts, devices, sessions, memories."""
    compiled, device = witness()
    burst = compiled.burst()
    memory = nnhal.Memory.allocate(64)
    assert burst(X).tobytes() == EXPECTED
    for _ in range(2):
        burst.close()
        compiled.close()
        device.close()
        memory.close()
    with pytest.raises(BadState):
        burst(X)
    with pytest.raises(Closed):
        device.remote()


def test_a_burst_closed_while_it_runs_ends_with_a_named_error() -> None:
    """50: from another thread; the model runs on."""
    compiled, device = witness(sleep=1)
    prepared_model = compiled._caller.plan.steps[0].prepared
    burst = prepared_model.burst()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: attempt(lambda: request(prepared_model).execute(burst.run, Control())))
        wait_until(lambda: held(device)["inside"] == 1, "it runs")
        burst.close()
        error = running.result(LIMIT)
    assert error is None or isinstance(error, NnhalError), error
    with pytest.raises(NnhalError):
        request(prepared_model).execute(burst.run, Control())
    assert compiled(X).tobytes() == EXPECTED
    compiled.close()
    device.close()


FORKING = """
import os, numpy as np, nnhal
from nnhal.base.errors import Closed
from tests.faults.support import WITNESS, X
from tests.models import doubling
from nnhal.ipc.client.process import ReconnectingDevice, start
def fresh():
    return nnhal.compile(doubling(64), devices=["faulty"], isolation="process")
compiled, memory = fresh(), nnhal.Memory.allocate(64)
burst = compiled.burst()
burst(X)
device = compiled._caller.plan.steps[0].device
child = os.fork()
if child == 0:
    status = 0
    for n, use in enumerate((lambda: compiled(X), lambda: burst(X), lambda: compiled.submit(X), lambda: device.remote())):
        try:
            use()
            status |= 1 << n
        except Closed as error:
            status |= 0 if "fork" in str(error) else 16
    with fresh() as again:
        status |= 0 if (again(X) == X + X).all() and again._caller.plan.steps[0].device.pid != device.pid else 32
    burst.close(), compiled.close(), device.close()
    os._exit(status)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert (compiled(X) == X + X).all() and (burst(X) == X + X).all()
assert device.health.total == 0
"""


def _script(text: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", text, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={**os.environ, **environment},
    )


def test_a_forked_child_is_refused_what_its_parent_compiled_and_may_compile_anew() -> None:
    """50: Closed that says why; the parent's connection is untouched, also by what the child closes."""
    done = _script(FORKING)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


LEAVING = """
import sys, threading, nnhal
from nnhal.ipc.client.process import ReconnectingDevice, start
from tests.faults.support import WITNESS, X
from tests.models import doubling
options = {"witness": {"sleep": 600.0 if "running" in sys.argv else 0.0}}
device = ReconnectingDevice("witness", lambda: start(WITNESS))
compiled = nnhal.compile(doubling(64), devices=[device], isolation="process", driver_options=options)
other = nnhal.compile(doubling(64), devices=["faulty"], isolation="process")
other(X)
burst = other.burst()
burst(X)
if "running" in sys.argv:
    for _ in range(3):
        threading.Thread(target=lambda: compiled(X), daemon=True).start()
    compiled.execute_fenced(X)
else:
    compiled(X)
print(device.pid, other._caller.plan.steps[0].device.pid, flush=True)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", ["idle", "running"])
def test_an_interpreter_that_exits_is_quick_silent_and_takes_its_drivers_along(what: str) -> None:
    """50: with nothing closed, also while executions of ten minutes run on daemon threads."""
    done = _script(LEAVING, what)
    assert (done.returncode, done.stderr) == (0, "")
    for pid in done.stdout.split():
        wait_until(lambda pid=pid: not os.path.exists(f"/proc/{pid}"), f"the end of driver process {pid}")


def test_threads_that_use_a_device_while_it_is_closed_get_results_or_named_errors() -> None:
    """50: three devices, each closed under eight busy threads."""
    for _ in range(3):
        compiled, device = witness()
        wrong: list[object] = []
        right: list[None] = []

        def work(compiled: nnhal.Compiled = compiled, wrong: list[object] = wrong, right: list[None] = right) -> None:
            while True:
                out = attempt(lambda: compiled(X))
                if isinstance(out, np.ndarray):
                    (right if out.tobytes() == EXPECTED else wrong).append(None)
                    continue
                wrong.extend([] if isinstance(out, NnhalError) else [out])
                return

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        wait_until(lambda right=right: len(right) > 20, "all are busy")
        device.close()
        for thread in threads:
            thread.join(LIMIT)
        assert not wrong and not any(thread.is_alive() for thread in threads)
        compiled.close()
