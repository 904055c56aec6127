"""A process that holds the mutex of a pipe: it writes to it out of memory whose page fault nobody serves (userfaultfd).

python stalled.py WRITE_END; ends with 0 where its standard input ends, with 1 after half a minute.
"""

import ctypes
import fcntl
import mmap
import os
import platform
import select
import struct
import sys
import threading

CALL = {"x86_64": 323, "aarch64": 282}.get(platform.machine(), -1)
API, REGISTER = 0xC018AA3F, 0xC020AA00  # UFFDIO_API, UFFDIO_REGISTER
PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)


def user_faults() -> int:
    """A userfaultfd, -1 where this user may have none that stops the kernel too."""
    return int(libc.syscall(CALL, os.O_CLOEXEC))


def main() -> int:
    fd, end = user_faults(), int(sys.argv[1])
    fcntl.ioctl(fd, API, struct.pack("QQQ", 0xAA, 0, 0))
    region = mmap.mmap(-1, PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(region))
    fcntl.ioctl(fd, REGISTER, struct.pack("QQQQ", address, PAGE, 1, 0))
    os.write(end, b"\0")
    threading.Thread(target=lambda: libc.write(end, ctypes.c_void_p(address), 100), daemon=True).start()
    select.select([fd], [], [])  # the fault has come: the mutex is held
    print("held", flush=True)
    told = select.select([sys.stdin], [], [], 30)[0]
    os._exit(0 if told else 1)


if __name__ == "__main__":
    main()
