"""Shared functions of entries: activations, paddings, and an operation's parameters as TFLite's options."""

from nnhal.base.codes import Activation
from nnhal.base.codes import Padding as Scheme
from nnhal.base.operands import UnknownValue
from nnhal.drivers.litert.graph import EngineTensor
from nnhal.drivers.litert.task import Task
from nnhal.ops.common import fused, padding, same_padding
from nnhal.ops.schema import Bound

SAME, VALID = 0, 1  # TFLite's Padding
FINEST_CLIPPED = 1e-8  # 6 is stored in 32 bits
ACTIVATIONS = {Activation.NONE: 0, Activation.RELU: 1, Activation.RELU1: 2, Activation.RELU6: 3}


def activation(t: Task) -> int:
    """Return the fused activation as TFLite's ActivationFunctionType; none if the operation has none."""
    kind = fused(t.a)
    if kind in (Activation.RELU1, Activation.RELU6):
        require_bound(t)
    return ACTIVATIONS[kind]


def require_bound(t: Task) -> None:
    """Refuse a clipped quantised output whose scale is so fine that the bound exceeds a 32-bit integer."""
    out = t.a.out
    t.require(
        not out.quantised or out.scale > FINEST_CLIPPED, f"output scale {out.scale:g} is too fine for a bound of 6"
    )


def scheme(a: Bound) -> int | None:
    """Return TFLite's scheme with the operation's padding; None if neither has it, or if sizes are unknown."""
    if a.form_has("scheme"):
        return SAME if a.scheme == Scheme.SAME else VALID
    pads = padding(a, "h"), padding(a, "w")
    if pads == ((0, 0), (0, 0)):
        return VALID
    try:
        return SAME if pads == (same_padding(a, "h"), same_padding(a, "w")) else None
    except UnknownValue:
        return None


def padded(task: Task, x: EngineTensor, fill: float | None = None, *, apart: bool = False) -> tuple[EngineTensor, int]:
    """Return an NHWC tensor ready for a window, and its scheme: explicit padding becomes a PAD operator if necessary.

    fill: the stored value of the padding, None for a real zero. apart: write a PAD operator even if a scheme matches.
    """
    found = None if apart else scheme(task.a)
    if found is not None:
        return x, found
    pads = ((0, 0), padding(task.a, "h"), padding(task.a, "w"), (0, 0))
    return pad(task, x, pads, fill), VALID


def pad(task: Task, x: EngineTensor, pads: tuple[tuple[int, int], ...], fill: float | None = None) -> EngineTensor:
    """Pad a tensor by (before, after) elements in each dimension; `fill` as of `padded`."""
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


def image(t: Task, name: str) -> EngineTensor:
    """Return a picture argument as NHWC."""
    return t.transposed(t.x(name), (0, 2, 3, 1)) if t.a.nchw else t.x(name)


def image_out(t: Task) -> EngineTensor:
    """Return the first output, to be written as NHWC."""
    return t.transposed_out((0, 3, 1, 2)) if t.a.nchw else t.out


def out_of_rank(t: Task, rank: int) -> EngineTensor:
    """Return the first output, with a rank of 0 if TFLite has that; NNAPI's shape is [1] then."""
    if rank:
        return t.out
    y = t.temporary(t.out.value, shape=())
    t.later(lambda: t.reshape(y, t.out))
    return y
