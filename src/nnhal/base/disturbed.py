"""Detects other work that keeps this process from its cores: measures how long its threads wait for one.

The kernel counts for each thread the time on a core, and the time that it was ready and waited for one (`schedstat`).
"""

import threading
import time
from pathlib import Path

from nnhal.base.cores import usable_cores
from nnhal.base.digests import blake2b

NOTICED = 0.1  # share of the time spent waiting from which a measurement counts as disturbed
PROBE = 0.3  # seconds on a core of each thread of a probe
THREADS, THIS = Path("/proc/self/task"), Path("/proc/thread-self")
Spent = tuple[int, int]  # nanoseconds on a core, and waiting for one


def process_cpu_time(threads: Path = THREADS) -> Spent | None:
    """Returns the times of all threads of this process; None if the kernel does not count them."""
    try:
        found = [each for thread in threads.iterdir() if (each := thread_cpu_time(thread)) is not None]
    except OSError:
        return None
    return (sum(ran for ran, _ in found), sum(waited for _, waited in found)) if found else None


def thread_cpu_time(thread: Path = THIS) -> Spent | None:
    """Returns the times of one thread; None if it has ended or the kernel does not count them."""
    try:
        ran, waited, *_ = map(int, (thread / "schedstat").read_text().split())
    except (OSError, ValueError):
        return None
    return (ran, waited) if ran else None


def share(before: Spent | None, after: Spent | None) -> float:
    """Returns the share (0 to 1) of the time between two measurements that was waiting; 0 if unknown."""
    if before is None or after is None:
        return 0.0
    ran, waited = (max(0, b - a) for a, b in zip(before, after, strict=True))
    return waited / (ran + waited) if ran + waited else 0.0


def probed() -> float:
    """Computes on every core that this process may use; returns the share (0 to 1) of time that threads waited for one."""
    block, shares = bytes(1 << 20), list[float]()

    def compute() -> None:
        before, began = thread_cpu_time(), time.thread_time()
        while time.thread_time() - began < PROBE:
            blake2b(block).digest()  # without the interpreter's lock
        shares.append(share(before, thread_cpu_time()))

    threads = [threading.Thread(target=compute, daemon=True) for _ in range(usable_cores())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(shares) / len(shares)
