"""Drivers under development: a Python file with modules beside it, or a package, with private imports.

A driver's modules are in `sys.modules` below a unique name, such as `nnhal_driver_1`. So drivers with modules of the
same name do not interfere, and `sys.path` does not change. `import helper` in a driver's module finds its own `helper`
first. In a folder of installed packages, such as site-packages, it finds that last: it belongs to another package.
"""

import builtins
import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from itertools import count
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from nnhal.base.answers import safe_repr
from nnhal.base.errors import InvalidArgument
from nnhal.base.lazy import cached_property
from nnhal.hal.code import CodeUnit, driver_unit, forget_unit, has_installed_packages

_RULES = {
    "driver": "must be a Python file that defines device(), or a folder with such an __init__.py",
    "extension": "must be a Python file, or a folder with an __init__.py",
}
_INIT = "__init__.py"
NNHAL = __name__.partition(".")[0]
_numbers = count(1)


class Source:
    """The code of a driver. Raises InvalidArgument for a path that is neither a file nor a package.

    what: "driver", or "extension". path: of either, absolute, without links. file: defines `device()`. folder: from
    which its modules are imported.
    """

    def __init__(self, path: Path, what: str = "driver") -> None:
        rule = _RULES[what]
        try:
            self.path = path.resolve()
        except (OSError, ValueError, RuntimeError) as error:
            raise InvalidArgument(f"{what} {safe_repr(path)}: {error}, {rule}") from None
        self.file = self.path / _INIT if self.path.is_dir() else self.path
        if not self.file.is_file():
            lacks = f"has no {_INIT}" if self.path.is_dir() else "is not a file"
            raise InvalidArgument(f"{what} {self.path}: {lacks}, {rule}")
        if self.file.suffix != ".py":
            raise InvalidArgument(f"{what} {self.path}: cannot be imported, {rule}")
        self.folder = self.file.parent
        self._in_package = (self.folder / _INIT).is_file()
        while (self.folder.parent / _INIT).is_file() and self._in_package:
            self.folder = self.folder.parent

    def load(self) -> ModuleType:
        """Run the file, with new modules each time; an error leaves none behind."""
        own = f"nnhal_driver_{next(_numbers)}"
        unit = driver_unit(own, str(self.folder))
        if self._in_package:
            top = _importable(self.folder.name)
            parts = self.file.relative_to(self.folder).with_suffix("").parts
            name = ".".join((own, top, *(part for part in parts if part != "__init__")))
            space = _Space(unit, own, (), {f"{own}.{top}": self.folder / _INIT})
        else:
            name = f"{own}.{_importable(self.file.stem)}"
            space = _Space(
                unit, own, (str(self.folder),), {name: self.file}, last=has_installed_packages(str(self.folder))
            )
        importlib.invalidate_caches()
        parent = sys.modules[own] = ModuleType(own, f"Modules of the driver {self.path}.")
        parent.__path__ = list(space.paths)
        _spaces[own] = space
        try:
            return importlib.import_module(name)
        except BaseException:
            for each in [each for each in sys.modules if each.partition(".")[0] == own]:
                del sys.modules[each]
            del _spaces[own]
            forget_unit(own)
            raise


def _importable(name: str) -> str:
    return re.sub(r"\W", "_", name)


class _Space:
    """The modules of one driver. files: those at known places; others are searched in `paths`.

    last: whether `paths` are searched only if an ordinary import finds nothing.
    """

    def __init__(
        self, unit: CodeUnit, name: str, paths: Sequence[str], files: Mapping[str, Path], *, last: bool = False
    ) -> None:
        self.unit = unit
        self._name, self.paths, self._files, self._last = name, paths, files, last
        self._known: dict[str, bool] = {}

    def spec(self, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """Find a module below the driver's name, as a finder on `sys.meta_path`."""
        file = self._files.get(name)
        if file is not None:
            below = [str(file.parent)] if file.name == _INIT else None
            loader = _Loader(name, str(file), self)
            return spec_from_file_location(name, file, loader=loader, submodule_search_locations=below)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(name, spec.loader.path, self)
        return spec

    @cached_property
    def builtins(self) -> dict[str, Any]:
        """Return the builtins of the driver's modules, with its `import`."""
        return {**vars(builtins), "__import__": self._import}

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Import, like the built-in function. A file with an engine's name that imports it gets the engine, not itself."""
        first = f"{self._name}.{name.partition('.')[0]}"
        itself = globals is not None and globals.get("__name__") == first and "__path__" not in globals
        if level or itself or not self._has(first):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        module = builtins.__import__(f"{self._name}.{name}", globals, locals, fromlist or (), 0)
        return module if fromlist else sys.modules[first]

    def _has(self, name: str) -> bool:
        """Whether there is such a module; a folder without an `__init__.py` does not count.

        nnhal is never one of them: the driver's device would be of another class than that of the nnhal that loads it.
        """
        if name not in self._known:
            own = name.rpartition(".")[2]
            ordinary = own == NNHAL or (self._last and _is_ordinary(own))
            spec = None if ordinary else self.spec(name, self.paths)
            self._known[name] = spec is not None and spec.has_location
        return self._known[name]


def _is_ordinary(name: str) -> bool:
    """Whether an ordinary import finds a module."""
    return name in sys.modules or name in sys.builtin_module_names or PathFinder.find_spec(name) is not None


class _Loader(SourceFileLoader):
    """Runs a driver's module with the driver's import statement."""

    def __init__(self, name: str, path: str, space: _Space) -> None:
        super().__init__(name, path)
        self._space = space

    def get_code(self, fullname: str) -> CodeType:
        """Compile the current text. Python's compiled files are found by size and time, which may be old."""
        path = self.get_filename(fullname)
        source = self.get_data(path)
        self._space.unit.ran(path, source)
        return self.source_to_code(source, path)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = self._space.builtins
        super().exec_module(module)


class _Finder:
    """Finds modules of drivers, each in its own space."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, _: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module, if it belongs to a driver."""
        space = _spaces.get(name.partition(".")[0])
        return None if space is None else space.spec(name, path)


_spaces: dict[str, _Space] = {}
sys.meta_path.insert(0, _Finder())
