/* nnhal.base._owner: descriptors that are closed with what holds them, by code that no interrupt gets into.
 *
 * The contract stands in _owner.pyi. CPython's stable ABI.
 */
#define _GNU_SOURCE
#include <Python.h>
#include <structmember.h>
#include <unistd.h>

typedef struct {
    PyObject_HEAD
    PyObject *fds;
} Owner;

static PyObject *
owner_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    if (names != NULL && PyDict_Size(names) > 0) {
        PyErr_SetString(PyExc_TypeError, "Owner: takes descriptors, none of them by a name");
        return NULL;
    }
    PyObject *fds = PySequence_List(args);
    if (fds == NULL) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Owner *self = (Owner *)allocate(type, 0);
    if (self == NULL) {
        Py_DECREF(fds);
        return NULL;
    }
    self->fds = fds;
    return (PyObject *)self;
}

/* Forgets them first: another thread may come while the kernel is at work. Keeps the error that may be set. */
static void
close_all(Owner *self)
{
    PyObject *kind, *value, *traceback;
    PyErr_Fetch(&kind, &value, &traceback);
    for (Py_ssize_t count; (count = PyList_Size(self->fds)) > 0;) {
        PyObject *last = PyList_GetItem(self->fds, count - 1);
        long fd = PyLong_Check(last) ? PyLong_AsLong(last) : -1;
        PyList_SetSlice(self->fds, count - 1, count, NULL);
        PyErr_Clear();
        if (fd >= 0) {
            Py_BEGIN_ALLOW_THREADS  /* the last one of a file may take its time */
            close((int)fd);
            Py_END_ALLOW_THREADS
        }
    }
    PyErr_Restore(kind, value, traceback);
}

static PyObject *
owner_close(Owner *self, PyObject *Py_UNUSED(nothing))
{
    close_all(self);
    Py_RETURN_NONE;
}

static void
owner_free(Owner *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    close_all(self);
    Py_DECREF(self->fds);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef owner_methods[] = {
    {"close", (PyCFunction)(void (*)(void))owner_close, METH_NOARGS, NULL},
    {NULL},
};

static PyMemberDef owner_members[] = {
    {"fds", T_OBJECT_EX, offsetof(Owner, fds), READONLY, NULL},
    {NULL},
};

static PyType_Slot owner_slots[] = {
    {Py_tp_new, owner_new},         {Py_tp_dealloc, owner_free}, {Py_tp_methods, owner_methods},
    {Py_tp_members, owner_members}, {0, NULL},
};

static PyType_Spec owner_spec = {"nnhal.base._owner.Owner", sizeof(Owner), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, owner_slots};

static int
module_exec(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &owner_spec, NULL);
    int failed = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "nnhal.base._owner",
    .m_doc = "Descriptors that are closed with what holds them.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__owner(void)
{
    return PyModuleDef_Init(&module);
}
