"""The identity of a driver's code as this process loaded it, not as it is on disk when an entry is written.

A cache entry is valid for one state of a driver's code. The identity of a device is a digest of

- the unit of each class of the device: its package, or its module with the modules and files beside it that it names,
- the class, and the arguments that the application created it with,
- environment variables that the code names,
- nnhal's code, which the driver may use.

A unit has the files that its code names: modules, and libraries or data files by their file names. Modules of a driver
under development are identified by the bytes that the loader ran (`CodeUnit.ran`). Any other file is read when the
identity is first needed. It counts as loaded if it has not changed since this process, or the load, began. If the code
is not known, the identity has the reason and is equal to no other.
"""

import functools
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from nnhal.base.digests import blake2b

BEGUN_NS = time.time_ns()  # before this process loaded a file that is identified by its digest
_NO_SETTINGS = frozenset(("_", "NNHAL_CACHE_DIR", "NNHAL_STATE_DIR"))  # variables without influence on numbers
MOST_FILES = 2048  # of one unit
LARGEST = 4 << 20  # bytes of a file that is read; a larger one is identified by inode, size and times
LONGEST_TEXT = 65536  # characters of the arguments of a device
_ANYWHERE = "site-packages", "dist-packages"  # folders in which neighbours of a module belong to other packages
_WORDS = re.compile(rb"[\w\x80-\xff]+"), re.compile(rb"[\w\x80-\xff.+-]+")  # names in code, names of files
_WHOLE_PATH = re.compile(rb"""["'](/[^"'\s]+)["']""")
_VIRTUAL = "/proc/", "/sys/", "/dev/"


class CodeIdentity(NamedTuple):
    """The identity of a driver's code. digest: 32 bytes. unknown: why it is not known, or ""; then no two are equal."""

    digest: bytes
    unknown: str = ""

    @classmethod
    def unlike_any(cls, why: str) -> "CodeIdentity":
        """Return the identity of unknown code."""
        return cls(os.urandom(32), why)


class CreationArguments(NamedTuple):
    """The arguments of an object's creation as text, or why that is impossible. unit: of its factory."""

    text: str = ""
    unknown: str = ""
    unit: "CodeUnit | None" = None

    @classmethod
    def of(cls, values: object) -> "CreationArguments":
        """Return the arguments of a call, or the attributes of an object."""
        try:
            text = _written(values)
        except TypeError as error:
            return cls(unknown=f"it was made with {error}, must be plain values for its compilations to be kept")
        too_long = f"it was made with {len(text)} characters of arguments, must be at most {LONGEST_TEXT} to be kept"
        return cls(text) if len(text) <= LONGEST_TEXT else cls(unknown=too_long)

    def by(self, factory: object) -> "CreationArguments":
        """Return the same for the result of a driver's factory without arguments, whose code determines the object's."""
        found = _namespace_of(factory)
        unit = None if found is None else _unit_of(found)
        if unit is not None:
            unit.settle()
        return CreationArguments(self.text, "", unit)


MADE_OTHERWISE = CreationArguments(unknown="its class overrides __new__, must use __init__ to be cached")


class _CodeFile(NamedTuple):
    """A file of a unit. signature: when it was read; None for a module that the loader ran."""

    digest: bytes
    signature: tuple[int, ...] | None


class CodeUnit:
    """Code that is loaded from one place. folder: of the files that it names. first: the files to begin with."""

    def __init__(self, folder: str, first: Iterable[str], since_ns: int, *, beside: bool = True) -> None:
        """since_ns: later changes may not have been loaded. beside: whether files in the folder belong to the unit."""
        self.folder, self._first, self._since, self._beside = folder, list(first), since_ns, beside
        # The environment when it was loaded, if known, with the changes that its code had made by the end of the load.
        self.environment: dict[str, str] | None = None
        self._left: dict[str, str] | None = None
        self._ran: dict[str, bytes] = {}  # the text that the loader ran, until the unit is settled
        self._files: dict[str, _CodeFile] = {}
        self._words: frozenset[str] = frozenset()
        self._digest = b""
        self.unknown = ""

    def ran(self, path: str, source: bytes) -> None:
        """Note a text that a loader is about to run."""
        if not self._digest:
            self._ran[path] = source
            return
        known, digest = self._files.get(path), _digest(source)
        if known is None:
            self.unknown = f"{self._name(path)} was loaded later, must be named in the driver's code for it to be kept"
        elif known.digest != digest:
            self.unknown = _changed(self._name(path))
        else:
            self._files[path] = _CodeFile(digest, None)

    def settle(self) -> None:
        """Read the files that the unit names, once it has loaded."""
        if self._digest:
            return
        if self.environment is not None:
            self._left = dict(os.environ)
        found = {path: _CodeFile(_digest(source), None) for path, source in self._ran.items()}
        texts, queue = list(self._ran.values()), [path for path in self._first if path not in found]
        words: set[str] = set()
        listings: dict[str, list[os.DirEntry[str]]] = {}
        while texts or queue:
            texts += filter(None, [self._read(path, found) for path in queue])
            for text in texts:
                words |= _words_of(text)
            named = [path for text in texts for path in _whole_paths(text)]
            beside = _named(self.folder, words, listings) if self._beside and texts else ()
            queue, texts = [path for path in dict.fromkeys([*named, *beside]) if path not in found], []
            if len(found) > MOST_FILES or len(listings) > MOST_FILES:
                self.unknown = f"its code names more than {MOST_FILES} files"
                break
        self._files, self._words = found, frozenset(words - _NO_SETTINGS)
        parts = sorted((self._name(path), file.digest) for path, file in found.items())
        self._digest, self._ran = _digest(repr(parts).encode()), {}

    def _read(self, path: str, found: dict[str, _CodeFile]) -> bytes | None:
        """Read a file into `found`, and return the text of a module."""
        before = _signature(path)
        if before and not os.path.isfile(path):  # such as a pipe, which would be read to its end
            self.unknown = self.unknown or f"{self._name(path)} is not a file that can be read again"
            return None
        large = bool(before) and before[1] > LARGEST
        try:
            data = repr(before).encode() if large else Path(path).read_bytes()
        except OSError:  # the driver cannot read it either
            data = b""
        if before and (before[-1] > self._since or _signature(path) != before):
            self.unknown = self.unknown or _changed(self._name(path))
        found[path] = _CodeFile(_digest(data), before)
        return data if path.endswith(".py") and not large else None

    def _name(self, path: str) -> str:
        return path.removeprefix(self.folder).lstrip("/") if path.startswith(self.folder) else path

    def state(self) -> tuple[bytes, str]:
        """Return the digest of the loaded code and its environment variables, and why it is unknown, or ""."""
        self.settle()
        if not self.unknown:
            seen = ((path, file.signature) for path, file in self._files.items() if file.signature is not None)
            changed = (path for path, signature in seen if _signature(path) != signature)
            self.unknown = next(map(_changed, map(self._name, changed)), "")
        before = self._of_environment(self.environment)
        left, now = self._of_environment(self._left), self._of_environment(None)
        other = next((name for name in sorted(left.keys() | now.keys()) if left.get(name) != now.get(name)), None)
        unknown = self.unknown or ("" if other is None else _changed(f"environment variable {other}"))
        return _digest(self._digest + repr((before, now)).encode()), unknown

    def _of_environment(self, values: Mapping[str, str] | None) -> dict[str, str]:
        """Return the variables that the code names, by default from the current environment."""
        known = os.environ if values is None else values
        return {name: known[name] for name in sorted(self._words.intersection(known))}


_units: dict[str, CodeUnit] = {}  # by the top name of a driver's modules, or by the path of the unit


def driver_unit(name: str, folder: str) -> CodeUnit:
    """Return a new unit for a driver under development, whose modules are loaded below a name."""
    unit = _units[name] = CodeUnit(folder, (), time.time_ns(), beside=not has_installed_packages(folder))
    unit.environment = dict(os.environ)
    return unit


def has_installed_packages(folder: str) -> bool:
    """Whether a folder has installed packages: neighbours of a module there do not belong to it."""
    return os.path.basename(folder) in _ANYWHERE


def forget_unit(name: str) -> None:
    """Drop the unit of a driver that did not load."""
    _units.pop(name, None)


def code_of(kind: type, made: CreationArguments) -> CodeIdentity:
    """Return the identity of a class's code, and of the arguments of its object."""
    own = code_of_nnhal()
    known = _of_class(kind)
    units = {id(unit): unit for unit in (*known.units, made.unit) if unit is not None}
    states = [unit.state() for unit in units.values()]
    reasons = [known.unknown, made.unknown, *(unknown for _, unknown in states), own.unknown]
    if not units and not known.own:
        reasons.append(f"class {kind.__qualname__} has no file, must have one")
    why = next(filter(None, reasons), "")
    if why:
        return CodeIdentity.unlike_any(why)
    parts = [known.facts, made.text.encode(), *(digest for digest, _ in states), own.digest]
    return CodeIdentity(_digest(b"".join(map(_digest, parts))))


def code_of_functions(functions: Sequence[Callable[..., Any]]) -> CodeIdentity:
    """Return the identity of functions that an application registered, such as kernels of an extension."""
    parts = [code_of_nnhal().digest]
    for function in functions:
        namespace = function.__globals__ if isinstance(function, FunctionType) else None
        unit = None if namespace is None else _unit_of(namespace)
        if namespace is not None and str(namespace.get("__name__")).partition(".")[0] == "nnhal":
            continue
        name = getattr(function, "__qualname__", type(function).__qualname__)
        if unit is None or not isinstance(function, FunctionType) or not _is_in_its_file(function):
            return CodeIdentity.unlike_any(
                f"function {name} must be one of Python, in a file, for compilations that may call it to be kept"
            )
        try:
            captured = _written(_captured(function, type(None))) + _defaults(function, _is_in_function(function))
        except TypeError as error:
            return CodeIdentity.unlike_any(f"function {name} refers to {error} of the function that it is in")
        digest, unknown = unit.state()
        if unknown:
            return CodeIdentity.unlike_any(unknown)
        parts += [digest, f"{name}:{function.__code__.co_firstlineno}:{captured}".encode()]
    return CodeIdentity(_digest(b"".join(map(_digest, parts))))


class _OfClass(NamedTuple):
    """A class's contribution to the identity. own: whether it is part of nnhal."""

    facts: bytes
    units: tuple[CodeUnit, ...]
    unknown: str
    own: bool


_classes: WeakKeyDictionary[type, _OfClass] = WeakKeyDictionary()


def _of_class(kind: type) -> _OfClass:
    return _classes.get(kind) or _classes.setdefault(kind, _asked(kind))


def _asked(kind: type) -> _OfClass:
    facts, units, unknown, own = [], list[CodeUnit](), "", False
    for each in kind.__mro__:
        top = each.__module__.partition(".")[0]
        if top == "nnhal":
            own = True
            facts.append(f"{each.__module__}:{each.__qualname__}")
            continue
        if top in sys.stdlib_module_names:
            # A class made by `type(name, bases, attributes)` has the module of its metaclass.
            if getattr(sys.modules.get(each.__module__), each.__name__, None) is not each:
                made = f"class {each.__qualname__} was made by a call, must be a class statement in a file for it to be kept"
                unknown = unknown or made
            continue
        namespace = _namespace_of(each)
        found = None if namespace is None else _unit_of(namespace)
        typed = f"class {each.__qualname__} was typed in or run from text, must be in a file for it to be kept"
        if found is None or not all(map(_is_in_its_file, _methods(each))):
            unknown = unknown or typed
            continue
        units.append(found)
        try:
            captured = [_written(_captured(function, kind)) for function in _functions(each)]
            attributes = _attributes(each)
        except TypeError as error:
            unknown = unknown or f"class {each.__qualname__} refers to {error} of the function that it is in"
            continue
        facts.append(f"{_module_in(each.__module__)}:{each.__qualname__}:{captured}:{attributes}")
    return _OfClass("\0".join(facts).encode(), tuple(units), unknown, own)


def _module_in(name: str) -> str:
    """Return a module's name without the prefix that a driver's modules have in this process only."""
    top, _, rest = name.partition(".")
    return rest if top in _units else name


def _namespace_of(what: object) -> Mapping[str, Any] | None:
    """Return the globals of the module of a class or function."""
    if isinstance(what, FunctionType):
        return what.__globals__
    if not isinstance(what, type):
        what = type(what)
    functions = (f.__globals__ for f in _functions(what) if f.__globals__.get("__name__") == what.__module__)
    return next(functions, None) or vars(sys.modules.get(what.__module__, object)) or None


# Attributes of a class that hold its functions, by their types: where the functions and their arguments are.
_HOLDERS: dict[type, tuple[str, ...]] = {
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func",),
    functools.partialmethod: ("func", "args", "keywords"),
    functools._lru_cache_wrapper: ("__wrapped__",),
}


def _held(value: object) -> list[object]:
    """Return what an attribute of a class holds: functions and values, or the function that a function decorates."""
    names = ("__wrapped__",) if isinstance(value, FunctionType) else _HOLDERS.get(type(value), ())
    return [getattr(value, name) for name in names if hasattr(value, name)]


def _functions(kind: type) -> Iterator[FunctionType]:
    """Yield a class's functions, and those that they decorate."""
    queue: list[object] = list(vars(kind).values())
    for each in queue:
        queue += _held(each)
        if isinstance(each, FunctionType):
            yield each


def _methods(kind: type) -> Iterator[FunctionType]:
    """Yield a class's functions, except for generated ones such as a dataclass's `__init__`."""
    return (each for each in _functions(kind) if not each.__name__.startswith("__"))


def _is_in_its_file(function: FunctionType) -> bool:
    """Whether a function is from the file of its module. A notebook may define `__file__`, and run other text."""
    ran, file = function.__code__.co_filename, function.__globals__.get("__file__")
    return not ran.startswith("<") and (not isinstance(file, str) or Path(ran).stem == Path(file).stem)


def _is_in_function(what: type | FunctionType) -> bool:
    return "<locals>" in what.__qualname__


def _captured(function: FunctionType, kind: type) -> dict[str, object]:
    """Return the values that a class captures from its enclosing function.

    They do not include the class, its bases, and the function of its module that this one decorates.
    """
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it is empty
            found[name] = cell.cell_contents
    known = [*kind.__mro__, *(each for each in _held(function) if _is_of_module(each, kind.__module__))]
    return {name: value for name, value in found.items() if all(value is not each for each in known)}


def _is_of_module(function: object, module: str) -> bool:
    while held := _held(function):
        function = held[0]
    return isinstance(function, FunctionType) and function.__globals__.get("__name__") == module


def _attributes(kind: type) -> list[str]:
    """Return a class's values and default arguments, which its enclosing function or the application may have set.

    TypeError names one without a text in a class inside a function. The file of another class has it.
    """
    found = []
    for name, value in vars(kind).items():
        if name == "_abc_impl" or isinstance(value, GetSetDescriptorType | MemberDescriptorType):
            continue
        if name.startswith("__") and not isinstance(value, FunctionType):
            continue
        try:
            found.append(f"{name}={_attribute(value)}")
        except TypeError:
            if _is_in_function(kind):
                raise
    return found


def _attribute(value: object) -> str:
    """Return an attribute of a class as text: a value, or the default arguments of its functions."""
    parts = [_attribute(each) for each in _held(value)]
    if isinstance(value, FunctionType):
        parts.append(_defaults(value, True))
    return f"{type(value).__name__}{parts}" if parts else _written(value)


def _defaults(function: FunctionType, required: bool) -> str:
    """Return default arguments as text. If one has none: raise TypeError if it is required, else return ""."""
    try:
        return _written([function.__defaults__, function.__kwdefaults__])
    except TypeError:
        if required:
            raise
        return ""


def _unit_of(namespace: Mapping[str, Any]) -> CodeUnit | None:
    """Return the unit of a module by its globals; None without a file."""
    top = str(namespace.get("__name__", "")).partition(".")[0]
    if top in _units:
        return _units[top]
    if top == "nnhal" or top in sys.stdlib_module_names:
        return None
    file = namespace.get("__file__")
    if not isinstance(file, str):
        return None
    file = os.path.abspath(file)
    package = str(namespace.get("__package__") or "")
    folder, first = os.path.dirname(file), [file]
    if not os.path.exists(file):  # in an archive
        archive = next((str(above) for above in Path(file).parents if above.exists()), "")
        return _kept_unit(archive, lambda: CodeUnit(os.path.dirname(archive), [archive], BEGUN_NS, beside=False))
    for _ in package.split(".") if package else ():
        first.append(os.path.join(folder, "__init__.py"))
        folder = os.path.dirname(folder)
    if package:
        folder = os.path.dirname(first[-1])
    beside = bool(package) or not has_installed_packages(folder)
    return _kept_unit(file, lambda: CodeUnit(folder, dict.fromkeys(first), BEGUN_NS, beside=beside))


def _kept_unit(path: str, make: Callable[[], CodeUnit]) -> CodeUnit:
    return _units.get(path) or _units.setdefault(path, make())


def _named(
    folder: str, words: set[str], listings: dict[str, list[os.DirEntry[str]]], above: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Yield files below a folder that the words name, by file or module name. above: its parents, against cycles."""
    real = os.path.realpath(folder)
    if real in above:
        return
    if folder not in listings:
        try:
            listings[folder] = list(os.scandir(folder))
        except OSError:
            listings[folder] = []
    for entry in listings[folder]:
        stem, _, suffix = entry.name.partition(".")
        module = stem in words and (suffix in ("py", "so") or suffix.endswith(".so"))
        if not module and entry.name not in words:
            continue
        if entry.is_dir():
            if entry.name not in ("__pycache__", *_ANYWHERE):
                yield from _named(entry.path, words | {"__init__"}, listings, above | {real})
        elif entry.is_file():
            yield entry.path


def _words_of(source: bytes) -> set[str]:
    words = {os.fsdecode(word) for pattern in _WORDS for word in pattern.findall(source)}
    return {word for word in words if not word.isdigit()}


def _whole_paths(source: bytes) -> Iterator[str]:
    """Yield files that are named by their whole path."""
    for path in map(os.fsdecode, _WHOLE_PATH.findall(source)):
        if not path.startswith(_VIRTUAL) and os.path.isfile(path):
            yield path


def _written(value: object) -> str:
    """Return a value as text that is unique among its kind. TypeError names what has no text."""
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return repr(value)
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}={_written(value.value)}"
    if isinstance(value, Path):
        return repr(value)
    if type(value) in (list, tuple):
        return f"{type(value).__name__}({', '.join(map(_written, value))})"  # type: ignore[call-overload]
    if type(value) in (set, frozenset):
        return f"set({sorted(map(_written, value))})"  # type: ignore[call-overload]
    if type(value) is dict:
        return "{" + ", ".join(f"{_written(k)}: {_written(v)}" for k, v in value.items()) + "}"
    raise TypeError(f"an object of {type(value).__qualname__}")


def _signature(path: str) -> tuple[int, ...]:
    """Return a file's identifying attributes; empty without a file."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _changed(name: str) -> str:
    return f"{name} changed after this process loaded the driver; start again to keep compilations"


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=32).digest()


# ------------------------------------------------------------------------------------------------------- nnhal itself


def code_of_nnhal() -> CodeIdentity:
    """Return the identity of the code of nnhal, by size and modification time of its files, once for each process."""
    try:
        return _code_of_nnhal()
    except OSError as error:  # a current problem: try again next time
        return CodeIdentity.unlike_any(f"nnhal's own code cannot be read: {error.strerror}")


@functools.cache
def _code_of_nnhal() -> CodeIdentity:
    folder, found, last = str(Path(__file__).parents[1]), [], 0
    for path in _below(folder):
        status = os.stat(path)
        found.append((path.removeprefix(folder), status.st_size, status.st_mtime_ns))
        last = max(last, status.st_ctime_ns)
    if last > BEGUN_NS:
        return CodeIdentity.unlike_any("nnhal's own code changed after this process began; start again")
    return CodeIdentity(_digest(repr(sorted(found)).encode()))


def _below(folder: str) -> Iterator[str]:
    for entry in os.scandir(folder):
        if entry.name.endswith((".py", ".so")):
            yield entry.path
        elif entry.is_dir() and not entry.name.startswith((".", "__pycache__")):
            yield from _below(entry.path)
