"""Expands sparse constants (DENSIFY): block-sparse tensors with a traversal order, as the schema describes them."""

from typing import Any

import numpy as np

from nnhal.base.errors import BadFile
from nnhal.base.operands import Array
from nnhal.frontends.tflite.file import File, Tensor


def densify(file: File, tensor: Tensor) -> Array:
    """The dense value of a sparse constant. BadFile where its metadata contradict each other."""
    import tflite

    assert tensor.region is not None
    sparsity, rank = tensor.sparsity, len(tensor.shape)
    values = file.memory.view(*tensor.region, dtype=np.dtype(tensor.type))
    order = [int(sparsity.TraversalOrder(i)) for i in range(sparsity.TraversalOrderLength())]
    blocks = [int(sparsity.BlockMap(i)) for i in range(sparsity.BlockMapLength())]
    levels = [sparsity.DimMetadata(i) for i in range(sparsity.DimMetadataLength())]
    label = f"{file.label}: sparse tensor {tensor.name}"
    if sorted(order) != list(range(len(levels))) or len(levels) != rank + len(blocks):
        raise BadFile(
            f"{label}: traversal order is {order}, must name {rank} dimensions and {len(blocks)} block dimensions"
        )
    sizes = _block_sizes(label, tensor, order, levels, blocks)
    # Each level refines the positions: `parents` are indices into the level so far, one column a level in `coordinates`.
    parents, coordinates = np.zeros(1, np.int64), np.zeros((1, 0), np.int64)
    for level in levels:
        if level.Format() == tflite.DimensionType.DENSE:
            size = int(level.DenseSize())
            coordinates = np.repeat(coordinates, size, 0)
            column = np.tile(np.arange(size), len(parents))
            parents = (parents[:, None] * size + np.arange(size)).reshape(-1)
        else:
            segments, indices = (_vector(level, part) for part in ("ArraySegments", "ArrayIndices"))
            if (
                parents.max(initial=0) + 1 >= len(segments)
                or (np.diff(segments) < 0).any()
                or segments[-1] > len(indices)
            ):
                raise BadFile(f"{label}: segments {segments[:8].tolist()} do not fit {len(indices)} indices")
            counts = segments[parents + 1] - segments[parents]
            starts = np.repeat(segments[parents], counts)
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            coordinates = np.repeat(coordinates, counts, 0)
            parents = starts + within
            column = indices[parents]
        coordinates = np.concatenate([coordinates, column[:, None]], 1)
        if len(coordinates) > np.prod(tensor.shape):
            raise BadFile(f"{label}: describes more elements than the {int(np.prod(tensor.shape))} of its shape")
    if len(coordinates) != len(values):
        raise BadFile(f"{label}: describes {len(coordinates)} values, must describe the {len(values)} of its buffer")
    by_dimension = np.empty_like(coordinates)
    by_dimension[:, order] = coordinates
    place = by_dimension[:, :rank].copy()
    for n, dimension in enumerate(blocks):
        place[:, dimension] = place[:, dimension] * sizes[n] + by_dimension[:, rank + n]
    if (place < 0).any() or (place >= np.array(tensor.shape)).any():
        raise BadFile(f"{label}: has indices outside its shape {list(tensor.shape)}")
    dense = np.zeros(tensor.shape, values.dtype)
    dense[tuple(place.T)] = values
    return dense


def _block_sizes(label: str, tensor: Tensor, order: list[int], levels: list[Any], blocks: list[int]) -> list[int]:
    if any(not 0 <= d < len(tensor.shape) for d in blocks):
        raise BadFile(f"{label}: block map is {blocks}, must name dimensions of {list(tensor.shape)}")
    return [int(levels[order.index(len(tensor.shape) + n)].DenseSize()) for n in range(len(blocks))]


def _vector(level: Any, part: str) -> Array:
    """A vector of segments or indices, of whatever width the file uses."""
    import tflite

    kind, table = getattr(level, f"{part}Type")(), getattr(level, part)()
    names = {v: k for k, v in vars(tflite.SparseIndexVector).items() if isinstance(v, int)}
    vector = getattr(tflite, names[kind])()
    vector.Init(table.Bytes, table.Pos)
    return np.asarray(vector.ValuesAsNumpy(), np.int64).reshape(-1)
