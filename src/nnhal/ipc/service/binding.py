"""A request in the service: bound once, executed any number of times, by a call or a burst."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from nnhal.base.errors import InvalidArgument, OutputInsufficientSize
from nnhal.base.memory import Memory
from nnhal.hal.background import FencedExecution
from nnhal.hal.binding import BoundRequest, flat_bytes
from nnhal.hal.host import HostArguments, run_in_background
from nnhal.hal.memory import check_use
from nnhal.hal.request import Control, Request, Run, Timing, checked_timing, sufficient
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import timing_to_wire
from nnhal.ipc.service.exports import Export
from nnhal.ipc.service.metrics import OK, outcome_of

_INLINE_OUTPUTS = 32 << 10  # bytes of outputs in the reply itself; more go in a memory

Answer = tuple[wire.Reply, Sequence[int]]  # a reply, and descriptors to send, which are closed afterwards
DONE: Answer = wire.DONE, ()


class HeldMemories:
    """Memories that a client has sent ahead of the message that uses them."""

    def __init__(self, memories: Sequence[Memory]) -> None:
        self.memories = memories


class LaunchedRequest(NamedTuple):
    """A fenced execution, and its request."""

    execution: FencedExecution
    request: Request


class ServiceBinding:
    """A request that may run any number of times until it is released. memories: those of its arguments."""

    def __init__(self, entry: Export, bound: BoundRequest, memories: Sequence[Memory]) -> None:
        self.entry, self.memories = entry, memories
        self._bound: BoundRequest | None = bound
        self._declared = [argument.fixed for argument in bound.signature.outputs]
        self._provided = tuple(n for n, x in enumerate(bound.outputs) if x is None and n not in bound.output_buffers)
        check_use(entry.prepared, bound)
        self._run: Run = entry.prepared.run
        self._hosted = HostArguments(bound.input_buffers, bound.output_buffers) or None
        if self._hosted is None and (bound.input_buffers or bound.output_buffers):
            self._run = run_in_background(self._run)

    @property
    def provides(self) -> bool:
        """Whether an output has no memory of the client."""
        return bool(self._provided)

    def release(self) -> None:
        """Release it for the client; a running execution continues."""
        self._bound, self.memories = None, ()

    def request(self) -> Request:
        """Return a request for one execution. Raises InvalidArgument after the release."""
        return self._held().request()

    def _held(self) -> BoundRequest:
        bound = self._bound
        if bound is None:
            raise InvalidArgument("binding: was released, must be held")
        return bound

    def run(self, control: Control) -> Answer:
        """Execute once and return the result."""
        with self.entry:
            return self.execute(self._run, control)

    def execute(self, run: Run, control: Control) -> Answer:
        """Like `run`, through the given function, inside the `entry`."""
        tally = self.entry.tally
        if tally is None:
            return self._executed(run, control)
        outcome, began = OK, tally.begin()
        try:
            answer = self._executed(run, control)
            if answer is not DONE:
                outcome = _outcome(answer[0])
            return answer
        except BaseException as error:
            outcome = outcome_of(error)
            raise
        finally:
            tally.end(began, outcome)

    def _executed(self, run: Run, control: Control) -> Answer:
        bound = self._held()
        if self._hosted is None:
            request = bound.request()
            timing = request.execute(run, control)
        else:
            request, timing = self._hosted.execute(bound.signature, bound.given(), bound.outputs, run, control)
        spent = timing if control.measure else None
        if spent is not None or request.shapes != self._declared or self._provided or request.small:
            return self._told(request, spent)
        return DONE

    def _told(self, request: Request, timing: Timing | None) -> Answer:
        """Return the reply to an execution with a result to report.

        Outputs that the driver provided lie in it, or in an attached sealed memory.
        """
        shapes, enough = tuple(request.shapes), tuple(sufficient(request))
        spent = timing_to_wire(checked_timing(timing, request.signature.where))
        if not self._provided or request.small:
            return wire.ExecutedReply(shapes, enough, spent), ()
        parts = [flat_bytes(request.results[n]) for n in self._provided]
        total = sum(part.size for part in parts)
        if total <= _INLINE_OUTPUTS:
            data = b"".join(part.tobytes() for part in parts)
            return wire.ExecutedReply(shapes, enough, spent, self._provided, data), ()
        memory = Memory.allocate(total, "nnhal-outputs")
        offset = 0
        for part in parts:
            memory.bytes()[offset : offset + part.size] = part
            offset += part.size
        fd = os.dup(memory.fd)
        memory.close()
        return wire.ExecutedReply(shapes, enough, spent, self._provided), (fd,)


def _outcome(reply: wire.Reply) -> str:
    """Return the outcome of an execution that raised no error."""
    fits = not isinstance(reply, wire.ExecutedReply) or all(reply.sufficient)
    return OK if fits else OutputInsufficientSize.__name__
