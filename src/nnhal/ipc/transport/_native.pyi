"""The native extension: lanes over sockets, and the fast message queues of a burst.

Durations are integer nanoseconds on the monotonic clock; a negative time-out waits without limit, 0 does not wait. Affinity
masks have a bit for each of the first 64 CPUs; 0 is "not known". Statuses are negative ints and no exceptions, as the way of
an execution leads through here; exceptions are for mistakes of the caller, for what a signal handler raises out of a wait
(Ctrl-C), and for a lack of memory. What a wait left behind may still arrive: after an exception or TIMEOUT out of `call` a
lane takes no more calls, and the queues want to be closed after one out of `exchange`.
"""

from collections.abc import Callable, Sequence
from typing import Final, Self, TypeAlias, final

from typing_extensions import Buffer

from nnhal.base.native import Owner

TIMEOUT: Final = -1
"""The time-out passed."""
DEAD: Final = -2
"""The peer died or hung up, and everything it had sent before was received."""
CLOSED: Final = -3
"""The queues were closed by either side, or the socket by this one."""
CORRUPT: Final = -4
"""The peer broke the protocol of queues or lane, which stay of no use; or the answer to an earlier call is to come."""
TOO_LARGE: Final = -5
"""A message has more than 69,632 bytes or 64 descriptors, or its descriptors found no room; it is lost, none stay open."""
FULL: Final = -6
"""The queue has no room for the whole packet; nothing was written."""

CLIENT: Final = 0
"""The side that sends requests and receives results."""
SERVICE: Final = 1
"""The side that receives requests and sends results."""

_Message: TypeAlias = tuple[bytes, "Descriptors"]

def cpus() -> int:
    """The affinity mask of the calling thread."""

def end_with(pidfd: int, after_ns: int, /) -> None:
    """Have this process end (exit status 1) some time after the one behind `pidfd`, whatever its threads do then.

    A thread without Python waits for that; the descriptor stays the caller's, who keeps it open. -1: nothing happens.
    """

@final
class Lease:
    """A number that is given back once: by `release`, or when this goes. No Python code runs for that."""

    def __new__(cls, number: int, into: Callable[[int], object], wakes: Owner, /) -> Self:
        """into: written in C, is called with the number. wakes: of an eventfd as its last descriptor, told of it."""

    @property
    def number(self) -> int:
        """The number."""

    def release(self) -> None:
        """Give it back."""

    def keep(self) -> None:
        """Let it not be given back any more."""

@final
class Descriptors:
    """Open descriptors that came with a message, closed on exec. It closes those that nobody took when it goes."""

    def __len__(self) -> int:
        """How many are left."""

    def take(self) -> int:
        """The next one, which is the caller's from now on; -1 where none is left."""

    def close(self) -> None:
        """Close those that are left. May take as long as the sender wished; the GIL is free meanwhile."""

NONE: Final[Descriptors]
"""No descriptors."""

@final
class Lane:
    """Messages with descriptors over a connected AF_UNIX SOCK_SEQPACKET socket.

    A call has a number, and its answer has the same; what wants no answer has none. An answer with another number is
    CORRUPT, and so is a call while the answer to an earlier one is to come: that cannot be mistaken for any other.
    A call whose number is not greater than those before is CORRUPT: what a peer sends back to its sender is not answered.

    The peer may share the open file of this end: flags and options that it sets change no wait, and a message with which
    the kernel opens something else than the sender's descriptors (SO_PASSPIDFD) is CORRUPT; what it opened is closed.

    Owns no descriptor: socket and pidfd stay the caller's, who keeps them open while the lane is used. One thread may
    wait for a message at a time (RuntimeError otherwise), another may send meanwhile.

    A wait spins before it blocks, for `budget_ns`: at least 50 us, later twice the average of the waits observed, at most
    2 ms; 5 us where waits are longer than that, and not at all where both processes have only one CPU between them. The
    first `hold_ns` of a spin keep the GIL, unless waits are much longer; the rest and a block release it.
    """

    watch: int
    """A pidfd of the peer's process, -1 for none: its end is DEAD, also when a child of it keeps the socket open."""
    peer_cpus: int
    """Affinity mask of the peer."""
    spin: bool
    """Whether waits may spin; True at first."""
    hold_ns: int
    """How long a wait keeps the GIL; 5 us at first."""

    def __new__(cls, fd: int, watch: int = -1) -> Lane: ...
    @property
    def fd(self) -> int:
        """The socket."""
    @property
    def budget_ns(self) -> int:
        """How long the next wait would spin."""

    @property
    def asked(self) -> int:
        """Number of the message received last where it is a call that is not answered yet, else 0."""
    @property
    def awaited(self) -> int:
        """Number of the call whose answer is to come, else 0."""
    @property
    def called(self) -> int:
        """The number of the last call sent."""

    def send(self, data: Buffer, fds: Sequence[int] = (), timeout_ns: int = 5_000_000_000, /) -> int:
        """Send one message of 1 byte or more that wants no answer, with copies of descriptors.

        0, TIMEOUT, DEAD, CLOSED or TOO_LARGE. Waits while the socket's buffer is full. OSError where a descriptor is not
        open. Never raises SIGPIPE.
        """

    def answer(self, data: Buffer, fds: Sequence[int] = (), timeout_ns: int = 5_000_000_000, /) -> int:
        """Answer the call received last; as `send`. RuntimeError where nothing is `asked`."""

    def ask(self, data: Buffer, fds: Sequence[int] = (), timeout_ns: int = 5_000_000_000, /) -> int:
        """Send a call; as `send`, and CORRUPT while an answer is `awaited`. The next `receive` is for its answer."""

    def receive(self, timeout_ns: int = -1, /) -> _Message | int:
        """The next message and its descriptors, or a status. Where an answer is `awaited`, CORRUPT for anything else."""

    def call(self, data: Buffer, fds: Sequence[int] = (), timeout_ns: int = -1, /) -> _Message | int:
        """`ask` and `receive`, both within one time-out."""

    def stats(self) -> dict[str, int]:
        """Counters of waits: spins were satisfied while spinning, blocks had to block."""

def create_queues(request_elements: int, result_elements: int, /) -> int:
    """A new shared memory with two empty queues for at least so many elements, 1 to 65536 each: its descriptor.

    Capacities are the next powers of two, 16 or more. The memory is sealed against shrinking, growing and further seals.
    """

@final
class Queues:
    """One side's view of the two fast message queues of a burst.

    A packet is a sequence of elements of 24 bytes, of which the first has a 0 and tells in its second word how many there
    are. In the queue that 0 is a number: of a question, which `exchange` gives it, and of the answer to that, which is the
    packet sent next by who received it; any other has none. What comes in the place of an answer is CORRUPT.

    Packets are written and read whole. One object a side and memory; one thread at a time may wait in it (RuntimeError
    otherwise). Waits spin and hold the GIL as those of a `Lane`, then block until a packet, `close` on either side, or the
    death of the thread that holds the other side. A forked child must not use its parent's object.
    """

    watch: int
    """A pidfd of the peer's process, -1 for none; looked at once a second of a blocking wait."""
    spin: bool
    """Whether waits may spin; True at first."""
    hold_ns: int
    """How long a wait keeps the GIL; 20 us at first."""
    use_waitv: bool
    """Whether waits block by FUTEX_WAITV; turns False by itself where the kernel lacks it: deaths are then seen in 2 ms."""

    def __new__(cls, fd: int, side: int) -> Queues:
        """Map the memory behind `fd`, which stays the caller's and may be closed. ValueError where it is no memory of
        `create_queues`: of another size or layout, or not sealed against shrinking.
        """

    @property
    def budget_ns(self) -> int:
        """How long the next wait would spin."""

    @property
    def awaiting(self) -> bool:
        """Whether an answer is to come to what `exchange` sent."""

    def send(self, packet: Buffer, /) -> int:
        """Write a packet, the answer where a question was received: 0, FULL, CLOSED or CORRUPT. ValueError for another."""

    def receive(self, timeout_ns: int = -1, /) -> bytes | int:
        """The next packet, or TIMEOUT, DEAD, CLOSED or CORRUPT.

        A packet that equals the one before byte for byte is the same object. Packets that were sent before the peer closed
        or died come first.
        """

    def exchange(self, packet: Buffer, timeout_ns: int = -1, /) -> bytes | int:
        """Ask a question and take its answer. CORRUPT where a packet is there before, or another answer is to come."""

    def hold(self) -> None:
        """Make the end of the calling thread, however it comes, the DEAD of the other side, until `drop`.

        A thread holds one object at a time (RuntimeError otherwise), and robust mutexes of the C library that it takes
        meanwhile are not robust.
        """

    def drop(self) -> None:
        """Undo `hold`, from the same thread (RuntimeError otherwise). Nothing happens where nothing is held."""

    def close(self) -> None:
        """End the queues for both sides; waits end with CLOSED. In a forked child, ends them for the child alone."""

    def stats(self) -> dict[str, int]:
        """Counters: packets received, those that equalled the one before; waits satisfied while spinning, waits that
        blocked; packets sent with (wakes) and without (wakes_saved) a system call to wake the peer; lost_wakes, packets
        that a blocked wait found only when it was cut after a second: anything but 0 is a fault of the peer.
        """
