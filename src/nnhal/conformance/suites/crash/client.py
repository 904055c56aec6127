"""A client of a driver, in a process that is to be killed, or kills itself, or reports its results.

Its argument is a `ClientOrders` as JSON. It prints "ready PID" once each thread has done a round, with the process id of the
driver that it started, if any, and at its end a `ClientReport` as JSON.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from nnhal.base.errors import NnhalError, ResourceExhausted
from nnhal.base.records import Record, field
from nnhal.conformance.pool import LOADING
from nnhal.conformance.suites.stress.graphs import SETS, difference
from nnhal.conformance.suites.stress.runs import PLAIN, ThreadJob, any_job, closed, executed
from nnhal.conformance.suites.suite import Context, SuiteRun
from nnhal.conformance.worker import end_with
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Device
from nnhal.hal.request import UNLIMITED
from nnhal.hal.wrappers import WithOptions
from nnhal.ipc import names
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.process import start

COMPILE, EXECUTE, BURST = "compile", "execute", "burst"


class ClientOrders(Record, frozen=True):
    """A client's work.

    parent: the process with which it ends. service: the name of the driver's service, "" to start `driver` for itself.
    threads: what each thread does. rounds: of each thread. dies_after: all rounds together after which the client kills
    itself; 0 for never.
    """

    parent: int
    service: str
    driver: str
    level: str
    options: dict[str, Any]
    seed: int
    length: int
    threads: tuple[str, ...]
    rounds: int
    dies_after: int = 0


class ClientReport(Record, frozen=True):
    """The results of a client's work."""

    right: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def connected(orders: ClientOrders) -> tuple[Device, int]:
    """Return the device, and the process id of the driver."""
    session = names.connect(orders.service, LOADING) if orders.service else start(orders.driver, level=orders.level)
    device: Device = RemoteDevice(session)
    return (WithOptions(device, orders.options) if orders.options else device), session.welcome.pid


class _Client:
    """The threads, and what they report."""

    def __init__(self, orders: ClientOrders) -> None:
        self.orders = orders
        self.device, self.pid = connected(orders)
        run = SuiteRun(seed=orders.seed)
        self.job: ThreadJob = any_job(Context(self.device, run, lambda _: None), 700, orders.length)
        self._lock = threading.Lock()
        self._taken = [0] * len(orders.threads)
        self._begun = threading.Event()
        self.report = ClientReport()

    def run(self) -> None:
        """Work until all threads have finished their work."""
        several = [threading.Thread(target=self._work, args=(n,), daemon=True) for n in range(len(self._taken))]
        for thread in several:
            thread.start()
        self._begun.wait()
        print(f"ready {self.pid}", flush=True)
        for thread in several:
            thread.join()
        print(json.dumps({name: getattr(self.report, name) for name in self.report.__struct_fields__}), flush=True)

    def _work(self, place: int) -> None:
        work = {COMPILE: self._compiling, EXECUTE: self._executing, BURST: self._in_a_burst}[self.orders.threads[place]]
        right = refused = 0
        try:
            for answer in work(place):
                if answer is None:
                    refused += 1
                elif answer:
                    with self._lock:
                        self.report.wrong.append(answer)
                else:
                    right += 1
                self._round(place)
                if self._taken[place] == self.orders.rounds:
                    break
        except NnhalError as error:
            with self._lock:
                self.report.errors.append(f"{type(error).__name__}: {error}")
        finally:
            with self._lock:
                self.report = ClientReport(
                    self.report.right + right, self.report.refused + refused, self.report.wrong, self.report.errors
                )
            if not self._taken[place]:
                self._round(place)

    def _round(self, place: int) -> None:
        self._taken[place] += 1
        if self.orders.dies_after and sum(self._taken) >= self.orders.dies_after:
            os.kill(os.getpid(), signal.SIGKILL)  # while other threads are in the driver
        if all(self._taken):
            self._begun.set()

    def _compiling(self, _: int) -> Iterator[str | None]:
        """Yield the difference of each new model's result; None if the driver refused it."""
        for number in range(self.orders.rounds):
            try:
                prepared = checked_prepared(self.device, self.job.graph.model, PLAIN)
            except ResourceExhausted:
                yield None
                continue
            place = number % SETS
            problem = difference(self.job.wanted[place], executed(self.device, prepared, self.job.inputs[place]))
            closed(self.device, prepared)
            yield problem

    def _executing(self, first: int) -> Iterator[str | None]:
        prepared = checked_prepared(self.device, self.job.graph.model, PLAIN)
        for number in range(self.orders.rounds):
            place = (first + number) % SETS
            yield difference(self.job.wanted[place], executed(self.device, prepared, self.job.inputs[place]))

    def _in_a_burst(self, first: int) -> Iterator[str | None]:
        prepared = checked_prepared(self.device, self.job.graph.model, PLAIN)
        with ExitStack() as stack:
            burst = stack.enter_context(prepared.burst())
            for number in range(self.orders.rounds):
                place = (first + number) % SETS
                request = prepared.request([x.copy() for x in self.job.inputs[place]])
                request.execute(burst.run, UNLIMITED)
                yield difference(self.job.wanted[place], request.results)


def main() -> None:
    """Run a client."""
    orders = ClientOrders(**json.loads(sys.argv[1]))
    end_with(orders.parent)
    _Client(orders).run()
    sys.stdout.flush()
    os._exit(0)
