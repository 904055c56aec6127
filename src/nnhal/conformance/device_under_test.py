"""The device under test, and the work on it as the processes receive it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from nnhal.base.errors import InvalidArgument
from nnhal.base.records import Record, field
from nnhal.base.values import parsed_level
from nnhal.runtime import discovery

ANY = "*"  # instead of the name of the device
TIMEOUT = 10.0  # seconds; the slowest test vector takes a fraction of one


class Subject(Record, frozen=True, kw_only=True):
    """A device under test.

    device: "" for that of the first driver, or the CPU if there is none. drivers: under development, by path. isolate:
    whether the device is isolated in another process. level: test the device at this lower HAL version, such as "1.0".
    timeout: seconds after which a call of the driver has hung. options: of drivers by device, `ANY` for whichever it
    is.
    """

    device: str = ""
    drivers: tuple[str, ...] = ()
    isolate: bool = False
    level: str = ""
    timeout: float = TIMEOUT
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise InvalidArgument for an invalid HAL version or time."""
        if not 0 < self.timeout < float("inf"):
            raise InvalidArgument(f"timeout is {self.timeout} s, must be above 0 and finite")
        if self.level:
            parsed_level(self.level)

    @property
    def named(self) -> str:
        """The driver, as it was named."""
        return self.drivers[0] if self.drivers else self.device or discovery.CPU

    def under_test(self) -> dict[str, Any]:
        """The fields of this class, for other work on the same device."""
        return {name: getattr(self, name) for name in Subject.__struct_fields__}

    def asked_for(self) -> list[str]:
        """The command line's options for the HAL version, the driver's options and the isolation."""
        words = ["--level", self.level] if self.level else []
        for device, options in self.options.items():
            where = "" if device == ANY else f"{device}:"
            words += [
                word for key, value in options.items() for word in ("--option", f"{where}{key}={_written(value)}")
            ]
        return words + ["--isolate"] * self.isolate


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Bundle(NamedTuple):
    """Items that one process runs, in order. of: their common data, which that process receives once."""

    of: Any
    items: tuple[Any, ...]
