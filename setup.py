"""The native extensions; everything else about the package stands in pyproject.toml."""

from setuptools import Extension, setup

WARNINGS = ["-Wall", "-Wextra", "-Wno-missing-field-initializers"]
ERRORS = ["implicit-function-declaration", "incompatible-pointer-types", "int-conversion", "return-type", "format"]

setup(
    ext_modules=[
        Extension(
            name,
            [f"src/{name.replace('.', '/')}.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
            optional=True,  # without a compiler: `nnhal.base.plain`, `nnhal.ipc.transport.absent`
            extra_compile_args=["-O2", "-std=c11", *WARNINGS, *(f"-Werror={error}" for error in ERRORS)],
        )
        for name in ("nnhal.base._gate", "nnhal.base._mapping", "nnhal.base._owner", "nnhal.ipc.transport._native")
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
