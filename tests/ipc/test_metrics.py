"""Metrics of a service: what clients have seen is what it counts, whoever asks for it, and however."""

import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from nnhal import serve
from nnhal.base.codes import Priority
from nnhal.base.errors import Cancelled, DeviceUnavailable, InvalidArgument, MissedDeadline, NnhalError, OperationFailed
from nnhal.hal.request import UNLIMITED, Control
from nnhal.ipc import names
from nnhal.ipc.service import exposition, scrapes
from nnhal.ipc.service.metrics import ENDED, OK, Metrics, outcome_of
from nnhal.ipc.service.quota import Quotas
from tests.ipc.support import LIMIT, PROBE, a_table, connected, numbers, prepare, request_for, run, wait_until
from tests.models import doubling
from tests.waiting import jitter, together

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("LISTEN_FDS", raising=False)
    return tmp_path


@contextlib.contextmanager
def service(*options: str, metrics: str = "0") -> Iterator[str]:
    """A service `probe` that is running; where its metrics are."""
    words = [
        sys.executable,
        "-P",
        "-m",
        "nnhal.serve",
        PROBE,
        "--name",
        "probe",
        "--json",
        "--metrics",
        metrics,
        *options,
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            facts = json.loads(process.stdout.readline())
            if "--unconfined" not in options:
                assert all(text.startswith("applied") for text in facts["confinement"].values())
            yield facts["metrics"]
        finally:
            process.terminate()
            process.wait(LIMIT)


def scrape(url: str) -> Samples:
    """All samples of a page, read by Prometheus' own parser."""
    with urllib.request.urlopen(url, timeout=LIMIT) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return parsed(answer.read().decode())


def parsed(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def sums(samples: Samples, name: str, by: str) -> dict[str, float]:
    """Values of a metric that are not 0, added up by one label."""
    found: Counter[str] = Counter()
    for (other, labels), value in samples.items():
        if other == name:
            found[dict(labels).get(by, "")] += value  # type: ignore[assignment]
    return {label: value for label, value in found.items() if value}


def value(samples: Samples, name: str, **labels: str) -> float:
    return sum(v for (other, own), v in samples.items() if other == name and own >= labels.items())


CLIENT = """
import sys
from tests.ipc.test_metrics import *
with connected() as device:
    prepared = prepare(device)
    for _ in range(int(sys.argv[1])):
        assert np.array_equal(run(prepared, numbers()), 2 * numbers())
    print("done", flush=True)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def another(count: int) -> Iterator["subprocess.Popen[str]"]:
    """A client process that has executed so often, and stays until it is told to go."""
    words = [sys.executable, "-c", CLIENT, str(count)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "done\n"
            yield process
        finally:
            process.kill()


# ------------------------------------------------------------------------------------------------------------- counting


def seen_by(call: Callable[[], object]) -> str:
    try:
        call()
    except NnhalError as error:
        return type(error).__name__
    return OK


def test_executions_that_clients_have_seen_are_those_that_are_counted_by_any_way_and_outcome() -> None:
    with service() as url, connected() as device, another(7) as other:
        good, bad, slow = prepare(device), prepare(device, fail=1), prepare(device, sleep=0.2)
        seen: Counter[str] = Counter()
        lock = threading.Lock()

        def work() -> None:
            burst = good.burst()
            here: Counter[str] = Counter()
            for n in range(30):
                request = request_for(good, numbers())
                here[seen_by(lambda: run(good, numbers()))] += 1
                here[seen_by(lambda: run(bad, numbers()))] += 1
                here[seen_by(partial(request.execute, burst.run, Control()))] += 1
                if n % 10 == 0:
                    fenced = good.execute_fenced(request_for(good, numbers()), Control())
                    assert fenced.fence is not None
                    fenced.fence.wait(None)
                    here[seen_by(fenced.get_execution_info)] += 1
            burst.close()
            with lock:
                seen.update(here)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):  # counts of any moment belong together
            samples = scrape(url)
            assert sums(samples, "nnhal_executions_total", "client") == sums(
                samples, "nnhal_execution_seconds_count", "client"
            )
        for thread in threads:
            thread.join()
        late = time.monotonic_ns() + 50_000_000
        assert seen_by(lambda: run(slow, numbers(), Control(late))) == "MissedDeadline"
        wait_until(lambda: not value(scrape(url), "nnhal_executions_inside"), "the late one has come back")
        samples = scrape(url)
        own = str(os.getpid())
        counted = {
            dict(labels)["outcome"]: n
            for (name, labels), n in samples.items()
            if name == "nnhal_executions_total" and ("client", own) in labels
        }
        assert counted.pop("MissedDeadline", 0) + counted.pop("Cancelled", 0) == 1  # which of them is a race of clocks
        assert counted == seen == {OK: 4 * 63, "OperationFailed": 4 * 30}
        by_client = sums(samples, "nnhal_execution_seconds_count", "client")
        assert by_client == {own: sum(seen.values()) + 1, str(other.pid): 7}
        assert value(samples, "nnhal_execution_seconds_bucket", client=own, le="+Inf") == by_client[own]
        assert value(samples, "nnhal_execution_seconds_sum", client=own) >= 0.05  # the slow one is in it
        assert value(samples, "nnhal_preparations_total", outcome=OK, source="model") == 4
        assert value(samples, "nnhal_preparation_seconds_count", source="model") == 4


def test_what_is_inside_and_what_waits_is_told_while_it_is_so() -> None:
    with service() as url, connected() as device:
        slow = prepare(device, sleep=1.0)
        threads = [threading.Thread(target=run, args=(slow, numbers())) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until(lambda: value(scrape(url), "nnhal_executions_inside") == 3, "all are inside")
        for thread in threads:
            thread.join()
        assert value(scrape(url), "nnhal_executions_inside") == 0


def test_those_who_wait_for_their_turn_are_told_from_those_that_run() -> None:
    from nnhal.hal.queue import RunQueue
    from nnhal.hal.waiting import OWN

    metrics, queue, turns = Metrics(), RunQueue("driver", 1, strict=True), threading.Semaphore(0)
    metrics.watch(queue)
    tally = metrics.connect(1)

    def execute() -> None:
        tally.begin()
        queue.queued(lambda *_: turns.acquire(), OWN, Priority.MEDIUM)(None, UNLIMITED)
        tally.end(0, OK)

    threads = [threading.Thread(target=execute) for _ in range(3)]
    for each in threads:
        each.start()
    for left in (2, 1, 0):
        wait_until(lambda left=left: metrics.depth() == (1, left), f"{left} wait")  # type: ignore[misc]
        turns.release()
    for each in threads:
        each.join(LIMIT)
    assert metrics.depth() == (0, 0)


def test_a_client_that_is_killed_is_told_and_its_label_goes_and_no_count_is_lost() -> None:
    with service() as url:
        with another(5) as other:
            samples = scrape(url)
            assert value(samples, "nnhal_executions_total", client=str(other.pid), outcome=OK) == 5
            assert value(samples, "nnhal_quota_used", client=str(other.pid), quota="prepared") == 1
            other.send_signal(signal.SIGKILL)
            other.wait(LIMIT)
            gone = "nnhal_connections_ended_total"
            wait_until(lambda: value(scrape(url), gone, how="process ended") == 1, "its end is counted")
            samples = scrape(url)
            assert not [labels for _, labels in samples if ("client", str(other.pid)) in labels]
            assert value(samples, "nnhal_executions_total", client=ENDED, outcome=OK) == 5
        with connected() as device:
            run(prepare(device), numbers())
        wait_until(lambda: value(scrape(url), gone, how="closed") == 1, "an orderly end is another")
        assert sums(scrape(url), "nnhal_executions_total", "client") == {ENDED: 6}


def test_what_is_refused_for_a_quota_is_counted_by_its_name() -> None:
    with service() as url, contextlib.ExitStack() as left:
        most = int(value(scrape(url), "nnhal_quota_most", quota="connections"))
        assert value(scrape(url), "nnhal_quota_refusals_total") == 0
        for _ in range(most):
            left.enter_context(connected())
        for _ in range(2):
            with pytest.raises(NnhalError, match="must be at most"):
                left.enter_context(connected())
        samples = scrape(url)
        assert sums(samples, "nnhal_quota_refusals_total", "quota") == {"connections": 2}
        assert value(samples, "nnhal_connections_ended_total", how="refused") == 2
        assert value(samples, "nnhal_connections") == value(samples, "nnhal_quota_used", quota="connections") == most


def test_every_limit_that_refuses_counts_it() -> None:
    quotas = Quotas(a_table(shared=True))
    share = quotas.connect(1)
    with pytest.raises(NnhalError):
        share.take(bursts=65)
    memory = quotas.table.rows["memory"]
    other = quotas.connect(2).take(memory=memory.own + memory.common * 3 // 4)
    with other, pytest.raises(NnhalError, match="what is left"):
        share.take(memory=memory.own + memory.common // 2)
    assert quotas.refusals() == {"bursts": 1, "memory": 1}


def test_the_outcome_of_a_class_of_a_drivers_own_is_one_that_everybody_knows() -> None:
    class Own(OperationFailed):
        pass

    assert outcome_of(Own()) == "OperationFailed"
    assert outcome_of(ZeroDivisionError()) == "DriverFailed"
    assert outcome_of(MissedDeadline("late")) == "MissedDeadline" and outcome_of(Cancelled()) == "Cancelled"


steps = st.lists(
    st.tuples(
        st.sampled_from(["connect", "begin", "end", "leave"]), st.integers(0, 3), st.sampled_from([OK, "Cancelled"])
    ),
    max_size=60,
)


@given(steps)
def test_sums_are_what_was_done_and_never_fall_whoever_comes_and_goes(steps: list[tuple[str, int, str]]) -> None:
    metrics, quotas = Metrics(), Quotas(a_table())
    tallies: dict[int, list[object]] = {pid: [] for pid in range(4)}
    inside: list[tuple[object, int]] = []
    done: Counter[str] = Counter()
    registry = CollectorRegistry()
    registry.register(exposition.ServiceCollector(metrics, quotas, {"device": "d", "version": "1", "level": "1.3"}))
    for step, pid, outcome in steps:
        if step == "connect":
            tallies[pid].append(metrics.connect(pid))
        elif step == "begin" and tallies[pid]:
            inside.append((tallies[pid][-1], tallies[pid][-1].begin()))  # type: ignore[attr-defined]
        elif step == "end" and inside:
            tally, began = inside.pop(pid % len(inside))
            tally.end(began, outcome)  # type: ignore[attr-defined]
            done[outcome] += 1
        elif step == "leave" and tallies[pid]:
            tallies[pid].pop()
            metrics.left(pid, "closed")
        samples = parsed(generate_latest(registry).decode())
        assert sums(samples, "nnhal_executions_total", "outcome") == done
        assert value(samples, "nnhal_execution_seconds_count") == sum(done.values())
        assert value(samples, "nnhal_executions_inside") == len(inside)
        labels = {dict(labels)["client"] for name, labels in samples if name == "nnhal_executions_inside"}
        assert labels == {ENDED, *(str(pid) for pid, of in tallies.items() if of)}


# ------------------------------------------------------------------------------------------------------------- scrapers


def target(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").removesuffix("/metrics").rsplit(":", 1)
    return host, int(port)


def threads_of(pid: int) -> int:
    return int(re.findall(r"Threads:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0])


def test_scrapers_that_hang_babble_dawdle_and_come_by_the_thousand_disturb_nobody() -> None:
    with service() as url, connected() as device:
        prepared, done, stop = prepare(device), [], threading.Event()

        def client() -> None:
            while not stop.is_set():
                assert np.array_equal(run(prepared, numbers()), 2 * numbers())
                done.append(None)

        def scraper(how: int) -> None:
            with contextlib.suppress(OSError), socket.create_connection(target(url), timeout=0.5) as sock:
                if how == 0:
                    stop.wait(1)
                elif how == 1:
                    sock.sendall(os.urandom(1000) + b"\r\n\r\n")
                elif how == 2:
                    sock.sendall(b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 200)
                elif how == 3:
                    for byte in b"GET /metrics HTTP/1.1":
                        sock.sendall(bytes([byte]))
                        stop.wait(0.1)
                elif how == 4:
                    sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")  # and takes nothing

        threads = [threading.Thread(target=client) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(done) > 10, "they are at it")
        held, before = [], threads_of(device.session.welcome.pid)
        for _ in range(800):  # that never say a word
            held.append(socket.socket())
            held[-1].setblocking(False)
            held[-1].connect_ex(target(url))
        jitter(random.Random(1), 0.5)
        assert threads_of(device.session.welcome.pid) <= before + scrapes.MOST
        for _ in range(4):
            together([partial(scraper, n % 5) for n in range(50)])
        so_far = len(done)
        wait_until(lambda: len(done) > so_far + 100, "executions go on")
        for sock in held:
            sock.close()
        stop.set()
        for thread in threads:
            thread.join()
        wait_until(lambda: answers(url), "who asks properly is answered")
        assert value(scrape(url), "nnhal_executions_total", outcome=OK) == len(done)
        assert value(scrape(url), "process_open_fds") < 64


def answers(url: str) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return bool(scrape(url))
    return False


def test_a_scraper_that_sends_nothing_is_hung_up_while_others_are_answered() -> None:
    with service() as url, socket.create_connection(target(url), timeout=LIMIT) as silent:
        for _ in range(3):
            assert scrape(url)
        silent.settimeout(LIMIT)
        assert silent.recv(1) == b""


def test_a_scraper_that_never_comes_to_the_end_of_its_question_is_hung_up() -> None:
    with service() as url, socket.create_connection(target(url), timeout=LIMIT) as sock:

        def hung_up() -> bool:
            try:
                sock.sendall(b"X")
            except OSError:
                return True
            return False

        wait_until(hung_up, "it is hung up")
        assert scrape(url)


def test_what_is_no_question_is_told_so() -> None:
    with service() as url:
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(urllib.request.Request(url, b"x", method="POST"), timeout=LIMIT)
        with socket.create_connection(target(url), timeout=LIMIT) as sock:
            sock.sendall(b"\x00\xff\r\n\r\n")
            assert b"400" in sock.recv(4096)


class Asked:
    """A server of metrics that a test turns by hand, on a clock of its own. collected: in which form, each time."""

    def __init__(self, path: Path) -> None:
        self.now, self.collected = 100.0, list[str]()
        listener = scrapes.listen(f"unix:{path}")
        self._path = path
        self._sockets = contextlib.ExitStack()
        self._sockets.enter_context(listener)
        self.server = scrapes.Server(listener, self._collect, lambda: self.now)

    def _collect(self, form: str) -> bytes:
        self.collected.append(form)
        self.now += 0.02
        return b"told"

    def connect(self, question: bytes = b"") -> socket.socket:
        sock = self._sockets.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        sock.connect(str(self._path))
        sock.sendall(question)
        self.server.handle_event()
        sock.setblocking(False)
        return sock

    def close(self) -> None:
        self._sockets.close()
        for caller in self.server._callers.values():
            caller.sock.close()


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    made = Asked(tmp_path / "metrics")
    yield made
    made.close()


GET = b"GET /metrics HTTP/1.1\r\nHost: nnhal\r\n\r\n"


@pytest.mark.parametrize("slow", [b"", GET[:30]], ids=["silent", "slow"])
def test_who_asks_at_once_is_answered_at_once_beside_any_number_of_those_who_do_not(asked: Asked, slow: bytes) -> None:
    others = [asked.connect(slow) for _ in range(3 * scrapes.MOST)]
    assert len(asked.server._callers) == scrapes.MOST
    honest = asked.connect(GET)
    assert honest.recv(4096).endswith(b"\r\n\r\ntold") and honest.recv(1) == b""
    assert others[0].recv(1) == b""  # who was longest at it gave way
    with pytest.raises(BlockingIOError):
        others[-1].recv(1)


def test_who_does_not_take_his_answer_gives_way_to_who_comes(asked: Asked) -> None:
    asked.server._collect = lambda _: bytes(8 << 20)
    others = []
    for _ in range(scrapes.MOST):
        others.append(asked.connect(GET))
        asked.now += 10e-6
    assert len(asked.server._callers) == scrapes.MOST
    asked.server._collect = lambda _: b"told"
    assert asked.connect(GET).recv(4096).endswith(b"told")


def test_all_that_ask_are_told_of_one_collection_which_takes_a_tenth_of_the_time(asked: Asked) -> None:
    assert asked.connect(GET).recv(4096).endswith(b"told")
    askers = [asked.connect(GET) for _ in range(scrapes.MOST)]
    assert len(asked.collected) == 1 and asked.server._pause() == pytest.approx(180, abs=1)
    assert not asked.server._has_room()  # who has asked does not give way
    asked.now += 0.179
    for sock in askers:
        with pytest.raises(BlockingIOError):
            sock.recv(1)
    asked.now += 0.002
    asked.server.handle_event()
    assert all(sock.recv(4096).endswith(b"told") for sock in askers) and len(asked.collected) == 2


def test_a_connection_has_so_long_for_its_question_and_no_longer(asked: Asked) -> None:
    silent = asked.connect()
    asked.now += scrapes.SECONDS - 0.001
    assert 0 < (asked.server._pause() or 0) <= 2
    asked.now += 0.001
    asked.server.handle_event()
    assert silent.recv(1) == b"" and not asked.server._callers


def test_a_question_is_answered_in_the_form_that_it_asks_for(asked: Asked) -> None:
    plain, opened = scrapes.FORMS
    assert plain.encode() in asked.connect(GET).recv(4096)
    asked.now += 1
    accepting = GET.replace(b"Host", b"Accept: application/openmetrics-text;version=1.0.0\r\nHost")
    assert opened.encode() in asked.connect(accepting).recv(4096) and asked.collected == [plain, opened]
    for question, status in ((b"\x00\xff\r\n\r\n", b"400"), (b"x" * 9000, b"400"), (b"PUT / HTTP/1.1\r\n\r\n", b"405")):
        assert status in asked.connect(question).recv(4096)


# ---------------------------------------------------------------------------------------------------------------- where


class OverUnix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("nnhal", timeout=LIMIT)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(LIMIT)
        self.sock.connect(self.path)


def over_unix(path: str) -> Samples:
    with contextlib.closing(OverUnix(path)) as connection:
        connection.request("GET", "/metrics")
        return parsed(connection.getresponse().read().decode())


def test_a_unix_socket_is_the_users_alone_and_one_that_is_left_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    for _ in range(2):
        with service(metrics=f"unix:{path}") as where:
            assert where == f"unix:{path}" and stat.S_IMODE(path.stat().st_mode) == 0o600
            assert value(over_unix(str(path)), "nnhal_service_info", device="probe") == 1
            with pytest.raises(DeviceUnavailable, match="another process listens there"):
                scrapes.listen(where)
        assert path.exists()  # a confined process removes nothing


def test_a_file_that_is_no_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("mine")
    with pytest.raises(DeviceUnavailable, match="exists and is not a socket"):
        scrapes.listen(f"unix:{path}")
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    "address",
    [
        "",
        "x",
        "host:",
        "127.0.0.1:99999",
        "127.0.0.1:-1",
        "1:2:x",
        "/a/path",
        "a..b:1",
        f"{'a' * 64}:1",
        f":{'1' * 5000}",
    ],
)
def test_an_address_that_is_none_is_refused_with_what_it_must_be(address: str) -> None:
    with pytest.raises(InvalidArgument, match="must be HOST:PORT, PORT or unix:PATH"):
        scrapes.listen(address)


@pytest.mark.parametrize("address", ["0", ":0", "127.0.0.1:0", "localhost:0"])
def test_a_port_alone_is_of_this_machine_alone(address: str) -> None:
    with scrapes.listen(address) as listener:
        assert scrapes.address_of(listener).startswith(("http://127.0.0.1:", "http://[::1]:"))


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        words = [sys.executable, "-P", "-m", "nnhal.serve", PROBE, "--name", "probe", "--metrics", str(port)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert done.returncode == 4 and f"metrics at {port}: Address already in use" in done.stderr
        assert names.running() == []


def test_the_package_that_is_missing_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "nnhal.ipc.service.scrapes")
    monkeypatch.delattr("nnhal.ipc.service.scrapes")
    with pytest.raises(DeviceUnavailable, match=re.escape("pip install 'nnhal[metrics]'")):
        serve._asked_at("0", alone=False)


def test_a_process_for_one_client_has_no_metrics() -> None:
    with pytest.raises(InvalidArgument, match="--fd serves one client"):
        serve._asked_at("0", alone=True)


ACTIVATED = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen()
os.dup2(listener.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.executable, [sys.executable, "-P", "-m", "nnhal.serve", *sys.argv[2:]])
"""


def test_a_service_that_systemd_starts_has_metrics_too() -> None:
    words = [sys.executable, "-c", ACTIVATED, str(names.path_of("probe")), PROBE, "--name", "probe", "--json"]
    with subprocess.Popen([*words, "--metrics", "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = json.loads(process.stdout.readline())["metrics"]
            with connected() as device:
                assert np.array_equal(run(prepare(device, doubling()), numbers()), 2 * numbers())
            assert value(scrape(url), "nnhal_executions_total", outcome=OK) == 1
        finally:
            process.terminate()
            process.wait(LIMIT)


# ----------------------------------------------------------------------------------------------------------------- page


def test_the_page_has_the_metrics_that_there_are() -> None:
    rows = re.findall(r"^\| `(nnhal_\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|$", PAGE.read_text(), re.MULTILINE)
    kinds = {"counter": "_total", "info": "_info"}
    told = {name.removesuffix(kinds.get(kind, "")): (kind, labels.strip(), what) for name, kind, labels, what in rows}
    code = {}
    for name, metric in exposition.METRICS.items():
        kind = metric.kind.__name__.removesuffix("MetricFamily").lower()
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        code[name] = kind, labels or "`device`, `version`, `level`" * (kind == "info"), metric.what
    assert told == code


def test_every_metric_that_is_told_is_in_the_table_and_the_other_way_round() -> None:
    metrics = Metrics()
    collector = exposition.ServiceCollector(metrics, Quotas(a_table()), {"device": "d", "version": "1", "level": "1.3"})
    assert [family.name for family in collector.collect()] == list(exposition.METRICS)
