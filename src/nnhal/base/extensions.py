"""Vendor extensions: operand types and operations of a vendor's own, under a name such as `com.example.fourier`.

A package registers an extension once in a process, which gives it a prefix; its types and operations then have codes
`prefix << 16 | place`. A model carries the (name, prefix) pairs of the extensions that it uses; models made elsewhere may
have other prefixes, which `canonical` turns into this process's; one that comes from another process has this one's from
then on (`prefixes_here`), so that whoever reads it may compare codes.
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
        """Code of an operand type; InvalidArgument lists them."""
        return self._code(name, [t.name for t in self.types], "operand type")

    def operation(self, name: str) -> int:
        """Code of an operation; InvalidArgument lists them."""
        return self._code(name, self.operations, "operation")

    def _code(self, name: str, names: Sequence[str], kind: str) -> int:
        if name not in names:
            raise InvalidArgument(f"{self.name}: {kind} {name!r} is not known, must be one of {', '.join(names)}")
        return self.prefix << EXTENSION_SHIFT | names.index(name)


EXTENSIONS: dict[str, Extension] = {}
_lock = threading.Lock()


def register_extension(name: str, types: Iterable[ExtensionType] = (), operations: Iterable[str] = ()) -> Extension:
    """Make an extension known to this process. Registering it again with the same contents does nothing."""
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
    """A type or operation code of a model as a code of this process; unchanged where its extension is not registered."""
    prefix = code >> EXTENSION_SHIFT
    if prefix:
        for name, theirs in prefixes:
            if theirs == prefix and name in EXTENSIONS:
                return EXTENSIONS[name].prefix << EXTENSION_SHIFT | code & ((1 << EXTENSION_SHIFT) - 1)
    return code


def prefixes_here(prefixes: Sequence[tuple[str, int]]) -> dict[int, int]:
    """This process's prefixes for those of a model that was made elsewhere, where they are others.

    An extension that is not registered here gets a prefix that none has, where its own is another one's here. Nothing for
    names or prefixes that stand there twice: that is for validation to refuse.
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


def moved(code: int, here: Mapping[int, int]) -> int:
    """A type or operation code under another prefix, as `prefixes_here` says."""
    prefix = code >> EXTENSION_SHIFT
    return code if prefix not in here else here[prefix] << EXTENSION_SHIFT | code & ((1 << EXTENSION_SHIFT) - 1)


def extension_name(code: int, prefixes: Sequence[tuple[str, int]]) -> str:
    """The name of the extension that a model's code belongs to, "" for NNAPI's own."""
    prefix = code >> EXTENSION_SHIFT
    return next((name for name, theirs in prefixes if theirs == prefix), "") if prefix else ""
