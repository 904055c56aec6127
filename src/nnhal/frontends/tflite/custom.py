"""Entries of custom operations in well-known files. Their options are bytes: a C structure, or a flexbuffer."""

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from traceback import extract_tb
from typing import Any

import numpy as np

from nnhal.base.codes import Padding, type_name
from nnhal.base.custom_operators import CUSTOM_OPERATORS, CustomOperator
from nnhal.base.errors import BadFile, DriverFailed, InvalidModel, error_text
from nnhal.base.operands import Value
from nnhal.base.stacks import is_driver_code, store_stack
from nnhal.frontends.common.terms import Term, UnsupportedOperator, constant
from nnhal.frontends.common.writing import filled
from nnhal.frontends.tflite.file import Operator
from nnhal.frontends.tflite.layers import bias_of, four, weights_of
from nnhal.frontends.tflite.task import CUSTOM, OperatorTask, TfliteFacts, operator
from nnhal.ops import OPS
from nnhal.ops.schema import B8, F32, I32

PADDINGS = {1: Padding.SAME, 2: Padding.VALID}  # TfLitePadding
DAMAGE = (struct.error, IndexError, KeyError, ValueError, TypeError, AttributeError, OverflowError, MemoryError)
GREATEST = float(np.finfo(np.float32).max)
MOST_BYTES, MOST_OPTIONS = 1 << 16, 64
LEAST = np.float32(1e-37)  # replaces a score of 0, if those count too
MOVES = frozenset(("RESHAPE", "CONCATENATION", "TRANSPOSE", "SLICE"))


class CustomTask(OperatorTask):
    """A custom operator to lower. Files contain only its name, its tensors and the bytes of its options."""

    @property
    def custom(self) -> bytes:
        """Its options, as bytes from the file."""
        return bytes(self.operator.custom)

    def flexbuffer(self) -> Mapping[str, Any]:
        """Return its options from a flexbuffer's map: numbers, booleans, strings, lists of these; None for others.

        Refuses the operator if they are not such a map. They come from the file, so check each before you use it.
        """
        return flexible(self)


def registered(operator: Operator) -> TfliteFacts | None:
    """Return the registered entry of a custom operator."""
    found = None if operator.builtin else CUSTOM_OPERATORS.get(operator.name.removeprefix(CUSTOM))
    if found is None:
        return None
    return TfliteFacts(_told_whose(found), found.inputs, found.outputs)


def _told_whose(hook: CustomOperator) -> Callable[[OperatorTask], None]:
    """Wrap a hook: lower the operator, and name the hook in errors that are its own fault."""

    def lower(t: OperatorTask) -> None:
        try:
            hook.lower(t)
        except (UnsupportedOperator, InvalidModel, BadFile):  # the hook refuses the operator, or the file
            raise
        except Exception as error:  # a mistake of the hook's author
            where = f"{t.graph.file.label}: {t.label}"
            failed = DriverFailed(f"{where}: {_name(hook)} raised {error_text(error)}{_line(error)}")
            failed.__cause__ = error
            store_stack(failed)
            raise failed from error
        for number in range(len(t.operator.outputs)):
            problem = _wrong(t, number)
            if problem:
                raise DriverFailed(f"{t.graph.file.label}: {t.label}: {_name(hook)} gave {problem}")

    return lower


def _wrong(t: OperatorTask, number: int) -> str:
    """Describe the mistake in an output of the hook; the hook determines its shape."""
    if number not in t.results:
        return f"no output {number}, must give each"
    given, wanted = t.results[number].value.type, t.kind(number)
    try:
        there = t.declared(number).type
    except UnsupportedOperator:
        return ""
    return "" if given == there else f"{type_name(given)} for output {number}, must be {wanted} as in the file"


def _name(hook: CustomOperator) -> str:
    return f"its registered hook {getattr(hook.lower, '__qualname__', type(hook.lower).__name__)},"


def _line(error: Exception) -> str:
    """Return the place in the author's code that raised the error, or called the function that did."""
    frames = [each for each in extract_tb(error.__traceback__) if is_driver_code(each.filename)]
    return f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""


@operator(CUSTOM + "Convolution2DTransposeBias", inputs=3)
def transposed_convolution(t: OperatorTask) -> None:
    """Write MediaPipe's transposed convolution: with a bias, and sized by its padding."""
    t.require(len(t.operator.custom) >= 12, f"has {len(t.operator.custom)} bytes of options, must have at least 12")
    padding, stride_w, stride_h = struct.unpack_from("<3i", t.operator.custom)
    t.require(padding in PADDINGS, f"padding is {padding}, must be 1 (SAME) or 2 (VALID)")
    t.require(min(stride_w, stride_h) >= 1, f"strides are {stride_w} and {stride_h}, must be at least 1")
    x = t.x(0)
    w = weights_of(t, 1, x)
    units, height, width, _ = four(t, t.known(w), "filter")
    shape = t.shape(x)
    sizes = [n for n in shape[1:3] if n is not None]
    must = "must have four dimensions, of which height and width are known"
    t.require(len(shape) == 4 and len(sizes) == 2, f"input has shape {list(shape)}, {must}")
    reach = [
        size * stride if padding == 1 else (size - 1) * stride + filter
        for size, filter, stride in zip(sizes, (height, width), (stride_h, stride_w), strict=True)
    ]
    stated = t.graph.source.tensors[t.operator.outputs[0]].shape
    if len(stated) == 4 and not t.graph.context.reshaped:
        reach = list(stated[1:3])
    bias = bias_of(t, 2, x, w, units)
    how = {"stride_w": stride_w, "stride_h": stride_h, "activation": 0, "nchw": False}
    if shape[0] is not None:
        sizes_out = t.integers([shape[0], *reach, units])
        t.give("TRANSPOSE_CONV_2D", x, w, bias, sizes_out, scheme=PADDINGS[padding], **how)
        return
    cut = [
        (size - 1) * stride + filter - wanted
        for size, stride, filter, wanted in zip(sizes, (stride_h, stride_w), (height, width), reach, strict=True)
    ]
    before = [max(0, n) // 2 for n in cut]
    pads = [pad for n, first in zip(reversed(cut), reversed(before), strict=True) for pad in (first, n - first)]
    t.give("TRANSPOSE_CONV_2D", x, w, bias, *pads, **how)


@operator(CUSTOM + "TFLite_Detection_PostProcess", inputs=3, outputs=4)
def detections(t: OperatorTask) -> None:
    """Return boxes, classes, scores and their number, all as floats.

    TFLite includes scores equal to the threshold and boxes with exactly that overlap; NNAPI requires more or less: the
    next float has the same effect. NNAPI always has a background class, and TFLite the same number of rows for both
    kinds of NMS.
    """
    names = ["use_regular_nms", "num_classes", "max_detections", "max_classes_per_detection", "detections_per_class"]
    names += ["nms_score_threshold", "nms_iou_threshold", *(f"{side}_scale" for side in "yxhw")]
    o = flexible(t, names)
    encodings, scores, anchors = (t.real(t.x(place)) for place in range(3))
    batch, _, columns = three(t, t.known(scores), "scores")
    t.require(batch == 1, f"has {batch} pictures, must have 1")
    classes, rows, each = (whole(t, o, n) for n in ("num_classes", "max_detections", "max_classes_per_detection"))
    t.require(
        columns - classes in (0, 1),
        f"has {columns} scores for each box, must have {classes}, or one more for the background",
    )
    threshold = np.float32(real(t, o, "nms_score_threshold"))
    t.require(
        threshold >= 0 or never_negative(t, scores),
        f"nms_score_threshold is {threshold}, must be at least 0 for NNAPI if scores may be negative",
    )
    if columns == classes:
        before = t.integers([0, 0, 0, 0, 1, 0])
        scores = t.make("PAD", scores, t.reshaped(before, (3, 2)))
    if threshold <= 0:
        least, zero = (constant(Value(F32), np.array([[[n]]], np.float32)) for n in (LEAST, 0))
        zeros = filled(t, t.known(scores), float(LEAST), F32)
        scores = t.make("SELECT", t.make("EQUAL", scores, zero, like=Value(B8)), zeros, scores, like=least)
    else:
        threshold = np.nextafter(threshold, np.float32(-1))
    by_class, kinds = bool(o.get("use_regular_nms")), min(each, classes)
    found = t.run(
        "DETECTION_POSTPROCESSING", scores, encodings, anchors,
        *[real(t, o, f"{side}_scale") for side in "yxhw"],
        by_class, rows, kinds, whole(t, o, "detections_per_class") if "detections_per_class" in o else 100,
        float(max(threshold, np.float32(0))),
        float(np.nextafter(np.float32(real(t, o, "nms_iou_threshold")), np.float32(2))), False,
        outs=[Value(F32, None), Value(F32, None), Value(I32, None), Value(I32, None)],
    )  # fmt: skip
    values, boxes, labels, count = found
    labels, count = (t.make("CAST", term, like=Value(F32)) for term in (labels, count))
    if not by_class and kinds > 1:  # NNAPI counts rows, TFLite boxes
        count = t.make("DIV", count, t.scalar(kinds, count), activation=0)
    lead, missing = ((1, rows), rows * each - rows) if by_class else ((rows, kinds), each - kinds)
    for place, term in enumerate((boxes, labels, values)):
        rest = t.known(term)[2:]
        more = t.reshaped(t.integers([0, 0, 0, missing, *[0, 0] * len(rest)]), (2 + len(rest), 2))
        padded = t.make("PAD", t.reshaped(term, (*lead, *rest)), more) if missing else term
        t.same(t.reshaped(padded, (1, rows * each, *rest)), place)
    t.same(count, 3)


def never_negative(t: OperatorTask, term: Term) -> bool:
    """Whether the operations that produce a term show that no element is below 0."""
    makers = {id(out): made for made in (*t.graph.operations, *t.emitted) for out in made.outputs}
    left, seen = [term], set()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        made, data = makers.get(id(each)), each.value.data
        if data is not None:
            least = np.min(np.asarray(data), initial=0)
        elif made is None:
            least = -1
        elif made.type == "DEQUANTIZE":
            (source,) = made.inputs
            value = source.value if isinstance(source, Term) else each.value
            least = 0 if value.quantised and value.zero_point == np.iinfo(value.dtype).min else -1
        elif made.type in MOVES:
            least = 0
            left += [x for x in made.inputs if isinstance(x, Term) and x.value.type == each.value.type]
        else:
            least = 0 if OPS[made.type].nonnegative else -1
        if least < 0:
            return False
    return True


def flexible(t: OperatorTask, names: Sequence[str] | None = None) -> Mapping[str, Any]:
    """Return options from a flexbuffer's map: the named ones, or all."""
    from flatbuffers import flexbuffers

    size = len(t.operator.custom)
    t.require(size <= MOST_BYTES, f"has {size} bytes of options, must have at most {MOST_BYTES}")
    try:
        there = flexbuffers.GetRoot(t.operator.custom).AsMap
        t.require(len(there) <= MOST_OPTIONS, f"has {len(there)} options, must have at most {MOST_OPTIONS}")
        keys = [key.AsKey for key in there.Keys]
        return {name: option(there[name]) for name in keys if names is None or name in names}
    except DAMAGE as error:
        t.refuse(f"has options that cannot be read: {error}; must be a flexbuffer's map")


def option(value: Any) -> Any:
    """Convert a flexbuffer value: a number, boolean, string, or a list of these; None for anything else."""
    if value.IsString or value.IsMap:
        return value.AsString if value.IsString else None
    several = (
        value.AsTypedVector
        if value.IsTypedVector or value.IsFixedTypedVector
        else value.AsVector
        if value.IsVector
        else None
    )
    if several is None:
        return number(value)
    if len(several) > MOST_BYTES:
        raise ValueError(f"a list has {len(several)} elements")
    return [each.AsString if each.IsString else number(each) for each in several]


def number(value: Any) -> float | bool | None:
    """Convert a number of a flexbuffer; None for anything else."""
    if value.IsBool:
        return bool(value.AsBool)
    return value.AsInt if value.IsInt else value.AsFloat if value.IsFloat else None


def real(t: OperatorTask, options: Mapping[str, Any], name: str) -> float:
    """Return an option that is a number."""
    value = options.get(name)
    if not isinstance(value, int | float) or not abs(value) <= GREATEST:
        t.refuse(f"{name} is {value!r}, must be a finite number of 32 bits")
    return float(value)


def whole(t: OperatorTask, options: Mapping[str, Any], name: str) -> int:
    """Return an option that is a count."""
    value = options.get(name)
    if not isinstance(value, int) or not 1 <= value < 1 << 24:
        t.refuse(f"{name} is {value!r}, must be an integer of at least 1")
    return int(value)


def three(t: OperatorTask, shape: tuple[int, ...], what: str) -> tuple[int, int, int]:
    """Return a shape of three dimensions."""
    t.require(len(shape) == 3, f"{what} have shape {list(shape)}, must have three dimensions")
    return shape[0], shape[1], shape[2]
