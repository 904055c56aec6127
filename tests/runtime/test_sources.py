"""Drivers under development: found wherever they are named, of one file or several, and what they import is their own."""

import os
import select
import sys
from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import DeviceUnavailable, InvalidArgument
from nnhal.runtime import discovery, isolation
from tests.execution import run_nnhal
from tests.models import doubling
from tests.runtime.test_source import written

X = np.float32([1, 2, 3, 4])
DRIVER = """\
import numpy as np
from nnhal.hal.device import Device, Prepared, Verdict
{imports}

class Mine(Device):
    name = {name!r}

    def supports(self, model):
        return [True] * len(model.main.operations)

    def prepare(self, model, hints):
        return Run()

class Run(Prepared):
    def run(self, request, control):
        {late}
        request.write(0, request.inputs[0] * np.float32({factor}))

device = Mine
"""


def driver(name: str, imports: str = "", factor: str = "2", late: str = "pass") -> str:
    return DRIVER.format(name=name, imports=imports, factor=factor, late=late)


def doubled(path: Path | str, way: str) -> list[float]:
    """What a driver makes of X, by its path."""
    device = nnhal.load_driver(path)
    with nnhal.compile(doubling(4), devices=[device.name], isolation=way) as compiled:
        return compiled(X).tolist()


@pytest.fixture(params=["none", "process"])
def way(request, monkeypatch):
    """In process and isolated; nothing that was registered or started is left."""
    monkeypatch.setattr(discovery, "_registered", {})
    yield request.param
    isolation.close_all()


IMPORTS = {
    "sibling": ("mine.py", {"mine.py": driver("m", "import helper", "helper.FACTOR"), "helper.py": "FACTOR = 3"}),
    "from a sibling": (
        "mine.py",
        {"mine.py": driver("m", "from helper import FACTOR", "FACTOR"), "helper.py": "FACTOR = 3"},
    ),
    "relative": ("mine.py", {"mine.py": driver("m", "from .helper import F", "F"), "helper.py": "F = 3"}),
    "sibling of a sibling": (
        "mine.py",
        {
            "mine.py": driver("m", "import parts.one", "parts.one.F"),
            "parts/__init__.py": "",
            "parts/one.py": "from parts import two\nimport three\nF = two.F + three.F",
            "parts/two.py": "F = 1",
            "three.py": "F = 2",
        },
    ),
    "late": ("mine.py", {"mine.py": driver("m", late="import helper", factor="helper.F"), "helper.py": "F = 3"}),
    "package": (
        "mine",
        {"mine/__init__.py": driver("m", "from . import kernels", "kernels.F"), "mine/kernels.py": "F = 3"},
    ),
    "package by its own name": (
        "mine",
        {
            "mine/__init__.py": "from mine.driver import device",
            "mine/driver.py": driver("m", "import mine.kernels", "mine.kernels.F"),
            "mine/kernels.py": "F = 3",
        },
    ),
    "module of a package": (
        "mine/parts/driver.py",
        {
            "mine/__init__.py": "F = 3",
            "mine/parts/__init__.py": "",
            "mine/parts/driver.py": driver("m", "from .. import F\nfrom mine import F as same", "(F + same) / 2"),
        },
    ),
    "with a dataclass": (
        "mine.py",
        {
            "mine.py": "from __future__ import annotations\n"
            + driver("m", "from dataclasses import dataclass\n@dataclass\nclass P:\n    f: int = 3", "P().f")
        },
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", IMPORTS)
def test_a_driver_of_several_files_imports_its_own(tmp_path, way, kind):
    path, files = IMPORTS[kind]
    assert doubled(written(tmp_path, files) / path, way) == [3, 6, 9, 12]


def test_a_driver_in_site_packages_shares_what_is_installed_there_and_has_its_own_helper(tmp_path, way):
    files = {
        "mine.py": driver("m", "import helper, colorsys", "helper.F"),
        "helper.py": "import numpy as np\nF = np.float32(3)",
        "numpy/__init__.py": "raise ImportError('a second numpy')",
        "colorsys.py": "raise ImportError('a second colorsys')",
    }
    folder = written(tmp_path / "site-packages", files)
    assert doubled(folder / "mine.py", way) == [3, 6, 9, 12]


def test_a_driver_beside_a_checkout_of_nnhal_gets_the_nnhal_that_loads_it(tmp_path, way):
    files = {"mine.py": driver("m", factor="3"), "nnhal/__init__.py": "raise ImportError('a second nnhal')"}
    assert doubled(written(tmp_path, files) / "mine.py", way) == [3, 6, 9, 12]


def test_a_driver_of_the_package_itself_is_loaded_by_its_path(way):
    assert doubled(Path(nnhal.__file__).parent / "drivers" / "null.py", way) == [0, 0, 0, 0]


def test_drivers_whose_modules_are_called_alike_do_not_mix(tmp_path, way):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, factor in ((one, 5), (two, 7)):
        late = driver(folder.name, late="import helper, deep.er", factor="helper.F + deep.er.F")
        files = {"mine.py": late, "helper.py": f"F = {factor}", "deep/__init__.py": "", "deep/er.py": f"F = {factor}"}
        written(folder, files)
    both = [nnhal.load_driver(folder / "mine.py").name for folder in (one, two)]
    assert both == ["one", "two"]
    assert doubled(one / "mine.py", way) == [10, 20, 30, 40]
    assert doubled(two / "mine.py", way) == [14, 28, 42, 56]
    assert "helper" not in sys.modules and not {str(one), str(two)} & set(sys.path)


def test_a_changed_driver_is_loaded_anew_with_what_it_imports(tmp_path, way):
    files = {"mine.py": driver("m", "import helper", "helper.F"), "helper.py": "F = 2"}
    assert doubled(written(tmp_path, files) / "mine.py", way) == [2, 4, 6, 8]
    with nnhal.compile(doubling(4), devices=["m"], isolation=way) as before:
        (tmp_path / "helper.py").write_text("F = 2.5 + 0")
        assert doubled(tmp_path / "mine.py", way) == [2.5, 5, 7.5, 10]
        assert before(X).tolist() == [2, 4, 6, 8]


def test_a_driver_that_is_loaded_again_unchanged_keeps_its_process(tmp_path, way):
    path = written(tmp_path, {"mine.py": driver("m")}) / "mine.py"
    nnhal.load_driver(path)
    first = isolation.isolated("m")
    assert doubled(path, way) == [2, 4, 6, 8]
    assert isolation.isolated("m") is first


@pytest.mark.parametrize("way", ["process"], indirect=True)
def test_a_process_whose_driver_was_replaced_ends(tmp_path, way):
    path = written(tmp_path, {"mine.py": driver("m")}) / "mine.py"
    nnhal.load_driver(path)
    ended = os.pidfd_open(isolation.isolated("m").pid)
    written(tmp_path, {"mine.py": driver("m", factor="3")})
    assert doubled(path, way) == [3, 6, 9, 12]
    assert select.select([ended], [], [], 60)[0]
    os.close(ended)


def test_a_file_with_the_name_of_an_engine_imports_the_engine(tmp_path, way):
    code = driver("m", "import scipy.special", "scipy.special.comb(3, 2)")
    assert doubled(written(tmp_path, {"scipy.py": code}) / "scipy.py", way) == [3, 6, 9, 12]


def test_a_module_that_is_missing_is_named_and_leaves_nothing(tmp_path):
    before = set(sys.modules)
    file = written(tmp_path, {"mine.py": driver("m", "import helper, absent"), "helper.py": ""}) / "mine.py"
    with pytest.raises(DeviceUnavailable, match="No module named 'absent'"):
        nnhal.load_driver(file)
    assert not {name for name in set(sys.modules) - before if name.startswith("nnhal_driver_")}


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("absent.py", "is not a file"),
        ("absent", "is not a file"),
        ("folder", "has no __init__.py"),
        ("notes.txt", "cannot be imported"),
        ("nul\0.py", "embedded null"),
    ],
)
def test_what_is_no_driver_is_refused_with_the_rule(tmp_path, path, told):
    written(tmp_path, {"folder/mine.py": "", "notes.txt": ""})
    with pytest.raises(InvalidArgument, match=f"{told}.*must be a Python file that defines device.*, or a folder"):
        nnhal.load_driver(tmp_path / path)


# ---------------------------------------------------------------------------------------------------- wherever it is named


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """A driver and a package beside the working folder, to be named by relative paths."""
    code = driver("m", "import helper", "helper.F")
    written(tmp_path, {"some/mine.py": code, "some/helper.py": "F = 3", "pack/__init__.py": "from .mine import device"})
    written(tmp_path, {"pack/mine.py": driver("m", factor="3"), "elsewhere/notes.txt": ""})
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", ["some/mine.py", "pack", "./pack", "some/../pack/mine.py"])
def test_a_relative_path_holds_when_the_application_goes_elsewhere(beside, way, path):
    nnhal.load_driver(path)
    os.chdir("elsewhere")
    with nnhal.compile(doubling(4), devices=["m"], isolation=way) as compiled:
        assert compiled(X).tolist() == [3, 6, 9, 12]


COMMANDS = [
    ["run", "add4", "--isolate"],
    ["run", "add4"],
    ["show", "add4", "--placement", "--isolate"],
    ["diff", "add4", "--device", "m", "--lsb", "1e9", "--rtol", "1e9"],
    ["devices"],
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("path", ["some/mine.py", "pack"])
def test_every_verb_takes_a_relative_path(beside, command, path):
    done = run_nnhal(*command, "--driver", path)
    assert done.returncode == 0 and "is not a file" not in done.stdout, done.stdout + done.stderr
