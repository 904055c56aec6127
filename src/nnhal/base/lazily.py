"""Packages whose names import their module on first use."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exports(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the package's `__getattr__`. modules: the module of each name.

    It raises ResourceExhausted if descriptors or memory run out during the import; the name can be used later.
    """

    def found(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(modules[name]), name)
        except OSError as error:
            from nnhal.base.errors import ResourceExhausted, is_out_of_resources  # it imports numpy

            if not is_out_of_resources(error):
                raise
            raise ResourceExhausted(f"{package}.{name}: cannot be imported: {error.strerror}") from error
        setattr(sys.modules[package], name, value)
        return value

    return found
