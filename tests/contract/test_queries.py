"""The queries of a device, answered with nonsense of every kind: a right result or a named error, and nothing afterwards.

The matrix is queries x nonsense (`drivers.liar`) x at once or from the second answer on x in process and isolated.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import DeviceStatus, OperandType
from nnhal.base.installed import EntryPoint
from nnhal.ipc.client.process import ReconnectingDevice
from nnhal.model.builder import ModelBuilder
from nnhal.runtime import discovery, isolation
from nnhal.runtime.discovery import DiscoveredDriver
from tests.contract.drivers import liar
from tests.contract.drivers.liar import ABOUT_ITSELF, AT_LOAD, ERRORS, OWN, QUERIES
from tests.waiting import Opened, Started, until

DRIVER = Path(liar.__file__)
X = np.arange(6, dtype=np.float32).reshape(2, 3)
UNASKED = "status", "device_close", "burst_executor"  # in process nobody asks
SETTLED = 10.0  # seconds


def model(lie: str) -> nnhal.Model:
    """y = x + x."""
    b = ModelBuilder(lie)
    x, y = (b.operand(OperandType.TENSOR_FLOAT32, X.shape, name=name) for name in "xy")
    b.operation("ADD", [x, x, b.constant(OperandType.INT32, 0)], [y])
    return b.finish([x], [y])


def some(query: str, count: int) -> list[str]:
    """So many kinds of nonsense out of all, evenly."""
    names = list(liar.nonsense_about(query))
    return names if len(names) <= count else [names[n * len(names) // count] for n in range(count)]


def lies(query: str, isolated: bool) -> list[str]:
    """All there are in process, some of them isolated: processes are dear. One that runs out of memory is replaced."""
    if query in UNASKED and not isolated:
        return some(query, 8)
    if not isolated:
        return [*liar.nonsense_about(query), *(f"{n} later" for n in some(query, 8))]
    if query in AT_LOAD:
        return some(query, 8)
    return [n for n in some(query, 30) if "Memory" not in n]


def cases(isolated: bool) -> list[Any]:
    return [
        pytest.param(query, nonsense, id=f"{query}-{nonsense}".encode("ascii", "backslashreplace").decode())
        for query in QUERIES
        for nonsense in lies(query, isolated)
    ]


IN_PROCESS, ISOLATED = cases(False), cases(True)


def test_the_matrix_is_as_large_as_it_is_said_to_be():
    assert len(QUERIES) == 21 and len(ERRORS) >= 30
    assert all(len(lies(query, isolated)) >= 8 for query in QUERIES for isolated in (False, True))
    assert all(len(lies(query, False)) >= 80 for query in QUERIES if query not in UNASKED)
    assert len(IN_PROCESS) >= 2000 and len(ISOLATED) >= 400


# ------------------------------------------------------------------------------------------------------------ around it


def children() -> set[str]:
    """Of this process."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.fixture(scope="module", autouse=True)
def liar_is_installed() -> Iterator[None]:
    """As an entry point, and for other processes by its file. Afterwards nothing is left, and all others work."""
    use(nnhal.compile(model("")), lambda error: False)
    isolation.close_all()
    opened, started, before = Opened(), Started(), children()
    points = discovery._installed()
    points["liar"] = EntryPoint("liar", f"{liar.__name__}:device", discovery.GROUP)
    yield
    points.pop("liar")
    discovery._registered.pop("liar", None)
    forget()
    isolation.close_all()
    liar._kept.clear()
    opened.closed()
    started.ended()
    until(lambda: children() <= before, "processes end")
    use(nnhal.compile(model("")), lambda error: False)


def forget() -> None:
    """The driver loads anew when it is next asked for."""
    discovery._loaded._entries.pop("liar", None)
    for place, device in isolation._devices.values().items():
        if place.name == "liar":
            device.close()


@pytest.fixture
def told(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """A lie, told by the driver that loads next, or by the name of the model."""
    query, nonsense = request.getfixturevalue("query"), request.getfixturevalue("nonsense")
    monkeypatch.setenv("NNHAL_LIE", f"{query} {nonsense}" if query in AT_LOAD else "")
    monkeypatch.setenv("NNHAL_SYNC_EXEC", "0" if query == "execute" else "1")
    return "" if query in AT_LOAD else f"{query} {nonsense}"


# ----------------------------------------------------------------------------------------------------------- what is done


def call(c: nnhal.Compiled) -> Any:
    return c(X)


def burst(c: nnhal.Compiled) -> Any:
    with c.burst() as run:
        run(X)
        return run(X)


def fenced(c: nnhal.Compiled) -> Any:
    launched = c.execute_fenced(X)
    result = launched.result(60)
    launched.get_execution_info()
    return result


def allocation(c: nnhal.Compiled) -> Any:
    given, taken = nnhal.allocate([(c, "input", 0)]), nnhal.allocate([(c, "output", 0)])
    for memory in (given, taken):
        assert memory.device is not None or "liar" in memory.reason or c.placement.choices[0].device != "liar"
    given.write(X)
    c(given, out=taken)
    result = taken.read()
    given.close()
    taken.close()
    return result


WAYS: tuple[Callable[[nnhal.Compiled], Any], ...] = (call, burst, fenced, allocation, call)


def use(compiled: nnhal.Compiled, excused: Callable[[BaseException], bool]) -> None:
    """Every way gives the right result, or raises what is excused; so does the end."""
    for way in WAYS:
        try:
            assert (way(compiled) == X + X).all(), way
        except BaseException as error:
            if not excused(error):
                raise
    try:
        compiled.close()
    except BaseException as error:
        if not excused(error):
            raise


def named(error: BaseException) -> bool:
    return isinstance(error, nnhal.NnhalError) and "liar" in str(error) and len(str(error)) < 20000


def chosen(compiled: nnhal.Compiled, seen: list[Any], name: str) -> None:
    """The liar, or there was a warning of it, or what it states is not the best."""
    told = [str(w.message) for w in seen if issubclass(w.category, nnhal.FallbackWarning)]
    (choice,) = compiled.placement
    assert choice.device == name or any(name in text for text in told) or choice.others[name].startswith("states")


def look(lie: str, isolation: str, excused: Callable[[BaseException], bool], there: Callable[[], str]) -> None:
    """Compile for the liar, then for whatever is there, and use both. there: its name, "" where it does not load."""
    try:
        use(nnhal.compile(model(lie), devices="liar", isolation=isolation), excused)
    except BaseException as error:
        if not excused(error):
            raise
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            compiled = nnhal.compile(model(lie), isolation=isolation)
            if name := there():
                chosen(compiled, seen, name)
        except BaseException as error:
            if not excused(error):
                raise
        else:
            use(compiled, excused)


@pytest.mark.sampled(8)
@pytest.mark.timeout(20)
@pytest.mark.parametrize(("query", "nonsense"), IN_PROCESS)
def test_what_a_driver_answers_in_process_is_right_or_an_error_that_names_it(query, nonsense, told):
    forget()
    discovery._registered.pop("liar", None)
    own = (KeyboardInterrupt,) if OWN in nonsense else ()  # it reaches the application

    def excused(error: BaseException) -> bool:
        return isinstance(error, own) or named(error)

    def there() -> str:
        found = {entry.origin.split(":")[0].split(".")[-1]: entry for entry in nnhal.devices()}
        assert found["litert"].device is not None and found["reference"].device is not None
        assert found["liar"].device is not None or 0 < len(found["liar"].problem) < 20000
        return found["liar"].name if found["liar"].device is not None else ""

    if not own:
        there()
    look(told, "none", excused, there)


@pytest.mark.sampled(12)
@pytest.mark.timeout(20)
@pytest.mark.parametrize(("query", "nonsense"), ISOLATED)
def test_what_a_driver_answers_in_its_own_process_is_right_or_an_error_that_names_it(query, nonsense, told):
    if query in AT_LOAD:
        forget()
    discovery._registered["liar"] = DiscoveredDriver("liar", str(DRIVER), None)

    def kept() -> ReconnectingDevice | None:
        devices = (d for place, d in isolation._devices.values().items() if place.name == "liar" and not d.is_unusable)
        return next(devices, None)

    if query in AT_LOAD:
        try:
            use(nnhal.compile(model(told), devices="liar", isolation="process"), named)
        except BaseException as error:
            if not named(error):
                raise
        forget()
        return
    device = kept()
    died = 0 if device is None else device.health.total
    look(told, "process", named, lambda: "liar" if kept() else "")
    device = kept()
    assert device is not None and device.health.total == died
    if query == "status":
        try:
            assert device.status() in DeviceStatus
        except nnhal.NnhalError as error:
            assert named(error)


@pytest.mark.parametrize("what", ABOUT_ITSELF)
def test_what_a_device_says_of_itself_is_asked_once(what, monkeypatch):
    monkeypatch.setenv("NNHAL_LIE", f"{what} None later")
    device = liar.device()
    use(nnhal.compile(model(""), devices=device), lambda error: False)
    assert device.itself.asked == 1
