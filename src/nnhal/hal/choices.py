"""Where a driver knows several ways to compute an operation: which they are, what was proved of them, which runs."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

D = TypeVar("D")


class Proved(NamedTuple):
    """What the proof of an operation found: the form that runs, None where none may, and why not a faster one."""

    form: str | None
    why: str = ""


class FormChoice(NamedTuple):
    """What a device knows of an operation and its own type.

    known: its forms, the fastest first, the exact one last; one "" where it has no choice. found: what was proved, None for
    nothing yet. form: which runs, None for none.
    """

    operation: str
    type: int
    known: tuple[str, ...]
    found: Proved | None
    form: str | None


class Proofs(ABC, Generic[D]):
    """What can be proved of a device `D`."""

    @property
    @abstractmethod
    def identity(self) -> bytes:
        """Of its driver, engine and this processor: `proofs.identity_here`."""

    @abstractmethod
    def choices(self) -> Sequence[FormChoice]:
        """All that it can run."""

    @abstractmethod
    def in_form(self, operation: str, type: int, form: str) -> D:
        """The device, with this form of an operation whatever was proved."""
