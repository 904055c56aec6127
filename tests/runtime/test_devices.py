"""What devices there are: each driver loads once and alone, has an identity, and may be in a process of its own."""

import importlib.metadata
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import DeviceUnavailable, InvalidArgument
from nnhal.base.once import Once
from nnhal.hal.device import Capabilities
from nnhal.ipc.client.process import Resilient
from nnhal.runtime import discovery, isolation
from nnhal.runtime.isolation import DeviceKey, key_of, labels
from tests.runtime.devices import Fake, failing, to_be_killed

LIMIT = 60.0  # seconds after which something that has to happen counts as hanging
X = np.float32([1, 2, 3, 4])


@dataclass
class Point:
    """As much of an entry point as is looked at."""

    name: str
    factory: Callable[[], object]
    group: str = discovery.GROUP
    value: str = "test:device"

    def matches(self, **wanted: str) -> bool:
        return all(getattr(self, what) == value for what, value in wanted.items())

    def load(self) -> Callable[[], object]:
        return self.factory


class Named(Fake):
    def __init__(self, name: str, **how: Callable[..., object]) -> None:
        super().__init__(**how)
        self.name = name


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes entry points the installed ones, the reference beside them, and nothing loaded."""

    def installed(*points: Point) -> None:
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda: importlib.metadata.EntryPoints(points))
        discovery._installed.cache_clear()
        monkeypatch.setattr(discovery, "_loaded", Once(lambda name: f"driver {name!r}"))

    monkeypatch.setattr(discovery, "_registered", {})
    yield installed
    monkeypatch.undo()
    discovery._installed.cache_clear()


def sums(count: int = 1) -> nnhal.Model:
    b = nnhal.Builder("sums")
    x = y = b.input((4,))
    for _ in range(count):
        y = b.add(y, x)
    return b.finish([x], [y])


# ------------------------------------------------------------------------------------------------------------- loading


def test_a_driver_that_is_named_is_the_only_one_that_loads(install):
    install(Point("other", failing(AssertionError("was loaded"))), Point("mine", lambda: Named("mine")))
    assert [device.name for device in isolation.select(["mine"], "none")] == ["mine"]
    assert set(discovery._loaded.values()) == {"mine"}


def test_compiling_for_the_reference_imports_no_engine():
    program = (
        "import sys, nnhal; b = nnhal.Builder(); x = b.input((4,))\n"
        "nnhal.compile(b.finish([x], [b.add(x, x)]), devices='reference')\n"
        "print([name for name in ('ai_edge_litert', 'nnhal.drivers.litert') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout == "[]\n"


def test_what_is_installed_is_looked_up_once_in_a_process(install, monkeypatch):
    install(Point("mine", lambda: Named("mine")))
    scan, scans = importlib.metadata.entry_points, []
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda: scans.append(1) or scan())
    for _ in range(3):
        nnhal.compile(sums(), devices="mine")
        discovery.found()
    assert len(scans) == 1


def test_a_driver_may_ask_for_another_while_it_loads(install):
    install(Point("wrapper", lambda: Named(f"over {discovery.load_one('inner').name}")), Point("inner", Fake))
    assert [found.name for found in discovery.found()] == ["fake", "over fake", "reference"]


def test_a_driver_may_ask_for_the_cpu_while_all_are_loaded(install):
    install(Point("wrapper", lambda: Named(f"over {discovery.cpu().name}")))
    assert [found.name for found in discovery.found()] == ["over reference", "reference"]


@pytest.mark.parametrize("ask", [discovery.found, lambda: discovery.load_one("narcissus")])
def test_a_driver_that_asks_for_itself_while_it_loads_is_told(install, ask):
    install(Point("narcissus", ask))
    (found, _) = discovery.found()
    assert found.device is None
    assert "driver 'narcissus': is asked for by what it waits for itself" in found.problem


def test_two_threads_that_ask_for_one_driver_get_one_device(install):
    started, gate, made = threading.Event(), threading.Event(), []

    def factory() -> Fake:
        started.set()
        gate.wait(LIMIT)
        made.append(Fake())
        return made[-1]

    install(Point("slow", factory))
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(discovery.load_one, "slow") for _ in range(2)]
        assert started.wait(LIMIT)
        gate.set()
        assert {id(each.result(LIMIT)) for each in asked} == {id(device) for device in made}
    assert len(made) == 1


def test_different_drivers_load_at_the_same_time(install):
    meeting = threading.Barrier(2)
    install(*(Point(name, lambda: meeting.wait(LIMIT) in (0, 1) and Fake()) for name in ("one", "two")))
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(discovery.load_one, ["one", "two"]))


def test_a_device_that_calls_itself_otherwise_than_its_entry_point_is_found_by_both_names(install):
    install(Point("entry", lambda: Named("device")))
    assert discovery.load_one("entry") is discovery.load_one("device")


def test_a_name_that_nobody_has_lists_those_that_there_are(install):
    install(Point("mine", Fake), Point("sample", Fake, discovery.SAMPLES))
    for ask in (discovery.load_one, isolation.isolated):
        with pytest.raises(DeviceUnavailable, match=r"device 'abacus' is not known, must be one of reference, mine$"):
            ask("abacus")


# ------------------------------------------------------------------------------------------------------------- the CPU


def test_a_device_registered_as_reference_is_found_but_is_not_the_cpu(install):
    install()
    impostor = Named("reference", on_run=failing(RuntimeError("no reference")))
    discovery.register(impostor)
    assert discovery.load_one("reference") is impostor
    assert discovery.source_of(discovery.cpu()) == "nnhal.drivers.reference:device"
    compiled = nnhal.compile(sums(), devices=Fake(on_prepare=failing(RuntimeError("broken"))), fallback="allow")
    assert (compiled(X) == 2 * X).all()


def test_an_installed_driver_named_reference_does_not_take_the_place_of_the_cpu(install):
    install(Point("reference", lambda: Named("reference")))
    assert discovery.source_of(discovery.load_one("reference")) == "nnhal.drivers.reference:device"


def test_the_reference_in_a_process_of_its_own_stays_there_where_the_cpu_may_take_over():
    with nnhal.compile(sums(), devices=["reference"], isolation="process", fallback="allow") as compiled:
        (step,) = compiled._caller.plan.steps
        assert isinstance(step.device, Resilient) and step.device.pid != os.getpid()
        assert (compiled(X) == 2 * X).all()
        (choice,) = compiled.placement.choices
        assert choice.device == "reference" and list(choice.others) == ["reference (in this process)"]


# ------------------------------------------------------------------------------------------------------------ identity


def test_two_devices_of_one_name_both_take_part_and_are_told_apart():
    runs = []
    one = Fake(takes=lambda n: n == 0, on_run=lambda: runs.append("one"))
    two = Fake(takes=lambda n: n == 1, on_run=lambda: runs.append("two"))
    compiled = nnhal.compile(sums(2), devices=[one, two])
    assert [(s.device, s.operations) for s in compiled.placement.steps] == [("fake", (0,)), ("fake (2)", (1,))]
    assert compiled.placement.choices[0].others == {"fake (2)": "not this one"}
    assert (compiled(X) == 3 * X).all() and runs == ["one", "two"]


def test_a_device_that_is_named_twice_takes_part_once():
    device = Fake()
    assert isolation.select([device, device, "reference", "reference"], "none") == [device, discovery.cpu()]


def test_options_for_a_name_that_two_devices_have_are_refused():
    with pytest.raises(InvalidArgument, match="driver_options: 2 devices are named 'fake', must be one"):
        nnhal.compile(sums(), devices=[Fake(), Fake()], driver_options={"fake": {}})


def test_options_of_an_isolated_device_are_not_for_the_cpu_of_the_same_name():
    with nnhal.compile(
        sums(), devices="reference", isolation="process", fallback="allow", driver_options={"reference": {"a": 1}}
    ) as compiled:
        wishes = compiled._caller.plan.wishes
        assert wishes.hints(compiled._caller.plan.steps[0].device).options == {"a": 1}
        assert wishes.hints(discovery.cpu()).options == {}


def test_a_driver_by_a_relative_path_loads_in_a_process_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "_registered", {})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "relative.py").write_text(
        "from nnhal.drivers.reference import Reference\nclass Relative(Reference):\n name = 'relative'\n"
        "def device(): return Relative()\n"
    )
    nnhal.load_driver("relative.py")
    compiled = nnhal.compile(sums(), devices="relative", isolation="process")
    assert len(compiled(*(np.ones(s.fixed, s.dtype) for s in compiled.inputs))) == 4


def test_a_device_is_known_by_name_version_origin_and_isolation(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "_registered", {})
    driver = tmp_path / "filed.py"
    driver.write_text(
        "from nnhal.drivers.reference import Reference\nclass Filed(Reference):\n name, version = 'filed', '7'\n"
        "def device(): return Filed()\n"
    )
    assert key_of(nnhal.load_driver(driver)) == DeviceKey("filed", "7", str(driver), "none")
    assert key_of(isolation.isolated("filed")) == DeviceKey("filed", "7", str(driver), "process")
    assert key_of(discovery.cpu()) == DeviceKey("reference", "1", "nnhal.drivers.reference:device", "none")
    assert key_of(Fake()) == DeviceKey("fake", "0", "tests.runtime.devices:Fake", "none")
    device = to_be_killed()
    assert key_of(device) == DeviceKey("reference", "1", "reference", "process")
    device.close()


def test_the_placement_says_what_the_devices_are():
    document = nnhal.compile(sums(), devices=[Fake(), "reference"]).placement.to_dict()
    assert document["devices"] == {
        "fake": {"name": "fake", "version": "0", "origin": "tests.runtime.devices:Fake", "isolation": "none"},
        "reference": {
            "name": "reference",
            "version": "1",
            "origin": "nnhal.drivers.reference:device",
            "isolation": "none",
        },
    }


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([("a", "none"), ("b", "none")], ["a", "b"]),
        ([("a", "none"), ("a", "none"), ("a", "none")], ["a", "a (2)", "a (3)"]),
        ([("a", "process"), ("a", "none")], ["a", "a (in this process)"]),
        ([("a", "none"), ("a", "process"), ("a", "service")], ["a", "a (in its own process)", "a (as a service)"]),
        ([("a", "none"), ("a", "process"), ("a", "process")], ["a", "a (in its own process)", "a (2)"]),
        ([("a (2)", "none"), ("a", "none"), ("a", "none")], ["a (2)", "a", "a (3)"]),
    ],
)
def test_labels_are_names_made_to_differ(devices, expected):
    assert list(labels([DeviceKey(name, "1", "here", where) for name, where in devices])) == expected


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("name", 5, "device tests.runtime.devices:Fake: name is 5, must be a str"),
        ("name", "", "name is '', must be a str"),
        ("version", None, "device fake: version is None, must be a str"),
        ("type", "gpu", "device fake: type is 'gpu', must be a DeviceType"),
        ("level", 3, "device fake: level is 3, must be a Level"),
        ("extensions", None, "device fake: extensions is None, must be several str"),
        ("extensions", "com.example", "extensions is 'com.example', must be several str"),
        ("relaxations", [1], "device fake: relaxations is .1., must be several str"),
        ("preferred_layout", "NCHW", "device fake: preferred_layout is 'NCHW', must be None or one of nhwc, nchw"),
        ("preferred_layout", 1, "device fake: preferred_layout is 1, must be None or one of nhwc, nchw"),
    ],
)
def test_a_device_whose_attributes_cannot_be_is_refused_by_name(attribute, value, message, install):
    device = Fake()
    setattr(device, attribute, value)
    with pytest.raises(InvalidArgument, match=message):
        nnhal.compile(sums(), devices=device, fallback="allow")
    install(Point("mine", lambda: device))
    assert message.split(": ", 1)[-1].replace(".1.", "[1]") in discovery.found()[0].problem


def test_a_device_whose_attributes_cannot_be_read_is_refused():
    class Moody(Fake):
        @property
        def version(self) -> str:
            raise OSError("not now")

    with pytest.raises(nnhal.OperationFailed, match="device fake: version raised OSError: not now"):
        nnhal.compile(sums(), devices=Moody(), fallback="allow")


# ----------------------------------------------------------------------------------------------- in other processes


class Started:
    """Stands for the device of a process; its start ends when `meeting` have all begun."""

    meeting: threading.Barrier
    unusable = False
    confinement = {"seccomp": "applied"}
    version, type, level = Fake.version, Fake.type, Fake.level
    extensions = relaxations = ()
    preferred_layout = None

    def __init__(self, name: str, *_: object) -> None:
        self.name = name
        self.meeting.wait(LIMIT)

    def capabilities(self) -> Capabilities:
        return Capabilities.uniform(1.0)

    def close(self) -> None:
        pass


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch, install) -> Callable[[int], None]:
    """Makes the starts of so many processes wait for one another."""

    def meeting(count: int) -> None:
        monkeypatch.setattr(Started, "meeting", threading.Barrier(count), raising=False)
        monkeypatch.setattr(isolation, "Resilient", Started)
        monkeypatch.setattr(isolation, "_devices", Once(str))
        install(*(Point(f"d{n}", Fake) for n in range(count)))

    return meeting


def test_processes_are_started_all_at_once_to_ask_for_their_confinement(starts):
    starts(4)
    found = isolation.confinement(["d0", "d1", "d2", "d3"])
    assert {name: each.applied["seccomp"] for name, each in found.items()} == {f"d{n}": "applied" for n in range(4)}


def test_processes_are_started_all_at_once_where_no_device_is_named(starts):
    starts(3)
    assert [device.name for device in isolation.select(None, "process")] == ["d0", "d1", "d2", "reference"]


def test_processes_are_started_all_at_once_where_several_devices_are_named_and_each_once(starts):
    starts(2)
    found = isolation.select(["d0", "d1", "d0"], "process")
    assert [device.name for device in found] == ["d0", "d1"]


def test_a_driver_file_loaded_in_the_place_of_another_gets_a_process_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "_registered", {})
    found = []
    for version in ("1", "2"):
        file: Path = tmp_path / f"v{version}.py"
        file.write_text(
            "from nnhal.drivers.reference import Reference\n"
            f"class Changed(Reference):\n name, version = 'changed', '{version}'\n"
            "def device(): return Changed()\n"
        )
        nnhal.load_driver(file)
        found.append(isolation.isolated("changed").version)
    assert found == ["1", "2"]
