"""The outline of a file that NNAPI cannot express completely: every operator, with the reasons of the refused ones."""

import os
from collections.abc import Mapping

from nnhal.base.errors import ShapeNeeded, UnsupportedModel
from nnhal.base.operands import Shape
from nnhal.base.tflite_schema import fields_of
from nnhal.frontends.common.inputs import SHAPE_NEEDED
from nnhal.frontends.source import Source
from nnhal.frontends.tflite import chosen
from nnhal.frontends.tflite.file import OMITTED, FileTensor, Operator
from nnhal.frontends.tflite.layers import SCHEMES
from nnhal.frontends.tflite.metadata import metadata_of
from nnhal.frontends.tflite.task import FUSED
from nnhal.model.outline import Node, Outline, ShownTensor, attribute_text


def refused_outline(source: Source, error: UnsupportedModel | ShapeNeeded, signature: str | None = None) -> Outline:
    """Return the outline of a file that `load` refused with this error, operator by operator."""
    file, subgraph = chosen(source, signature)
    asked = isinstance(error, ShapeNeeded)
    reasons = _by_place(error) if isinstance(error, UnsupportedModel) else {}
    tensors = {n: _tensor(t) for n, t in enumerate(subgraph.tensors)}
    nodes = tuple(
        Node(
            operator.name,
            _attributes(operator),
            tuple(i for i in operator.inputs if i != OMITTED),
            operator.outputs,
            reasons.get(f"#{operator.index}", ""),
        )
        for operator in subgraph.operators
    )
    name = os.path.splitext(os.path.basename(file.label))[0]
    about, why = metadata_of(file, subgraph.index), (SHAPE_NEEDED,) if asked else ()
    return Outline(name, tensors, subgraph.inputs, subgraph.outputs, nodes, reasons=why, metadata=about)


def _by_place(error: UnsupportedModel) -> Mapping[str, str]:
    return {place: reason or "NNAPI has no operation for it" for _, place, reason in error.refused}


def _tensor(tensor: FileTensor) -> ShownTensor:
    shape: Shape = tuple(None if n in tensor.open else d for n, d in enumerate(tensor.shape))
    size = tensor.blob.length if tensor.blob else 0
    scale = tensor.quant.scales[0] if tensor.quant else 0.0
    return ShownTensor(tensor.name, tensor.type, shape, tensor.blob is not None and not tensor.variable, size, scale)


def _attributes(operator: Operator) -> str:
    """Return window, stride, padding and activation of layers that move over pictures."""
    kind = operator.options.kind
    names, fields = fields_of(kind), operator.options.read(kind)
    if "StrideH" not in names:
        return ""
    given = {"stride_h": fields("StrideH"), "stride_w": fields("StrideW")}
    if "FilterHeight" in names:
        given |= {"filter_h": fields("FilterHeight"), "filter_w": fields("FilterWidth")}
    words = [attribute_text(given)]
    padding = SCHEMES.get(fields("Padding"))
    words += [padding.name.lower()] if padding else []
    activation = FUSED.get(fields("FusedActivationFunction"), "")
    words += [activation.lower()] if activation not in ("", "NONE") else []
    return " ".join(filter(None, words))
