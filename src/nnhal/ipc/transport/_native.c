/* nnhal.ipc.transport._native: the operations of the transport that are slow or impossible in Python.
 *
 *   pace       how long a wait spins before it blocks
 *   Lane       messages with descriptors over a SOCK_SEQPACKET socket
 *   Queues     the two fast message queues of a burst in one shared memory, with liveness of both sides
 *
 * _native.pyi has the contracts. This file is longer than others: the extension is one translation unit
 * with nothing exported but its init function. It keeps no global state; one thread-local pointer mirrors the kernel's
 * own registry, which has one robust list for each thread. Linux, x86-64 and aarch64, CPython's stable ABI.
 *
 * Layout of the queues' shared memory, little endian, version 1. Every word that changes has a separate cache line.
 *
 *      0  u32 magic "NNFQ", u32 version, u32 capacity of the request queue, u32 capacity of the result queue
 *     64  request queue: u64 write index, +64 u64 read index, +128 u32 event word, +192 u32 waiter flag
 *    320  result queue: the same
 *    576  u32 liveness word of the client, +64 of the service: the id of the thread that holds it, 0 if none
 *    704  u32 closed flag
 *    768  u64 affinity mask of the client, +64 of the service; 0 not known
 *   4096  elements of the request queue, 24 bytes each; from the next multiple of 4096 on, those of the result queue
 *
 * Indices count elements without end; an element's place is its index modulo the capacity, which is a power of two. The
 * peer may write anything anywhere at any time. So this side keeps its own values privately and only publishes them, it
 * loads the peer's values once and checks them before each use, and it copies packets before it reads them.
 */
#define _GNU_SOURCE
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "nnhal.ipc.transport._native: the host is big endian, must be little endian (x86-64 or aarch64)"
#endif

enum { TIMEOUT = -1, DEAD = -2, CLOSED = -3, CORRUPT = -4, TOO_LARGE = -5, FULL = -6 };
enum { AGAIN = 1, RAISED = -100 }; /* inside this file: nothing available yet; a Python exception is set */

#define FOREVER INT64_MAX
#define SLICE_NS 1000000000 /* a blocking wait checks signals, the peer and the closed flag at least this often */

/* ------------------------------------------------------------------------------------------------------------- pace
 * An idle core takes 30 to 50 us to wake, so a wait spins first: at least about as long as waking costs, and longer if
 * earlier waits were longer, up to a limit. If they exceed the limit, spinning would only waste CPU time. */

#define SPIN_LEAST_NS 50000
#define SPIN_MOST_NS 2000000
#define SPIN_FIRST_TRY_NS 5000
#define AFFINITY_EVERY 64 /* blocking waits */

typedef struct {
    int64_t average; /* of the observed waits, each counted as at most twice the limit, so that it recovers soon */
    uint64_t cpus;   /* affinity mask of this process */
    int64_t hold_ns; /* a wait keeps the GIL this long, so that a short one needs no handover */
    char spin;
} Pace;

static int64_t
now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static struct timespec
timespec_of(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

static int64_t
deadline_of(long long timeout_ns)
{
    if (timeout_ns < 0) {
        return FOREVER;
    }
    int64_t now = now_ns();
    return timeout_ns > FOREVER - now ? FOREVER : now + timeout_ns;
}

static uint64_t
affinity(void)
{
    cpu_set_t set;
    uint64_t mask = 0;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        for (int cpu = 0; cpu < 64; cpu++) {
            mask |= (uint64_t)(CPU_ISSET(cpu, &set) != 0) << cpu;
        }
    }
    return mask;
}

static void
pace_start(Pace *pace, int64_t hold_ns)
{
    pace->average = SPIN_LEAST_NS / 2;
    pace->cpus = affinity();
    pace->hold_ns = hold_ns;
    pace->spin = 1;
}

/* How long the next wait spins, given the peer's affinity mask (0: unknown); 0 if spinning only delays the peer. */
static int64_t
pace_budget(const Pace *pace, uint64_t peer_cpus)
{
    uint64_t both = pace->cpus | peer_cpus;
    bool one_cpu = pace->cpus != 0 && peer_cpus != 0 && (both & (both - 1)) == 0;
    if (!pace->spin || one_cpu) {
        return 0;
    }
    if (pace->average > SPIN_MOST_NS) {
        return SPIN_FIRST_TRY_NS;
    }
    int64_t budget = 2 * pace->average;
    return budget < SPIN_LEAST_NS ? SPIN_LEAST_NS : budget > SPIN_MOST_NS ? SPIN_MOST_NS : budget;
}

/* The part of a budget that is spun with the GIL: 0 if waits have been so long that holding it gains nothing. */
static int64_t
pace_hold(const Pace *pace, int64_t budget)
{
    int64_t hold = pace->average / 8 > pace->hold_ns ? 0 : pace->hold_ns;
    return hold < budget ? hold : budget;
}

static void
pace_observe(Pace *pace, int64_t wait)
{
    if (wait > 2 * SPIN_MOST_NS) {
        wait = 2 * SPIN_MOST_NS;
    }
    pace->average += (wait - pace->average) / 8;
}

static int64_t
earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* --------------------------------------------------------------------------------------------------- common to types */

/* The integer at `index` of a call's arguments, or `otherwise` if there are fewer. False: an exception is set. */
static bool
integer_argument(PyObject *const *args, Py_ssize_t count, Py_ssize_t index, long long otherwise, long long *value)
{
    *value = index < count ? PyLong_AsLongLong(args[index]) : otherwise;
    return index >= count || *value != -1 || !PyErr_Occurred();
}

static bool
count_arguments(const char *name, Py_ssize_t count, Py_ssize_t least, Py_ssize_t most)
{
    if (count < least || count > most) {
        PyErr_Format(PyExc_TypeError, "%s: got %zd arguments, must be %zd to %zd", name, count, least, most);
        return false;
    }
    return true;
}

/* Converts a status for Python: an int, or the exception that is set. */
static PyObject *
status_or_raise(int status)
{
    return status == RAISED ? NULL : PyLong_FromLong(status);
}

static void
free_object(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* Reserve an object for one waiting thread. */
static bool
claim(char *busy, const char *name)
{
    if (*busy) {
        PyErr_Format(PyExc_RuntimeError, "%s: another thread waits in it, must be one at a time", name);
        return false;
    }
    *busy = 1;
    return true;
}

/* ------------------------------------------------------------------------------------------------------ Descriptors
 * The sender determines how long closing takes (SO_LINGER), so it is done without the GIL. */

#define LANE_DESCRIPTORS 64

typedef struct {
    PyObject_HEAD
    int count; /* descriptors are fds[taken] to fds[count - 1] */
    int taken;
    int fds[LANE_DESCRIPTORS];
} Descriptors;

static void
close_all(const int *fds, int count)
{
    if (count > 0) {
        Py_BEGIN_ALLOW_THREADS
        for (int i = 0; i < count; i++) {
            close(fds[i]);
        }
        Py_END_ALLOW_THREADS
    }
}

static PyObject *
descriptors_close(Descriptors *self, PyObject *Py_UNUSED(none))
{
    int first = self->taken;
    self->taken = self->count; /* before the GIL is released: each is closed once */
    close_all(self->fds + first, self->count - first);
    Py_RETURN_NONE;
}

static void
descriptors_free(Descriptors *self)
{
    close_all(self->fds + self->taken, self->count - self->taken);
    free_object((PyObject *)self);
}

static PyObject *
descriptors_take(Descriptors *self, PyObject *Py_UNUSED(none))
{
    return PyLong_FromLong(self->taken < self->count ? self->fds[self->taken++] : -1);
}

static Py_ssize_t
descriptors_length(PyObject *self)
{
    return ((Descriptors *)self)->count - ((Descriptors *)self)->taken;
}

/* An owner for open descriptors; if there is no memory for one, they are closed. */
static PyObject *
descriptors_of(PyTypeObject *type, const int *fds, int count)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Descriptors *self = (Descriptors *)allocate(type, 0);
    if (self == NULL) {
        close_all(fds, count);
        return NULL;
    }
    if (count > 0) {
        memcpy(self->fds, fds, (size_t)count * sizeof(int));
    }
    self->count = count;
    return (PyObject *)self;
}

static PyMethodDef descriptors_methods[] = {
    {"take", (PyCFunction)descriptors_take, METH_NOARGS, NULL},
    {"close", (PyCFunction)descriptors_close, METH_NOARGS, NULL},
    {NULL},
};

static PyType_Slot descriptors_slots[] = {
    {Py_tp_dealloc, descriptors_free}, {Py_tp_methods, descriptors_methods}, {Py_sq_length, descriptors_length}, {0, NULL},
};

static PyType_Spec descriptors_spec = {"nnhal.ipc.transport._native.Descriptors", sizeof(Descriptors), 0,
                                       Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE |
                                           Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                       descriptors_slots};

/* ------------------------------------------------------------------------------------------------------------ Lease
 * A number that is released with its owner. No Python code runs for that, so no signal handler can interrupt it. */

typedef struct {
    PyObject_HEAD
    PyObject *number, *into, *wakes;
} Lease;

static PyObject *
lease_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(names))
{
    PyObject *number, *into, *wakes;
    if (!PyArg_ParseTuple(args, "OOO:Lease", &number, &into, &wakes)) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Lease *self = (Lease *)allocate(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->number = Py_NewRef(number);
    self->into = Py_NewRef(into);
    self->wakes = Py_NewRef(wakes);
    return (PyObject *)self;
}

/* Runs once: the callback is cleared first. Preserves an error that is set. */
static void
lease_give(Lease *self)
{
    PyObject *into = self->into, *kind, *value, *traceback;
    if (into == NULL) {
        return;
    }
    self->into = NULL;
    PyErr_Fetch(&kind, &value, &traceback);
    PyObject *done = PyObject_CallFunctionObjArgs(into, self->number, NULL);
    PyObject *fds = PyObject_GetAttrString(self->wakes, "fds");
    Py_ssize_t count = fds != NULL && PyList_Check(fds) ? PyList_Size(fds) : 0;
    PyObject *last = count > 0 ? PyList_GetItem(fds, count - 1) : NULL;
    long fd = last != NULL && PyLong_Check(last) ? PyLong_AsLong(last) : -1;
    if (fd >= 0) {
        uint64_t one = 1;
        (void)!write((int)fd, &one, sizeof(one)); /* does not block */
    }
    PyErr_Clear();
    Py_XDECREF(fds);
    Py_XDECREF(done);
    Py_DECREF(into);
    PyErr_Restore(kind, value, traceback);
}

static PyObject *
lease_release(Lease *self, PyObject *Py_UNUSED(none))
{
    lease_give(self);
    Py_RETURN_NONE;
}

static PyObject *
lease_keep(Lease *self, PyObject *Py_UNUSED(none))
{
    Py_CLEAR(self->into);
    Py_RETURN_NONE;
}

static void
lease_free(Lease *self)
{
    lease_give(self);
    Py_XDECREF(self->number);
    Py_XDECREF(self->wakes);
    free_object((PyObject *)self);
}

static PyMethodDef lease_methods[] = {
    {"release", (PyCFunction)lease_release, METH_NOARGS, NULL},
    {"keep", (PyCFunction)lease_keep, METH_NOARGS, NULL},
    {NULL},
};

static PyMemberDef lease_members[] = {
    {"number", T_OBJECT_EX, offsetof(Lease, number), READONLY, NULL},
    {NULL},
};

static PyType_Slot lease_slots[] = {
    {Py_tp_new, lease_new},         {Py_tp_dealloc, lease_free}, {Py_tp_methods, lease_methods},
    {Py_tp_members, lease_members}, {0, NULL},
};

static PyType_Spec lease_spec = {"nnhal.ipc.transport._native.Lease", sizeof(Lease), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, lease_slots};

/* ------------------------------------------------------------------------------------------------------------- Lane
 * A channel. A message on the wire is its number, 8 bytes, and its bytes. The number of a call is at least 1 and grows by
 * one, its answer has the same number, and a message without an answer has 0. After an abandoned call, an answer is still
 * to come: the channel accepts no more calls.
 *
 * The peer may share the open file of this end, with its flags and options. So each send and receive requests itself not
 * to block, and a wait blocks only in ppoll. */

#define LANE_BYTES (64 * 1024 + 4 * 1024)
#define SEND_TIMEOUT_NS 5000000000LL
#define LANE_HOLD_NS 5000
#ifndef SCM_PIDFD
#define SCM_PIDFD 4 /* Linux 6.5: if SO_PASSPIDFD is set on this end, each message opens a pidfd of its sender */
#endif
#define SCM_SECURITY_LABEL 3

typedef union {
    struct cmsghdr header;
    char room[CMSG_SPACE(LANE_DESCRIPTORS * sizeof(int))];
} Control;

typedef struct {
    PyObject_HEAD
    int fd;
    int watch;
    unsigned long long peer_cpus;
    Pace pace;
    char busy;
    unsigned long long spins;
    unsigned long long blocks;
    uint64_t called;   /* number of the last call sent */
    uint64_t awaited;  /* of the call whose answer is to come, otherwise 0 */
    uint64_t asked;    /* of the last received message, until it is answered */
    uint64_t heard;    /* the greatest of a received call */
    uint64_t number;   /* of the message in `data` */
    PyObject *none; /* an owner of no descriptors */
    size_t length; /* of the message in `data` */
    int flags;     /* msg_flags of it */
    size_t controls;
    Control control;
    char data[LANE_BYTES];
} Lane;

/* Receive: 0 if a message is in `self`, AGAIN if there is none, or a status. Needs no GIL. */
static int
lane_take(Lane *self)
{
    struct iovec parts[2] = {{.iov_base = &self->number, .iov_len = sizeof(self->number)},
                             {.iov_base = self->data, .iov_len = sizeof(self->data)}};
    struct msghdr message = {.msg_iov = parts,
                             .msg_iovlen = 2,
                             .msg_control = &self->control,
                             .msg_controllen = sizeof(self->control)};
    ssize_t got = recvmsg(self->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got >= 0) {
        self->length = (size_t)got;
        self->flags = message.msg_flags;
        self->controls = message.msg_controllen;
        return got == 0 && self->controls == 0 ? DEAD : 0;
    }
    return errno == EAGAIN || errno == EINTR ? AGAIN : errno == EBADF || errno == ENOTSOCK ? CLOSED : DEAD;
}

/* Block until the socket has one of `events`, the peer's process ends, or a slice is over. Returns 0 to try again, AGAIN to
 * try a last time because the peer is gone, TIMEOUT, or RAISED by a signal handler. */
static int
lane_block(Lane *self, short events, int64_t deadline)
{
    struct pollfd polled[2] = {{.fd = self->fd, .events = events}, {.fd = self->watch, .events = POLLIN}};
    if (PyErr_CheckSignals() != 0) {
        return RAISED;
    }
    int64_t now = now_ns();
    if (now >= deadline) {
        return TIMEOUT;
    }
    struct timespec left = timespec_of(deadline - now > SLICE_NS ? SLICE_NS : deadline - now);
    int ready;
    Py_BEGIN_ALLOW_THREADS
    ready = ppoll(polled, self->watch >= 0 ? 2 : 1, &left, NULL);
    Py_END_ALLOW_THREADS
    return ready > 0 && self->watch >= 0 && polled[1].revents != 0 ? AGAIN : 0;
}

static int
lane_spin(Lane *self, int64_t until)
{
    int status;
    do {
        sched_yield();
        status = lane_take(self);
    } while (status == AGAIN && now_ns() < until);
    return status;
}

/* Wait for a message: 0 if it is in `self`, or a status. */
static int
lane_wait(Lane *self, int64_t deadline)
{
    int64_t start = now_ns();
    int64_t budget = start < deadline ? pace_budget(&self->pace, self->peer_cpus) : 0;
    int status = budget == 0 && start < deadline ? AGAIN : lane_take(self);
    budget = status == AGAIN ? budget : 0;
    if (budget > 0) {
        int64_t hold = pace_hold(&self->pace, budget);
        if (hold > 0) {
            status = lane_spin(self, earlier(start + hold, deadline));
        }
        if (status == AGAIN && hold < budget) {
            Py_BEGIN_ALLOW_THREADS
            status = lane_spin(self, earlier(start + budget, deadline));
            Py_END_ALLOW_THREADS
        }
        self->spins += status == 0;
    }
    if (status == AGAIN && now_ns() < deadline) {
        if (self->blocks++ % AFFINITY_EVERY == 0) {
            self->pace.cpus = affinity(); /* spinning did not help: maybe only one core is left for both */
        }
    }
    while (status == AGAIN) {
        int blocked = lane_block(self, POLLIN, deadline);
        if (blocked < 0) {
            return blocked;
        }
        status = lane_take(self);
        if (status == AGAIN && blocked == AGAIN) {
            status = DEAD;
        }
    }
    if (status == 0) {
        pace_observe(&self->pace, now_ns() - start);
    }
    return status;
}

/* The descriptors of the message in `self`; they are open in this process from now on. At most `LANE_DESCRIPTORS`, because
 * `Control` has no space for more of any kind. `foreign`: whether the kernel added data that this side never requests. */
static int
lane_descriptors(Lane *self, int *fds, bool *foreign)
{
    int count = 0;
    *foreign = false;
    struct msghdr message = {.msg_control = &self->control, .msg_controllen = self->controls};
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part != NULL; part = CMSG_NXTHDR(&message, part)) {
        bool rights = part->cmsg_type == SCM_RIGHTS;
        if (rights || part->cmsg_type == SCM_PIDFD) {
            int more = (int)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(fds + count, CMSG_DATA(part), (size_t)more * sizeof(int));
            count += more;
        }
        *foreign |= !rights && part->cmsg_type != SCM_CREDENTIALS && part->cmsg_type != SCM_SECURITY_LABEL;
    }
    return count;
}

/* The message in `self` as (bytes, owner of its descriptors), or a status. */
static PyObject *
lane_message(Lane *self)
{
    int fds[LANE_DESCRIPTORS];
    bool foreign;
    int count = lane_descriptors(self, fds, &foreign);
    int status = foreign || self->length <= sizeof(self->number) ? CORRUPT
                 : self->flags & (MSG_TRUNC | MSG_CTRUNC)        ? TOO_LARGE
                                                                 : 0;
    if (status < 0) {
        close_all(fds, count);
        return PyLong_FromLong(status);
    }
    PyObject *owner = self->none;
    if (count > 0) {
        owner = descriptors_of(Py_TYPE(self->none), fds, count);
    } else {
        Py_INCREF(owner);
    }
    PyObject *data = PyBytes_FromStringAndSize(self->data, (Py_ssize_t)(self->length - sizeof(self->number)));
    PyObject *pair = data != NULL && owner != NULL ? PyTuple_Pack(2, data, owner) : NULL;
    Py_XDECREF(data);
    Py_XDECREF(owner);
    return pair;
}

/* Record the number of the message in `self`; return whether it is valid: that of the answer to the current call, or of a
 * later call than all before, 0 if it needs no answer. So a message that returns to its sender is never answered. */
static bool
lane_expects(Lane *self)
{
    uint64_t number = self->length > sizeof(self->number) ? self->number : 0;
    bool fits = self->awaited != 0 ? number == self->awaited : number == 0 || number > self->heard;
    self->asked = fits && self->awaited == 0 ? number : 0;
    self->heard = self->asked > self->heard ? self->asked : self->heard;
    self->awaited = fits ? 0 : self->awaited;
    return fits;
}

/* Wait for a message, which may be the answer to the current call. */
static PyObject *
lane_receive_by(Lane *self, int64_t deadline)
{
    if (!claim(&self->busy, "Lane")) {
        return NULL;
    }
    int status = lane_wait(self, deadline);
    if (status == 0 && !lane_expects(self)) {
        int fds[LANE_DESCRIPTORS];
        bool foreign;
        close_all(fds, lane_descriptors(self, fds, &foreign));
        status = CORRUPT;
    }
    PyObject *result = status == 0 ? lane_message(self) : status_or_raise(status);
    self->busy = 0;
    return result;
}

/* The status for sendmsg's errno; RAISED with an OSError for a mistake of the caller, such as a wrong descriptor. */
static int
lane_send_failure(Lane *self, int error)
{
    switch (error) {
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
    case ECONNREFUSED:
        return DEAD;
    case EMSGSIZE:
    case ETOOMANYREFS:
        return TOO_LARGE;
    case EBADF:
        if (fcntl(self->fd, F_GETFD) < 0) {
            return CLOSED;
        }
    }
    errno = error;
    PyErr_SetFromErrno(PyExc_OSError);
    return RAISED;
}

static int
lane_send_by(Lane *self, uint64_t number, const Py_buffer *data, const int *fds, int count, int64_t deadline)
{
    struct iovec parts[2] = {{.iov_base = &number, .iov_len = sizeof(number)},
                             {.iov_base = data->buf, .iov_len = (size_t)data->len}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    Control control;
    if (count > 0) {
        size_t size = (size_t)count * sizeof(int);
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(size);
        memset(&control, 0, message.msg_controllen);
        control.header =
            (struct cmsghdr){.cmsg_len = CMSG_LEN(size), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), fds, size);
    }
    bool gone = false;
    while (sendmsg(self->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        if (errno != EAGAIN && errno != EINTR) {
            return lane_send_failure(self, errno);
        }
        if (gone) {
            return DEAD;
        }
        int blocked = lane_block(self, POLLOUT, deadline);
        if (blocked < 0) {
            return blocked;
        }
        gone = blocked == AGAIN;
    }
    return 0;
}

/* The descriptors to send: 0 and their number, or a status. */
static int
descriptors_argument(PyObject *given, int *fds, int *count)
{
    PyObject *tuple = PySequence_Tuple(given);
    Py_ssize_t size = tuple == NULL ? -1 : PyTuple_Size(tuple);
    int status = size < 0 ? RAISED : size > LANE_DESCRIPTORS ? TOO_LARGE : 0;
    for (Py_ssize_t i = 0; status == 0 && i < size; i++) {
        long fd = PyLong_AsLong(PyTuple_GetItem(tuple, i));
        if (fd == -1 && PyErr_Occurred()) {
            status = RAISED;
        } else if (fd < 0 || fd > INT_MAX) {
            PyErr_Format(PyExc_ValueError, "Lane: descriptor %zd is %ld, must be 0 to %d", i, fd, INT_MAX);
            status = RAISED;
        } else {
            fds[i] = (int)fd;
        }
    }
    *count = status == 0 ? (int)size : 0;
    Py_XDECREF(tuple);
    return status;
}

static int
lane_send_checked(Lane *self, uint64_t number, PyObject *const *args, Py_ssize_t given, int64_t deadline)
{
    int fds[LANE_DESCRIPTORS];
    int count = 0;
    int status = given > 1 ? descriptors_argument(args[1], fds, &count) : 0;
    Py_buffer data;
    if (status < 0) {
        return status;
    }
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) {
        return RAISED;
    }
    if (data.len == 0) { /* the peer could not distinguish it from a hang-up */
        PyErr_SetString(PyExc_ValueError, "Lane: message has 0 bytes, must have at least 1");
        status = RAISED;
    } else if (data.len > LANE_BYTES) {
        status = TOO_LARGE;
    } else {
        status = lane_send_by(self, number, &data, fds, count, deadline);
    }
    PyBuffer_Release(&data);
    return status;
}

static PyObject *
lane_send(Lane *self, PyObject *const *args, Py_ssize_t count)
{
    long long timeout;
    if (!count_arguments("Lane.send", count, 1, 3) || !integer_argument(args, count, 2, SEND_TIMEOUT_NS, &timeout)) {
        return NULL;
    }
    return status_or_raise(lane_send_checked(self, 0, args, count, deadline_of(timeout)));
}

static PyObject *
lane_answer(Lane *self, PyObject *const *args, Py_ssize_t count)
{
    long long timeout;
    if (!count_arguments("Lane.answer", count, 1, 3) || !integer_argument(args, count, 2, SEND_TIMEOUT_NS, &timeout)) {
        return NULL;
    }
    if (self->asked == 0) {
        PyErr_SetString(PyExc_RuntimeError, "Lane: no call was received, must be before an answer is sent");
        return NULL;
    }
    int status = lane_send_checked(self, self->asked, args, count, deadline_of(timeout));
    if (status == 0) {
        self->asked = 0; /* a call whose answer was too large is still to be answered */
    }
    return status_or_raise(status);
}

/* Send a call, whose answer the next wait returns. */
static int
lane_ask(Lane *self, PyObject *const *args, Py_ssize_t count, int64_t deadline)
{
    if (self->awaited != 0) {
        return CORRUPT; /* the answer to an earlier call is to come */
    }
    self->awaited = ++self->called; /* before it is sent: an interrupt may come at any time */
    int status = lane_send_checked(self, self->awaited, args, count, deadline);
    if (status < 0) {
        self->awaited = 0; /* nothing was sent, or the exception of a signal handler came before it */
    }
    return status;
}

static PyObject *
lane_call_without_waiting(Lane *self, PyObject *const *args, Py_ssize_t count)
{
    long long timeout;
    if (!count_arguments("Lane.ask", count, 1, 3) || !integer_argument(args, count, 2, SEND_TIMEOUT_NS, &timeout)) {
        return NULL;
    }
    return status_or_raise(lane_ask(self, args, count, deadline_of(timeout)));
}

static PyObject *
lane_receive(Lane *self, PyObject *const *args, Py_ssize_t count)
{
    long long timeout;
    if (!count_arguments("Lane.receive", count, 0, 1) || !integer_argument(args, count, 0, -1, &timeout)) {
        return NULL;
    }
    return lane_receive_by(self, deadline_of(timeout));
}

static PyObject *
lane_call(Lane *self, PyObject *const *args, Py_ssize_t count)
{
    long long timeout;
    if (!count_arguments("Lane.call", count, 1, 3) || !integer_argument(args, count, 2, -1, &timeout)) {
        return NULL;
    }
    int64_t deadline = deadline_of(timeout);
    int status = lane_ask(self, args, count, deadline);
    return status < 0 ? status_or_raise(status) : lane_receive_by(self, deadline);
}

static PyObject *
lane_stats(Lane *self, PyObject *Py_UNUSED(none))
{
    return Py_BuildValue("{sKsK}", "spins", self->spins, "blocks", self->blocks);
}

static PyObject *
lane_budget(Lane *self, void *Py_UNUSED(none))
{
    return PyLong_FromLongLong(pace_budget(&self->pace, self->peer_cpus));
}

static PyObject *
lane_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *keywords[] = {"fd", "watch", NULL};
    int fd, watch = -1;
    if (!PyArg_ParseTupleAndKeywords(args, names, "i|i:Lane", keywords, &fd, &watch)) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Lane *self = (Lane *)allocate(type, 0);
    if (self != NULL) {
        self->fd = fd;
        self->watch = watch;
        PyObject *owner = PyType_GetModule(type);
        self->none = owner == NULL ? NULL : PyObject_GetAttrString(owner, "NONE");
        if (self->none == NULL) {
            Py_DECREF(self);
            return NULL;
        }
        pace_start(&self->pace, LANE_HOLD_NS);
    }
    return (PyObject *)self;
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function)), METH_FASTCALL
#define PLAIN(function) ((PyCFunction)(void (*)(void))(function)), METH_NOARGS

static PyMethodDef lane_methods[] = {
    {"send", FAST(lane_send), NULL},
    {"receive", FAST(lane_receive), NULL},
    {"answer", FAST(lane_answer), NULL},
    {"ask", FAST(lane_call_without_waiting), NULL},
    {"call", FAST(lane_call), NULL},
    {"stats", PLAIN(lane_stats), NULL},
    {NULL},
};

static PyMemberDef lane_members[] = {
    {"fd", T_INT, offsetof(Lane, fd), READONLY, NULL},
    {"watch", T_INT, offsetof(Lane, watch), 0, NULL},
    {"asked", T_ULONGLONG, offsetof(Lane, asked), READONLY, NULL},
    {"awaited", T_ULONGLONG, offsetof(Lane, awaited), READONLY, NULL},
    {"called", T_ULONGLONG, offsetof(Lane, called), READONLY, NULL},
    {"peer_cpus", T_ULONGLONG, offsetof(Lane, peer_cpus), 0, NULL},
    {"spin", T_BOOL, offsetof(Lane, pace.spin), 0, NULL},
    {"hold_ns", T_LONGLONG, offsetof(Lane, pace.hold_ns), 0, NULL},
    {NULL},
};

static PyGetSetDef lane_properties[] = {
    {"budget_ns", (getter)lane_budget, NULL, NULL, NULL},
    {NULL},
};

static void
lane_free(Lane *self)
{
    Py_XDECREF(self->none);
    free_object((PyObject *)self);
}

static PyType_Slot lane_slots[] = {
    {Py_tp_new, lane_new},         {Py_tp_dealloc, lane_free},    {Py_tp_methods, lane_methods},
    {Py_tp_members, lane_members}, {Py_tp_getset, lane_properties}, {0, NULL},
};

static PyType_Spec lane_spec = {"nnhal.ipc.transport._native.Lane", sizeof(Lane), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, lane_slots};
/* ----------------------------------------------------------------------------------------------------------- Queues */

#define MAGIC 0x51464E4Eu /* "NNFQ" */
#define VERSION 2
#define LEAST_CAPACITY 16
#define MOST_CAPACITY 65536
#define PAGE 4096 /* of the layout; the host's pages may be larger */
#define QUEUE_AT(queue) (64 + 256 * (queue))
#define WRITE_INDEX(queue) (QUEUE_AT(queue) + 0)
#define READ_INDEX(queue) (QUEUE_AT(queue) + 64)
#define EVENT_WORD(queue) (QUEUE_AT(queue) + 128)
#define WAITER_FLAG(queue) (QUEUE_AT(queue) + 192)
#define LIVENESS_WORD(side) (576 + 64 * (side))
#define CLOSED_FLAG 704
#define AFFINITY_MASK(side) (768 + 64 * (side))

#define QUEUES_HOLD_NS 20000
#define POLLS 24             /* of the ring, between two yields */
#define OLD_SLICE_NS 2000000 /* of a wait, if the kernel cannot wait for two words at once */

enum { CLIENT, SERVICE };             /* sides */
enum { REQUEST_QUEUE, RESULT_QUEUE }; /* a side writes the queue of its own number and reads the other */

typedef struct {
    uint32_t number; /* in the first of a packet: of the question, or of the one that it answers; 0 for the caller */
    uint32_t field[5];
} Element;

_Static_assert(sizeof(Element) == 24, "an element has 24 bytes");

typedef struct {
    uint32_t magic, version, capacity[2];
} Header;

/* The kernel's view of the holder of a liveness word. A separate allocation, because it must live as long as the holder. */
typedef struct {
    struct robust_list_head head;
    struct robust_list node;
    void *former;
    size_t former_length;
    pid_t thread;
} Holding;

static _Thread_local Holding *held_by_thread;

typedef struct {
    PyObject_HEAD
    unsigned char *base;
    size_t size;
    Element *elements[2];
    uint32_t capacity[2];
    uint64_t written;      /* write index of the queue that this side writes */
    uint64_t read_by_peer; /* its last known read index */
    uint64_t read;         /* read index of the queue that this side reads */
    uint64_t written_by_peer;
    uint32_t called;  /* number of the last question sent */
    uint32_t awaited; /* of the one whose answer is to come, otherwise 0 */
    uint32_t asked;   /* of the last received packet if it is an unanswered question, otherwise 0 */
    PyObject *last;   /* bytes of the last received packet */
    Holding *holding;
    pid_t process;
    int side;
    int watch;
    Pace pace;
    char busy, use_waitv, corrupt, closed;
    unsigned long long packets, memo_hits, spins, waits, wakes, wakes_saved, lost_wakes;
} Queues;

static inline uint32_t *
word32(const Queues *self, size_t offset)
{
    return (uint32_t *)(void *)(self->base + offset);
}

static inline uint64_t *
word64(const Queues *self, size_t offset)
{
    return (uint64_t *)(void *)(self->base + offset);
}

static inline int
incoming(const Queues *self)
{
    return 1 - self->side;
}

static inline void
relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

static long
futex_wake(uint32_t *word)
{
    return syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static uint64_t
peer_cpus(const Queues *self)
{
    return __atomic_load_n(word64(self, AFFINITY_MASK(1 - self->side)), __ATOMIC_RELAXED);
}

static void
publish_affinity(Queues *self)
{
    self->pace.cpus = affinity();
    __atomic_store_n(word64(self, AFFINITY_MASK(self->side)), self->pace.cpus, __ATOMIC_RELAXED);
}

static bool
closed_by_someone(const Queues *self)
{
    return self->closed || __atomic_load_n(word32(self, CLOSED_FLAG), __ATOMIC_ACQUIRE) != 0;
}

static int
corrupted(Queues *self)
{
    self->corrupt = 1;
    return CORRUPT;
}

/* The peer's write index differs from the consumed one: there is a packet, or the index is wrong. */
static inline bool
something_there(const Queues *self)
{
    return __atomic_load_n(word64(self, WRITE_INDEX(incoming(self))), __ATOMIC_ACQUIRE) != self->read;
}

/* Elements that can be read, or a status. An index of the peer only grows, and never past this side's limit. */
static int64_t
readable(Queues *self)
{
    uint64_t written = __atomic_load_n(word64(self, WRITE_INDEX(incoming(self))), __ATOMIC_ACQUIRE);
    uint64_t most = self->read + self->capacity[incoming(self)];
    if (written - self->written_by_peer > most - self->written_by_peer) {
        return corrupted(self);
    }
    self->written_by_peer = written;
    return (int64_t)(written - self->read);
}

/* Elements that can be written, or a status. */
static int64_t
writable(Queues *self)
{
    uint64_t read = __atomic_load_n(word64(self, READ_INDEX(self->side)), __ATOMIC_ACQUIRE);
    if (read - self->read_by_peer > self->written - self->read_by_peer) {
        return corrupted(self);
    }
    self->read_by_peer = read;
    return (int64_t)(self->capacity[self->side] - (self->written - read));
}

/* Send `count` elements under a number: 0 or a status. */
static int
queues_put(Queues *self, const unsigned char *packet, size_t count, uint32_t number)
{
    if (self->corrupt || closed_by_someone(self)) {
        return self->corrupt ? CORRUPT : CLOSED;
    }
    int64_t room = writable(self);
    if (room < (int64_t)count) {
        return room < 0 ? (int)room : FULL;
    }
    uint32_t capacity = self->capacity[self->side];
    size_t place = self->written & (capacity - 1);
    size_t first = count < capacity - place ? count : capacity - place;
    memcpy(self->elements[self->side] + place, packet, first * sizeof(Element));
    memcpy(self->elements[self->side], packet + first * sizeof(Element), (count - first) * sizeof(Element));
    self->elements[self->side][place].number = number;
    self->written += count;
    __atomic_store_n(word64(self, WRITE_INDEX(self->side)), self->written, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* pairs with the one in `queues_sleep`: one of the two sees the other */
    if (__atomic_load_n(word32(self, WAITER_FLAG(self->side)), __ATOMIC_RELAXED) != 0) {
        __atomic_fetch_add(word32(self, EVENT_WORD(self->side)), 1, __ATOMIC_SEQ_CST);
        futex_wake(word32(self, EVENT_WORD(self->side)));
        self->wakes++;
    } else {
        self->wakes_saved++;
    }
    return 0;
}

/* Whether the packet at the read index equals the last received one, except for its number. */
static bool
same_as_last(const Queues *self, const Element *ring, size_t place, size_t first, size_t count)
{
    if (self->last == NULL || PyBytes_Size(self->last) != (Py_ssize_t)(count * sizeof(Element))) {
        return false;
    }
    const char *last = PyBytes_AsString(self->last);
    const size_t number = sizeof(ring->number);
    return memcmp(ring[place].field, last + number, first * sizeof(Element) - number) == 0 &&
           memcmp(ring, last + first * sizeof(Element), (count - first) * sizeof(Element)) == 0;
}

/* Receive the available packet: bytes, or NULL with a status. */
static PyObject *
queues_get(Queues *self, int *status)
{
    int64_t available = readable(self);
    if (available <= 0) {
        *status = available < 0 ? (int)available : AGAIN;
        return NULL;
    }
    uint32_t capacity = self->capacity[incoming(self)];
    const Element *ring = self->elements[incoming(self)];
    size_t place = self->read & (capacity - 1);
    uint32_t number = __atomic_load_n(&ring[place].number, __ATOMIC_RELAXED);
    uint32_t count = __atomic_load_n(&ring[place].field[0], __ATOMIC_RELAXED);
    bool wanted = self->awaited == 0 || number == self->awaited;
    if (!wanted || count < 1 || count > (uint64_t)available) {
        *status = corrupted(self);
        return NULL;
    }
    size_t first = count < capacity - place ? count : capacity - place;
    if (same_as_last(self, ring, place, first, count)) {
        self->memo_hits++;
    } else {
        PyObject *packet = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(Element)));
        if (packet == NULL) {
            *status = RAISED;
            return NULL;
        }
        char *copy = PyBytes_AsString(packet);
        memcpy(copy, ring + place, first * sizeof(Element));
        memcpy(copy + first * sizeof(Element), ring, (count - first) * sizeof(Element));
        Py_XDECREF(self->last);
        self->last = packet;
        Element head;
        memcpy(&head, copy, sizeof(head));
        if (head.field[0] != count) { /* written while it was copied */
            *status = corrupted(self);
            return NULL;
        }
        memset(copy, 0, sizeof(head.number));
    }
    self->asked = self->awaited == 0 ? number : 0;
    self->awaited = 0;
    self->packets++;
    self->read += count;
    __atomic_store_n(word64(self, READ_INDEX(incoming(self))), self->read, __ATOMIC_RELEASE);
    Py_INCREF(self->last);
    *status = 0;
    return self->last;
}

static bool
queues_spin(Queues *self, int64_t until)
{
    for (;;) {
        for (int i = 0; i < POLLS; i++) {
            if (something_there(self) || closed_by_someone(self)) {
                return true;
            }
            relax();
        }
        sched_yield();
        if (now_ns() >= until) {
            return something_there(self);
        }
    }
}

/* The peer's liveness word, marked so that the kernel wakes waiters when its holder dies. */
static uint32_t
armed_liveness(const Queues *self)
{
    uint32_t *word = word32(self, LIVENESS_WORD(1 - self->side));
    uint32_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    if ((seen & FUTEX_TID_MASK) != 0 && (seen & (FUTEX_WAITERS | FUTEX_OWNER_DIED)) == 0 &&
        __atomic_compare_exchange_n(word, &seen, seen | FUTEX_WAITERS, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        seen |= FUTEX_WAITERS;
    }
    return seen;
}

/* Wait for one change of the event word or the peer's liveness word, at most until `until`. Needs no GIL. */
static void
queues_wait_words(Queues *self, uint32_t event, uint32_t liveness, int64_t until)
{
    struct { /* struct futex_waitv, which older kernels' headers lack */
        uint64_t value, address;
        uint32_t flags, reserved;
    } words[2] = {
        {event, (uintptr_t)word32(self, EVENT_WORD(incoming(self))), 2 /* 32 bits, shared */, 0},
        {liveness, (uintptr_t)word32(self, LIVENESS_WORD(1 - self->side)), 2, 0},
    };
    if (self->use_waitv) {
        struct timespec end = timespec_of(until);
        long done = syscall(449 /* futex_waitv */, words, 2, 0, &end, CLOCK_MONOTONIC);
        if (done >= 0 || (errno != ENOSYS && errno != EPERM)) {
            return;
        }
        self->use_waitv = 0;
    }
    int64_t left = until - now_ns();
    if (left > 0) {
        struct timespec slice = timespec_of(earlier(left, OLD_SLICE_NS));
        syscall(SYS_futex, words[0].address, FUTEX_WAIT, event, &slice, NULL, 0);
    }
}

/* One blocking wait: 0 to check again, or DEAD. Needs no GIL. */
static int
queues_sleep(Queues *self, int64_t until)
{
    int status = 0;
    uint32_t *waiter = word32(self, WAITER_FLAG(incoming(self)));
    __atomic_store_n(waiter, 1, __ATOMIC_SEQ_CST);
    uint32_t event = __atomic_load_n(word32(self, EVENT_WORD(incoming(self))), __ATOMIC_SEQ_CST);
    uint32_t liveness = armed_liveness(self);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (!something_there(self) && !closed_by_someone(self)) {
        if (liveness & FUTEX_OWNER_DIED) {
            status = DEAD;
        } else {
            queues_wait_words(self, event, liveness, until);
        }
    }
    __atomic_store_n(waiter, 0, __ATOMIC_RELAXED);
    return status;
}

static bool
watched_process_ended(const Queues *self)
{
    struct pollfd polled = {.fd = self->watch, .events = POLLIN};
    return self->watch >= 0 && poll(&polled, 1, 0) > 0;
}

/* Block until a packet is available: 0, or a status. */
static int
queues_block(Queues *self, int64_t deadline)
{
    if (self->waits++ % AFFINITY_EVERY == 0) {
        publish_affinity(self); /* spinning did not help: maybe only one core is left for both */
    }
    for (bool dead = false;; dead = watched_process_ended(self)) {
        int64_t now = now_ns();
        bool closed = closed_by_someone(self);
        if (something_there(self)) {
            return 0;
        }
        if (closed || dead || now >= deadline) {
            return closed ? CLOSED : dead ? DEAD : TIMEOUT;
        }
        if (PyErr_CheckSignals() != 0) {
            return RAISED;
        }
        int status;
        Py_BEGIN_ALLOW_THREADS
        status = queues_sleep(self, earlier(now + SLICE_NS, deadline));
        Py_END_ALLOW_THREADS
        if (status < 0) {
            return status;
        }
        if (something_there(self)) {
            self->lost_wakes += now_ns() >= now + SLICE_NS;
            return 0;
        }
    }
}

/* Wait until a packet is available: 0, or a status. */
static int
queues_wait(Queues *self, int64_t deadline)
{
    if (something_there(self)) {
        pace_observe(&self->pace, 0);
        return 0;
    }
    int64_t start = now_ns();
    int64_t budget = start < deadline ? pace_budget(&self->pace, peer_cpus(self)) : 0;
    bool there = false;
    if (budget > 0) {
        int64_t hold = pace_hold(&self->pace, budget);
        there = hold > 0 && queues_spin(self, earlier(start + hold, deadline));
        if (!there && hold < budget) {
            Py_BEGIN_ALLOW_THREADS
            there = queues_spin(self, earlier(start + budget, deadline));
            Py_END_ALLOW_THREADS
        }
        self->spins += there;
    }
    int status = there && something_there(self) ? 0 : queues_block(self, deadline);
    if (status == 0) {
        pace_observe(&self->pace, now_ns() - start);
    }
    return status;
}

static PyObject *
queues_receive_by(Queues *self, int64_t deadline)
{
    PyObject *packet = NULL;
    int status = self->corrupt ? CORRUPT : self->closed ? CLOSED : 0;
    if (status == 0) {
        if (!claim(&self->busy, "Queues")) {
            return NULL;
        }
        status = queues_wait(self, deadline);
        if (status == 0) {
            status = self->closed ? CLOSED : 0; /* closed by another thread meanwhile */
        }
        if (status == 0) {
            packet = queues_get(self, &status);
        }
        self->busy = 0;
    }
    return packet != NULL ? packet : status_or_raise(status);
}

/* Send the packet of an argument: 0, or a status. */
static int
queues_send_argument(Queues *self, PyObject *argument, uint32_t number)
{
    Py_buffer packet;
    if (PyObject_GetBuffer(argument, &packet, PyBUF_SIMPLE) < 0) {
        return RAISED;
    }
    Element head = {0};
    size_t count = (size_t)packet.len / sizeof(Element);
    int status = RAISED;
    memcpy(&head, packet.buf, count > 0 ? sizeof(head) : 0);
    if (count == 0 || (size_t)packet.len % sizeof(Element) != 0) {
        PyErr_Format(PyExc_ValueError, "packet has %zd bytes, must be a multiple of 24, at least 24", packet.len);
    } else if (head.number != 0 || head.field[0] != count) {
        PyErr_Format(PyExc_ValueError,
                     "packet element 0 is kind %u with packetSize %u, must be 0 (packetInformation) with %zu",
                     head.number, head.field[0], count);
    } else {
        status = queues_put(self, packet.buf, count, number);
    }
    PyBuffer_Release(&packet);
    return status;
}

static PyObject *
queues_send(Queues *self, PyObject *packet)
{
    int status = queues_send_argument(self, packet, self->asked);
    if (status == 0) {
        self->asked = 0; /* a call whose answer was too large is still to be answered */
    }
    return status_or_raise(status);
}

static PyObject *
queues_receive(Queues *self, PyObject *const *args, Py_ssize_t count)
{
    long long timeout;
    if (!count_arguments("Queues.receive", count, 0, 1) || !integer_argument(args, count, 0, -1, &timeout)) {
        return NULL;
    }
    return queues_receive_by(self, deadline_of(timeout));
}

static PyObject *
queues_exchange(Queues *self, PyObject *const *args, Py_ssize_t count)
{
    long long timeout;
    if (!count_arguments("Queues.exchange", count, 1, 2) || !integer_argument(args, count, 1, -1, &timeout)) {
        return NULL;
    }
    int64_t deadline = deadline_of(timeout);
    if (!self->corrupt && !self->closed && (self->awaited != 0 || something_there(self))) {
        return PyLong_FromLong(corrupted(self)); /* there is an unrequested packet, or the last answer is to come */
    }
    self->called += 1 + (self->called == UINT32_MAX); /* 0 is no number */
    int status = queues_send_argument(self, args[0], self->called);
    if (status < 0) {
        return status_or_raise(status);
    }
    self->awaited = self->called;
    return queues_receive_by(self, deadline);
}

/* Whether the calling thread registered a holding; a forked child inherits the pointers, but not the registration. */
static bool
is_registered_here(const Holding *holding)
{
    return holding != NULL && holding == held_by_thread && holding->thread == (pid_t)syscall(SYS_gettid);
}

static PyObject *
queues_hold(Queues *self, PyObject *Py_UNUSED(none))
{
    if (self->holding != NULL || is_registered_here(held_by_thread)) {
        PyErr_SetString(PyExc_RuntimeError, self->holding != NULL
                                                ? "Queues: this side is held already, must be dropped first"
                                                : "Queues: this thread holds others, must drop them first");
        return NULL;
    }
    Holding *holding = calloc(1, sizeof(*holding));
    if (holding == NULL) {
        return PyErr_NoMemory();
    }
    uint32_t *word = word32(self, LIVENESS_WORD(self->side));
    holding->thread = (pid_t)syscall(SYS_gettid);
    holding->head.list.next = &holding->node;
    holding->node.next = &holding->head.list;
    holding->head.futex_offset = (long)((uintptr_t)word - (uintptr_t)&holding->node);
    if (syscall(SYS_get_robust_list, 0, &holding->former, &holding->former_length) != 0 ||
        syscall(SYS_set_robust_list, &holding->head, sizeof(holding->head)) != 0) {
        free(holding);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    self->holding = held_by_thread = holding;
    __atomic_store_n(word, (uint32_t)holding->thread, __ATOMIC_SEQ_CST);
    futex_wake(word); /* threads that wait on "not held" must check again */
    Py_RETURN_NONE;
}

/* Release the liveness word, from the thread that holds it. */
static void
let_go(Queues *self)
{
    Holding *holding = self->holding;
    uint32_t *word = word32(self, LIVENESS_WORD(self->side));
    syscall(SYS_set_robust_list, holding->former, holding->former_length);
    __atomic_store_n(word, 0, __ATOMIC_SEQ_CST);
    futex_wake(word);
    self->holding = held_by_thread = NULL;
    free(holding);
}

static PyObject *
queues_drop(Queues *self, PyObject *Py_UNUSED(none))
{
    if (self->holding != NULL) {
        if (!is_registered_here(self->holding)) {
            PyErr_SetString(PyExc_RuntimeError, "Queues: another thread holds this side, must be dropped by that thread");
            return NULL;
        }
        let_go(self);
    }
    Py_RETURN_NONE;
}

static PyObject *
queues_close(Queues *self, PyObject *Py_UNUSED(none))
{
    self->closed = 1;
    if (getpid() == self->process) { /* a forked child must not close its parent's queues */
        __atomic_store_n(word32(self, CLOSED_FLAG), 1, __ATOMIC_SEQ_CST);
        for (int queue = 0; queue < 2; queue++) {
            __atomic_fetch_add(word32(self, EVENT_WORD(queue)), 1, __ATOMIC_SEQ_CST);
            futex_wake(word32(self, EVENT_WORD(queue)));
        }
    }
    Py_RETURN_NONE;
}

static PyObject *
queues_stats(Queues *self, PyObject *Py_UNUSED(none))
{
    return Py_BuildValue("{sKsKsKsKsKsKsK}", "packets", self->packets, "memo_hits", self->memo_hits, "spins", self->spins,
                         "waits", self->waits, "wakes", self->wakes, "wakes_saved", self->wakes_saved, "lost_wakes",
                         self->lost_wakes);
}

static PyObject *
queues_budget(Queues *self, void *Py_UNUSED(none))
{
    return PyLong_FromLongLong(pace_budget(&self->pace, peer_cpus(self)));
}

/* Whether an answer is to come to what `exchange` sent. */
static PyObject *
queues_awaiting(Queues *self, void *Py_UNUSED(none))
{
    return PyBool_FromLong(self->awaited != 0);
}

/* Bytes up to the elements of the result queue, or to the end of both. */
static size_t
end_of_queue(const uint32_t *capacity, int queue)
{
    size_t end = PAGE;
    for (int i = 0; i <= queue; i++) {
        end += (capacity[i] * sizeof(Element) + PAGE - 1) / PAGE * PAGE;
    }
    return end;
}

static bool
is_capacity(uint32_t elements)
{
    return elements >= LEAST_CAPACITY && elements <= MOST_CAPACITY && (elements & (elements - 1)) == 0;
}

/* Check that `fd` is a memory for queues: its header, or false with a ValueError. */
static bool
checked_header(int fd, Header *header)
{
    struct stat facts;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || (seals & F_SEAL_WRITE)) {
        PyErr_SetString(PyExc_ValueError,
                        "queues' memory is not sealed against shrinking alone, must be a memfd that is");
        return false;
    }
    if (pread(fd, header, sizeof(*header), 0) != sizeof(*header) || header->magic != MAGIC ||
        header->version != VERSION) {
        PyErr_SetString(PyExc_ValueError, "queues' memory has no header of version 1, must have one");
        return false;
    }
    for (int queue = 0; queue < 2; queue++) {
        if (!is_capacity(header->capacity[queue])) {
            PyErr_Format(PyExc_ValueError, "queues' memory: capacity %d is %u, must be a power of two, %d to %d", queue,
                         header->capacity[queue], LEAST_CAPACITY, MOST_CAPACITY);
            return false;
        }
    }
    size_t size = end_of_queue(header->capacity, RESULT_QUEUE);
    if (fstat(fd, &facts) != 0 || (uint64_t)facts.st_size != size) {
        PyErr_Format(PyExc_ValueError, "queues' memory has %lld bytes, must have %zu for capacities %u and %u",
                     (long long)facts.st_size, size, header->capacity[0], header->capacity[1]);
        return false;
    }
    return true;
}

static PyObject *
queues_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *keywords[] = {"fd", "side", NULL};
    int fd, side;
    Header header;
    if (!PyArg_ParseTupleAndKeywords(args, names, "ii:Queues", keywords, &fd, &side)) {
        return NULL;
    }
    if (side != CLIENT && side != SERVICE) {
        return PyErr_Format(PyExc_ValueError, "Queues: side is %d, must be 0 (CLIENT) or 1 (SERVICE)", side);
    }
    if (!checked_header(fd, &header)) {
        return NULL;
    }
    size_t size = end_of_queue(header.capacity, RESULT_QUEUE);
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Queues *self = (Queues *)allocate(type, 0);
    if (self == NULL) {
        munmap(base, size);
        return NULL;
    }
    self->base = base;
    self->size = size;
    self->side = side;
    self->process = getpid();
    self->watch = -1;
    self->use_waitv = 1;
    for (int queue = 0; queue < 2; queue++) {
        self->capacity[queue] = header.capacity[queue];
        self->elements[queue] = (Element *)(void *)(self->base + (queue ? end_of_queue(header.capacity, 0) : PAGE));
    }
    pace_start(&self->pace, QUEUES_HOLD_NS);
    publish_affinity(self);
    return (PyObject *)self;
}

static void
queues_dealloc(Queues *self)
{
    bool in_use = false; /* the kernel still reads the holding and the liveness word when their thread ends */
    if (is_registered_here(self->holding)) {
        let_go(self);
    } else if (self->holding != NULL && getpid() == self->process) {
        in_use = syscall(SYS_tgkill, self->process, self->holding->thread, 0) == 0;
    }
    if (self->holding != NULL && self->holding == held_by_thread) {
        held_by_thread = NULL; /* in a forked child */
    }
    if (!in_use) {
        free(self->holding);
        munmap(self->base, self->size);
    }
    Py_XDECREF(self->last);
    free_object((PyObject *)self);
}

/* The capacity for a number of elements; 0 with a ValueError. */
static uint32_t
capacity_for(PyObject *argument)
{
    long elements = PyLong_AsLong(argument);
    if (elements == -1 && PyErr_Occurred()) {
        return 0;
    }
    if (elements < 1 || elements > MOST_CAPACITY) {
        PyErr_Format(PyExc_ValueError, "queue for %ld elements, must be for 1 to %d", elements, MOST_CAPACITY);
        return 0;
    }
    uint32_t capacity = LEAST_CAPACITY;
    while (capacity < (uint32_t)elements) {
        capacity *= 2;
    }
    return capacity;
}

static PyObject *
create_queues(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Header header = {MAGIC, VERSION, {0, 0}};
    if (!count_arguments("create_queues", count, 2, 2)) {
        return NULL;
    }
    for (int queue = 0; queue < 2; queue++) {
        header.capacity[queue] = capacity_for(args[queue]);
        if (header.capacity[queue] == 0) {
            return NULL;
        }
    }
    int fd = memfd_create("nnhal-queues", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    if (ftruncate(fd, (off_t)end_of_queue(header.capacity, RESULT_QUEUE)) != 0 ||
        pwrite(fd, &header, sizeof(header), 0) != sizeof(header) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        close(fd);
        return NULL;
    }
    return PyLong_FromLong(fd);
}

static PyMethodDef queues_methods[] = {
    {"send", (PyCFunction)(void (*)(void))queues_send, METH_O, NULL},
    {"receive", FAST(queues_receive), NULL},
    {"exchange", FAST(queues_exchange), NULL},
    {"hold", PLAIN(queues_hold), NULL},
    {"drop", PLAIN(queues_drop), NULL},
    {"close", PLAIN(queues_close), NULL},
    {"stats", PLAIN(queues_stats), NULL},
    {NULL},
};

static PyMemberDef queues_members[] = {
    {"watch", T_INT, offsetof(Queues, watch), 0, NULL},
    {"spin", T_BOOL, offsetof(Queues, pace.spin), 0, NULL},
    {"hold_ns", T_LONGLONG, offsetof(Queues, pace.hold_ns), 0, NULL},
    {"use_waitv", T_BOOL, offsetof(Queues, use_waitv), 0, NULL},
    {NULL},
};

static PyGetSetDef queues_properties[] = {
    {"budget_ns", (getter)queues_budget, NULL, NULL, NULL},
    {"awaiting", (getter)queues_awaiting, NULL, NULL, NULL},
    {NULL},
};

static PyType_Slot queues_slots[] = {
    {Py_tp_new, queues_new},         {Py_tp_dealloc, queues_dealloc},   {Py_tp_methods, queues_methods},
    {Py_tp_members, queues_members}, {Py_tp_getset, queues_properties}, {0, NULL},
};

static PyType_Spec queues_spec = {"nnhal.ipc.transport._native.Queues", sizeof(Queues), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, queues_slots};
/* ----------------------------------------------------------------------------------------------------------- module */

static PyObject *
module_cpus(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyLong_FromUnsignedLongLong(affinity());
}

typedef struct {
    int pidfd;
    int64_t after;
} Ending;

/* Waits for the end of the other process, then ends this one. Without Python: a driver may hold the GIL for ever. */
static void *
wait_for_end(void *given)
{
    Ending ending = *(Ending *)given;
    free(given);
    sigset_t all; /* signals must go to threads that run Python's handlers */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    struct pollfd polled = {.fd = ending.pidfd, .events = POLLIN};
    while (poll(&polled, 1, -1) < 0 && errno == EINTR) {
    }
    struct timespec left = timespec_of(ending.after);
    while (nanosleep(&left, &left) < 0 && errno == EINTR) {
    }
    _exit(1);
}

static PyObject *
end_with(PyObject *Py_UNUSED(module), PyObject *args)
{
    int pidfd;
    long long after;
    pthread_t thread;
    pthread_attr_t detached;
    if (!PyArg_ParseTuple(args, "iL:end_with", &pidfd, &after)) {
        return NULL;
    }
    if (pidfd < 0) {
        Py_RETURN_NONE;
    }
    Ending *ending = malloc(sizeof(*ending));
    if (ending == NULL) {
        return PyErr_NoMemory();
    }
    *ending = (Ending){.pidfd = pidfd, .after = after};
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &detached, wait_for_end, ending);
    pthread_attr_destroy(&detached);
    if (failed) {
        free(ending);
        errno = failed;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"end_with", end_with, METH_VARARGS, NULL},
    {"cpus", module_cpus, METH_NOARGS, NULL},
    {"create_queues", FAST(create_queues), NULL},
    {NULL},
};

static const struct {
    const char *name;
    int value;
} constants[] = {
    {"TIMEOUT", TIMEOUT},     {"DEAD", DEAD}, {"CLOSED", CLOSED}, {"CORRUPT", CORRUPT},
    {"TOO_LARGE", TOO_LARGE}, {"FULL", FULL}, {"CLIENT", 0},      {"SERVICE", 1},
};

static int
add_type(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    int failed = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return failed;
}

static int
module_exec(PyObject *module)
{
    for (size_t i = 0; i < sizeof(constants) / sizeof(*constants); i++) {
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0) {
            return -1;
        }
    }
    if (add_type(module, &descriptors_spec) < 0 || add_type(module, &queues_spec) < 0 ||
        add_type(module, &lane_spec) < 0 || add_type(module, &lease_spec) < 0) {
        return -1;
    }
    PyObject *type = PyObject_GetAttrString(module, "Descriptors");
    PyObject *none = type == NULL ? NULL : descriptors_of((PyTypeObject *)type, NULL, 0);
    int failed = none == NULL ? -1 : PyModule_AddObjectRef(module, "NONE", none);
    Py_XDECREF(type);
    Py_XDECREF(none);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "nnhal.ipc.transport._native",
    .m_doc = "Lanes over sockets, and fast message queues in shared memory.",
    .m_methods = module_methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    return PyModuleDef_Init(&module);
}
