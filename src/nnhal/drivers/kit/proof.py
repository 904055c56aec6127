"""Devices with several kernel variants of operations: the verified or the requested one runs."""

import copy
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nnhal.base.answers import shown
from nnhal.base.digests import blake2b
from nnhal.base.errors import InvalidArgument
from nnhal.base.records import replace
from nnhal.drivers.kit.forms import Forms, Refused
from nnhal.hal.choices import FormChoice, Proofs, Proved
from nnhal.hal.device import NUMERICS, Device, Hints, wants_exact
from nnhal.hal.proofs import identity_here, proved_of
from nnhal.ops import OPS

if TYPE_CHECKING:
    from nnhal.drivers.kit.lowering import LoweringTable

OPTION, WAYS = "forms", ("proved", "fast", "exact")


class ProvedDevice(Device):
    """A device over a lowering table, with the kernel variants that `nnhal prove` has verified on this CPU.

    Its option `forms` is "proved" (the default: the fastest verified variant of each operation, or else the reference
    variant), "fast" (always the first one) or "exact" (always the last one). If the device declares exact numerics, the
    option `numerics` takes precedence.

    Attributes:
        forms: The verified variants. They are part of `version`, because they change what a compilation contains.
    """

    @property
    @abstractmethod
    def table(self) -> "LoweringTable[Any]":
        """The lowering table; usually a class attribute."""

    def __init__(self, version: str) -> None:
        """version: of the driver and its engine."""
        found = proved_of(self, version)
        self.forms = Forms(found)
        self.version = f"{version}+{_digest(found)}" if found else version
        self.proofs = TableProofs(self, version)

    def asked(self, hints: Hints) -> tuple[Forms, Hints]:
        """Return the kernel variants for a compilation, and the hints without the options that select them.

        Args:
            hints: The hints of the compilation.

        Raises:
            InvalidArgument: An option has an invalid value.
        """
        options = dict(hints.options)
        exact, way = wants_exact(options, self.name), options.pop(OPTION, WAYS[0])
        options.pop(NUMERICS, None)
        if way not in WAYS:
            raise InvalidArgument(f"{self.name}: option {OPTION} is {shown(way)}, must be one of {', '.join(WAYS)}")
        if exact:
            return Forms(self.forms.found, forced=WAYS[-1], exact=True), replace(hints, options=options)
        forms = self.forms if way == WAYS[0] else Forms(self.forms.found, forced=way)
        return forms, replace(hints, options=options)


class TableProofs(Proofs[Device]):
    """The variants of a lowering table, and their verification."""

    def __init__(self, device: ProvedDevice, version: str) -> None:
        self._device, self._version = device, version

    @property
    def identity(self) -> bytes:
        """The identity of the driver in its version."""
        return identity_here(self._device, self._version)

    def choices(self) -> Sequence[FormChoice]:
        """Return every operation and type that has an entry."""
        return list(self._choices())

    def _choices(self) -> Iterator[FormChoice]:
        forms = self._device.forms
        for name, kind, known in _entries(self._device.table):
            found = forms.found.get((name, kind))
            try:
                form: str | None = forms.choose(name, kind, known)[0]
            except Refused:
                form = None
            yield FormChoice(name, kind, known or ("",), found, form)

    def in_form(self, operation: str, type: int, form: str) -> Device:
        """Return the device with this variant of an operation, regardless of verification."""
        other = copy.copy(self._device)
        other.forms = Forms({(operation, type): Proved(form)})
        return other


def _entries(table: "LoweringTable[Any]") -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Yield operation, type and variants."""
    for name, entry in table.entries.items():
        for kind in OPS[name].types:
            if entry.types is None or kind in entry.types:
                yield name, int(kind), tuple(entry.forms.get(kind, ()))


def _digest(found: Mapping[tuple[str, int], Proved]) -> str:
    """Return eight digits that identify the variant of each operation."""
    forms = sorted(f"{name} {kind} {proved.form}" for (name, kind), proved in found.items())
    return blake2b("\n".join(forms).encode(), digest_size=4).hexdigest()
