/* nnhal.base._gate: a gate that one thread waits at and another opens.
 *
 * The contract stands in _gate.pyi. An idle core takes 30 to 50 us to wake, and a lock of Python's always lets the core go
 * idle: a hand-over to another thread and back costs 60 us with it. So a wait spins first, without the interpreter lock,
 * for about twice as long as waking costs, and blocks then. On one core it blocks at once. Where the cores are busy, a wait
 * that spins keeps one from the thread that it waits for: after waits that lasted longer, the next ones spin for a shorter
 * time. CPython's stable ABI.
 */
#define _GNU_SOURCE
#include <Python.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS 100000
#define LEAST_SPIN_NS 3000
#define WAKING_NS 50000
#define SLICE_NS 1000000000 /* a blocking wait looks at signals at least this often */
#define FOREVER INT64_MAX

typedef struct {
    PyObject_HEAD
    uint32_t open;    /* a futex word */
    uint32_t waiting; /* whether somebody blocks */
    char spin;
} Gate;

static uint32_t spin_ns = SPIN_NS; /* of the next wait at any gate: half as long after a wait that spinning did not end */

static int64_t
now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void
relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static PyObject *
gate_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (!PyArg_ParseTuple(args, ":Gate") || (kwargs != NULL && PyDict_Size(kwargs) != 0)) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Gate *self = (Gate *)allocate(type, 0);
    if (self != NULL) {
        cpu_set_t set;
        CPU_ZERO(&set);
        self->spin = sched_getaffinity(0, sizeof(set), &set) != 0 || CPU_COUNT(&set) > 1;
    }
    return (PyObject *)self;
}

static void
gate_dealloc(Gate *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static void
open_gate(Gate *self)
{
    __atomic_store_n(&self->open, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&self->waiting, __ATOMIC_SEQ_CST) != 0) {
        syscall(SYS_futex, &self->open, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

static PyObject *
gate_open(Gate *self, PyObject *unused)
{
    (void)unused;
    open_gate(self);
    Py_RETURN_NONE;
}

static int
passed(Gate *self)
{
    return __atomic_exchange_n(&self->open, 0, __ATOMIC_SEQ_CST) == 1;
}

/* Without the interpreter lock: whether it was passed until `end`, for as long as waiting may spin. */
static int
spun(Gate *self, int64_t begin, int64_t end)
{
    int64_t until = begin + __atomic_load_n(&spin_ns, __ATOMIC_RELAXED);
    until = until < end ? until : end;
    do {
        for (int turn = 0; turn < 64; turn++) {
            if (__atomic_load_n(&self->open, __ATOMIC_RELAXED) && passed(self)) {
                return 1;
            }
            relax();
        }
    } while (now_ns() < until);
    return 0;
}

/* Choose how long the next wait spins: longer if spinning would have ended this one, and shorter if not. A wait that blocked
 * also lasted as long as waking takes. */
static void
learn(int64_t taken)
{
    uint32_t now = __atomic_load_n(&spin_ns, __ATOMIC_RELAXED);
    uint32_t next = taken <= SPIN_NS + WAKING_NS ? now + now / 16 : now / 2;
    next = next > SPIN_NS ? SPIN_NS : next < LEAST_SPIN_NS ? LEAST_SPIN_NS : next;
    if (next != now) {
        __atomic_store_n(&spin_ns, next, __ATOMIC_RELAXED);
    }
}

/* Without the interpreter lock: block for one slice at most; whether it was passed. */
static int
blocked(Gate *self, int64_t end)
{
    int64_t left = end == FOREVER ? SLICE_NS : end - now_ns();
    left = left < SLICE_NS ? left : SLICE_NS;
    if (left <= 0) {
        return passed(self);
    }
    struct timespec slice = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
    __atomic_store_n(&self->waiting, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &self->open, FUTEX_WAIT_PRIVATE, 0, &slice, NULL, 0);
    __atomic_store_n(&self->waiting, 0, __ATOMIC_SEQ_CST);
    return passed(self);
}

static PyObject *
gate_wait(Gate *self, PyObject *args)
{
    double seconds = -1;
    PyObject *other = Py_None;
    if (!PyArg_ParseTuple(args, "|dO:wait", &seconds, &other)) {
        return NULL;
    }
    if (other != Py_None && Py_TYPE(other) != Py_TYPE((PyObject *)self)) {
        PyErr_SetString(PyExc_TypeError, "wait: what is to be opened first must be a Gate or None");
        return NULL;
    }
    int64_t begin = now_ns(), end = seconds < 0 || seconds > 4e9 ? FOREVER : begin + (int64_t)(seconds * 1e9);
    int done = 0;
    Py_BEGIN_ALLOW_THREADS
    if (other != Py_None) {
        open_gate((Gate *)other); /* whoever passes finds the interpreter free, and need not wait for it */
    }
    done = self->spin ? spun(self, begin, end) : passed(self);
    Py_END_ALLOW_THREADS
    int blocks = !done;
    while (!done) {
        Py_BEGIN_ALLOW_THREADS
        done = blocked(self, end);
        Py_END_ALLOW_THREADS
        if (!done && PyErr_CheckSignals() != 0) {
            return NULL;
        }
        if (!done && now_ns() >= end) {
            break;
        }
    }
    if (blocks || __atomic_load_n(&spin_ns, __ATOMIC_RELAXED) < SPIN_NS) {
        learn(now_ns() - begin);
    }
    return PyBool_FromLong(done);
}

static PyMethodDef gate_methods[] = {
    {"open", (PyCFunction)gate_open, METH_NOARGS, NULL},
    {"wait", (PyCFunction)gate_wait, METH_VARARGS, NULL},
    {NULL},
};
static PyType_Slot gate_slots[] = {
    {Py_tp_new, gate_new},
    {Py_tp_dealloc, gate_dealloc},
    {Py_tp_methods, gate_methods},
    {0, NULL},
};
static PyType_Spec gate_spec = {
    .name = "nnhal.base._gate.Gate",
    .basicsize = sizeof(Gate),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = gate_slots,
};

static int
execute(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&gate_spec);
    if (type == NULL) {
        return -1;
    }
    int failed = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "nnhal.base._gate", .m_size = 0, .m_slots = slots};

PyMODINIT_FUNC
PyInit__gate(void)
{
    return PyModuleDef_Init(&definition);
}
