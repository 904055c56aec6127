"""The identity of a driver's code: what was loaded, by content; unknown code is kept nowhere, with a reason."""

import contextlib
import functools
import importlib
import os
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import nnhal
from nnhal.base.levels import V1_3
from nnhal.base.records import replace
from nnhal.drivers.samples.full import FullV1_2, FullV1_3
from nnhal.hal import code
from nnhal.hal.blobcache import blobs_of
from nnhal.hal.cache import keeper
from nnhal.hal.code import CodeIdentity, code_of_functions
from nnhal.hal.device import Hints, Prepared, cache_record_identity, code_by
from nnhal.hal.hidl.adapters import adapt
from nnhal.hal.wrappers import WithHalLevel, WithOptions, Wrapper
from nnhal.model.graph import Model
from nnhal.runtime import discovery

pytestmark = pytest.mark.cache

DRIVER = """
from nnhal.drivers.samples.full import FullV1_3
{more}
class D(FullV1_3):
    name = "identified"
def device():
    return D()
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNHAL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(discovery, "_registered", {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "driver").mkdir()
    return tmp_path / "driver"


def put(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(textwrap.dedent(text))


def loaded(path: Path) -> CodeIdentity:
    return code_by(nnhal.load_driver(path))


def known(identity: CodeIdentity) -> bytes:
    assert identity.unknown == ""
    return identity.digest


CHANGES: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "a module beside": ("import helper", {"helper.py": "F = 2"}, {"helper.py": "F = 3"}),
    "one that is imported when it is needed": (
        "def later():\n    from helper import F", {"helper.py": "F = 2"}, {"helper.py": "F = 3"}
    ),
    "one that only that module names": (
        "def later():\n    import helper", {"helper.py": "import inner", "inner.py": "F = 2"}, {"inner.py": "F = 3"}
    ),
    "a data file": ("T = 'table.json'", {"table.json": "2"}, {"table.json": "3"}),
    "a data file in a folder": (
        "import os\nT = os.path.join('tables', 'add.json')", {"tables/add.json": "2"}, {"tables/add.json": "3"}
    ),
    "a library": ("L = 'libkernels.so.1'", {"libkernels.so.1": "2"}, {"libkernels.so.1": "3"}),
    "a file that comes to be there": ("T = 'table.json'", {}, {"table.json": "3"}),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_another_state_of_what_the_code_names_is_another_code(folder: Path, what: str) -> None:
    more, before, after = CHANGES[what]
    put(folder / "drv.py", DRIVER.format(more=more))
    for name, text in before.items():
        put(folder / name, text)
    first = known(loaded(folder / "drv.py"))
    assert known(loaded(folder / "drv.py")) == first
    for name, text in after.items():
        put(folder / name, text)
    assert known(loaded(folder / "drv.py")) != first


def test_content_counts_and_not_size_and_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    found = []
    for value in (2, 3):
        put(folder / "drv.py", DRIVER.format(more=f"F = {value}"))
        os.utime(folder / "drv.py", (1e9, 1e9))
        device: Any = nnhal.load_driver(folder / "drv.py")
        found.append((sys.modules[type(device).__module__].F, known(code_by(device))))
    assert [value for value, _ in found] == [2, 3], "what lies there is run, not what Python had compiled of it"
    assert found[0][1] != found[1][1]


def test_other_files_in_the_folder_do_not_count_and_are_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder / "drv.py", DRIVER.format(more=""))
    put(folder / "pictures" / "1.png", "x")
    put(folder / "other.py", "F = 2")
    first = known(loaded(folder / "drv.py"))
    put(folder / "other.py", "F = 3")
    listed: list[str] = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(str(path)) or real(path))
    assert known(loaded(folder / "drv.py")) == first
    assert str(folder / "pictures") not in listed


def test_links_that_lead_round_in_a_circle_end(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).symlink_to(folder)
    put(folder / "drv.py", DRIVER.format(more="N = 'a', 'b', 'table.json'"))
    put(folder / "table.json", "2")
    known(loaded(folder / "drv.py"))


def test_a_package_counts_with_modules_above_the_devices_own(folder: Path) -> None:
    put(folder / "pkg" / "__init__.py", "from .hal.device import device")
    put(folder / "pkg" / "hal" / "__init__.py", "")
    put(folder / "pkg" / "hal" / "device.py", DRIVER.format(more="from .. import kernels"))
    put(folder / "pkg" / "kernels.py", "F = 2")
    first = known(loaded(folder / "pkg"))
    put(folder / "pkg" / "kernels.py", "F = 3")
    assert known(loaded(folder / "pkg")) != first


def test_the_same_code_elsewhere_is_the_same(folder: Path, tmp_path: Path) -> None:
    for place in (folder, tmp_path / "copy"):
        put(place / "drv.py", DRIVER.format(more="import helper"))
        put(place / "helper.py", "F = 2")
    assert known(loaded(folder / "drv.py")) == known(loaded(tmp_path / "copy" / "drv.py"))


def test_what_a_file_becomes_after_it_was_loaded_is_not_the_code(folder: Path) -> None:
    put(folder / "drv.py", DRIVER.format(more="F = 2"))
    old = nnhal.load_driver(folder / "drv.py")
    put(folder / "drv.py", DRIVER.format(more="F = 3"))
    new = nnhal.load_driver(folder / "drv.py")
    put(folder / "drv.py", DRIVER.format(more="F = 2"))
    assert known(code_by(old)) == known(loaded(folder / "drv.py")) != known(code_by(new))


LATER = (
    "import importlib\ndef later(name):\n    return importlib.import_module(__name__.partition('.')[0] + '.' + name)"
)


def test_a_data_file_that_changed_after_the_driver_was_loaded_leaves_its_code_unknown(folder: Path) -> None:
    put(folder / "drv.py", DRIVER.format(more="T = 'table.json'"))
    put(folder / "table.json", "2")
    device = nnhal.load_driver(folder / "drv.py")
    put(folder / "table.json", "33")
    assert code_by(device).unknown.startswith("table.json changed after this process loaded the driver")
    assert code_by(device).digest != code_by(device).digest


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (LATER, "helper.py was loaded later, must be named in the driver's code"),
        (f"{LATER}\nNAMED = 'helper'", "helper.py changed after this process loaded the driver"),
    ],
)
def test_a_module_that_is_loaded_later_is_what_it_was_or_the_code_is_unknown(folder: Path, more: str, why: str) -> None:
    put(folder / "drv.py", DRIVER.format(more=more))
    put(folder / "helper.py", "F = 2")
    device = nnhal.load_driver(folder / "drv.py")
    known(code_by(device))
    put(folder / "helper.py", "F = 33")
    sys.modules[type(device).__module__].later("helper")
    assert code_by(device).unknown.startswith(why)


def test_a_module_that_is_loaded_later_as_it_was_changes_nothing(folder: Path) -> None:
    put(folder / "drv.py", DRIVER.format(more=f"{LATER}\nNAMED = 'helper'"))
    put(folder / "helper.py", "F = 2")
    device = nnhal.load_driver(folder / "drv.py")
    before = known(code_by(device))
    sys.modules[type(device).__module__].later("helper")
    put(folder / "helper.py", "F = 33")  # too late to be loaded
    assert known(code_by(device)) == before


def test_the_environment_counts_where_the_code_names_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder / "drv.py", DRIVER.format(more="N = 'MY_ENGINE_FACTOR'"))
    first = known(loaded(folder / "drv.py"))
    monkeypatch.setenv("OTHER_ENGINE_FACTOR", "3")
    assert known(loaded(folder / "drv.py")) == first
    monkeypatch.setenv("MY_ENGINE_FACTOR", "3")
    assert known(loaded(folder / "drv.py")) != first


@pytest.mark.parametrize("before", [None, "2"])
@pytest.mark.parametrize("after", [None, "3"])
def test_an_environment_that_changes_after_the_driver_was_loaded_leaves_its_code_unknown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, before: str | None, after: str | None
) -> None:
    """It may have read the one, or is going to read the other."""

    def put_in(value: str | None) -> None:
        if value is None:
            monkeypatch.delenv("MY_ENGINE_FACTOR", raising=False)
        else:
            monkeypatch.setenv("MY_ENGINE_FACTOR", value)

    put(folder / "drv.py", DRIVER.format(more="N = 'MY_ENGINE_FACTOR'"))
    put_in(before)
    device = nnhal.load_driver(folder / "drv.py")
    put_in(after)
    changed = "environment variable MY_ENGINE_FACTOR changed after this process loaded the driver"
    assert code_by(device).unknown.startswith(changed if before != after else "") and (
        bool(code_by(device).unknown) == (before != after)
    )
    put_in(before)
    known(code_by(device))


def test_a_variable_that_a_driver_sets_as_it_loads_is_known_with_what_it_was_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two starts in the same environment are alike; the code may have read another value before it set its own."""
    put(folder / "drv.py", DRIVER.format(more="import os\nos.environ['MY_ENGINE_FACTOR'] = '1'"))
    found = []
    for before in ("2", "2", "3"):
        monkeypatch.setenv("MY_ENGINE_FACTOR", before)
        found.append(known(loaded(folder / "drv.py")))
    assert found[0] == found[1] != found[2]


# ------------------------------------------------------------------------------------- classes, and what they are made with


class Made(FullV1_3):
    """A device that is made with something."""

    def __init__(self, *factors: Any, **more: Any) -> None:
        self.factors = factors


class Other(FullV1_3):
    """The same name and version."""


def typed(*, beside: bool) -> Any:
    """beside: among the names of this module, which has a file."""
    space: dict[str, Any] = {**(globals() if beside else {}), "__name__": __name__ if beside else "typed"}
    exec("from nnhal.drivers.samples.full import FullV1_3\nclass T(FullV1_3):\n    def f(self): ...", space)
    return space["T"]()


def typed_in_a_notebook() -> Any:
    """As in a notebook whose kernel defines `__file__`."""
    text = "from nnhal.drivers.samples.full import FullV1_3\nclass T(FullV1_3):\n    def f(self): ..."
    space: dict[str, Any] = {"__name__": __name__, "__file__": __file__}
    exec(compile(text, "/tmp/ipykernel_1/2.py", "exec"), space)
    return space["T"]()


def capturing(value: Any) -> Any:
    class Capturing(FullV1_3):
        def factor(self) -> Any:
            return value

    return Capturing()


def by_default(value: Any) -> Any:
    class ByDefault(FullV1_3):
        def factor(self, value: Any = value) -> Any:
            return value

    return ByDefault()


def by_keyword(value: Any) -> Any:
    class ByKeyword(FullV1_3):
        def factor(self, *, value: Any = value) -> Any:
            return value

    return ByKeyword()


def by_attribute(value: Any) -> Any:
    class ByAttribute(FullV1_3):
        factor = value

    return ByAttribute()


def by_cached_property(value: Any) -> Any:
    class ByCachedProperty(FullV1_3):
        @functools.cached_property
        def factor(self) -> Any:
            return value

    return ByCachedProperty()


def by_partial_method(value: Any) -> Any:
    class ByPartialMethod(FullV1_3):
        factor = functools.partialmethod(lambda self, value: value, value)

    return ByPartialMethod()


def by_lru_cache(value: Any) -> Any:
    class ByLruCache(FullV1_3):
        @functools.lru_cache  # noqa: B019
        def factor(self) -> Any:
            return value

    return ByLruCache()


def by_setter(value: Any) -> Any:
    class BySetter(FullV1_3):
        @property
        def factor(self) -> Any:
            return None

        @factor.setter
        def factor(self, _: Any) -> None:
            self.unit = value

    return BySetter()


def by_decorated(value: Any) -> Any:
    class ByDecorated(FullV1_3):
        @contextlib.contextmanager
        def factor(self) -> Iterator[Any]:
            yield value

    return ByDecorated()


def mode(value: Any) -> Enum:
    """A member of an enumeration of the application."""

    class Mode(Enum):
        FAST = value

    return Mode.FAST


class Decorated(FullV1_3):
    """A method of a library comes before those of this file."""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        yield


class WithDefaults(FullV1_3):
    """Default values that have no text, at the top of a file: its text has them."""

    table = object()

    def factor(self, kind: Any = object) -> Any:
        return kind


def test_another_class_other_arguments_and_other_captured_values_are_another_code() -> None:
    devices = [
        FullV1_3(), Other(), Made(), Made(2), Made(3), Made(2.0), Made("2"), Made(factor=2), Made({"a": [2, None]}),
        capturing(2), capturing(3), Made(mode(2)), Made(mode(3)),
    ]  # fmt: skip
    assert len({known(code_by(device)) for device in devices}) == len(devices)
    assert known(code_by(Made(2))) == known(code_by(Made(2)))
    assert known(code_by(capturing(2))) == known(code_by(capturing(2)))
    assert known(code_by(Made(mode(2)))) == known(code_by(Made(mode(2))))


@pytest.mark.parametrize(
    "make",
    [
        by_default, by_keyword, by_attribute, by_cached_property, by_partial_method, by_lru_cache, by_setter, by_decorated,
    ],
)  # fmt: skip
def test_a_class_in_a_function_is_known_by_all_values_of_that_function(make: Callable[[Any], Any]) -> None:
    assert known(code_by(make(2))) == known(code_by(make(2)))
    assert known(code_by(make(2))) != known(code_by(make(3)))
    assert "refers to an object of object of the function that it is in" in code_by(make(object())).unknown


@pytest.mark.parametrize("kind", [Decorated, WithDefaults])
def test_a_class_at_the_top_of_a_file_is_known_by_the_file(kind: type) -> None:
    assert known(code_by(kind())) == known(code_by(kind()))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: typed(beside=False), "class T was typed in or run from text, must be in a file"),
        (lambda: typed(beside=True), "class T was typed in or run from text, must be in a file"),
        (typed_in_a_notebook, "class T was typed in or run from text, must be in a file"),
        (type("T", (FullV1_3,), {}), "class T was made by a call, must be a class statement in a file"),
        (lambda: Made(mode(object())), "it was made with an object of object, must be plain values"),
        (lambda: Made(object()), "it was made with an object of object, must be plain values"),
        (lambda: capturing(object()), "class capturing.<locals>.Capturing refers to an object of object"),
        (lambda: Made("x" * 100_000), "it was made with 100"),
    ],
)
def test_code_that_cannot_be_known_says_why_and_equals_no_other(make: Callable[[], Any], why: str) -> None:
    device = make()
    assert why in code_by(device).unknown
    assert code_by(device).digest != code_by(device).digest


def test_what_a_drivers_own_factory_makes_a_device_with_is_up_to_its_code(folder: Path) -> None:
    more = "def device():\n    return D(object())\nclass Base(FullV1_3):\n    def __init__(self, x): ..."
    put(folder / "drv.py", DRIVER.format(more="").replace("def device", "def unused") + more.replace("Base", "D"))
    assert known(loaded(folder / "drv.py")) == known(loaded(folder / "drv.py"))


def test_a_device_takes_no_more_arguments_than_its_class() -> None:
    with pytest.raises(TypeError):
        FullV1_3(2)  # type: ignore[call-arg]


def test_a_wrapped_device_has_the_code_of_the_one_inside() -> None:
    assert known(code_by(WithOptions(WithHalLevel(Other(), V1_3), {"a": 1}))) == known(code_by(Other()))


class Preparing(Wrapper):
    """Prepares something else than the device in it."""

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return super().prepare(model, replace(hints, threads=1))


def test_an_authors_wrapper_that_prepares_otherwise_does_not_find_what_the_device_kept() -> None:
    assert code_by(Preparing(Other())).unknown.startswith("wrapper Preparing prepares otherwise than the device in it")
    assert code_by(WithHalLevel(Preparing(Other()), V1_3)).unknown


class HalDriver(FullV1_2):
    """A driver of the HAL, without arguments."""

    def __init__(self, factor: Any = 2) -> None:
        self.factor = factor


class OtherHalDriver(FullV1_2):
    """The same name and version."""


def test_an_adapted_driver_is_known_by_the_object_of_the_driver() -> None:
    first = known(code_by(adapt(HalDriver())))
    assert first == known(code_by(adapt(HalDriver())))
    others = [known(code_by(adapt(driver))) for driver in (HalDriver(3), FullV1_2(), OtherHalDriver())]
    assert len({first, *others}) == 4
    assert "an object of object" in code_by(adapt(HalDriver(object()))).unknown


def test_a_driver_of_the_hal_has_a_store_for_blobs() -> None:
    assert blobs_of(HalDriver()).put(b"key", b"value")
    assert blobs_of(HalDriver()).get(b"key") == b"value"
    assert blobs_of(HalDriver(3)).get(b"key") is None


def kernel(scale: Any) -> Callable[[], Any]:
    return lambda: scale


def kernel_by_default(scale: Any) -> Callable[[], Any]:
    return lambda scale=scale: scale


def kernel_typed_in() -> Callable[[], Any]:
    space: dict[str, Any] = {"__name__": __name__, "__file__": __file__}
    exec(compile("def kernel(): ...", "/tmp/ipykernel_1/2.py", "exec"), space)
    made: Callable[[], Any] = space["kernel"]
    return made


def test_kernels_that_an_application_registers_are_known_by_their_code() -> None:
    groups: list[list[Any]] = [
        [], [kernel(2)], [kernel(3)], [known], [kernel(2), known], [kernel_by_default(2)], [kernel_by_default(3)],
    ]  # fmt: skip
    assert len({known(code_of_functions(group)) for group in groups}) == len(groups)
    assert known(code_of_functions([kernel(2)])) == known(code_of_functions([kernel(2)]))
    assert "refers to an object of object" in code_of_functions([kernel(object())]).unknown
    assert "refers to an object of object" in code_of_functions([kernel_by_default(object())]).unknown
    for typed_in in (eval("lambda: 2", {}), kernel_typed_in()):
        assert "must be one of Python, in a file" in code_of_functions([typed_in]).unknown


# --------------------------------------------------------------------------------------------- what Python itself imports


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is imported from, by a process that begins when the test says so."""
    monkeypatch.syspath_prepend(tmp_path / "import")
    (tmp_path / "import").mkdir()
    for name in ("imported", "imported.device", "imported.kernels", "zipped"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path / "import"


def imported(name: str, monkeypatch: pytest.MonkeyPatch, *, begun_ns: int = 1 << 62) -> CodeIdentity:
    """As a new process finds it."""
    monkeypatch.setattr(code, "BEGUN_NS", begun_ns)
    monkeypatch.setattr(code, "_units", {})
    for each in [each for each in sys.modules if each.partition(".")[0] == name.partition(".")[0]]:
        monkeypatch.delitem(sys.modules, each)
    importlib.invalidate_caches()
    return code_by(importlib.import_module(name).D())


def test_an_imported_package_counts_by_content(importable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(importable / "imported" / "__init__.py", "")
    put(importable / "imported" / "kernels.py", "F = 2")
    put(importable / "imported" / "device.py", DRIVER.format(more="from imported import kernels"))
    first = known(imported("imported.device", monkeypatch))
    assert known(imported("imported.device", monkeypatch)) == first
    put(importable / "imported" / "kernels.py", "F = 3")
    assert known(imported("imported.device", monkeypatch)) != first
    put(importable / "imported" / "kernels.py", "F = 2")
    assert known(imported("imported.device", monkeypatch)) == first


def test_what_changed_after_the_process_began_may_not_be_what_was_imported(
    importable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(importable / "imported.py", DRIVER.format(more=""))
    changed = (importable / "imported.py").stat().st_ctime_ns
    found = imported("imported", monkeypatch, begun_ns=changed - 1)
    assert found.unknown.startswith("imported.py changed after this process loaded the driver")
    known(imported("imported", monkeypatch, begun_ns=changed))


def test_code_in_an_archive_is_known_by_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, found = tmp_path / "drivers.zip", []
    monkeypatch.syspath_prepend(str(archive))
    for value in (2, 3):
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("zipped.py", DRIVER.format(more=f"F = {value}"))
        sys.path_importer_cache.pop(str(archive), None)
        found.append(known(imported("zipped", monkeypatch)))
    assert found[0] != found[1]


def test_what_was_kept_is_of_the_code_of_nnhal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver may be on nnhal's kit: what that makes of a model is other when the kit is."""
    before = cache_record_identity(Other())
    assert cache_record_identity(Other()) == before, "a process has one state of it"
    monkeypatch.setattr(code, "code_of_nnhal", lambda: CodeIdentity(bytes(32)))
    assert cache_record_identity(Other()) != before


def test_what_of_nnhal_cannot_be_read_now_is_read_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    code._code_of_nnhal.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(code.os, "scandir", failing(OSError(24, "Too many open files")))
        assert code.code_of_nnhal().unknown == "nnhal's own code cannot be read: Too many open files"
    known(code.code_of_nnhal())


def failing(error: Exception) -> Any:
    def call(*_: Any) -> Any:
        raise error

    return call


def test_the_version_and_the_processor_are_part_of_what_wrote_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    one = CodeIdentity(bytes(32))
    facts = [("d", "1", one, False), ("d", "2", one, False), ("e", "1", one, False), ("d", "1", one, True)]
    assert len({keeper.identity(name, version, it, processor=p) for name, version, it, p in facts}) == 4
