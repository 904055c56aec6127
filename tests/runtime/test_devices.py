"""What devices there are: each driver loads once and alone, has an identity, and may be in a process of its own."""

import os
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
from nnhal.base.once import OnceTable
from nnhal.bench import workloads
from nnhal.hal.device import Capabilities, DeviceState
from nnhal.hal.wrappers import WithOptions
from nnhal.ipc import names
from nnhal.ipc.client import process
from nnhal.ipc.client.process import ReconnectingDevice
from nnhal.runtime import discovery, isolation
from nnhal.runtime.isolation import DeviceKey, key_of, labels
from nnhal.runtime.measured import record
from nnhal.runtime.measured.profile import DeviceProfile, LinearCost, MachineProfile
from nnhal.runtime.placer import identity_of
from tests.execution import run_python
from tests.runtime.devices import Fake, driver_file, failing, to_be_killed
from tests.runtime.graphs import multiples

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
        monkeypatch.setattr(
            discovery, "entry_points", lambda groups: [p for g in groups for p in points if p.group == g]
        )
        discovery._installed.cache_clear()
        monkeypatch.setattr(discovery, "_loaded", OnceTable(lambda name: f"driver {name!r}"))

    monkeypatch.setattr(discovery, "_registered", {})
    yield installed
    monkeypatch.undo()
    discovery._installed.cache_clear()


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
    assert run_python(program).stdout == "[]\n"


def test_what_is_installed_is_looked_up_once_in_a_process(install, monkeypatch):
    install(Point("mine", lambda: Named("mine")))
    scan, scans = discovery.entry_points, []
    monkeypatch.setattr(discovery, "entry_points", lambda groups: scans.append(1) or scan(groups))
    for _ in range(3):
        nnhal.compile(multiples(), devices="mine")
        discovery.load_candidates()
    assert len(scans) == 1


def test_a_driver_may_ask_for_another_while_it_loads(install):
    install(Point("wrapper", lambda: Named(f"over {discovery.load_one('inner').name}")), Point("inner", Fake))
    assert [found.name for found in discovery.load_candidates()] == ["fake", "over fake", "reference"]


def test_a_driver_may_ask_for_the_cpu_while_all_are_loaded(install):
    install(Point("wrapper", lambda: Named(f"over {discovery.cpu().name}")))
    assert [found.name for found in discovery.load_candidates()] == ["over reference", "reference"]


@pytest.mark.parametrize("ask", [discovery.load_candidates, lambda: discovery.load_one("narcissus")])
def test_a_driver_that_asks_for_itself_while_it_loads_is_told(install, ask):
    install(Point("narcissus", ask))
    (found, _) = discovery.load_candidates()
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


# ------------------------------------------------------------------------------------------------------------- the CPU


def test_a_device_registered_as_reference_is_found_but_is_not_the_cpu(install):
    install()
    impostor = Named("reference", on_run=failing(RuntimeError("no reference")))
    discovery.register(impostor)
    assert discovery.load_one("reference") is impostor
    assert discovery.source_of(discovery.cpu()) == "nnhal.drivers.reference:device"
    compiled = nnhal.compile(multiples(), devices=Fake(on_prepare=failing(RuntimeError("broken"))), fallback="allow")
    assert (compiled(X) == 2 * X).all()


def test_an_installed_driver_named_reference_does_not_take_the_place_of_the_cpu(install):
    install(Point("reference", lambda: Named("reference")))
    assert discovery.source_of(discovery.load_one("reference")) == "nnhal.drivers.reference:device"


def test_the_reference_in_a_process_of_its_own_stays_there_where_the_cpu_may_take_over():
    with nnhal.compile(multiples(), devices=["reference"], isolation="process", fallback="allow") as compiled:
        (step,) = compiled._caller.plan.steps
        assert isinstance(step.device, ReconnectingDevice) and step.device.pid != os.getpid()
        assert (compiled(X) == 2 * X).all()
        (choice,) = compiled.placement.choices
        assert choice.device == "reference" and list(choice.others) == ["reference (in this process)"]


# ------------------------------------------------------------------------------------------------------------ identity


def test_two_devices_of_one_name_both_take_part_and_are_told_apart():
    runs = []
    one = Fake(takes=lambda n: n == 0, on_run=lambda: runs.append("one"))
    two = Fake(takes=lambda n: n == 1, on_run=lambda: runs.append("two"))
    compiled = nnhal.compile(multiples(2), devices=[one, two])
    assert [(s.device, s.operations) for s in compiled.placement.steps] == [("fake", (0,)), ("fake (2)", (1,))]
    assert compiled.placement.choices[0].others == {"fake (2)": "not this one"}
    assert (compiled(X) == 3 * X).all() and runs == ["one", "two"]


def test_options_for_a_name_that_two_devices_have_are_refused():
    with pytest.raises(InvalidArgument, match="driver_options: 2 devices are named 'fake', must be one"):
        nnhal.compile(multiples(), devices=[Fake(), Fake()], driver_options={"fake": {}})


def test_options_of_an_isolated_device_are_not_for_the_cpu_of_the_same_name():
    with nnhal.compile(
        multiples(), devices="reference", isolation="process", fallback="allow", driver_options={"reference": {"a": 1}}
    ) as compiled:
        settings = compiled._caller.plan.settings
        assert settings.hints(compiled._caller.plan.steps[0].device).options == {"a": 1}
        assert settings.hints(discovery.cpu()).options == {}


def test_a_driver_by_a_relative_path_loads_in_a_process_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "_registered", {})
    monkeypatch.chdir(tmp_path)
    nnhal.load_driver(str(driver_file(Path("relative.py"), name="relative")))
    compiled = nnhal.compile(multiples(), devices="relative", isolation="process")
    assert len(compiled(*(np.ones(s.fixed, s.dtype) for s in compiled.inputs))) == 4


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_driver_is_named_by_its_path_and_loaded_once(tmp_path, monkeypatch, isolation):
    monkeypatch.setattr(discovery, "_registered", {})
    path = str(driver_file(tmp_path / "pathed.py", name="by_path"))
    for devices in (path, [path, "reference"]):
        compiled = nnhal.compile(multiples(), devices=devices, isolation=isolation)
        assert {key.name for key in compiled.placement.keys.values()} <= {"by_path", "reference"}
        assert "by_path" in compiled.placement.keys
    first = discovery.registered("by_path")
    nnhal.compile(multiples(), devices=path)
    assert discovery.registered("by_path") is first
    with pytest.raises(nnhal.InvalidArgument, match="is not a file, must be a Python file"):
        nnhal.compile(multiples(), devices=str(tmp_path / "none.py"))


def test_a_driver_file_that_calls_itself_otherwise_by_now_is_not_started_for_the_first_name(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "_registered", {})
    file = tmp_path / "renamed.py"
    nnhal.load_driver(driver_file(file, name="first"))
    driver_file(file, name="second")
    with pytest.raises(
        nnhal.DeviceUnavailable, match=r"device first: its driver .* calls itself second, must be as when"
    ):
        nnhal.compile(multiples(), devices=["first"], isolation="process")


def test_a_device_is_known_by_name_version_origin_and_isolation(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "_registered", {})
    driver = driver_file(tmp_path / "filed.py", name="filed", version="7")
    assert key_of(nnhal.load_driver(driver)) == DeviceKey("filed", "7", str(driver), "none")
    assert key_of(isolation.isolated("filed")) == DeviceKey("filed", "7", str(driver), "process")
    assert key_of(discovery.cpu()) == DeviceKey("reference", "1", "nnhal.drivers.reference:device", "none")
    assert key_of(Fake()) == DeviceKey("fake", "0", "tests.runtime.devices:Fake", "none")
    device = to_be_killed()
    assert key_of(device) == DeviceKey("reference", "1", "reference", "process")
    device.close()


def test_the_placement_says_what_the_devices_are():
    document = nnhal.compile(multiples(), devices=[Fake(), "reference"]).placement.to_dict()
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
        nnhal.compile(multiples(), devices=device, fallback="allow")
    install(Point("mine", lambda: device))
    assert message.split(": ", 1)[-1].replace(".1.", "[1]") in discovery.load_candidates()[0].problem


def test_a_device_whose_attributes_cannot_be_read_is_refused():
    class Moody(Fake):
        @property
        def version(self) -> str:
            raise OSError("not now")

    with pytest.raises(nnhal.OperationFailed, match="device fake: version raised OSError: not now"):
        nnhal.compile(multiples(), devices=Moody(), fallback="allow")


# ----------------------------------------------------------------------------------------------- in other processes


class Started:
    """Stands for the device of a process; its start ends when `meeting` have all begun."""

    meeting: threading.Barrier
    is_unusable = False
    confinement = {"seccomp": "applied"}
    version, type, level = Fake.version, Fake.type, Fake.level
    extensions = relaxations = ()
    numerics = ("fast",)
    preferred_layout = None

    def __init__(self, name: str, *_: object) -> None:
        self.name, self._device_state = name, DeviceState()
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
        monkeypatch.setattr(process, "ReconnectingDevice", Started)
        monkeypatch.setattr(isolation, "_devices", OnceTable(str))
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
        nnhal.load_driver(driver_file(tmp_path / f"v{version}.py", name="changed", version=version))
        found.append(isolation.isolated("changed").version)
    assert found == ["1", "2"]


# -------------------------------------------------------------------------------------------------- by name and by path


SAMPLE = "nnhal.samples"


def test_names_are_those_registered_then_those_installed_then_the_samples(install):
    install(Point("sample", Fake, SAMPLE), Point("b", Fake), Point("a", Fake))
    discovery.register(Named("z"))
    discovery.register(Named("a"))
    assert discovery.names() == ["z", "a", "reference", "b", "sample"]
    assert discovery.names(samples=False) == ["z", "a", "reference", "b"]


def test_an_engine_is_used_where_it_is_named_and_no_candidate_otherwise(install):
    loaded = []
    install(Point("a", lambda: Named("a")), Point("e", lambda: loaded.append(1) or Named("e"), discovery.ENGINES))
    assert discovery.engines() == ["e"] and "e" not in discovery.names(samples=False)
    assert [d.name for d in discovery.devices()] == ["a", "reference"] and not loaded
    assert [d.name for d in discovery.select(["e"])] == ["e"]
    with pytest.raises(DeviceUnavailable, match=r"'f' is not known, must be one of reference, a, e$"):
        discovery.select(["f"])


def test_an_engine_that_is_another_than_was_measured_is_no_candidate_until_it_is_measured_again(install):
    install(Point("e", lambda: Named("e"), discovery.ENGINES))
    (engine,) = discovery.select(["e"])

    def measured(identity, pinned=False, version="1+proofs"):
        its = DeviceProfile(identity, version, {"float32": {"add": LinearCost(1e-6, 0.0, 0.0)}}, {"none": 1e-6})
        record.keep_profile(MachineProfile(record.processor(), 1, {"e": its}, pinned=pinned))
        with nnhal.compile(workloads.single(), cache_dir=False) as compiled:
            assert ("e" in compiled.placement.choices[0].costs) == (compiled.placement.events == ())
            return "".join(compiled.placement.events)

    mine, version = identity_of(key_of(engine)), key_of(engine).version
    assert measured(mine) == ""
    asked = "nnhal calibrate -d e"
    assert measured("another") == f"e is left out: 1+proofs was measured, now it is {version}; {asked}"
    assert measured("another", version=version).endswith(
        f"{version} was measured on another processor or in another place; {asked}"
    )
    assert measured("another", pinned=True) == ""


def test_the_reference_device_competes_by_its_prediction_only_if_it_was_named(install):
    install(Point("a", lambda: Named("a")))
    each = {"a": 3e-3, "reference": 2e-3}
    profiles = {
        device.name: DeviceProfile(
            identity_of(key_of(device)),
            "1",
            {"float32": {"add": LinearCost(each[device.name], 0.0, 0.0)}},
            {"none": 1e-6},
        )
        for device in discovery.select([*each])
    }
    record.keep_profile(MachineProfile(record.processor(), 1, profiles))

    def chosen(**more):
        with nnhal.compile(workloads.single(), cache_dir=False, **more) as compiled:
            return compiled.placement.choices[0].device

    assert chosen() == chosen(devices=["a"], fallback="allow") == "a"
    assert chosen(devices=["a", "reference"]) == "reference"


def test_drivers_are_found_by_their_names_whichever_group_they_are_of(install):
    install(
        Point("a", lambda: Named("a")),
        Point("e", lambda: Named("e"), discovery.ENGINES),
        Point("s", failing(OSError("no such engine")), SAMPLE),
    )
    assert [(f.name, f.problem) for f in discovery.drivers_named(["s", "e"])] == [
        ("s", "OSError: no such engine"),
        ("e", ""),
    ]
    with pytest.raises(DeviceUnavailable, match="'x' is not known"):
        discovery.drivers_named(["e", "x"])


def test_an_engine_that_the_application_registered_is_a_candidate(install):
    install(Point("e", lambda: Named("e"), discovery.ENGINES))
    discovery.register(Named("e"))
    assert discovery.engines() == [] and "e" in discovery.names(samples=False)


def test_an_entry_point_of_drivers_comes_before_a_sample_of_its_name(install):
    install(Point("same", lambda: Named("of drivers")), Point("same", lambda: Named("of samples"), SAMPLE))
    assert discovery.load_one("same").name == "of drivers" and "same" in discovery.names(samples=False)


def test_all_that_there_is_are_the_drivers_in_order_and_the_cpu_last(install):
    install(
        Point("z", lambda: Named("z")), Point("sample", failing(AssertionError("was loaded")), SAMPLE),
        Point("broken", failing(OSError("no such engine"))), Point("a", lambda: Named("m")),
    )  # fmt: skip
    found = discovery.load_candidates()
    assert [f.name for f in found] == ["broken", "m", "z", "reference"]
    assert [f.problem for f in found] == ["OSError: no such engine", "", "", ""]
    assert [d.name for d in discovery.devices()] == ["m", "z", "reference"] == [d.name for d in discovery.select(None)]
    assert [d.name for d in discovery.select(["z", "m"])] == ["z", "m"]
    assert [d.name for d in isolation.select(None, "none")] == ["m", "z", "reference"]


def test_a_driver_that_does_not_load_says_why_with_what_it_raised(install):
    raised = OSError("no such engine")
    install(Point("broken", failing(raised)))
    for _ in range(2):
        with pytest.raises(
            DeviceUnavailable, match=r"^device 'broken' does not load: OSError: no such engine$"
        ) as caught:
            discovery.load_one("broken")
        assert caught.value.__cause__ is raised
    with pytest.raises(DeviceUnavailable, match=r"^this: OSError: no such engine$"):
        discovery.load_candidates()[0].loaded("this")


@pytest.mark.parametrize(("name", "hint"), [("alpah", r"alpha.*"), ("zzzzzzzz", "")])
def test_a_name_that_nobody_has_is_told_with_those_there_are_and_one_that_may_be_meant(install, name, hint):
    install(Point("alpha", lambda: Named("alpha")), Point("sample", Fake, SAMPLE))
    for ask in (discovery.load_one, discovery.origin_of, isolation.isolated):
        with pytest.raises(
            DeviceUnavailable,
            match=rf"^device '{name}' is not known, must be one of reference, alpha{hint and '.*' + hint}$",
        ):
            ask(name)


def test_an_interrupt_while_a_driver_loads_is_the_users(install):
    install(Point("mine", failing(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        discovery.load_one("mine")


def test_a_driver_that_exits_while_it_loads_does_not_end_the_program(install, tmp_path):
    install(Point("mine", failing(SystemExit("leaves"))))
    with pytest.raises(DeviceUnavailable, match=r"^device 'mine' does not load: SystemExit: leaves$"):
        discovery.load_one("mine")
    file = tmp_path / "leaving.py"
    file.write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(DeviceUnavailable, match=r"SystemExit: 3$"):
        nnhal.load_driver(file)


@pytest.mark.parametrize("given", [None, 5, "device", object()])
def test_what_is_neither_a_device_nor_a_driver_of_the_hal_is_named(install, given):
    install(Point("mine", lambda: given))
    kind = type(given).__name__
    (found, _) = discovery.load_candidates()
    assert (
        found.problem.endswith(f"test:device gave {kind}, must give a nnhal.hal.device.Device or a driver of the HAL")
        and found.name == "mine"
        and found.origin == "test:device"
    )


def test_what_a_process_of_its_own_loads_is_the_path_or_the_name(install, tmp_path):
    install(Point("mine", lambda: Named("mine")))
    discovery.register(Named("made"))
    file = driver_file(tmp_path / "filed.py", name="filed")
    device = nnhal.load_driver(str(file))
    assert [discovery.origin_of(name) for name in ("mine", "made", "filed")] == ["mine", "made", str(file)]
    assert discovery.source_of(device) == str(file) and discovery.source_of(discovery.load_one("mine")) == "test:device"
    assert discovery.source_of(discovery.load_one("made")) == "registered"
    assert discovery.source_of(Fake()) == "tests.runtime.devices:Fake"


def test_an_object_of_an_installed_drivers_class_is_not_the_installed_driver(install):
    """Its failures and times were recorded as those of the installed one."""
    kind = type("device", (Named,), {"__module__": "test"})
    install(Point("mine", lambda: kind("mine")))
    assert identity_of(key_of(discovery.load_one("mine")))
    assert not identity_of(key_of(kind("mine"))) and discovery.source_of(kind("mine")) == "test:device()"


def test_a_device_that_cannot_be_is_not_registered(install):
    install()
    odd = Named("odd", takes=lambda n: True)
    odd.capabilities = lambda: None  # type: ignore[assignment, method-assign]
    with pytest.raises(nnhal.NnhalError, match="capabilities"):
        discovery.register(odd)
    assert "odd" not in discovery.names()


@pytest.mark.parametrize("load", [nnhal.load_driver, discovery.load_extension])
@pytest.mark.parametrize("path", [None, 5, b"driver.py"])
def test_what_is_no_path_is_refused(load, path):
    with pytest.raises(InvalidArgument, match=r"^(driver|extension) is .*, must be the path of a Python file"):
        load(path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = 1", r"defines no device\(\), must be a function that returns a Device"),
        ("def device(): raise OSError('none here')", "OSError: none here"),
        ("raise OSError('not today')", "OSError: not today"),
        ("def device(): return 5", "gave int, must give a nnhal.hal.device.Device"),
    ],
)
def test_a_file_that_gives_no_device_says_why_and_is_not_registered(install, tmp_path, text, problem):
    install()
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(DeviceUnavailable, match=rf"^driver {file}: .*{problem}"):
        nnhal.load_driver(file)
    assert discovery.names() == ["reference"]


def test_an_extension_file_runs_and_what_it_raises_names_it(tmp_path):
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text("import sys\nsys.nnhal_test_ran = True\n")
    bad.write_text("1 / 0\n")
    discovery.load_extension(str(good))
    assert sys.__dict__.pop("nnhal_test_ran")
    with pytest.raises(nnhal.NnhalError, match=rf"extension {bad}: .*ZeroDivisionError"):
        discovery.load_extension(bad)


# ---------------------------------------------------------------------------------------------------- chosen processes


def test_a_device_is_at_the_level_and_has_the_options_that_were_asked_for(install):
    install()
    assert isolation.at_level("reference") is discovery.cpu()
    lower = isolation.at_level("reference", "1.1")
    assert str(lower.level) == "1.1" and lower.name == "reference"
    options = isolation.at_level("reference", "1.1", options={"turbo": 1})
    assert isinstance(options, WithOptions) and str(options.level) == "1.1"


def test_a_device_that_turns_out_to_be_none_is_closed_and_asked_for_anew(starts, monkeypatch):
    starts(1)
    closed = []
    monkeypatch.setattr(Started, "close", lambda self: closed.append(self.name))
    monkeypatch.setattr(Started, "version", None)
    for count in (1, 2):
        with pytest.raises(InvalidArgument, match="version is None"):
            isolation.isolated("d0")
        assert closed == ["d0"] * count
    monkeypatch.setattr(Started, "version", "1")
    device = isolation.isolated("d0")
    assert isolation.isolated("d0") is device
    monkeypatch.setattr(device, "is_unusable", True)
    assert isolation.isolated("d0") is not device
    isolation.close_all()
    assert len(closed) == 3


def test_where_no_device_is_named_those_whose_process_does_not_start_are_left_out(starts, monkeypatch):
    starts(2)
    real = Started.__init__

    def start(self, name: str, *more: object) -> None:
        real(self, name, *more)
        if name == "d0":
            raise DeviceUnavailable("does not start")

    monkeypatch.setattr(Started, "__init__", start)
    assert [device.name for device in isolation.select(None, "process")] == ["d1", "reference"]
    starts(2)
    found = isolation.confinement(["d0", "d1"])
    assert found["d0"] == isolation.SandboxStatus({}, "does not start") and found["d1"].problem == ""


def test_a_name_that_is_no_drivers_may_be_that_of_a_running_service(install, monkeypatch):
    install(Point("mine", lambda: Named("mine")), Point("both", lambda: Named("both")))
    monkeypatch.setattr(names, "running", lambda: ["serving", "both"])
    monkeypatch.setattr(isolation, "service", lambda name: f"service {name}")
    assert isolation._named("serving", discovery.load_one) == "service serving"
    assert isolation.select(["mine", "both"], "none") == [discovery.load_one("mine"), discovery.load_one("both")]
    with pytest.raises(DeviceUnavailable, match="'gone' is not known"):
        isolation.select(["gone"], "none")


def test_devices_are_taken_once_each_in_the_order_in_which_they_were_named(install):
    install(Point("a", lambda: Named("a")), Point("b", lambda: Named("b")))
    own = Named("own")
    assert [d.name for d in isolation.select(["b", own, "a", "b", own, "reference"], "none")] == [
        "b",
        "own",
        "a",
        "reference",
    ]
    with pytest.raises(InvalidArgument, match=r"^devices: none is named, must be at least one$"):
        isolation.select([], "none")
