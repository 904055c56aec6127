"""Chooses the kernel variant of an operation: the fast one if it was verified on this processor, else the exact one.

An engine may have several ways to run an operation. Examples are 8-bit products in the processor's own instructions,
which saturate on some processors, and the same in float32. An entry of the lowering table names the variants, the
fastest first, the exact one last. nnhal does not assume that the fast one is right: a verification runs it on this
processor and compares it with the definition.
"""

from collections.abc import Mapping
from types import MappingProxyType

from nnhal.base.codes import type_name
from nnhal.base.errors import UnsupportedModel
from nnhal.hal.choices import Proved


class Refused(UnsupportedModel):
    """An operation that the engine cannot run as NNAPI defines it; the message is the reason.

    Raised in `prepare`, it reports that the driver cannot compile a model after all.
    """


class Forms:
    """The known results of verifying an engine's kernel variants on this processor.

    Args:
        found: The result of the verification for each operation and its type `T`. Any other operation runs in its exact
            variant.
        forced: "fast" or "exact", to compare variants: the first or the last variant of each entry, whatever `found`
            has.
        exact: Whether the numerics are exact. If so, 8-bit operations run only if their entry declares results that
            equal the
            reference's.
    """

    def __init__(
        self,
        found: Mapping[tuple[str, int], Proved] = MappingProxyType({}),
        *,
        forced: str | None = None,
        exact: bool = False,
    ) -> None:
        self.found, self.forced, self.exact = found, forced, exact

    def choose(self, name: str, kind: int | None, known: tuple[str, ...]) -> tuple[str, str]:
        """Return the variant for an operation, and why it is not a faster one.

        Args:
            name: The operation.
            kind: Its type `T`.
            known: The variants of the entry, the fastest first; empty if there is only one.

        Returns:
            The variant and the reason, both possibly empty.

        Raises:
            Refused: No variant is right on this processor.
        """
        proved = None if kind is None else self.found.get((name, kind))
        nowhere = proved is not None and proved.form is None
        if self.forced is not None and known and not (self.exact and nowhere):
            return known[0] if self.forced == "fast" else known[-1], ""
        exact = known[-1] if known else ""
        if proved is None:
            return exact, ""
        if proved.form is None:
            raise Refused(proved.why or f"{name} of {type_name(kind or 0)} has no exact kernel on this processor")
        return proved.form if proved.form in known else exact, proved.why

    def exact_only(self) -> "Forms":
        """Return the choice of the exact variants. Operations without a right variant stay refused."""
        return Forms({key: proved for key, proved in self.found.items() if proved.form is None}, exact=self.exact)


UNPROVED = Forms()
