"""What a hostile driver would try, and what comes of it: an error number, or "done" with the reason why that is no way out.

`how` is evaluated in the driver's process (tests/ipc/drivers/captive.py): `parent` is its client, `{place}` a folder outside
with a file `own`. Privileged ones would be refused anyone but root, so they show nothing where nothing is confined.
"""

from typing import NamedTuple


class Escape(NamedTuple):
    """A try. harmless: why it may succeed. control: whether an unconfined driver gets another answer."""

    what: str
    how: str
    answer: str
    harmless: str = ""
    control: bool = True


def _table(text: str, *, control: bool = True) -> list[Escape]:
    rows = [[cell.strip() for cell in line.split("|", 2)] for line in text.strip().splitlines()]
    return [Escape(what, how, answer, control=control) for answer, what, how in rows]


CHILDREN = _table("""
EPERM  | a child                                | child("fork")
EPERM  | a child of the client                  | child("clone", 0x8011, 0, 0, 0, 0)
EPERM  | a child in a user namespace            | child("clone", 0x10000011, 0, 0, 0, 0)
ENOSYS | a child by a struct of arguments       | child("clone3", struct.pack("11Q", 0, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0), 88)
EPERM  | a program                              | os.posix_spawn("/bin/true", ["true"], {{}})
EPERM  | a user namespace                       | call("unshare", 0x10000000)
""")

PROGRAMS = _table(
    """
EPERM  | a child that shares memory             | call("clone", 0x4111, 0, 0, 0, 0)
EPERM  | a program in its place                 | os.execv("/bin/true", ["true"])
EPERM  | a program out of memory                | call("execveat", os.memfd_create("x"), b"", 0, 0, 0x1000)
EPERM  | the namespaces of the client           | call("setns", os.pidfd_open(parent), 0x10000000)
EPERM  | a root folder                          | os.chroot("/")
EPERM  | to be another user                     | os.setresuid(1, 1, 1)
EPERM  | to be in other groups                  | os.setgroups([1])
EPERM  | other capabilities                     | call("capset", 0, 0)
""",
    control=False,
)

OTHERS = _table("""
EPERM  | a signal to the client                 | os.kill(parent, 0)
EPERM  | a signal to the process group          | os.kill(0, 0)
EPERM  | a signal to everybody                  | os.kill(-1, 0)
EPERM  | a signal to a thread of the client     | call("tgkill", parent, parent, 0)
EPERM  | a signal to a thread                   | call("tkill", parent, 0)
ENOSYS | a signal by a pidfd                    | signal.pidfd_send_signal(os.pidfd_open(parent), 0)
EPERM  | the client as owner of a socket        | fcntl.fcntl(lane(), fcntl.F_SETOWN, parent)
EPERM  | a thread as owner of a socket          | fcntl.fcntl(lane(), 15, struct.pack("ii", 1, parent))
EPERM  | another signal for what comes          | fcntl.fcntl(lane(), 10, 9)
EPERM  | signals for what comes                 | fcntl.fcntl(os.pipe()[0], fcntl.F_SETFL, os.O_ASYNC)
EPERM  | signals for what comes, by ioctl       | fcntl.ioctl(os.pipe()[0], 0x5452, struct.pack("i", 1))
EPERM  | the client as owner, by ioctl          | fcntl.ioctl(lane(), 0x8901, struct.pack("i", parent))
EPERM  | the client's processors                | os.sched_setaffinity(parent, os.sched_getaffinity(parent))
EPERM  | the client's priority                  | os.setpriority(0, parent, os.getpriority(0, 0))
EPERM  | the client's scheduling                | os.sched_getscheduler(parent)
EPERM  | the client's priority for disks        | call("ioprio_get", 1, parent)
EPERM  | the client's limits                    | call("prlimit64", parent, 7, 0, 0)
EPERM  | the client's session                   | os.getsid(parent)
EPERM  | the client's process group             | os.getpgid(parent)
EPERM  | to be traced                           | call("prctl", 4, 1, 0, 0, 0)
EPERM  | a tracer of its own                    | call("prctl", 38, 1, 0, 0, 0)
EPERM  | a signal at the client's end           | call("prctl", 1, 9, 0, 0, 0)
EACCES | the client's environment               | len(open(f"/proc/{{parent}}/environ", "rb").read())
EACCES | the client's memory, by a file         | open(f"/proc/{{parent}}/mem", "rb")
EACCES | the client's descriptors               | os.listdir(f"/proc/{{parent}}/fd")
""")

MEMORY = _table(
    """
EPERM  | to trace the client                    | call("ptrace", 16, parent, 0, 0)
EPERM  | to be traced by the client             | call("ptrace", 0, 0, 0, 0)
EPERM  | to read the client's memory            | call("process_vm_readv", parent, 0, 0, 0, 0, 0)
EPERM  | to write the client's memory           | call("process_vm_writev", parent, 0, 0, 0, 0, 0)
ENOSYS | a descriptor of the client             | call("pidfd_getfd", os.pidfd_open(parent), 1, 0)
ENOSYS | to drop the client's memory            | call("process_madvise", os.pidfd_open(parent), 0, 0, 21, 0)
EPERM  | to compare descriptors                 | call("kcmp", parent, me, 0, 0, 0)
EPERM  | to move the client's pages             | call("migrate_pages", parent, 0, 0, 0)
EPERM  | to set a limit of the client           | call("prlimit64", parent, 7, b"x" * 16, 0)
""",
    control=False,
)

SOCKETS = _table("""
EPERM  | a socket to the net                    | socket.socket(socket.AF_INET)
EPERM  | datagrams to the net                   | socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
EPERM  | a socket to other processes            | socket.socket(socket.AF_UNIX)
EPERM  | a socket to the kernel                 | socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
EPERM  | datagrams from a pair of sockets       | socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
EPERM  | a pair of sockets                      | socket.socketpair()
EPERM  | to connect a lane elsewhere            | call("connect", lane(), struct.pack("H", 0), 2) or "not connected any more"
EPERM  | a name for a lane                      | call("bind", lane(), struct.pack("H", 1), 2)
EPERM  | a message to whom it names             | call("sendto", -1, b"", 0, 0x40, b"\\1\\0/x", 4)
EPERM  | a message among many                   | call("sendmmsg", lane(), 0, 0, 0)
EPERM  | an option of a lane                    | call("setsockopt", lane(), 1, 8, struct.pack("i", 1 << 18), 4)
EPERM  | who else is there                      | call("getpeername", lane(), bytes(128), bytes(4))
""")

FILES = _table("""
EACCES | a file of the system                   | open("/etc/passwd").read(4)
EACCES | a file of the user                     | open("{place}/own").read()
EACCES | by way of its own root                 | open("/proc/self/root/etc/passwd").read(4)
EACCES | its environment                        | open("/proc/self/environ").read(4)
EACCES | its environment, by a thread           | open(f"/proc/self/task/{{me}}/environ").read(4)
EACCES | the sockets of the machine             | open("/proc/self/net/unix").read(4)
EACCES | what is mounted                        | open("/proc/self/mountinfo").read(4)
EFBIG  | a memory past the limit                | os.ftruncate(os.memfd_create("x"), (4 << 30) + 1)
EACCES | by way of a path's descriptor          | path_only("/etc/passwd")[:4]
EACCES | the names in a folder                  | os.listdir("{place}")
EACCES | the names in the root                  | len(os.listdir("/"))
EACCES | a new file                             | open("{place}/new", "w")
EACCES | a file without a name                  | os.open("{place}", os.O_TMPFILE | os.O_RDWR)
EACCES | to write to a file                     | open("{place}/own", "a")
EACCES | its own name                           | open("/proc/self/comm", "w").write("init")
EACCES | who is ended for lack of memory        | open("/proc/self/oom_score_adj", "w")
EACCES | shared memory by name                  | os.listdir("/dev/shm") and "names"
EPERM  | a folder                               | os.mkdir("{place}/folder")
EPERM  | a name less                            | os.unlink("{place}/own")
EPERM  | another name                           | os.rename("{place}/own", "{place}/other")
EPERM  | a second name                          | os.link("{place}/other", "{place}/second")
EPERM  | a link                                 | os.symlink("/", "{place}/link")
EPERM  | a pipe with a name                     | os.mkfifo("{place}/pipe")
EPERM  | other rights                           | os.chmod("{place}/other", 0o777)
EPERM  | the same owner again                   | os.chown("{place}/other", -1, -1)
EPERM  | other times                            | os.utime("{place}/other")
EPERM  | a file cut off                         | os.truncate("{place}/other", 0)
EPERM  | names of attributes                    | os.listxattr("{place}")
EPERM  | where a link leads                     | os.readlink("/proc/self/exe")
EPERM  | news of a folder                       | LIBC.inotify_init1(0) >= 0 or call("inotify_init1", 0)
EPERM  | news of a folder, by signals           | fcntl.fcntl(os.open(os.path.dirname(library()), os.O_RDONLY), 1026, 16)
EPERM  | a lease of a file                      | fcntl.fcntl(os.open(library(), os.O_RDONLY), 1025)
EPERM  | a lock that others wait for            | fcntl.flock(os.open(library(), os.O_RDONLY), fcntl.LOCK_SH)
EPERM  | a lock on a part                       | fcntl.lockf(os.open(library(), os.O_RDONLY), fcntl.LOCK_SH)
EPERM  | how full a file system is              | os.statvfs("/").f_bsize
EPERM  | another working folder                 | os.chdir("/")
EPERM  | the mask of new files                  | call("umask", 0o77)
ENOSYS | a file by a struct of arguments        | call("openat2", -100, b"/etc/passwd", bytes(24), 24)
EPERM  | to copy within the kernel              | os.sendfile(os.pipe()[1], os.open(library(), os.O_RDONLY), 0, 1)
EPERM  | its pages in a pipe                    | call("vmsplice", os.pipe()[1], 0, 0, 0)
""")

MACHINE = _table(
    """
EPERM  | an attribute of a file                 | os.setxattr("{place}", "user.x", b"x")
EPERM  | to read an attribute                   | os.getxattr("{place}", "user.x")
EPERM  | a handle of a file                     | call("name_to_handle_at", -100, b"/", 0, 0, 0)
EPERM  | a file by its handle                   | call("open_by_handle_at", -100, 0, 0)
EPERM  | news of all files                      | call("fanotify_init", 0, 0)
EPERM  | a device                               | os.mknod("{place}/device", 0o20666, os.makedev(1, 3))
EPERM  | a mount                                | call("mount", 0, 0, 0, 0, 0)
EPERM  | a mount less                           | call("umount2", 0, 0)
ENOSYS | a tree of mounts                       | call("open_tree", -100, b"/", 1)
ENOSYS | a file system                          | call("fsopen", b"tmpfs", 0)
EPERM  | programs in the kernel                 | call("bpf", 0, 0, 0)
EPERM  | counters of the kernel                 | call("perf_event_open", 0, 0, -1, -1, 0)
EPERM  | faults handled elsewhere               | call("userfaultfd", 0)
ENOSYS | calls that no filter sees              | call("io_uring_setup", 1, bytes(120))
EPERM  | keys of the user                       | call("keyctl", 0, -4, 0, 0, 0)
EPERM  | a key                                  | call("add_key", b"user", b"x", b"x", 1, -4)
EPERM  | shared memory by key                   | call("shmget", 1, 1, 0)
EPERM  | semaphores by key                      | call("semget", 1, 1, 0)
EPERM  | messages by key                        | call("msgget", 1, 0)
EPERM  | messages by name                       | call("mq_open", b"nnhal", 0, 0, 0)
EPERM  | another personality                    | call("personality", 0x0040000)
EPERM  | another filter                         | call("seccomp", 1, 0, 0)
ENOSYS | other rules of landlock                | call("landlock_create_ruleset", 0, 0, 1)
EPERM  | a module of the kernel                 | call("init_module", 0, 0, b"")
EPERM  | another kernel                         | call("kexec_load", 0, 0, 0, 0)
EPERM  | the machine's end                      | call("reboot", 0, 0, 0, 0)
EPERM  | the kernel's log                       | call("syslog", 10, 0, 0)
EPERM  | the machine's name                     | call("sethostname", 0, -1)
EPERM  | the time                               | call("clock_settime", -1, 0)
EPERM  | swapping                               | call("swapoff", 0)
ENOSYS | memory that the kernel does not see    | call("memfd_secret", 0)
ENOSYS | a system call of x32                   | call(0x40000000 | 39)
ENOSYS | a system call of tomorrow              | call(2000)
EPERM  | the terminal's keystrokes              | fcntl.ioctl(2, 0x5412, b"x")
EPERM  | the terminal's foreground              | fcntl.ioctl(2, 0x5410, struct.pack("i", me))
EBADF  | a lock that keeps readers out          | fcntl.fcntl(os.open(library(), 0), 37, struct.pack("2h28x", 1, 0))
EBADF  | to read where it writes errors         | os.read(2, 1)
EBADF  | to read where it writes output         | os.read(1, 1)
EACCES | the terminal                           | open("/dev/tty", "rb")
EPERM  | a greater limit                        | call("prlimit64", 0, 7, struct.pack("QQ", 2000, 2000), 0)
""",
    control=False,
)

HARMLESS = [
    Escape("whether a path is there", 'os.path.exists("/etc/passwd")', "done True", "imports look for files so; said"),
    Escape("size and times of a file", 'os.stat("{place}/own").st_size', "done 4", "as above; no contents, no names"),
    Escape(
        "the path alone of a file", 'os.open("{place}/own", os.O_PATH) > 2', "done True", "can be looked at, not read"
    ),
    Escape("when the client ends", "ends(parent)", "done False", "a service needs it; a pidfd takes no signal here"),
    Escape(
        "the client's processors",
        "os.sched_getaffinity(parent) != set()",
        "done True",
        "engines ask for those of their threads, by numbers the filter cannot know",
    ),
    Escape("standard input", "os.read(0, 10)", "done b''", "the null device"),
    Escape("its own limits", 'call("prlimit64", 0, 7, 0, 0)', "done 0", "reading only"),
    Escape("its own signals", 'call("tgkill", me, me, 0)', "done 0", "a crash has to end it, abort() too"),
    Escape("to be heard", "os.write(1, b'heard') + os.write(2, b'heard')", "done 10", "logged line by line, escaped"),
    Escape(
        "its pipe, opened for reading",
        'os.open("/proc/self/fd/2", os.O_RDONLY | os.O_NONBLOCK) > 2',
        "done True",
        "it reads what it wrote itself; a terminal cannot be opened so, as landlock knows its path",
    ),
    Escape(
        "memory up to a limit",
        'os.ftruncate(os.memfd_create("x"), 4 << 30)',
        "done None",
        "pools are made so; pages count once they are touched, against the control group, and shared memory is not private",
    ),
    Escape(
        "a lock that keeps writers out",
        'len(fcntl.fcntl(os.open(library(), 0), 37, struct.pack("2h28x", 0, 0)))',
        "done 32",
        "of those alone that ask for such a lock themselves, before they write what the driver may read",
    ),
    Escape("the null device", 'open("/dev/null", "wb", 0).write(b"x")', "done 1", "nothing is kept"),
    Escape("memory that is run", "len(mmap.mmap(-1, 4096, prot=7))", "done 4096", "what it runs is filtered alike"),
    Escape("a thread", '__import__("threading").Thread(target=int).start()', "done None", "it ends with the process"),
]

ESCAPES = [*CHILDREN, *PROGRAMS, *OTHERS, *MEMORY, *SOCKETS, *FILES, *MACHINE, *HARMLESS]
