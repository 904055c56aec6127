"""The lowering table with all its entries."""

from nnhal.drivers.onnxruntime import elementwise, layers, recurrent, shapes
from nnhal.drivers.onnxruntime.graph import TABLE

FAMILIES = (elementwise, layers, recurrent, shapes)  # importing them fills the table

__all__ = ["TABLE"]
