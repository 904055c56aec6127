"""Driver options that change between executions: no execution of any kind sees half of a change."""

from collections.abc import Mapping, Sequence
from typing import Any

from nnhal.base.answers import safe_repr
from nnhal.base.errors import Closed, InvalidArgument, NnhalError
from nnhal.base.log import logger
from nnhal.base.records import Struct
from nnhal.hal.chain import PreparedChain, checked_reconfigure
from nnhal.hal.device import Device, identity_of
from nnhal.hal.options_lock import LockTicket, OptionsLock
from nnhal.hal.request import UNLIMITED, Control

_log = logger("execution")


class Configured(Struct):
    """A partition: its device with label, its prepared model, the current options."""

    label: str
    device: Device
    prepared: PreparedChain
    options: Mapping[str, Any]


class Configuration:
    """The current options of each partition of a plan.

    turns: orders executions, from request to end, and changes; None if nothing can change. unknown: why the current
    options are unknown, or "".
    """

    def __init__(self, steps: Sequence[Configured]) -> None:
        self.steps, self.unknown = steps, ""
        self.turns = OptionsLock() if any(step.prepared.changeable for step in steps) else None

    def change(self, device: str, options: Mapping[str, Any], control: Control) -> None:
        """Change the options of a device, in all its partitions or in none. control: limits the wait for earlier executions.

        InvalidArgument names the invalid device or option, and the valid ones.
        """
        chosen = self._of(device)
        _check(device, options, chosen)
        if self.turns is None or not options:
            return
        ticket = LockTicket(alone=True)
        try:
            self.turns.queue(ticket)
            self.turns.wait(ticket, control)
            self.check()
            self._change(chosen, options, control)
        finally:
            self.turns.leave(ticket)

    def queue(self) -> LockTicket | None:
        """Return a place for an execution that does not run at once, until `leave`; None if none is needed."""
        if self.turns is None:
            return None
        ticket = LockTicket(alone=False)
        self.turns.queue(ticket)
        return ticket

    def leave(self, ticket: LockTicket | None) -> None:
        """Note that it has ended, or will never run."""
        if self.turns is not None and ticket is not None:
            self.turns.leave(ticket)

    def check(self) -> None:
        """Raise Closed if the current options are unknown."""
        if self.unknown:
            raise Closed(self.unknown)

    def _of(self, device: str) -> list[Configured]:
        """Return the partitions of a device, by its label, or else by its name."""
        chosen = [step for step in self.steps if step.label == device]
        chosen = chosen or [step for step in self.steps if identity_of(step.device).name == device]
        labels = ", ".join(dict.fromkeys(step.label for step in self.steps))
        if not chosen:
            raise InvalidArgument(
                f"configure: device {safe_repr(device)} runs no partition of this model, must be one of {labels}"
            )
        if len({id(step.device) for step in chosen}) > 1:
            raise InvalidArgument(f"configure: several devices are named {device!r}, must be one of {labels}")
        return chosen

    def _change(self, chosen: Sequence[Configured], options: Mapping[str, Any], control: Control) -> None:
        done: list[Configured] = []
        try:
            for step in chosen:
                _tell(step, {**step.options, **options}, control)
                done.append(step)
        except BaseException as error:
            self._undo(done, error)
            if not isinstance(error, NnhalError):  # interrupted: the driver may still be changing them
                self.unknown = f"a change of options was interrupted by {type(error).__name__}"
            raise
        for step in chosen:
            step.options = {**step.options, **options}

    def _undo(self, done: Sequence[Configured], why: BaseException) -> None:
        """Restore the options of partitions."""
        for step in done:
            try:
                _tell(step, step.options)
            except NnhalError as error:
                _log.error("%s", error)
                self.unknown = f"options of {step.label} could not be put back after {why}: {error}"


def _tell(step: Configured, options: Mapping[str, Any], control: Control = UNLIMITED) -> None:
    """control: limits the wait for abandoned executions that the driver has not ended."""
    checked_reconfigure(step.prepared, f"device {step.label}", options, control)


def _check(device: str, options: Mapping[str, Any], chosen: Sequence[Configured]) -> None:
    """Raise InvalidArgument if these options may not change in all of these partitions."""
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise InvalidArgument(
            f"configure: options of {device} are {safe_repr(options)}, must be a mapping with str keys"
        )
    for step in chosen:
        may = step.prepared.changeable
        for name in options:
            if name not in may:
                rule = f"must be one of {', '.join(may)}" if may else "it has none that may"
                raise InvalidArgument(
                    f"configure: option {name!r} of {device} may not change between executions, {rule}"
                )
