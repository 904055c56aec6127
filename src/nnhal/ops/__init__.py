"""One record for each operation; importing this package fills the table `OPS`."""

from importlib import import_module
from pkgutil import iter_modules

from nnhal.ops.schema import OPS

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["OPS"]
