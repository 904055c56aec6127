"""Replaces 16-bit integers with a scale by their real values: NNAPI has them only within its quantised LSTMs."""

from nnhal.base.records import replace
from nnhal.frontends.tflite.file import OMITTED, FileSubgraph, FileTensor, Operator
from nnhal.frontends.tflite.reader import BIASES
from nnhal.frontends.tflite.task import OPERATORS


def with_real_values(source: FileSubgraph) -> FileSubgraph:
    """Return a subgraph whose tensors of INT16 are FLOAT32, and so are the biases beside them.

    Operators of 8 bits with states or weights of INT16 keep them, and so do those of integers.
    """
    tensors = source.tensors
    changed = {n for n, tensor in enumerate(tensors) if _has_real_values(tensor)}
    if not changed:
        return source
    changed.difference_update(*(_tensors_of(o) for o in source.operators if _keeps(tensors, o)))
    beside = [o for o in source.operators if not changed.isdisjoint(_tensors_of(o))]
    changed |= {index for operator in beside for index in _tensors_of(operator) if _is_bias(tensors[index])}
    new = [t._replace(type="FLOAT32", stored=t.type) if n in changed else t for n, t in enumerate(tensors)]
    return replace(source, tensors=tuple(new))


def _tensors_of(operator: Operator) -> list[int]:
    return [index for index in (*operator.inputs, *operator.outputs) if index != OMITTED]


def _keeps(tensors: tuple[FileTensor, ...], operator: Operator) -> bool:
    """Whether an operator has tensors of INT16 in NNAPI, beside an input of 8 bits, or needs the stored integers."""
    facts, first = OPERATORS[operator.name], next(iter(operator.inputs), OMITTED)
    return facts.integral or (facts.sixteen and first != OMITTED and tensors[first].type != "INT16")


def _has_real_values(tensor: FileTensor) -> bool:
    """Whether a tensor of INT16 has a scale and no zero point; only constants may have a scale for each channel."""
    quant = tensor.quant
    if tensor.type != "INT16" or quant is None or any(quant.zero_points):
        return False
    return len(quant.scales) == 1 or tensor.blob is not None


def _is_bias(tensor: FileTensor) -> bool:
    quant = tensor.quant
    if tensor.type not in BIASES or quant is None or tensor.blob is None or min(quant.scales) <= 0:
        return False
    return len(quant.scales) == 1 or tensor.shape == (len(quant.scales),)
