"""From a bound NNAPI model to a TFLite model, operation by operation, by the entries of the table.

Entries see every shape once the inputs' shapes are known; an entry that has to know a dimension or value which is not there
at the verdict refuses.
"""

from functools import partial

from nnhal.drivers.litert import elementwise, layers, recurrent, reductions, shapes
from nnhal.drivers.litert.graph import Graph, Lowered
from nnhal.drivers.litert.task import TABLE, Task
from nnhal.hal.device import Verdict
from nnhal.model.graph import Model

FAMILIES = (elementwise, layers, recurrent, reductions, shapes)  # importing them fills the table


def verdicts(model: Model) -> list[Verdict]:
    """One verdict for each operation of the main subgraph."""
    return TABLE.verdicts(model, partial(Task, Graph(model)))


def lower(model: Model, *, dynamic_range: bool = False) -> Lowered:
    """The whole model as TFLite; Refused, or Unmappable, with the first operation that cannot be lowered."""
    graph = Graph(model, dynamic_range=dynamic_range)
    TABLE.lower(model, partial(Task, graph))
    return graph.finish()
