"""The suite `crash`: client processes die; the driver, its service and other clients must go on.

A service of the driver is started for each case, whether the device is isolated or not. A *probe*, another client,
executes all the while, and compares each result.
"""

import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

from nnhal.base.errors import DeadObject, NnhalError
from nnhal.base.records import replace
from nnhal.conformance.device_under_test import ANY
from nnhal.conformance.pool import LOADING
from nnhal.conformance.suites.crash.client import BURST, COMPILE, EXECUTE, ClientOrders, connected
from nnhal.conformance.suites.crash.processes import MEMORY, ClientProcess, ended, resources_of, service
from nnhal.conformance.suites.stress.graphs import SETS, difference
from nnhal.conformance.suites.stress.runs import PLAIN, ThreadJob, any_job, closed, executed
from nnhal.conformance.suites.suite import PREPARING, Case, CaseFailed, Context, NotApplicable, Suite, SuiteRun
from nnhal.hal.chain import checked_prepared
from nnhal.ipc import transport
from nnhal.ipc.client.output import DriverProcess
from nnhal.runtime import discovery

LENGTH = 8  # operations
THREADS = 4  # of a client that is killed
KILLED = 6  # clients, one after another
PROCESSES, IN_EACH = 6, 10  # clients at once, and threads of each
ROUNDS = 24  # of each thread of a client at once
SHARES = 0, 50, 80, 100  # per cent of the clients at once that kill themselves
ENDLESS = 1 << 40  # rounds of a client, which the suite kills before they end
LATEST = 0.1  # seconds of work after which a client is killed, at most
PAUSE = 0.002  # seconds between the probe's executions
STOPPED = 0.3  # seconds
MEBIBYTES = 1.0  # of memory that each killed client leaves; less is the allocator's
SETTLING = 3.0  # seconds that a service has to release what a dead client held
PATIENCE = 3  # times the time limit of a call that has the driver to itself
OWN_END = 30.0  # seconds in which the driver's process of a dead client must end
Found = Mapping[str, Any]


class Crash(Suite):
    """The suite."""

    name = "crash"
    serial = True
    bundle = 1

    def cases(self, run: SuiteRun) -> Iterator[Case]:
        """Yield the cases; `scale` changes the number of clients that are killed, and the rounds of the others."""
        for what in (COMPILE, EXECUTE, BURST):
            yield Case(self.name, f"killed/{what}", arguments=("killed", what))
        yield Case(self.name, "stopped", arguments=("stopped",))
        for share in SHARES:
            yield Case(self.name, f"clients/{share}", arguments=("clients", share))
        for what in (COMPILE, EXECUTE):
            yield Case(self.name, f"own-process/{what}", arguments=("own-process", what))

    def run(self, case: Case, context: Context) -> Found | None:
        """Run a case."""
        try:
            transport.require()
        except NnhalError as error:
            raise NotApplicable(f"drivers cannot run in another process here: {error}") from None
        what, *rest = case.arguments
        return _CASES[what](context, *rest)

    def seconds(self, case: Case, run: SuiteRun) -> float:
        """Return the time limit of a call: many clients at once share the driver."""
        return PATIENCE * run.timeout


SUITE = Crash()


# ---------------------------------------------------------------------------------------------------------------- probe


class _Probe:
    """A client that executes until the other side has ended. count: its right results."""

    def __init__(self, context: Context) -> None:
        self.context, self.count = context, 0
        self.done, self.moved = threading.Event(), threading.Condition()
        self.broken = False
        self._errors: list[BaseException] = []

    def beside(self, one: ThreadJob, act: Callable[[], None]) -> None:
        """Execute a graph again and again while a function runs in another thread; raise the first error of either."""
        device, context = self.context.device, self.context
        context.at("prepare")
        prepared = checked_prepared(device, one.graph.model, PLAIN)
        helper = threading.Thread(target=self._acting, args=(act,), name="nnhal-crash", daemon=True)
        helper.start()
        try:
            while not self.done.is_set():
                context.at("run")
                place = self.count % SETS
                problem = difference(one.wanted[place], executed(device, prepared, one.inputs[place]))
                if problem:
                    raise CaseFailed(
                        f"while another client died: {problem} ({one.graph.operations})", "state that clients share?"
                    )
                with self.moved:
                    self.count += 1
                    self.moved.notify_all()
                self.done.wait(PAUSE)
        finally:
            with self.moved:
                self.broken = True
                self.moved.notify_all()
            context.at(PREPARING)
            helper.join()
        if self._errors:
            raise self._errors[0]
        context.at("close")
        closed(device, prepared)
        context.at(PREPARING)

    def _acting(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            self._errors.append(error)
        finally:
            self.done.set()

    def goes_on(self) -> bool:
        """Wait until it has executed twice from now; return False if it failed."""
        with self.moved:
            wanted = self.count + 2
            self.moved.wait_for(lambda: self.count >= wanted or self.broken)
            return not self.broken


class _Service:
    """The driver's service, and a device that is a client of it."""

    def __init__(self, context: Context, name: str, process: DriverProcess, orders: ClientOrders) -> None:
        self.process, self.orders = process, replace(orders, service=name)
        device, self.pid = connected(self.orders)
        self.context = Context(device, context.run, context.at)
        self.job = any_job(self.context, 700, LENGTH)
        self.probe = _Probe(self.context)

    def client(self, threads: Sequence[str], **more: Any) -> ClientProcess:
        """Start a client."""
        return ClientProcess(replace(self.orders, threads=tuple(threads), **more))

    def beside(self, act: Callable[[], None]) -> None:
        """Let the probe execute while a function runs."""
        try:
            self.probe.beside(self.job, act)
        except DeadObject as error:
            fate = self.process.exit_description()
            raise CaseFailed(
                f"the driver's service has ended after a client died: {fate or error}",
                "the driver ends with its client?",
            ) from error


def _orders(context: Context) -> ClientOrders:
    run, name = context.run, context.device.name
    options = {**run.options.get(ANY, {}), **run.options.get(name, {})}
    driver = discovery.origin_of(name)
    return ClientOrders(os.getpid(), "", driver, run.level, options, run.seed, LENGTH, (), ENDLESS)


@contextmanager
def _served(context: Context) -> Iterator[_Service]:
    """Start the service, for as long as the block."""
    orders = _orders(context)
    context.at(PREPARING)
    with service(orders.driver, orders.level) as (name, process):
        served = _Service(context, name, process, orders)
        try:
            yield served
        finally:
            served.context.device.close()


# ---------------------------------------------------------------------------------------------------------------- cases


def _killed(context: Context, what: str) -> Found:
    """Kill clients in the middle of their calls; the probe goes on, and nothing of them stays."""
    kills = max(4, round(KILLED * context.run.scale))
    rng = random.Random(f"{context.run.seed} {what}")
    limit = max(LOADING, context.run.timeout)
    with _served(context) as served:
        readings: list[dict[str, float]] = []

        def act() -> None:
            for _ in range(kills):
                client = served.client([what] * THREADS)
                try:
                    client.ready(limit)
                    served.probe.done.wait(rng.uniform(0, LATEST))
                    client.kill()
                finally:
                    client.end()
                if not served.probe.goes_on():
                    return
                readings.append(_settled(served, readings))

        served.beside(act)
        found = {"killed clients": kills, "executions": served.probe.count}
        for name in readings[0]:
            steps = [after[name] - before[name] for before, after in pairwise(readings)]
            if min(steps) >= (MEBIBYTES if name == MEMORY else 1):
                each = sum(steps) / len(steps)
                raise CaseFailed(
                    f"each killed client leaves {each:.3g} {name} in the driver's process ({kills} clients)",
                    "objects of a dead client that are not closed?",
                    {**found, name: [reading[name] for reading in readings]},
                )
        return {**found, **{name: readings[-1][name] for name in readings[-1]}}


def _settled(served: _Service, before: Sequence[dict[str, float]]) -> dict[str, float]:
    """Wait until the service holds no more than after the client before, but not long; return what it holds."""
    pause, left = 0.02, SETTLING
    while left > 0:
        now = resources_of(served.pid)
        if before and all(now[name] <= before[-1][name] for name in now if name != MEMORY):
            break
        if not before and left < SETTLING / 2:
            break
        served.probe.done.wait(pause)
        left -= pause
    return resources_of(served.pid)


def _stopped(context: Context) -> Found:
    """Stop a client in the middle of its calls; the probe goes on, and so does the client afterwards."""
    limit = max(LOADING, context.run.timeout)
    with _served(context) as served:

        def act() -> None:
            client = served.client([COMPILE, EXECUTE, BURST, EXECUTE], rounds=ROUNDS)
            try:
                client.ready(limit)
                client.pause(go_on=False)
                served.probe.done.wait(STOPPED)
                if not served.probe.goes_on():
                    return
                client.pause(go_on=True)
                _judge(client.report(limit), "a client that was stopped for a moment")
            finally:
                client.end()

        served.beside(act)
        return {"executions": served.probe.count}


def _judge(report: Any, who: str) -> int:
    """Return the number of right results; CaseFailed if one was wrong, or a call failed."""
    if report.errors:
        raise CaseFailed(f"{who}: {report.errors[0]}")
    if report.wrong:
        raise CaseFailed(
            f"{who}: {len(report.wrong)} results are wrong: {report.wrong[0]}", "state that clients share?"
        )
    right: int = report.right
    return right


def _clients(context: Context, share: int) -> Found:
    """Run clients with many threads at once, some of which kill themselves; the others get right results."""
    limit = max(LOADING, context.run.timeout)
    rng = random.Random(f"{context.run.seed} {share}")
    failing = round(PROCESSES * share / 100)
    rounds = max(8, round(ROUNDS * context.run.scale))
    threads = [(EXECUTE, COMPILE, BURST)[n % 3] for n in range(IN_EACH)]
    with _served(context) as served:
        results = [0]

        def act() -> None:
            with ExitStack() as stack:
                several = []
                for number in range(PROCESSES):
                    most = rounds * IN_EACH if number < failing else 0
                    dies = rng.randint(IN_EACH, most // 2) if most else 0
                    several.append((served.client(threads, rounds=rounds, dies_after=dies), dies))
                    stack.callback(several[-1][0].end)
                for client, dies in several:
                    if dies:
                        client.died(limit)
                    else:
                        client.ready(limit)
                        results[0] += _judge(client.report(limit), "a client beside others that died")
                if not served.probe.goes_on():
                    return
                last = served.client([EXECUTE], rounds=SETS)
                stack.callback(last.end)
                last.ready(limit)
                _judge(last.report(limit), "a client that came after others had died")

        served.beside(act)
        return {"failing clients": failing, "results": results[0], "executions": served.probe.count}


def _own_process(context: Context, what: str) -> Found:
    """Kill clients that have a driver's process each: that process ends too, and the device under test goes on."""
    kills = max(2, round(KILLED / 2 * context.run.scale))
    rng = random.Random(f"{context.run.seed} own {what}")
    limit = max(LOADING, context.run.timeout)
    one = any_job(context, 700, LENGTH)
    probe, orders = _Probe(context), replace(_orders(context), threads=(what,) * THREADS)

    def act() -> None:
        for _ in range(kills):
            client = ClientProcess(orders)
            try:
                client.ready(limit)
                probe.done.wait(rng.uniform(0, LATEST))
                client.kill()
            finally:
                client.end()
            if not ended(client.driver, OWN_END):
                raise CaseFailed(f"the driver's process of a killed client has not ended within {OWN_END:g} s")
            if not probe.goes_on():
                return

    probe.beside(one, act)
    return {"killed clients": kills, "executions": probe.count}


_CASES: dict[str, Callable[..., Found]] = {
    "killed": _killed,
    "stopped": _stopped,
    "clients": _clients,
    "own-process": _own_process,
}
