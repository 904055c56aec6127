"""Chooses kernel variants: the fast one if it was verified on this CPU, else the reference variant.

An engine may run an operation in several ways: 8-bit products with CPU instructions that saturate on some CPUs, or the
same in float32. An entry of the lowering table names its variants, the fastest first, the reference variant last. A
fast one runs only after its results were compared with the definition on this CPU.
"""

from collections.abc import Mapping
from types import MappingProxyType

from nnhal.base.codes import type_name
from nnhal.base.errors import UnsupportedModel
from nnhal.hal.choices import Proved


class Refused(UnsupportedModel):
    """An operation that the engine cannot run as NNAPI defines it; the message is the reason.

    Any driver may raise it in `prepare` if it cannot compile a model after all.
    """


class Forms:
    """The verified kernel variants of an engine on this CPU.

    Attributes:
        found: By operation and its type `T`, the result of the verification. Without one, the reference variant runs.
        forced: "fast" or "exact", for comparisons: always the first or the last variant of each entry.
        exact: Whether numerics are exact: 8-bit operations run only if their entry guarantees the reference's results.
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
        """Choose the variant for an operation.

        Args:
            name: The operation.
            kind: Its type `T`.
            known: Its variants, the fastest first.

        Returns:
            The variant, and why not a faster one, or "".

        Raises:
            Refused: No variant may run.
        """
        proved = None if kind is None else self.found.get((name, kind))
        nowhere = proved is not None and proved.form is None
        if self.forced is not None and known and not (self.exact and nowhere):
            return known[0] if self.forced == "fast" else known[-1], ""
        exact = known[-1] if known else ""
        if proved is None:
            return exact, ""
        if proved.form is None:
            raise Refused(proved.why or f"{name} of {type_name(kind or 0)} is not exact on this processor")
        return proved.form if proved.form in known else exact, proved.why


UNPROVED = Forms()
