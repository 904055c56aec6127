"""Kernel variants of an operation: which a driver has, which were verified, and which one runs."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

D = TypeVar("D")


class Proved(NamedTuple):
    """The result of verifying an operation: the variant that runs, None if none may, and why not a faster one."""

    form: str | None
    why: str = ""


class VariantChoice(NamedTuple):
    """The variants of an operation for one main type.

    known: the variants, the fastest first, the reference variant last; one "" without a choice. found: the result of
    the verification; None if there was none. form: the variant that runs; None for none.
    """

    operation: str
    type: int
    known: tuple[str, ...]
    found: Proved | None
    form: str | None


class Proofs(ABC, Generic[D]):
    """The variants of a device `D` that can be verified."""

    @property
    @abstractmethod
    def identity(self) -> bytes:
        """The identity of its driver, engine and this CPU: `proofs.identity_here`."""

    @abstractmethod
    def choices(self) -> Sequence[VariantChoice]:
        """Return all variants that it can run."""

    @abstractmethod
    def with_variant(self, operation: str, type: int, form: str) -> D:
        """Return the device with this variant of an operation, regardless of verification."""
