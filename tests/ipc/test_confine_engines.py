"""Every engine works confined, and what a driver may be given more."""

import os
from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import DeviceUnavailable, OperationFailed
from nnhal.ipc.client.process import ReconnectingDevice, start
from nnhal.runtime import discovery
from tests.ipc.support import own_process, prepare
from tests.ipc.test_confine import CONFINE, child, said
from tests.ipc.test_escapes import CAPTIVE
from tests.models import doubling

EXAMPLES = Path(nnhal.__file__).parents[2] / "examples"
DRIVERS = [n for n in discovery.names() if n not in ("null", "sample-minimal", "sample-quant")]
FILES = [str(EXAMPLES / name) for name in ("my_driver.py", "my_hal_driver.py", "onnx_driver.py")]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("driver", [*DRIVERS, *FILES], ids=lambda d: Path(d).name)
def test_a_driver_compiles_and_runs_in_every_way(driver: str) -> None:
    device = ReconnectingDevice("tried", lambda: start(driver))
    x = np.arange(64, dtype=np.float32)
    try:
        assert all(text.startswith("applied: ") for text in device.confinement.values()), device.confinement
        assert "NOT covered" not in device.confinement["landlock"]  # no thread was there before
        with nnhal.compile(doubling(64), devices=[device], isolation="process", fallback="forbid") as compiled:
            with compiled.burst() as burst:
                for way in (compiled, burst, lambda x: compiled.submit(x).result()):
                    assert np.array_equal(way(x), x + x)
            first = compiled.execute_fenced(x)
            second = compiled.execute_fenced(x, wait_for=[first.fence] if first.fence else [])
            assert np.array_equal(second.result(), x + x)
        assert device.health.total == 0
    finally:
        device.close()


def test_numpy_computes_with_all_its_libraries() -> None:
    body = """
import numpy as np
a = np.random.default_rng(1).random((300, 300))
assert np.allclose(np.linalg.inv(a) @ a, np.eye(300), atol=1e-6)
assert np.allclose(np.fft.ifft(np.fft.fft(a)), a)
assert len(np.linalg.svd(a, compute_uv=False)) == 300
print('computed')
"""
    assert said(CONFINE + body) == ["computed"]


def test_threads_pools_and_timers_of_python_work() -> None:
    body = """
import queue, select, time
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    assert sum(pool.map(lambda n: n * n, range(100))) == 328350
fired = threading.Event()
threading.Timer(0.01, fired.set).start()
assert fired.wait(30)
assert not threading.Lock().acquire(timeout=0.01) or True
fd = os.eventfd(0); epoll = select.epoll(); epoll.register(fd); os.eventfd_write(fd, 1)
assert dict(epoll.poll(1))[fd] & select.EPOLLIN and select.select([fd], [], [], 1)[0]
signal.signal(signal.SIGALRM, lambda *_: print('alarm')); signal.setitimer(signal.ITIMER_REAL, 0.01); signal.pause()
"""
    assert said(CONFINE + body) == ["alarm"]


def test_a_crash_and_a_hang_leave_a_trace() -> None:
    body = """
import faulthandler
faulthandler.enable(all_threads=False)
def falls(): ctypes.string_at(0)
read, write = os.pipe()
faulthandler.dump_traceback_later(0.01, file=write)
with open(read) as dumped: print(dumped.readline(), flush=True)
falls()
"""
    done = child(CONFINE + body)
    assert done.returncode == -11
    assert "Timeout (0:00:00.01" in done.stdout and "Segmentation fault" in done.stderr and "in falls" in done.stderr


def tried(what: str, *options: str) -> str:
    with own_process(CAPTIVE, options=options) as device:
        with pytest.raises(OperationFailed) as failure:
            prepare(device, **{"try": what})
        return str(failure.value).rpartition(": ")[2] + "; " + device.confinement["seccomp"]


def test_calls_that_are_allowed_by_option_work_and_stand_in_the_report() -> None:
    assert tried("os.getsid(0) > 0").startswith("EPERM; applied: ")
    said = tried("os.getsid(0) > 0", "--allow", "getsid,io_uring_setup", "--allow", "flock")
    assert said.startswith("done True; applied: ")
    assert said.endswith("; by option also flock, getsid, io_uring_setup")
    assert tried("os.mkdir('/nnhal')", "--allow", "mkdir").startswith("EACCES; ")  # landlock stays


def test_a_call_that_is_none_is_named_with_what_is_like_it() -> None:
    with pytest.raises(
        DeviceUnavailable, match=r"exit status 3; its last words: .*call is 'getsidd', .* such as getsid"
    ):
        start("reference", options=["--allow", "getsidd"])


def test_links_on_the_import_path_are_followed_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages that resolve the path of their own file find no link in it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "engine_of_mine.py").write_text("import os\nPLACE = os.path.realpath(__file__)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "link"))
    assert tried("__import__('engine_of_mine').PLACE").startswith(
        f"done {os.path.realpath(tmp_path)}/real/engine_of_mine.py"
    )
