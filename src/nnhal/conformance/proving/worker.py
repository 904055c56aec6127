"""A process that verifies kernel variants: `nnhal.conformance.worker`, whose items are operations in one variant."""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nnhal.base.answers import may_be_application_error
from nnhal.base.codes import type_name
from nnhal.base.errors import InvalidArgument, NnhalError, error_text
from nnhal.conformance.proving.comparison import Wrong, compared
from nnhal.conformance.proving.hard import hard_calls
from nnhal.conformance.proving.run import FormItem, ProofOutcome
from nnhal.conformance.worker import Worker, serve_with
from nnhal.hal.device import Device

MOST = 200  # characters of an engine's message


class _Judged(NamedTuple):
    """See `ProofOutcome`."""

    verdict: str
    reason: str = ""
    detail: str = ""


class _Prover(Worker):
    """Runs each variant on hard calls."""

    def run(self, of: object, items: Sequence[FormItem]) -> Iterator[ProofOutcome]:
        for item in items:
            begin = time.monotonic_ns()
            self.at("loading")
            proofs = self.device.cached_as.proofs
            if proofs is None:
                raise InvalidArgument(f"device {self.device.name}: has no kernel variants to verify")
            found = self._proved(proofs.with_variant(item.operation, item.type, item.form), item)
            yield ProofOutcome(*item, found.verdict, found.reason, time.monotonic_ns() - begin, found.detail)

    def _proved(self, device: Device, item: FormItem) -> "_Judged":
        """Judge whether every call is right, or refused with a reason; at least one has to run."""
        refused, worst, ran = "", Wrong(), 0
        for call in hard_calls(item.operation, item.type):
            try:
                why = compared(device, call, worst, self.at)
            except NnhalError as error:
                return _Judged("failed", _failure(str(error), device.name), f"{call.cell}: {error}")
            except BaseException as error:
                if may_be_application_error(error):
                    raise
                return _Judged("failed", _failure(error_text(error), device.name), f"{call.cell}: {error_text(error)}")
            refused, ran = refused or why, ran + (not why)
        if not ran:
            return _Judged("unsupported", refused or f"no call of {type_name(item.type)} can be made")
        return _Judged("failed", worst.message_text, worst.problem) if worst.problem else _Judged("passed")


def _failure(message: str, name: str) -> str:
    """Return an engine's message in one line, without the device's name."""
    line = " ".join(message.split())
    for prefix in (f"device {name}: ", f"{name}: "):
        line = line.removeprefix(prefix)
    return f"fails: {line if len(line) <= MOST else line[:MOST] + ' ...'}"


def main() -> None:
    """Run the process."""
    serve_with(_Prover)
