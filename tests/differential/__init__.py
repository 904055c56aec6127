"""Every operation, form, type and class of values: the reference against oracles, every device against the reference."""

from tests.differential import boxes, elementwise, layers, movement, recurrent, reductions
from tests.differential.oracle import EXACT, ORACLES, ask

FAMILIES = (boxes, elementwise, layers, movement, recurrent, reductions)  # importing them fills the table
__all__ = ["EXACT", "ORACLES", "ask"]
