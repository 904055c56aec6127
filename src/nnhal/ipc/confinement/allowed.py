"""The system calls that a sandboxed process may make, with reasons. All others are refused.

The list was measured: the calls of the service, the reference kernels, LiteRT, numpy, scipy and imports in the sandbox,
and their equivalents in musl. `docs/reference/sandbox.md` has the same list; a test compares them.
"""

from nnhal.base.records import Record


class AllowedCalls(Record, frozen=True):
    """System calls that are harmless with any arguments."""

    what: str
    why: str
    calls: str


ALLOWED = (
    AllowedCalls(
        "memory",
        "heaps, arrays, pools that both processes map, loaded libraries",
        "brk mmap munmap mprotect mremap madvise mbind membarrier memfd_create",
    ),
    AllowedCalls(
        "threads",
        "locks of libraries and of bursts, their start and end",
        """futex futex_waitv set_robust_list rseq set_tid_address gettid sched_yield sched_getaffinity getcpu exit
        exit_group restart_syscall""",
    ),
    AllowedCalls(
        "open descriptors",
        "descriptors that are held or were sent: memories, files, pipes, devices",
        """read readv pread64 preadv write writev pwrite64 pwritev lseek close close_range dup dup2 dup3 fstat ftruncate
        fallocate pipe pipe2 tee""",
    ),
    AllowedCalls(
        "waiting",
        "for messages, fences, the end of the client, time",
        """poll ppoll select pselect6 epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd2
        timerfd_create timerfd_settime timerfd_gettime pidfd_open""",
    ),
    AllowedCalls(
        "sockets",
        "channels, clients of a service; none can be bound or connected",
        "sendmsg recvmsg recvfrom accept accept4 shutdown getsockname getsockopt",
    ),
    AllowedCalls(
        "files",
        "imports; landlock checks what is opened, but not whether a path exists",
        "open openat stat lstat newfstatat statx access faccessat faccessat2 getdents64 getcwd",
    ),
    AllowedCalls(
        "time",
        "clocks, pauses, alarms of the process itself",
        """clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time times getitimer setitimer alarm pause""",
    ),
    AllowedCalls(
        "its own signals",
        "handlers, masks, traces of a crash",
        "rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait sigaltstack",
    ),
    AllowedCalls(
        "the process and the machine",
        "identity of the process, amount of memory, number of processors; random bytes",
        "getpid getppid getuid geteuid getgid getegid getrusage uname sysinfo getrandom",
    ),
)

OWN = -1  # represents the process's own id


class Check(Record, frozen=True):
    """A condition of an argument (0 to 5): one of `values` if there are any, all bits of `has`, none of `lacks`.

    The lower 32 bits count, as the kernel treats an int; all 64 for `null`, which must be zero. kinds: forbidden values
    of the second byte, which for an ioctl identifies the kind of device.
    """

    argument: int
    values: tuple[int, ...] = ()
    has: int = 0
    lacks: int = 0
    null: bool = False
    kinds: tuple[int, ...] = ()


class JudgedCall(Record, frozen=True):
    """A system call that is allowed if its arguments pass all checks of one of the ways."""

    name: str
    rule: str
    ways: tuple[tuple[Check, ...], ...]


CLONE_THREAD = 0x00010000
CLONE_AS_THREADS_DO = CLONE_THREAD | 0x00000900  # CLONE_VM, CLONE_SIGHAND
CLONE_OTHERWISE = 0x7E020000 | 0x0000F000  # namespaces; CLONE_PIDFD, PTRACE, VFORK, PARENT
F_SETFL, O_ASYNC = 4, 0x2000
FCNTL = (
    *(0, 1, 2, 3, 1030, 1033, 1034),  # DUPFD, GETFD, SETFD, GETFL, DUPFD_CLOEXEC, ADD_SEALS, GET_SEALS
    *(36, 37, 38),  # OFD_GETLK, OFD_SETLK, OFD_SETLKW
)
IOCTL = (
    *(0x5401, 0x802C542A),  # TCGETS, TCGETS2: whether it is a terminal
    *(0x541B, 0x5421, 0x5450, 0x5451),  # FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
    *(0xC0383E04, 0x40187542),  # SYNC_IOC_FILE_INFO of a fence, UDMABUF_CREATE
)
PRCTL = (3, 15, 16, 51, 64, 0x53564D41)  # GET_DUMPABLE, SET_NAME, GET_NAME, SVE_GET_VL, SME_GET_VL, SET_VMA
AF_UNIX, SOCK_SEQPACKET, SOCK_CLOEXEC = 1, 5, 0x80000
# Of files, block devices, terminals, sockets, userfaultfd, seccomp, namespaces, processes: other open descriptors.
NO_DEVICE = (0x00, 0x12, 0x21, 0x54, 0x58, 0x66, 0x76, 0x89, 0x8A, 0x8B, 0x93, 0x94, 0xAA, 0xB7, 0xE5, 0xFF)
_itself = Check(0, (0, OWN))

JUDGED = (
    JudgedCall(
        "clone",
        "a thread, not a process: a child would outlive the end of the driver",
        ((Check(0, has=CLONE_AS_THREADS_DO, lacks=CLONE_OTHERWISE),),),
    ),
    JudgedCall("kill", "its own process", ((Check(0, (OWN,)),),)),
    JudgedCall("tgkill", "threads of this process", ((Check(0, (OWN,)),),)),
    JudgedCall(
        "fcntl",
        "flags, copies, seals and own locks of a descriptor; not its owner or signal, O_ASYNC, leases or notices",
        ((Check(1, FCNTL),), (Check(1, (F_SETFL,)), Check(2, lacks=O_ASYNC))),
    ),
    JudgedCall(
        "ioctl",
        "terminal check, readable bytes, FIONBIO and FIOCLEX; facts of a sync_file; a dma-buf over a memfd",
        ((Check(1, IOCTL),),),
    ),
    JudgedCall("prctl", "names of threads and mappings, the length of vectors", ((Check(0, PRCTL),),)),
    JudgedCall("arch_prctl", "the registers of AMX", ((Check(0, (0x1021, 0x1022, 0x1023)),),)),
    JudgedCall("prlimit64", "reading its own limits", ((_itself, Check(2, null=True)),)),
    JudgedCall("get_robust_list", "its own", ((_itself,),)),
    JudgedCall("sched_setaffinity", "its own", ((_itself,),)),
    JudgedCall("sendto", "without an address: only to the connected peer", ((Check(4, null=True),),)),
    JudgedCall(
        "socketpair",
        "both ends of a channel: SEQPACKET of the Unix family, connected to each other",
        ((Check(0, (AF_UNIX,)), Check(1, (SOCK_SEQPACKET | SOCK_CLOEXEC,)), Check(2, (0,))),),
    ),
)


# For a process that is given devices. The filter cannot see what kind a descriptor is; landlock opens no other devices.
WITH_DEVICES = JudgedCall(
    "ioctl",
    "the same, and all kinds except those of files, terminals, sockets, processes or memory",
    ((Check(1, IOCTL),), (Check(1, kinds=NO_DEVICE),)),
)


def plain_names() -> list[str]:
    """Return the names of the calls that are allowed with any arguments."""
    return [name for group in ALLOWED for name in group.calls.split()]
