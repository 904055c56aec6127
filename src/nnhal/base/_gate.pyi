class Gate:
    """A gate that one thread waits at and another opens, any number of times; shut at first."""

    def open(self) -> None:
        """Let one wait pass, the one at hand or the next."""

    def wait(self, seconds: float = -1, first: Gate | None = None, /) -> bool:
        """Until it is open, for at most `seconds`, below 0 for no limit; shuts it behind. False where it was not opened.

        first: a gate to open when the interpreter lock has been given up, so that whoever waits there goes on at once.
        Signals of the main thread are handled meanwhile; what their handlers raise is raised.
        """
