"""Rules for `Op.reorder` of a record: an operation on tensors whose dimensions have another order."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from nnhal.base.operands import UnknownValue, Value
from nnhal.ops.schema import Bound, OperationOrders, Permutation, Reorder

TO_NCHW: Permutation = (0, 3, 1, 2)  # of an NHWC tensor
TO_NHWC: Permutation = (0, 2, 3, 1)  # of an NCHW tensor


def composed(first: Permutation, then: Permutation) -> Permutation:
    """Return the order that results from `first` followed by `then`."""
    return tuple([first[i] for i in then])


def inverse(order: Permutation) -> Permutation:
    """Return the inverse order."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def keeps_elements(shape: Sequence[int | None], order: Permutation) -> bool:
    """Whether the elements of a tensor of that shape keep their positions in memory in that order."""
    moving = [i for i in order if shape[i] != 1]
    return moving == sorted(moving)


def without(order: Permutation, gone: Collection[int]) -> Permutation:
    """Return the order of the remaining dimensions if the dimensions `gone` are removed."""
    kept = [i for i in range(len(order)) if i not in gone]
    return tuple([kept.index(i) for i in order if i not in gone])


# ------------------------------------------------------------------------------------------------------ rules of records


def each_element(a: Bound, order: Permutation) -> OperationOrders:
    """Reorder all tensors alike, except those of one element that have fewer dimensions."""
    tensors = [(argument.name, value) for argument, value in a.inputs if isinstance(value, Value)]
    turned = [name for name, value in tensors if value.rank == len(order) or any(d != 1 for d in value.dims)]
    return OperationOrders(dict.fromkeys(turned, order), [order] * len(a.outs), {})


def by_axis(axis: str, tensor: str = "input") -> Reorder:
    """The argument `axis`, a scalar or a tensor of one, is a dimension of `tensor`, which is one tensor or several."""

    def rule(a: Bound, order: Permutation) -> OperationOrders:
        return OperationOrders({tensor: order}, [order] * len(a.outs), {axis: _moved(getattr(a, axis), order)})

    return rule


def by_axes(axes: str) -> Reorder:
    """Dimensions in the argument `axes` are reduced; they are removed, unless there is a `keep_dims` that is true."""

    def rule(a: Bound, order: Permutation) -> OperationOrders:
        given = getattr(a, axes)
        named = given.array.tolist() if isinstance(given, Value) else [given]
        kept = a.form_has("keep_dims") and a.keep_dims > 0
        left = order if kept else without(order, {axis % len(order) for axis in named})
        return OperationOrders({"input": order}, [left], {axes: _moved(given, order)})

    return rule


def each_dimension(*names: str, masks: Sequence[str] = (), shrinking: str = "") -> Reorder:
    """Arguments `names` have an entry for each dimension, `masks` a bit; those with a bit in `shrinking` are removed."""

    def rule(a: Bound, order: Permutation) -> OperationOrders:
        changed: dict[str, Any] = {name: getattr(a, name).array[list(order)] for name in names}
        changed |= {name: sum((getattr(a, name) >> i & 1) << k for k, i in enumerate(order)) for name in masks}
        gone = {i for i in order if shrinking and getattr(a, shrinking) >> i & 1}
        return OperationOrders({"input": order}, [without(order, gone)], changed)

    return rule


def removes_axes(axes_of: Callable[[Bound], Sequence[int]]) -> Reorder:
    """The dimensions that `axes_of` returns are removed; the argument `axes` lists them."""

    def rule(a: Bound, order: Permutation) -> OperationOrders:
        gone = axes_of(a)
        if not gone:
            raise UnknownValue("a dimension of 1")
        return OperationOrders({"input": order}, [without(order, gone)], {"axes": [order.index(i) for i in gone]})

    return rule


def reshapes_to(name: str) -> Reorder:
    """The output has the shape in the argument `name`, and the elements of the input in order."""

    def rule(a: Bound, order: Permutation) -> OperationOrders:
        shape = a.shapes[0]
        if shape is None or not keeps_elements(shape, order):
            raise UnknownValue("a shape in which the elements stay where they are")
        return OperationOrders({}, [order], {name: getattr(a, name).array[list(order)]})

    return rule


def in_other_layout(a: Bound) -> OperationOrders:
    """Return the operation in the other layout: marked tensors are reordered, and `nchw` is inverted."""
    order = TO_NHWC if a.nchw else TO_NCHW
    inputs = {x.name: order for x in a.form if x.layout}
    for x in a.form:
        if x.by_layout and getattr(a, x.name).data is None:
            raise UnknownValue(x.name)
    changed = {x.name: getattr(a, x.name).array[list(order)] for x in a.form if x.by_layout}
    outputs = [order if x.layout else () for x in a.op.outputs]
    return OperationOrders(inputs, outputs, {"nchw": not a.nchw, **changed})


def _moved(axis: Any, order: Permutation) -> Any:
    """Return the new positions of dimensions, a number or a tensor of them."""
    if isinstance(axis, Value):
        return [order.index(i % len(order)) for i in axis.array.tolist()]
    return order.index(axis % len(order))
