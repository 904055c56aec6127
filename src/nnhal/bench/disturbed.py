"""Whether something else keeps this process from its cores while it measures: how long its threads wait for one.

The kernel counts for each thread the time on a core, and the time that it was ready and waited for one (`schedstat`).
"""

import threading
import time
from pathlib import Path

from nnhal.base.cores import usable_cores
from nnhal.base.digests import blake2b

NOTICED = 0.1  # waiting, as a share of waiting and running, from which on a measurement is disturbed
PROBE = 0.3  # seconds on a core that the machine is tried with
THREADS, THIS = Path("/proc/self/task"), Path("/proc/thread-self")
Spent = tuple[int, int]  # nanoseconds on a core, and waiting for one


def spent(threads: Path = THREADS) -> Spent | None:
    """Of all threads of this process together; None where the kernel does not count it."""
    try:
        found = [each for thread in threads.iterdir() if (each := spent_by(thread)) is not None]
    except OSError:
        return None
    return (sum(ran for ran, _ in found), sum(waited for _, waited in found)) if found else None


def spent_by(thread: Path = THIS) -> Spent | None:
    """Of one thread; None where it ended, and where the kernel does not count it."""
    try:
        ran, waited, *_ = map(int, (thread / "schedstat").read_text().split())
    except (OSError, ValueError):
        return None
    return (ran, waited) if ran else None


def share(before: Spent | None, after: Spent | None) -> float:
    """How much of the time from one to the other was waiting; 0 where that is not known."""
    if before is None or after is None:
        return 0.0
    ran, waited = (max(0, b - a) for a, b in zip(before, after, strict=True))
    return waited / (ran + waited) if ran + waited else 0.0


def probed() -> float:
    """How much threads that only compute wait for a core, one thread for each core that this process may use."""
    block, shares = bytes(1 << 20), list[float]()

    def compute() -> None:
        before, began = spent_by(), time.thread_time()
        while time.thread_time() - began < PROBE:
            blake2b(block).digest()  # without the interpreter's lock
        shares.append(share(before, spent_by()))

    threads = [threading.Thread(target=compute, daemon=True) for _ in range(usable_cores())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(shares) / len(shares)
