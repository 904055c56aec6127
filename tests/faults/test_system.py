"""Faults of the system: few descriptors, little memory, nowhere to write; services that are killed (52, 53)."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import nnhal
from nnhal.base.errors import DeadObject, DeviceUnavailable, NnhalError, OutOfMemory, ResourceExhausted
from nnhal.base.memory import Memory
from nnhal.hal.request import Control
from nnhal.ipc import names
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.process import ReconnectingDevice
from tests.faults.support import (
    LIMIT,
    WITNESS,
    X,
    asked_to_execute,
    attempt,
    client_of,
    limited,
    most,
    prepared,
    request,
    run,
    serve,
    service,
    wait_until,
    works,
)
from tests.models import doubling

EXPECTED = (X + X).tobytes()


def script(text: str, through: list[str] | None = None, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run Python under a limit; it must end."""
    return subprocess.run(
        [*(through or []), sys.executable, "-c", text],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={**{k: v for k, v in os.environ.items() if environment.get(k) != ""}, **environment},
    )


# ------------------------------------------------------------------------------------------------------------- item 52


@pytest.mark.parametrize("descriptors", [64, 1024, 4096])
def test_a_service_with_few_descriptors_has_few_clients_and_refuses_others_by_name(descriptors: int) -> None:
    """52: who is there is served on; the one too many gets an error; room that is made is used again."""
    process = serve(WITNESS, "narrow", through=limited("RLIMIT_NOFILE", descriptors))
    try:
        clients: list[RemoteDevice] = []
        wait_until(lambda: _came(clients), "room for the first: who looked whether somebody listens goes")
        while len(clients) < most(clients[0], "connections"):
            clients.append(RemoteDevice(names.connect("narrow")))
        error = attempt(lambda: RemoteDevice(names.connect("narrow")))
        assert isinstance(error, ResourceExhausted) and "must be at most" in str(error), error
        assert all(works(device) for device in clients)
        for device in clients:
            device.close()
        wait_until(lambda: _works_anew("narrow"), "room for a client")
        assert process.poll() is None
    finally:
        process.kill()
        process.wait(LIMIT)


def _came(clients: list[RemoteDevice]) -> bool:
    device = attempt(lambda: RemoteDevice(names.connect("narrow")))
    clients.extend([device] if isinstance(device, RemoteDevice) else [])
    return bool(clients)


def _works_anew(name: str) -> bool:
    device = attempt(lambda: RemoteDevice(names.connect(name)))
    if not isinstance(device, RemoteDevice):
        assert isinstance(device, NnhalError), device
        return False
    try:
        return bool(attempt(lambda: works(device)) is True)
    finally:
        device.close()


GREEDY = """
import sys, os, nnhal
from nnhal.base.errors import NnhalError
from tests.faults.support import X
from tests.models import doubling
held, error = [], None
try:
    for n in range(200):
        device = [held[0][0]._caller.plan.steps[0].device] if held else ["faulty"]
        compiled = nnhal.compile(doubling(64 + n), devices=device, isolation="process")
        assert compiled(X if n == 0 else __import__("numpy").zeros(64 + n, "float32")) is not None
        held.append((compiled, compiled.burst(), nnhal.Memory.allocate(64)))
except NnhalError as raised:
    error = raised
print(len(held) > 5, type(error).__name__, error)
for compiled, burst, memory in held[1:]:
    burst.close(), compiled.close(), memory.close()
del compiled, burst, memory
assert (held[0][0](X) == X + X).all()
print("works")
"""


def test_a_client_that_runs_out_of_64_descriptors_gets_a_named_error_and_works_on() -> None:
    """52: an error of the tree, and once something was closed, everything works again."""
    done = script(GREEDY, limited("RLIMIT_NOFILE", 64))
    assert done.returncode == 0, done
    first, last = done.stdout.splitlines()
    assert last == "works"
    kind = first.split()[1]
    assert first.startswith("True ") and kind in ("ResourceExhausted", "OutOfMemory", "DeviceUnavailable"), first


SMALL = """
import sys, nnhal
from nnhal.base.errors import NnhalError
from tests.faults.support import X
from tests.models import doubling
try:
    with nnhal.compile(doubling(64), devices=["reference"], isolation="process") as compiled:
        print("right" if (compiled(X) == X + X).all() else "wrong")
except (NnhalError, MemoryError) as error:
    print(type(error).__name__, error, file=sys.stderr)
    sys.exit(1)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("limit", ["RLIMIT_DATA", "RLIMIT_AS"])
@pytest.mark.parametrize("mebibytes", [256, 96, 48])
def test_little_memory_gives_a_right_result_or_a_clear_error(limit: str, mebibytes: int) -> None:
    """52: in client and driver, never a wrong result, a hang or a silent end."""
    done = script(SMALL, limited(limit, mebibytes << 20), OPENBLAS_NUM_THREADS="1")
    if done.returncode == 0:
        assert done.stdout == "right\n"
    else:
        assert not done.stdout and len(done.stderr.strip()) > 20, done
    assert mebibytes < 256 or done.returncode == 0 or "emory" in done.stderr, done


def test_a_service_that_finds_no_place_for_its_socket_says_what_to_set() -> None:
    """52: no XDG_RUNTIME_DIR, and a temporary directory that cannot be written; an error at the start, in one line."""
    environment = {k: v for k, v in os.environ.items() if k != "XDG_RUNTIME_DIR"} | {"TMPDIR": "/proc"}
    command = [sys.executable, "-m", "nnhal.serve", "reference"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False, env=environment)
    assert done.returncode == 4
    assert "directory of services /proc/nnhal-" in done.stderr and "set XDG_RUNTIME_DIR" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_process_of_the_clients_own_needs_no_place_to_write() -> None:
    """52: its connection has no name."""
    environment = {k: v for k, v in os.environ.items() if k != "XDG_RUNTIME_DIR"} | {"TMPDIR": "/proc"}
    command = [sys.executable, "-c", SMALL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, "right\n"), done


def test_a_shared_memory_that_is_too_large_is_out_of_memory() -> None:
    """52: shared memory here is memfd, which the size of /dev/shm does not limit; what cannot be had is an error."""
    with pytest.raises((OutOfMemory, ResourceExhausted)):
        Memory.allocate(1 << 62)


FULL = """
import resource, nnhal
from nnhal.base.errors import NnhalError
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    nnhal.Memory.allocate(2 << 20)
except NnhalError as error:
    print(type(error).__name__, error)
print(nnhal.Memory.allocate(1 << 19).size)
"""


def test_a_shared_memory_past_the_systems_limit_is_a_clear_error() -> None:
    """52: the stand-in for a full file system: a limit of 1 MiB on what a file, and so a memfd, may hold."""
    done = script(FULL)
    assert done.returncode == 0, done
    error, size = done.stdout.splitlines()
    assert error.split()[0] in ("OutOfMemory", "ResourceExhausted") and size == str(1 << 19), error


# ------------------------------------------------------------------------------------------------------------- item 53


def test_a_service_killed_and_restarted_under_its_name_serves_the_same_clients_again() -> None:
    """53: who waits gets DEAD_OBJECT; no socket is left; a client that asks again is served, bit by bit."""
    first = serve(WITNESS, "killed")
    device = ReconnectingDevice("witness", lambda: names.connect("killed"))
    model, slow = prepared(device), prepared(device, sleep=30)
    assert run(model, X).tobytes() == EXPECTED
    with ThreadPoolExecutor(3) as pool:
        waits = [pool.submit(request(slow).execute, slow.run, Control()) for _ in range(3)]
        wait_until(lambda: asked_to_execute(device.remote().session) == 4, "all run")
        first.kill()
        for wait in waits:
            assert isinstance(wait.exception(LIMIT), DeadObject), wait.exception()
    first.wait(LIMIT)
    with pytest.raises(DeviceUnavailable, match="killed"):
        run(model, X)
    assert "killed" not in names.running() and not names.path_of("killed").exists()
    with service(WITNESS, "killed"):
        assert run(model, X).tobytes() == EXPECTED
        assert device.health.total == 1 and device.restarts == 1
        with client_of("killed") as another:
            assert works(another)
        device.close()


def test_a_service_of_another_driver_under_the_same_name_is_never_taken_for_the_first() -> None:
    """What was compiled on the first says so, or falls back to the CPU where it may; compiled again, it is on the second."""
    with service("reference", "swapped"):
        ways = {how: nnhal.compile(doubling(64), devices=["swapped"], fallback=how) for how in ("forbid", "allow")}
        assert all(compiled(X).tobytes() == EXPECTED for compiled in ways.values())
    with service("null", "swapped"):
        with pytest.raises(DeviceUnavailable, match=r"name is 'null', was 'reference'.*compile again"):
            ways["forbid"](X)
        assert ways["allow"](X).tobytes() == EXPECTED
        with nnhal.compile(doubling(64), devices=["swapped"], fallback="forbid") as again:
            assert not again(X).any()  # that driver's zeros


def test_a_service_restarts_after_one_was_killed() -> None:
    """53: three times in a row, without anybody sweeping between."""
    for _ in range(3):
        process = serve(WITNESS, "again")
        with client_of("again") as device:
            assert works(device)
            process.kill()
            process.wait(LIMIT)
            with pytest.raises(DeadObject):
                run(prepared(device), X)
    assert "again" not in names.running()
