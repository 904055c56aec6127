"""What entries share: activations, paddings, and views of the operation's numbers as TFLite's options have them."""

from nnhal.base.codes import Activation
from nnhal.base.codes import Padding as Scheme
from nnhal.base.operands import Unknown
from nnhal.drivers.litert.graph import EngineTensor
from nnhal.drivers.litert.task import Task
from nnhal.ops.common import fused, padding, same_padding
from nnhal.ops.schema import Bound

SAME, VALID = 0, 1  # TFLite's Padding
FINEST_CLIPPED = 1e-8  # 6 is stored in 32 bits
ACTIVATIONS = {Activation.NONE: 0, Activation.RELU: 1, Activation.RELU1: 2, Activation.RELU6: 3}


def activation(t: Task) -> int:
    """The fused activation as TFLite's ActivationFunctionType; none where the operation has none."""
    kind = fused(t.a)
    if kind in (Activation.RELU1, Activation.RELU6):
        require_bound(t)
    return ACTIVATIONS[kind]


def require_bound(t: Task) -> None:
    """Refuse a clipped quantised output whose scale is so fine that the bound is no 32-bit integer."""
    out = t.a.out
    t.require(
        not out.quantised or out.scale > FINEST_CLIPPED, f"output scale {out.scale:g} is too fine for a bound of 6"
    )


def scheme(a: Bound) -> int | None:
    """TFLite's scheme that pads as the operation says, None where neither does, or where sizes are not known."""
    if a.form_has("scheme"):
        return SAME if a.scheme == Scheme.SAME else VALID
    pads = padding(a, "h"), padding(a, "w")
    if pads == ((0, 0), (0, 0)):
        return VALID
    try:
        return SAME if pads == (same_padding(a, "h"), same_padding(a, "w")) else None
    except Unknown:
        return None


def padded(task: Task, x: EngineTensor, fill: float | None = None, *, apart: bool = False) -> tuple[EngineTensor, int]:
    """An NHWC tensor ready for a window, and the scheme to use: explicit paddings become a PAD operator where they must.

    fill: the stored value of the padding, None for a real zero. apart: a PAD operator is written although a scheme fits.
    """
    found = None if apart else scheme(task.a)
    if found is not None:
        return x, found
    pads = ((0, 0), padding(task.a, "h"), padding(task.a, "w"), (0, 0))
    return pad(task, x, pads, fill), VALID


def pad(task: Task, x: EngineTensor, pads: tuple[tuple[int, int], ...], fill: float | None = None) -> EngineTensor:
    """A tensor with (before, after) elements more in each dimension; `fill` as of `padded`."""
    sizes = x.value.shape
    shape = (
        None
        if sizes is None
        else tuple(None if size is None else size + sum(more) for size, more in zip(sizes, pads, strict=True))
    )
    y = task.temporary(x.value, shape=shape)
    if fill is None:
        task.emit("PAD", [x, task.constant(pads)], y)
    else:
        task.emit("PADV2", [x, task.constant(pads), task.constant(fill, value=x.value)], y)
    return y
