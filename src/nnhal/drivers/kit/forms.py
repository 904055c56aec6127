"""Which form of an operation runs: the fast one where it was proved on this processor, the exact one otherwise.

An engine may have several ways to run an operation: 8-bit products in the processor's own instructions, which saturate on
some, or the same in float32. An entry of the lowering table names them, the fastest first, the exact one last. Nobody
believes that the fast one is right: a proof (an execution of it against the definition, on this processor) says so.
"""

from collections.abc import Mapping
from types import MappingProxyType

from nnhal.base.codes import type_name
from nnhal.base.errors import UnsupportedModel
from nnhal.hal.choices import Proved


class Refused(UnsupportedModel):
    """An operation that the engine cannot run as NNAPI defines it; the message is the reason.

    Raised in `prepare`, it is what any driver raises that cannot compile a model after all.
    """


class Forms:
    """What is known of an engine's forms on this processor.

    found: of an operation and its type `T`, what a proof found; what is not in it runs in its exact form. forced: "fast" or
    "exact", for those who compare: the first form of each entry, or the last, whatever was found. exact: whether the
    numerics are: operations on 8 bits run only where the entry says that its results equal the reference's.
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
        """The form for an operation of the type `kind` of which these are known, and why not a faster one; Refused where
        none may run.
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
