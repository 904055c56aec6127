"""Descriptors that are closed with what holds them, by code that no interrupt gets into."""

from typing import final

@final
class Owner:
    """Descriptors that are open for as long as anybody holds this: who sends one holds its owner until it was sent.

    Else another thread might close it meanwhile, and what is opened next has its number.
    """

    def __new__(cls, *fds: int) -> Owner:
        """Take over what is open already."""

    @property
    def fds(self) -> list[int]:
        """Those that it owns, to be opened into."""

    def close(self) -> None:
        """Close them all, and forget them."""
