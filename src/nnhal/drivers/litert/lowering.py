"""From a bound NNAPI model to a TFLite model, operation by operation, by the entries of the table.

Entries see every shape if the inputs' shapes are known. An entry refuses if it needs a dimension or value that is
unknown at the verdict.
"""

from functools import partial

from nnhal.base.errors import UnsupportedModel
from nnhal.base.operands import dtype_of, fixed
from nnhal.base.records import replace
from nnhal.drivers.kit.lowering import kept_graph
from nnhal.drivers.kit.variants import UNPROVED, Forms
from nnhal.drivers.litert import elementwise, layers, recurrent, reductions, shapes
from nnhal.drivers.litert.graph import Graph, has_eight_bits
from nnhal.drivers.litert.recipe import Lowered, Recipe, Settings
from nnhal.drivers.litert.task import TABLE, Task
from nnhal.hal.device import Considered, Hints
from nnhal.model.graph import Model, describe

__all__ = ["TABLE", "cached_lowering", "consider", "lower", "recipe_of"]
FAMILIES = (elementwise, layers, recurrent, reductions, shapes)  # their import fills the table


def consider(model: Model, *, dynamic_range: bool = False, forms: Forms = UNPROVED) -> Considered:
    """Return one verdict for each operation of the main subgraph; the graph is kept if all are good."""
    return TABLE.consider(model, Graph(model, dynamic_range=dynamic_range, exact=forms.exact), Task, forms)


def cached_lowering(hints: Hints, *, dynamic_range: bool = False, exact: bool = False) -> Lowered | None:
    """Return the whole model as TFLite, from the graph that `consider` kept; None if there is none."""
    graph = kept_graph(hints, Graph)
    same = graph is not None and (graph.dynamic_range, graph.exact) == (dynamic_range, exact)
    return graph.finish() if graph is not None and same else None


def lower(model: Model, *, dynamic_range: bool = False, forms: Forms = UNPROVED) -> Lowered:
    """Return the whole model as TFLite; Refused, or Unmappable, for the first operation that cannot be lowered."""
    graph = Graph(model, dynamic_range=dynamic_range, exact=forms.exact)
    TABLE.lower(model, partial(Task, graph), forms)
    return graph.finish()


def recipe_of(model: Model, settings: Settings, forms: Forms = UNPROVED, lowered: Lowered | None = None) -> Recipe:
    """Lower a model whose input shapes are all known, unless it was lowered before."""
    lowered = lowered or lower(model, dynamic_range=settings.dynamic_range, forms=forms)
    if forms.exact and has_eight_bits(model):
        settings = replace(settings, xnnpack=False)
    outputs = []
    for index, value in zip(model.main.outputs, lowered.values, strict=True):
        shape = None if value is None else fixed(value.shape)
        if value is None or shape is None:
            name = describe(model, model.main, index)
            raise UnsupportedModel(f"litert: the shape of output {name} is known only at execution, must be before")
        outputs.append((dtype_of(value.type), shape))
    return Recipe(lowered, tuple(outputs), settings)
