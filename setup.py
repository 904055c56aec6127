"""What pyproject.toml cannot say: the native extensions, and the README as a package index shows it."""

import re
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
WARNINGS = ["-Wall", "-Wextra", "-Wno-missing-field-initializers"]
ERRORS = ["implicit-function-declaration", "incompatible-pointer-types", "int-conversion", "return-type", "format"]
LINK = re.compile(r"!?\[([^\]]+)\]\((?!https?:|mailto:|#)([^)\s]+)\)")


def long_description() -> str:
    """The README with the paths of files in place of links and pictures, which lead nowhere from a page of the index."""

    def path_of(link: re.Match[str]) -> str:
        text, path = link.groups()
        return text if text == path else f"{text} ({path})"

    return LINK.sub(path_of, (ROOT / "README.md").read_text("utf-8"))


setup(
    long_description=long_description(),
    long_description_content_type="text/markdown",
    ext_modules=[
        Extension(
            name,
            [f"src/{name.replace('.', '/')}.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
            optional=True,  # without a compiler: `nnhal.base.plain`, `nnhal.ipc.transport.absent`
            extra_compile_args=[
                "-O2",
                "-std=c11",
                f"-ffile-prefix-map={ROOT}=.",  # the same bytes wherever they are built
                *WARNINGS,
                *(f"-Werror={error}" for error in ERRORS),
            ],
        )
        for name in ("nnhal.base._gate", "nnhal.base._mapping", "nnhal.base._owner", "nnhal.ipc.transport._native")
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
