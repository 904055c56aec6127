"""Where a driver's code lies, and what its modules import, in this process and without a device."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nnhal.base.errors import InvalidArgument
from nnhal.runtime import sources
from nnhal.runtime.sources import Source


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def own(name: str) -> bool:
    """Whether a module is one of a driver's."""
    return name.startswith("nnhal_driver_")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Modules and spaces are what they were."""
    before, spaces, path = set(sys.modules), dict(sources._spaces), list(sys.path)
    yield
    for name in {name for name in set(sys.modules) - before if own(name)}:
        del sys.modules[name]
    for name in set(sources._spaces) - set(spaces):
        del sources._spaces[name]
    assert sys.path == path


@pytest.mark.parametrize(
    ("path", "file", "folder"),
    [
        ("alone.py", "alone.py", "."),  # what lies beside it is imported too
        ("pack", "pack/__init__.py", "pack"),
        ("pack/__init__.py", "pack/__init__.py", "pack"),
        ("pack/inner/deep.py", "pack/inner/deep.py", "pack"),
        ("pack/plain/other.py", "pack/plain/other.py", "pack/plain"),  # a folder between is no package
        ("plain/below", "plain/below/__init__.py", "plain/below"),
        ("link.py", "pack/inner/deep.py", "pack"),
    ],
)
def test_the_folder_of_a_driver_is_that_of_its_outermost_package(
    tmp_path: Path, path: str, file: str, folder: str
) -> None:
    names = "alone.py", "pack/__init__.py", "pack/inner/__init__.py", "pack/inner/deep.py", "pack/plain/other.py"
    written(tmp_path, dict.fromkeys((*names, "plain/below/__init__.py"), ""))
    (tmp_path / "link.py").symlink_to(tmp_path / "pack/inner/deep.py")
    source = Source(tmp_path / path)
    assert (source.file, source.folder) == (tmp_path / file, tmp_path / folder)
    assert source.path == (tmp_path / path).resolve()


@pytest.mark.parametrize(
    ("what", "rule"),
    [
        ("driver", "must be a Python file that defines device(), or a folder with such an __init__.py"),
        ("extension", "must be a Python file, or a folder with an __init__.py"),
    ],
)
def test_what_is_no_source_is_refused_by_what_it_lacks(tmp_path: Path, what: str, rule: str) -> None:
    written(tmp_path, {"notes.txt": "", "folder/mine.py": ""})
    for name, lacks in (
        ("absent.py", "is not a file"),
        ("folder", "has no __init__.py"),
        ("notes.txt", "cannot be imported"),
    ):
        with pytest.raises(InvalidArgument) as error:
            Source(tmp_path / name, what)
        assert str(error.value) == f"{what} {tmp_path / name}: {lacks}, {rule}"
    with pytest.raises(InvalidArgument, match=f"^{what} .*embedded null"):
        Source(Path("nul\0.py"), what)


def test_modules_of_a_driver_are_named_below_its_own_and_run_anew_each_time(tmp_path: Path) -> None:
    written(tmp_path, {"my-driver.py": "import helper\nboth = __name__, helper.__name__", "helper.py": "seen = []"})
    source = Source(tmp_path / "my-driver.py")
    first, second = source.load(), source.load()
    names = first.both
    space = names[0].partition(".")[0]
    assert own(space) and names == (f"{space}.my_driver", f"{space}.helper")
    assert "helper" not in sys.modules and sys.modules[space].__doc__ == f"Modules of the driver {source.path}."
    assert second.helper is not first.helper and second.both[0] != names[0]


def test_a_file_of_a_package_is_imported_through_it(tmp_path: Path) -> None:
    files = {
        "pack/__init__.py": "ran = ['top']",
        "pack/inner/__init__.py": "from pack import ran\nran.append('inner')",
        "pack/inner/deep.py": "from . import kernels\nfrom .. import ran\nname = __name__",
        "pack/inner/kernels.py": "import pack.inner, json\nsame = pack.inner\nlib = json",
        "json.py": "raise RuntimeError('lies beside the package, not in it')",
    }
    module = Source(written(tmp_path, files) / "pack/inner/deep.py").load()
    assert module.ran == ["top", "inner"] and module.name.endswith(".pack.inner.deep")
    assert module.kernels.same is sys.modules[module.name.removesuffix(".deep")]
    assert module.kernels.lib is sys.modules["json"]


def test_an_import_finds_what_lies_beside_the_driver_first_then_what_is_installed(tmp_path: Path) -> None:
    files = {
        "mine.py": "import json, parts.one as one, parts\nfrom parts.one import F\nfrom json import MINE\nimport os.path",
        "json.py": "MINE = 1",
        "parts/__init__.py": "",
        "parts/one.py": "F = 7\nimport sys",
        "os/notes.py": "",  # a folder without an __init__.py is no module
    }
    module = Source(written(tmp_path, files) / "mine.py").load()
    import json

    assert module.json is not json and module.MINE == 1 and module.os is os
    assert module.parts.one is module.one and module.F == 7 and module.one.sys is sys


def test_a_file_that_has_the_name_of_what_it_imports_gets_the_other(tmp_path: Path) -> None:
    files = {"json.py": "import json\nimport helper", "helper.py": "import json\nhis = json"}
    import json

    module = Source(written(tmp_path, files) / "json.py").load()
    assert module.json is json
    assert module.helper.his is module  # who lies beside it has the driver's


def test_a_module_that_was_added_in_the_same_moment_is_found(tmp_path: Path) -> None:
    code = "try:\n import helper\nexcept ImportError:\n helper = None"
    source, times = Source(written(tmp_path, {"mine.py": code}) / "mine.py"), (1_700_000_000, 1_700_000_000)
    os.utime(tmp_path, times)
    assert source.load().helper is None
    written(tmp_path, {"helper.py": ""})
    os.utime(tmp_path, times)  # the folder's own time does not tell
    assert source.load().helper is not None


def test_what_fails_while_it_is_loaded_leaves_no_module_and_no_space(tmp_path: Path) -> None:
    written(tmp_path, {"mine.py": "import helper\n1 / 0", "helper.py": ""})
    kept = Source(written(tmp_path, {"good.py": "import helper"}) / "good.py").load()
    modules, spaces = set(sys.modules), set(sources._spaces)
    with pytest.raises(ZeroDivisionError):
        Source(tmp_path / "mine.py").load()
    assert set(sys.modules) == modules and set(sources._spaces) == spaces
    assert sys.modules[kept.helper.__name__] is kept.helper
