"""Entry points are those that `importlib.metadata` finds."""

import importlib.metadata
import sys
import types
import zipfile
from importlib.metadata import DistributionFinder
from pathlib import Path
from typing import Any

import pytest

from nnhal.base.installed import EntryPoint, entry_points, version_of
from tests.execution import run_python


def theirs(group: str) -> set[tuple[str, str]]:
    return {(p.name, p.value) for p in importlib.metadata.entry_points(group=group)}


def ours(*groups: str) -> set[tuple[str, str]]:
    return {(p.name, p.value) for p in entry_points(groups)}


def install(folder: Path, name: str, text: str | None) -> None:
    own = folder / name
    own.mkdir(parents=True)
    (own / "METADATA").write_text(f"Name: {name.split('-', maxsplit=1)[0]}\n")
    if text is not None:
        (own / "entry_points.txt").write_text(text)


@pytest.mark.parametrize("group", ["nnhal.drivers", "nnhal.samples", "console_scripts", "pytest11", "none.such"])
def test_what_is_installed_here_is_found_as_the_standard_library_finds_it(group: str) -> None:
    assert ours(group) == theirs(group)


def test_of_two_distributions_with_one_name_the_first_on_the_path_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "a", "My_Driver-1.0.dist-info", "[nnhal.drivers]\nfirst = one:device\n")
    install(tmp_path / "b", "my.driver-2.0.dist-info", "[nnhal.drivers]\nsecond = two:device\n")
    install(tmp_path / "b", "other.egg-info", "# a comment\n[nnhal.drivers]\n third=three : device\n\n[else]\nx = y\n")
    install(tmp_path / "b", "plain-1.0.dist-info", None)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "gone"), str(tmp_path / "a"), str(tmp_path / "b")])
    assert ours("nnhal.drivers") == theirs("nnhal.drivers") == {("first", "one:device"), ("third", "three : device")}


def test_a_folder_that_is_an_egg_is_a_distribution_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "hatched-1.0-py3.egg", "EGG-INFO", "[nnhal.drivers]\nhatched = h:device\n")
    install(tmp_path / "plain", "EGG-INFO", "[nnhal.drivers]\nnone = n:device\n")
    install(tmp_path / "plain", "Loud-1.DIST-INFO", "[nnhal.drivers]\nloud = l:device\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "hatched-1.0-py3.egg"), str(tmp_path / "plain")])
    assert ours("nnhal.drivers") == theirs("nnhal.drivers") == {("hatched", "h:device"), ("loud", "l:device")}


def test_an_archive_on_the_path_and_the_finder_of_another_are_asked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "drivers.zip", "w") as file:
        file.writestr("zipped-1.dist-info/METADATA", "Name: zipped\n")
        file.writestr("zipped-1.dist-info/entry_points.txt", "[nnhal.drivers]\nzipped = z:device\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "drivers.zip")])
    assert ours("nnhal.drivers") == {("zipped", "z:device")}

    class Finder(DistributionFinder):
        def find_distributions(self, context: object = None) -> list[importlib.metadata.Distribution]:  # type: ignore[override]
            return [importlib.metadata.PathDistribution(tmp_path / "far-1.dist-info")]

        def find_spec(self, *_: object) -> None:
            return None

    install(tmp_path, "far-1.dist-info", "[nnhal.drivers]\nfar = f:device\n")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert ours("nnhal.drivers") == {("far", "f:device")}


def test_the_groups_are_found_in_the_order_in_which_they_are_asked_for() -> None:
    found = [p.group for p in entry_points(["nnhal.samples", "nnhal.drivers"])]
    assert found == sorted(found, reverse=True) and len(set(found)) == 2


def test_an_entry_point_is_what_its_value_names() -> None:
    import os.path

    assert EntryPoint("j", "os:path.join", "g").load() is os.path.join
    assert EntryPoint("j", "os.path : join [extra]", "g").load() is os.path.join
    assert EntryPoint("m", "os.path", "g").load() is os.path
    with pytest.raises(AttributeError):
        EntryPoint("x", "os:none_such", "g").load()


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("fault", ["latin", "folder", "loop", "line"])
def test_what_is_wrong_with_one_distribution_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, archive: bool
) -> None:
    install(tmp_path / "a", "broken-1.dist-info", None)
    points = tmp_path / "a" / "broken-1.dist-info" / "entry_points.txt"
    if fault == "latin":
        points.write_bytes(b"[console_scripts]\nm\xe4in = a:b\n")
    elif fault == "folder":
        points.mkdir()
    elif fault == "loop":
        points.symlink_to(points)
    else:
        points.write_bytes(b"[console_scripts]\nnothing of the kind\n")
    install(tmp_path / "a", "whole-1.dist-info", "[nnhal.drivers]\nwhole = w:device\n")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    places: list[object] = [b"/nowhere", None, loop, str(loop), tmp_path / "a"]
    if archive:
        zipfile.ZipFile(tmp_path / "empty.zip", "w").close()
        places = [str(tmp_path / "a"), str(tmp_path / "empty.zip")]
    monkeypatch.setattr(sys, "path", places)
    assert ours("nnhal.drivers") == {("whole", "w:device")}


# ------------------------------------------------------------------------------------------------------------ versions


@pytest.mark.parametrize("module", ["onnx", "onnxruntime", "openvino", "ai_edge_litert"])
def test_a_version_is_what_the_standard_library_finds_and_nothing_is_imported_for_it(module: str) -> None:
    code = f"""
import sys
from nnhal.base.installed import version_of
print(version_of({module!r}), {module!r} in sys.modules)
"""
    said = run_python(code).stdout
    assert said == f"{importlib.metadata.version(module)} False\n"


@pytest.mark.parametrize(
    ("beside", "found"),
    [
        ({"engine-1.2": "engine/__init__.py,sha256=,1"}, "1.2"),
        ({"Engine-1.2+local.1": "engine/__init__.py,,", "other-3": "engine/__init__.py,,"}, "1.2+local.1"),
        ({"engine_gpu-1.3": "engine/__init__.py,,"}, "1.3"),
        ({"engine-1.2": "engine/__init__.py,,", "engine_telemetry-1.3": "engine_telemetry/__init__.py,,"}, "1.2"),
        ({"engine-1.2": "engine/__init__.py,,", "engine_gpu-1.3": "engine/__init__.py,,"}, None),  # either may be there
        ({"engine-1.2": "engine/core.py,,\nmy/engine/__init__.py,,"}, None),
        ({"engine-1.2": None}, None),
        ({}, None),
    ],
)
def test_a_version_is_told_where_one_distribution_alone_says_that_the_package_is_its_own(
    beside: dict[str, str | None], found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").touch()
    for name, record in beside.items():
        (tmp_path / f"{name}.dist-info").mkdir()
        if record is not None:
            (tmp_path / f"{name}.dist-info" / "RECORD").write_text(f"{record}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert version_of("engine") == found


@pytest.mark.parametrize("spoilt", [None, types.ModuleType("engine")])
def test_a_module_that_cannot_be_looked_for_has_no_version(spoilt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "engine", spoilt)
    assert version_of("engine") is None and version_of("not_there_at_all") is None and version_of("sys") is None
