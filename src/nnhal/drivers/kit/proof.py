"""A device whose table has several kernel variants of operations: verification, or an option, selects one."""

import copy
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nnhal.base.answers import safe_repr
from nnhal.base.digests import blake2b
from nnhal.base.errors import InvalidArgument
from nnhal.base.records import replace
from nnhal.drivers.kit.variants import Forms, Refused
from nnhal.hal.answers import wants_exact
from nnhal.hal.choices import Proofs, Proved, VariantChoice
from nnhal.hal.device import NUMERICS, Device, Hints
from nnhal.hal.proofs import identity_here, verified_variants
from nnhal.ops import OPS

if TYPE_CHECKING:
    from nnhal.drivers.kit.lowering import LoweringTable

OPTION, WAYS = "forms", ("proved", "fast", "exact")


class ProvedDevice(Device):
    """A device over a lowering table, with the kernel variants that `nnhal verify` verified on this processor.

    The option `forms` selects variants:

    - `"proved"` (default): the fastest variant of each operation that was verified on this processor, else the exact one.
    - `"fast"`: the first variant of each operation, verified or not.
    - `"exact"`: the last variant of each operation.

    If the device declares exact `numerics`, that option has precedence.

    Different variants make different compilations, so the version has a digest of the verified ones.

    Args:
        version: The version of the driver and its engine.

    Attributes:
        forms: The verified variants.
    """

    @property
    @abstractmethod
    def table(self) -> "LoweringTable[Any]":
        """The entries; a class attribute suffices."""

    def __init__(self, version: str) -> None:
        found = verified_variants(self, version)
        self.forms = Forms(found)
        self.version = f"{version}+{_digest(found)}" if found else version
        self.proofs = TableProofs(self, version)

    def asked(self, hints: Hints) -> tuple[Forms, Hints]:
        """Separate the options of this class from the driver's own.

        Args:
            hints: The hints of a compilation.

        Returns:
            The kernel variants that the compilation uses, and the hints with only the driver's own options.

        Raises:
            InvalidArgument: The option `forms` or `numerics` has an unknown value.
        """
        options = dict(hints.options)
        exact, way = wants_exact(options, self.name), options.pop(OPTION, WAYS[0])
        options.pop(NUMERICS, None)
        if way not in WAYS:
            raise InvalidArgument(f"{self.name}: option {OPTION} is {safe_repr(way)}, must be one of {', '.join(WAYS)}")
        if exact:
            return Forms(self.forms.found, forced=WAYS[-1], exact=True), replace(hints, options=options)
        forms = self.forms if way == WAYS[0] else Forms(self.forms.found, forced=way)
        return forms, replace(hints, options=options)


class TableProofs(Proofs[Device]):
    """The kernel variants of a lowering table that can be verified, and those that were."""

    def __init__(self, device: ProvedDevice, version: str) -> None:
        self._device, self._version = device, version

    @property
    def identity(self) -> bytes:
        """The identity of the driver in its version."""
        return identity_here(self._device, self._version)

    def choices(self) -> Sequence[VariantChoice]:
        """Return each operation and type that has an entry."""
        return list(self._choices())

    def _choices(self) -> Iterator[VariantChoice]:
        forms = self._device.forms
        for name, kind, known in _entries(self._device.table):
            found = forms.found.get((name, kind))
            try:
                form: str | None = forms.choose(name, kind, known)[0]
            except Refused:
                form = None
            yield VariantChoice(name, kind, known or ("",), found, form)

    def with_variant(self, operation: str, type: int, form: str) -> Device:
        """Return the device with this variant of an operation, verified or not."""
        other = copy.copy(self._device)
        other.forms = Forms({(operation, type): Proved(form)})
        return other


def _entries(table: "LoweringTable[Any]") -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Yield each operation, type, and its variants."""
    for name, entry in table.entries.items():
        for kind in OPS[name].types:
            if entry.types is None or kind in entry.types:
                yield name, int(kind), tuple(entry.forms.get(kind, ()))


def _digest(found: Mapping[tuple[str, int], Proved]) -> str:
    """Return eight hexadecimal digits that identify the chosen variants, without the reasons."""
    forms = sorted(f"{name} {kind} {proved.form}" for (name, kind), proved in found.items())
    return blake2b("\n".join(forms).encode(), digest_size=4).hexdigest()
