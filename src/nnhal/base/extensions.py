"""Vendor extensions: operand types and operations under a name such as `com.example.fourier`.

A process registers an extension once, and assigns a prefix to it. Its types and operations have the codes `prefix << 16
| place`. A model has the (name, prefix) pairs of its extensions. A model from elsewhere may have other prefixes, which
`canonical` converts. A model from another process is converted once (`local_prefixes`), so that its readers can compare
codes.
"""

import re
import threading
from collections.abc import Iterable, Mapping, Sequence

from nnhal.base.codes import EXTENSION_SHIFT, FOREIGN_OPERATIONS, FOREIGN_TYPES, TYPE_FACTS, type_facts
from nnhal.base.errors import InvalidArgument
from nnhal.base.levels import V1_2
from nnhal.base.records import Record

MAX_PREFIX = (1 << 15) - 1
_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")


class ExtensionType(Record, frozen=True):
    """An operand type of an extension. dtype: numpy's name of the element type, whose size is the element's size."""

    name: str
    dtype: str
    tensor: bool = True


class Extension(Record, frozen=True):
    """A registered extension; `codes` are in the order of its types and operations."""

    name: str
    prefix: int
    types: tuple[ExtensionType, ...]
    operations: tuple[str, ...]

    def type(self, name: str) -> int:
        """Return the code of an operand type; InvalidArgument lists them."""
        return self._code(name, [t.name for t in self.types], "operand type")

    def operation(self, name: str) -> int:
        """Return the code of an operation; InvalidArgument lists them."""
        return self._code(name, self.operations, "operation")

    def _code(self, name: str, names: Sequence[str], kind: str) -> int:
        if name not in names:
            raise InvalidArgument(f"{self.name}: {kind} {name!r} is not known, must be one of {', '.join(names)}")
        return self.prefix << EXTENSION_SHIFT | names.index(name)


EXTENSIONS: dict[str, Extension] = {}
_lock = threading.Lock()


def register_extension(name: str, types: Iterable[ExtensionType] = (), operations: Iterable[str] = ()) -> Extension:
    """Register an extension in this process. Registering it again with the same contents has no effect."""
    found = tuple(types), tuple(operations)
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"extension is {name!r}, must be a reversed domain in lower case such as com.example.fourier"
        )
    with _lock:
        known = EXTENSIONS.get(name)
        if known is not None:
            if (known.types, known.operations) != found:
                raise InvalidArgument(f"extension {name} is already registered with other types or operations")
            return known
        prefix = len(EXTENSIONS) + 1
        if prefix > MAX_PREFIX:
            raise InvalidArgument(f"extension {name}: {MAX_PREFIX} are registered, must be no more")
        extension = EXTENSIONS[name] = Extension(name, prefix, *found)
        for place, entry in enumerate(extension.types):
            code = prefix << EXTENSION_SHIFT | place
            TYPE_FACTS[code] = type_facts(entry.dtype, entry.tensor, V1_2)
            FOREIGN_TYPES[code] = f"{name}.{entry.name}"
        for place, operation in enumerate(extension.operations):
            FOREIGN_OPERATIONS[prefix << EXTENSION_SHIFT | place] = f"{name}.{operation}"
        return extension


def canonical(code: int, prefixes: Sequence[tuple[str, int]]) -> int:
    """Convert a model's type or operation code to this process's; unchanged if its extension is not registered."""
    prefix = code >> EXTENSION_SHIFT
    if prefix:
        for name, theirs in prefixes:
            if theirs == prefix and name in EXTENSIONS:
                return EXTENSIONS[name].prefix << EXTENSION_SHIFT | code & ((1 << EXTENSION_SHIFT) - 1)
    return code


def local_prefixes(prefixes: Sequence[tuple[str, int]]) -> dict[int, int]:
    """Return this process's prefixes for those of a model from elsewhere, if they differ.

    An unregistered extension keeps its prefix, or gets a free one if another extension has it here. Returns nothing for
    duplicate names or prefixes: validation rejects those.
    """
    names, theirs = ([each[n] for each in prefixes] for n in range(2))
    if len({*names}) < len(names) or len({*theirs}) < len(theirs):
        return {}
    taken = {extension.prefix for extension in EXTENSIONS.values()}
    free = (prefix for prefix in range(MAX_PREFIX, 0, -1) if prefix not in taken and prefix not in theirs)
    here = {}
    for name, prefix in prefixes:
        known = EXTENSIONS.get(name)
        if known is not None and known.prefix != prefix:
            here[prefix] = known.prefix
        elif known is None and prefix in taken:
            here[prefix] = next(free)
    return here


def converted_code(code: int, here: Mapping[int, int]) -> int:
    """Convert a type or operation code by the result of `local_prefixes`."""
    prefix = code >> EXTENSION_SHIFT
    return code if prefix not in here else here[prefix] << EXTENSION_SHIFT | code & ((1 << EXTENSION_SHIFT) - 1)


def extension_name(code: int, prefixes: Sequence[tuple[str, int]]) -> str:
    """Return the name of the extension of a model's code; "" for NNAPI's codes."""
    prefix = code >> EXTENSION_SHIFT
    return next((name for name, theirs in prefixes if theirs == prefix), "") if prefix else ""
