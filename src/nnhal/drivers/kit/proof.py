"""A device whose table knows several forms of operations: which of them runs, by proof or as told."""

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
    """A device over a lowering table, with the forms that were proved on this processor: `nnhal verify` does that.

    Option: `forms` (proved): "proved", the fastest form of each operation that was found right on this processor, and the
    exact one where nothing was proved; "fast" or "exact", the first or the last of each, whatever was found. Of a device
    that declares exact `numerics` also that, which goes before.

    forms: what was proved. What a compilation is by these forms is another one by others, so the version
    says which were found.
    """

    @property
    @abstractmethod
    def table(self) -> "LoweringTable[Any]":
        """Its entries; an attribute of the class does."""

    def __init__(self, version: str) -> None:
        """version: of the driver and its engine."""
        found = proved_of(self, version)
        self.forms = Forms(found)
        self.version = f"{version}+{_digest(found)}" if found else version
        self.proofs = TableProofs(self, version)

    def asked(self, hints: Hints) -> tuple[Forms, Hints]:
        """The forms that a compilation with these hints has, and the hints with the driver's own options alone."""
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
    """What can be proved of a lowering table, and what was."""

    def __init__(self, device: ProvedDevice, version: str) -> None:
        self._device, self._version = device, version

    @property
    def identity(self) -> bytes:
        """Of the driver in the version that it was made with."""
        return identity_here(self._device, self._version)

    def choices(self) -> Sequence[FormChoice]:
        """Each operation and type that there is an entry for."""
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
        """The device, with this form of an operation whatever was proved."""
        other = copy.copy(self._device)
        other.forms = Forms({(operation, type): Proved(form)})
        return other


def _entries(table: "LoweringTable[Any]") -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Operation, type, and its forms."""
    for name, entry in table.entries.items():
        for kind in OPS[name].types:
            if entry.types is None or kind in entry.types:
                yield name, int(kind), tuple(entry.forms.get(kind, ()))


def _digest(found: Mapping[tuple[str, int], Proved]) -> str:
    """Eight digits that say which form runs of each operation; not why."""
    forms = sorted(f"{name} {kind} {proved.form}" for (name, kind), proved in found.items())
    return blake2b("\n".join(forms).encode(), digest_size=4).hexdigest()
