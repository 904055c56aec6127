/* nnhal.base._mapping: a mapping of a file that keeps no descriptor open, as Python's own does until 3.13.
 *
 * The contract stands in _mapping.pyi. CPython's stable ABI.
 */
#define _GNU_SOURCE
#include <Python.h>
#include <sys/mman.h>

typedef struct {
    PyObject_HEAD
    void *base;
    Py_ssize_t size;
    int writable;
} Mapping;

static PyObject *
mapping_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *keywords[] = {"fd", "size", "offset", "writable", NULL};
    int fd, writable;
    Py_ssize_t size;
    long long offset;
    if (!PyArg_ParseTupleAndKeywords(args, names, "inLp:Mapping", keywords, &fd, &size, &offset, &writable)) {
        return NULL;
    }
    if (size < 1 || offset < 0) {
        PyErr_Format(PyExc_ValueError, "Mapping: %zd bytes at %lld, must be at least 1 at 0 or more", size, offset);
        return NULL;
    }
    void *base;
    Py_BEGIN_ALLOW_THREADS  /* a file system may take its time */
    base = mmap(NULL, (size_t)size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, offset);
    Py_END_ALLOW_THREADS
    if (base == MAP_FAILED) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Mapping *self = (Mapping *)allocate(type, 0);
    if (self == NULL) {
        munmap(base, (size_t)size);
        return NULL;
    }
    self->base = base;
    self->size = size;
    self->writable = writable;
    return (PyObject *)self;
}

static void
mapping_free(Mapping *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    Py_BEGIN_ALLOW_THREADS  /* as does giving back many gigabytes */
    munmap(self->base, (size_t)self->size);
    Py_END_ALLOW_THREADS
    release(self);
    Py_DECREF(type);
}

static int
mapping_buffer(Mapping *self, Py_buffer *view, int flags)
{
    return PyBuffer_FillInfo(view, (PyObject *)self, self->base, self->size, !self->writable, flags);
}

static Py_ssize_t
mapping_length(PyObject *self)
{
    return ((Mapping *)self)->size;
}

static PyType_Slot mapping_slots[] = {
    {Py_tp_new, mapping_new},       {Py_tp_dealloc, mapping_free}, {Py_bf_getbuffer, mapping_buffer},
    {Py_sq_length, mapping_length}, {0, NULL},
};

static PyType_Spec mapping_spec = {"nnhal.base._mapping.Mapping", sizeof(Mapping), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, mapping_slots};

static int
module_exec(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &mapping_spec, NULL);
    int failed = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "nnhal.base._mapping",
    .m_doc = "A mapping of a file that keeps no descriptor open.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__mapping(void)
{
    return PyModuleDef_Init(&module);
}
