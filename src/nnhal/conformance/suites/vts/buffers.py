"""Memory domains: roles, dimensions, states and every wrong use of driver memory."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from nnhal.base.errors import DeadObject, InvalidArgument, InvalidRequest, NnhalError, OperationFailed
from nnhal.base.levels import V1_3
from nnhal.base.memory import Memory
from nnhal.base.operands import Array
from nnhal.conformance.differential import arrays_of, model_of
from nnhal.conformance.execution_paths import not_used
from nnhal.conformance.suites.vts.promise import Probe, promise
from nnhal.conformance.validate.trial import NotAsked, RequirementNotMet, copies
from nnhal.hal.answers import allocated_by
from nnhal.hal.binding import flat_bytes
from nnhal.hal.device import Prepared
from nnhal.hal.host import run_resolved
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole
from nnhal.hal.prepared import driver_roles
from nnhal.hal.request import UNLIMITED


class _Domain:
    """A call, its model and its results, to execute with driver memory."""

    def __init__(self, probe: Probe) -> None:
        probe.since(V1_3, "driver memory")
        unused = not_used(probe.device, "memory")
        if unused:
            raise NotAsked(unused)
        self.probe = probe
        for call, model in probe.calls.samples():
            self.arrays = copies(arrays_of(call))
            if self.arrays and self.arrays[0].ndim and self.arrays[0].size and probe.device_gives(model):
                break
        else:
            raise NotAsked("no supported call has a tensor as its first input and outputs of known shapes")
        probe.calls.fixed()
        probe.calls.has_one = True
        self.call, self.model = call, model
        self.wanted = probe.alone(model, self.arrays)
        first = self.wanted[0]
        assert first is not None
        self.result = first
        self.prepared = probe.prepare(model)

    def allocate(self, desc: tuple[int, ...], *roles: BufferRole) -> Buffer:
        """Allocate; the driver's answer is verified."""
        with self.probe.stages.enter("allocate"):
            return allocated_by(self.probe.device, BufferDesc(desc), roles)

    def asked(self, desc: tuple[int, ...], *roles: BufferRole) -> None:
        """Ask for memory that the driver itself has to refuse."""
        with self.probe.stages.enter("allocate"):
            self.probe.device.allocate(BufferDesc(desc), driver_roles(roles)).close()

    def input(self, prepared: Prepared | None = None) -> BufferRole:
        """Return the role of the first input."""
        return BufferRole(prepared or self.prepared, 0)

    def output(self, prepared: Prepared | None = None) -> BufferRole:
        """Return the role of the first output."""
        return BufferRole(prepared or self.prepared, 0, output=True)

    def fill(self, buffer: Buffer, array: Array) -> None:
        """Copy an array into a buffer."""
        with self.probe.stages.enter("copy_from"):
            buffer.copy_from(_memory(array), array.shape)

    def contents(self, buffer: Buffer) -> Array:
        """Copy the contents out, as an array like the first output."""
        memory = Memory.allocate(max(1, self.result.nbytes), "nnhal-vts")
        with self.probe.stages.enter("copy_to"):
            buffer.copy_to(memory)
        return memory.view(0, self.result.nbytes, self.result.dtype, self.result.shape)

    def run(
        self,
        read: Mapping[int, Buffer],
        written: Mapping[int, Buffer],
        prepared: Prepared | None = None,
        arrays: list[Array] | None = None,
    ) -> Any:
        """Execute with buffers in the place of arguments; return the request."""
        prepared = prepared or self.prepared
        given: list[Array | None] = [None if n in read else x for n, x in enumerate(arrays or self.arrays)]
        signature = self.probe.signature_of(prepared)
        rooms = [
            None if n in written or a.fixed is None else np.empty(a.fixed, a.dtype)
            for n, a in enumerate(signature.outputs)
        ]
        request = signature.make(signature, given, rooms, read, written)
        with self.probe.stages.enter("run"):
            request.execute(partial(run_resolved, prepared), UNLIMITED)
        return request

    def empty(self, buffer: Buffer, when: str) -> None:
        """Raise RequirementNotMet unless a buffer has no contents."""
        self.probe.refused(f"a copy out of a buffer {when}", OperationFailed, lambda: self.contents(buffer))
        if buffer.shape is not None:
            raise RequirementNotMet(f"a buffer {when} has shape {list(buffer.shape)}, must have no contents")

    def right(self, buffer: Buffer, when: str) -> None:
        """Raise RequirementNotMet unless a buffer has the first result."""
        self.probe.same(self.call, [self.result, *self.wanted[1:]], [self.contents(buffer), *self.wanted[1:]], when)


def _memory(array: Array) -> Memory:
    return Memory.from_array(np.ascontiguousarray(array)) if array.nbytes else Memory.allocate(1, "nnhal-vts")


@promise("buffers/roles", "Memory is refused for roles that are unknown, given twice, contradictory or of no model.")
def roles(probe: Probe) -> int:
    domain = _Domain(probe)
    shape, count = domain.arrays[0].shape, len(domain.arrays)
    first = domain.input()
    bad: dict[str, Callable[[], Any]] = {
        "no roles": lambda: domain.asked(shape),
        "a role twice": lambda: domain.asked(shape, first, domain.input()),
        f"input {count} of {count}": lambda: domain.asked(shape, BufferRole(domain.prepared, count)),
        "input -1": lambda: domain.asked(shape, BufferRole(domain.prepared, -1)),
        "output 99": lambda: domain.asked(shape, BufferRole(domain.prepared, 99, output=True)),
        "a frequency of 0": lambda: domain.asked(shape, BufferRole(domain.prepared, 0, frequency=0.0)),
        "a frequency of 1.5": lambda: domain.asked(shape, BufferRole(domain.prepared, 0, frequency=1.5)),
        "a frequency that is not a number": lambda: domain.asked(
            shape, BufferRole(domain.prepared, 0, frequency=float("nan"))
        ),
        "another rank": lambda: domain.asked((*shape, 1), first),
        "other dimensions": lambda: domain.asked(tuple(n + 1 for n in shape), first),
        "a negative dimension": lambda: domain.asked((-1, *shape[1:]), first),
    }
    if _differ(domain):
        bad["an input and an output that differ"] = lambda: domain.asked((), first, domain.output())
    for what, act in bad.items():
        probe.refused(f"memory for {what}", InvalidArgument, act)
    probe.right(domain.call, domain.wanted, domain.prepared, "after refused memory")
    return len(bad)


def _differ(domain: _Domain) -> bool:
    main = domain.model.main
    one, other = main.operands[main.inputs[0]], main.operands[main.outputs[0]]
    return (one.type, one.scale, one.zero_point) != (other.type, other.scale, other.zero_point)


@promise(
    "buffers/states", "Driver memory has no contents until it is written, and none after a failed copy or execution."
)
def states(probe: Probe) -> int:
    domain = _Domain(probe)
    shape = domain.arrays[0].shape
    read = domain.allocate(shape, domain.input())
    written = domain.allocate(domain.result.shape, domain.output())
    domain.empty(read, "that is new")
    domain.empty(written, "that is new")
    probe.refused("an execution that reads a buffer without contents", NnhalError, lambda: domain.run({0: read}, {}))
    domain.fill(read, domain.arrays[0])
    domain.run({0: read}, {0: written})
    domain.right(written, "in driver memory")
    domain.run({0: read}, {0: written})
    domain.right(written, "in driver memory that is written again")
    wrong = Memory.allocate(domain.arrays[0].nbytes + 1, "nnhal-vts")
    probe.refused(
        "a copy of a byte too many", InvalidArgument, lambda: _copied(probe, read, wrong, domain.arrays[0].shape)
    )
    domain.empty(read, "after a failed copy")
    probe.refused(
        "an execution that reads a buffer after a failed copy", NnhalError, lambda: domain.run({0: read}, {0: written})
    )
    domain.fill(read, domain.arrays[0])
    domain.run({0: read}, {0: written})
    domain.right(written, "after a failed copy was repaired")
    _failed_execution(domain, written)
    for buffer in (read, written):
        with probe.stages.enter("close"):
            buffer.close()
    return 8


def _copied(probe: Probe, buffer: Buffer, memory: Memory, shape: tuple[int, ...]) -> None:
    with probe.stages.enter("copy_from"):
        buffer.copy_from(memory, shape)


def _failed_execution(domain: _Domain, written: Buffer) -> None:
    """Look at an output buffer whose execution reads another one without contents, so that it fails."""
    unset = domain.allocate(domain.arrays[0].shape, domain.input())
    try:
        domain.run({0: unset}, {0: written})
    except DeadObject:
        raise
    except NnhalError:
        if written.shape is not None:  # it may not have begun; else it has no contents
            domain.right(written, "after an execution that did not begin")
    else:
        raise RequirementNotMet(
            "an execution that reads a buffer without contents succeeds, must fail", domain.probe.place()
        )


@promise(
    "buffers/copies", "A copy to or from driver memory of another size, or with other dimensions, is InvalidArgument."
)
def sizes(probe: Probe) -> int:
    domain = _Domain(probe)
    array = domain.arrays[0]
    buffer = domain.allocate(array.shape, domain.input())
    nbytes = array.nbytes
    for size in sorted({max(1, nbytes - 1), nbytes + 1, 2 * nbytes} - {nbytes}):
        memory = Memory.allocate(size, "nnhal-vts")
        what = f"a copy of {size} bytes into {nbytes}"
        probe.refused(what, InvalidArgument, partial(_copied, probe, buffer, memory, array.shape))
        domain.fill(buffer, array)

        def out(memory: Memory = memory) -> None:
            with probe.stages.enter("copy_to"):
                buffer.copy_to(memory)

        probe.refused(f"a copy of {nbytes} bytes out, into {size}", InvalidArgument, out)
    for shape in ((*array.shape, 1), tuple(n + 1 for n in array.shape), (-1,) * array.ndim):
        what = f"a copy with dimensions {list(shape)} into {list(array.shape)}"
        probe.refused(what, InvalidArgument, partial(_copied, probe, buffer, _memory(array), shape))
    domain.fill(buffer, array)
    memory = Memory.allocate(nbytes, "nnhal-vts")
    with probe.stages.enter("copy_to"):
        buffer.copy_to(memory)
    if not np.array_equal(memory.bytes()[:nbytes], flat_bytes(array)):
        raise RequirementNotMet("a copy out differs from the copy in before")
    return 6


@promise("buffers/uses", "Driver memory is refused for a use outside its roles, and as input and output at once.")
def uses(probe: Probe) -> int:
    domain = _Domain(probe)
    other = probe.prepare(model_of(domain.call))
    read = domain.allocate(domain.arrays[0].shape, domain.input())
    domain.fill(read, domain.arrays[0])
    written = domain.allocate(domain.result.shape, domain.output())
    bad: dict[str, Callable[[], Any]] = {
        "an input as an output": lambda: domain.run({}, {0: read}),
        "an output as an input": lambda: domain.run({0: written}, {}),
        "an input of another prepared model": lambda: domain.run({0: read}, {}, other),
        "an output of another prepared model": lambda: domain.run({}, {0: written}, other),
    }
    seen = len(bad)
    for what, act in bad.items():
        probe.refused(f"driver memory for {what}", InvalidRequest, act)
    if domain.arrays[0].shape == domain.result.shape and not _differ(domain):
        both = domain.allocate(domain.arrays[0].shape, domain.input(), domain.output())
        domain.fill(both, domain.arrays[0])
        probe.refused("one buffer as input and output", InvalidRequest, lambda: domain.run({0: both}, {0: both}))
        domain.run({}, {0: both})
        domain.right(both, "in a buffer with two roles")
        seen += 1
    domain.run({0: read}, {0: written})
    domain.right(written, "after refused uses")
    return seen


@promise("buffers/models", "Driver memory for several prepared models carries a result from one to the other.")
def several(probe: Probe) -> int:
    domain = _Domain(probe)
    other = probe.prepare(model_of(domain.call))
    shared = domain.allocate(domain.arrays[0].shape, domain.input(), domain.input(other))
    domain.fill(shared, domain.arrays[0])
    written = domain.allocate(domain.result.shape, domain.output(), domain.output(other))
    for prepared in (domain.prepared, other, domain.prepared):
        domain.run({0: shared}, {0: written}, prepared)
        domain.right(written, "in memory of two prepared models")
    probe.close(other)
    domain.run({0: shared}, {0: written})
    domain.right(written, "after one of the two models was closed")
    return 4


@promise("buffers/closed", "A use of driver memory after its end is an error, and harms nothing else.")
def closed(probe: Probe) -> int:
    domain = _Domain(probe)
    kept = domain.allocate(domain.arrays[0].shape, domain.input())
    domain.fill(kept, domain.arrays[0])
    gone = domain.allocate(domain.arrays[0].shape, domain.input())
    domain.fill(gone, domain.arrays[0])
    with probe.stages.enter("close"):
        gone.close()
    for what, act in {
        "an execution": lambda: domain.run({0: gone}, {}),
        "a copy in": lambda: domain.fill(gone, domain.arrays[0]),
        "a copy out": lambda: domain.contents(gone),
    }.items():
        probe.refused(f"{what} with driver memory after its end", NnhalError, act)
    result = domain.run({0: kept}, {}).results
    probe.same(domain.call, domain.wanted, result, "after other driver memory has ended")
    return 3


@promise("buffers/independent", "Two buffers of the same roles are independent; new contents take effect.")
def independent(probe: Probe) -> int:
    domain = _Domain(probe)
    again = next(probe.calls.others(domain.call, 1))
    arrays = copies(arrays_of(again))
    wanted = probe.alone(model_of(again), arrays)
    one, other = (domain.allocate(domain.arrays[0].shape, domain.input()) for _ in range(2))
    domain.fill(one, domain.arrays[0])
    domain.fill(other, arrays[0])
    probe.same(domain.call, domain.wanted, domain.run({0: one}, {}).results, "with the first of two buffers")
    probe.same(again, wanted, domain.run({0: other}, {}, arrays=arrays).results, "with the second of two buffers")
    domain.fill(one, arrays[0])
    probe.same(again, wanted, domain.run({0: one}, {}, arrays=arrays).results, "with new contents")
    return 3


@promise("buffers/open", "Driver memory for open dimensions takes the shape of its contents, which have to be given.")
def open_dimensions(probe: Probe) -> int:
    _Domain(probe)
    for call, model in probe.calls.taken():
        arrays = copies(arrays_of(call))
        if not (call.open and arrays and arrays[0].ndim and arrays[0].size):
            continue
        try:
            wanted = probe.calls.wanted(model, arrays)
        except NnhalError:
            continue
        result = wanted[0]
        if result is None or not result.size or probe.signature_of(prepared := probe.prepare(model)).closed:
            continue
        with probe.stages.enter("allocate"):
            read = allocated_by(probe.device, BufferDesc(), [BufferRole(prepared, 0)])
            written = allocated_by(probe.device, BufferDesc(result.shape), [BufferRole(prepared, 0, output=True)])
        memory = _memory(arrays[0])
        what = "a copy without dimensions into memory of open dimensions"
        probe.refused(what, InvalidArgument, partial(_copied, probe, read, memory, ()))
        wrong = (*arrays[0].shape, 2)
        what = f"a copy of {arrays[0].nbytes} bytes with dimensions {list(wrong)}"
        probe.refused(what, InvalidArgument, partial(_copied, probe, read, memory, wrong))
        _copied(probe, read, memory, arrays[0].shape)
        if read.shape != arrays[0].shape:
            raise RequirementNotMet(
                f"memory of open dimensions has shape {read.shape}, must be {list(arrays[0].shape)}"
            )
        rooms: list[Array | None] = [None] * len(wanted)
        request = probe.signature_of(prepared).make(
            probe.signature_of(prepared), [None, *arrays[1:]], rooms, {0: read}, {0: written}
        )
        with probe.stages.enter("run"):
            request.execute(partial(run_resolved, prepared), UNLIMITED)
        if written.shape != result.shape:
            raise RequirementNotMet(
                f"an output in driver memory has shape {written.shape}, must be {list(result.shape)}"
            )
        out = Memory.allocate(max(1, result.nbytes), "nnhal-vts")
        with probe.stages.enter("copy_to"):
            written.copy_to(out)
        found = out.view(0, result.nbytes, result.dtype, result.shape)
        probe.same(call, [result, *wanted[1:]], [found, *wanted[1:]], "in memory of open dimensions")
        return 4
    return 0
