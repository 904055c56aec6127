"""The native extension: channels over sockets (`Lane`), and the fast message queues of a burst.

Durations are integer nanoseconds on the monotonic clock; a negative timeout waits without limit, 0 does not wait.
Affinity masks have a bit for each of the first 64 CPUs; 0 is "unknown".

Statuses are negative ints instead of exceptions, because every execution passes through here. Exceptions are for mistakes
of the caller, for errors of a signal handler during a wait (Ctrl-C), and for a lack of memory.

The result of an unfinished wait may still arrive. So after an exception or TIMEOUT from `call`, a channel accepts no more
calls; after one from `exchange`, close the queues.
"""

from collections.abc import Callable, Sequence
from typing import Final, Self, TypeAlias, final

from typing_extensions import Buffer

from nnhal.base.native import Owner

TIMEOUT: Final = -1
"""The timeout passed."""
DEAD: Final = -2
"""The peer died or hung up, and everything that it had sent before was received."""
CLOSED: Final = -3
"""The queues were closed by either side, or the socket by this one."""
CORRUPT: Final = -4
"""The peer broke the protocol, so the queues or channel stay unusable; or the answer to an earlier call is to come."""
TOO_LARGE: Final = -5
"""A message has more than 69,632 bytes or 64 descriptors, or its descriptors did not fit; it is lost, none stay open."""
FULL: Final = -6
"""The queue has no space for the whole packet; nothing was written."""

CLIENT: Final = 0
"""The side that sends requests and receives results."""
SERVICE: Final = 1
"""The side that receives requests and sends results."""

_Message: TypeAlias = tuple[bytes, "Descriptors"]

def cpus() -> int:
    """Return the affinity mask of the calling thread."""

def end_with(pidfd: int, after_ns: int, /) -> None:
    """End this process (exit status 1) some time after the one of `pidfd`, whatever its threads do then.

    A thread without Python waits for that. The caller owns the descriptor and keeps it open. -1 has no effect.
    """

@final
class Lease:
    """A number that is released once: by `release`, or with this object. No Python code runs for that."""

    def __new__(cls, number: int, into: Callable[[int], object], wakes: Owner, /) -> Self:
        """into: a function in C, called with the number. wakes: its last descriptor is an eventfd, which is signalled."""

    @property
    def number(self) -> int:
        """The number."""

    def release(self) -> None:
        """Release the number."""

    def keep(self) -> None:
        """Prevent the release."""

@final
class Descriptors:
    """Open descriptors of a message, closed on exec. Its end closes those that were not taken."""

    def __len__(self) -> int:
        """Return the number of those left."""

    def take(self) -> int:
        """Return the next one, which the caller owns from now on; -1 if none is left."""

    def close(self) -> None:
        """Close those that are left. The sender determines how long that takes; the GIL is released meanwhile."""

NONE: Final[Descriptors]
"""No descriptors."""

@final
class Lane:
    """A channel: messages with descriptors over a connected AF_UNIX SOCK_SEQPACKET socket.

    A call and its answer have the same number; a message without an answer has none. An answer with another number is
    CORRUPT, and so is a call while the answer to an earlier one is to come: so that answer cannot be mistaken for another.
    A call whose number is not greater than all before is CORRUPT: a message that a peer sends back is not answered.

    The peer may share the open file of this end: flags and options that it sets do not affect waits. A message for which
    the kernel opens other descriptors than the sender's (SO_PASSPIDFD) is CORRUPT, and those are closed.

    It owns no descriptor: the caller owns socket and pidfd, and keeps them open while the channel is in use. One thread
    may wait for a message at a time (RuntimeError otherwise), another may send meanwhile.

    A wait spins before it blocks, for `budget_ns`: at least 50 us, later twice the average of the observed waits, at most
    2 ms. It spins 5 us if waits are longer than that, and not at all if both processes share a single CPU. The first
    `hold_ns` of a spin keep the GIL, unless waits are much longer; the rest and a block release it.
    """

    watch: int
    """A pidfd of the peer's process, or -1: its end is DEAD, even if a child of it keeps the socket open."""
    peer_cpus: int
    """Affinity mask of the peer."""
    spin: bool
    """Whether waits may spin; initially True."""
    hold_ns: int
    """How long a wait keeps the GIL; initially 5 us."""

    def __new__(cls, fd: int, watch: int = -1) -> Lane: ...
    @property
    def fd(self) -> int:
        """The socket."""
    @property
    def budget_ns(self) -> int:
        """How long the next wait would spin."""

    @property
    def asked(self) -> int:
        """The number of the last received message if it is an unanswered call, otherwise 0."""
    @property
    def awaited(self) -> int:
        """The number of the call whose answer is to come, otherwise 0."""
    @property
    def called(self) -> int:
        """The number of the last call sent."""

    def send(self, data: Buffer, fds: Sequence[int] = (), timeout_ns: int = 5_000_000_000, /) -> int:
        """Send one message of at least 1 byte that needs no answer, with copies of descriptors.

        Returns 0, TIMEOUT, DEAD, CLOSED or TOO_LARGE. Waits while the socket's buffer is full. Raises OSError if a
        descriptor is not open. Never causes SIGPIPE.
        """

    def answer(self, data: Buffer, fds: Sequence[int] = (), timeout_ns: int = 5_000_000_000, /) -> int:
        """Answer the last received call, like `send`. Raises RuntimeError if no call is `asked`."""

    def ask(self, data: Buffer, fds: Sequence[int] = (), timeout_ns: int = 5_000_000_000, /) -> int:
        """Send a call, like `send`; CORRUPT while an answer is `awaited`. The next `receive` returns its answer."""

    def receive(self, timeout_ns: int = -1, /) -> _Message | int:
        """Return the next message and its descriptors, or a status; CORRUPT for another message than an `awaited` answer."""

    def call(self, data: Buffer, fds: Sequence[int] = (), timeout_ns: int = -1, /) -> _Message | int:
        """Call `ask` and `receive`, both within one timeout."""

    def stats(self) -> dict[str, int]:
        """Return the counters of waits: `spins` ended while spinning, `blocks` had to block."""

def create_queues(request_elements: int, result_elements: int, /) -> int:
    """Create a shared memory with two empty queues for at least so many elements, 1 to 65536 each; return its descriptor.

    Capacities are the next powers of two, 16 or more. The memory is sealed against shrinking, growing and further seals.
    """

@final
class Queues:
    """One side's view of the two fast message queues of a burst.

    A packet is a sequence of elements of 24 bytes. The first begins with a 0, and its second word is the number of
    elements. In the queue, that 0 is replaced by a number: of a question, assigned by `exchange`, and of its answer, which
    is the receiver's next packet. Other packets have no number. Another packet than the expected answer is CORRUPT.

    Packets are written and read completely. Use one object for each side and memory; one thread at a time may wait in it
    (RuntimeError otherwise). Waits spin and hold the GIL like those of a `Lane`, then block until a packet, `close` on
    either side, or the death of the thread that holds the other side. A forked child must not use its parent's object.
    """

    watch: int
    """A pidfd of the peer's process, or -1; checked once per second of a blocking wait."""
    spin: bool
    """Whether waits may spin; initially True."""
    hold_ns: int
    """How long a wait keeps the GIL; initially 20 us."""
    use_waitv: bool
    """Whether waits block by FUTEX_WAITV; becomes False if the kernel lacks it: then a death is noticed within 2 ms."""

    def __new__(cls, fd: int, side: int) -> Queues:
        """Map the memory of `fd`, which the caller owns and may close.

        Raises ValueError if it is not a memory of `create_queues`: another size or layout, or not sealed against shrinking.
        """

    @property
    def budget_ns(self) -> int:
        """How long the next wait would spin."""

    @property
    def awaiting(self) -> bool:
        """Whether the answer to an `exchange` is to come."""

    def send(self, packet: Buffer, /) -> int:
        """Write a packet, the answer to a received question: 0, FULL, CLOSED or CORRUPT. ValueError if invalid."""

    def receive(self, timeout_ns: int = -1, /) -> bytes | int:
        """Return the next packet, or TIMEOUT, DEAD, CLOSED or CORRUPT.

        A packet that equals the previous one byte for byte is the same object. Packets that the peer sent before it closed
        or died come first.
        """

    def exchange(self, packet: Buffer, timeout_ns: int = -1, /) -> bytes | int:
        """Send a question and return its answer; CORRUPT if a packet is there before, or another answer is to come."""

    def hold(self) -> None:
        """Until `drop`, report any end of the calling thread as DEAD to the other side.

        A thread holds one object at a time (RuntimeError otherwise). Robust mutexes of the C library that it locks
        meanwhile are not robust.
        """

    def drop(self) -> None:
        """Undo `hold`, from the same thread (RuntimeError otherwise); no effect if nothing is held."""

    def close(self) -> None:
        """End the queues for both sides; waits end with CLOSED. In a forked child, ends them for the child alone."""

    def stats(self) -> dict[str, int]:
        """Return the counters.

        They count received packets, and those that equalled the previous one; waits that ended while spinning, and waits
        that blocked; packets sent with (wakes) and without (wakes_saved) a system call to wake the peer. lost_wakes counts
        packets that a blocked wait found only at its check after a second: a number above 0 is a fault of the peer.
        """
