"""Sparse constants: trees whose leaves are the stored values, as in the TFLite schema (after TACO).

Every dimension is one level; a dimension of blocks is two, the block's place and the place within it. A dense level has
a child for each index. A sparse level lists the children of each node: node p has those from segments[p] to segments[p
+ 1], whose indices are in `indices`.
"""

import math
from typing import NamedTuple

import numpy as np

from nnhal.base.errors import BadFile
from nnhal.base.operands import Array
from nnhal.frontends.common.budget import Budget, Cost


class SparseLevel(NamedTuple):
    """One level, in the order of traversal."""

    dense: bool
    size: int
    segments: Array
    indices: Array


class Sparsity(NamedTuple):
    """The structure of a sparse tensor.

    order: the dimension of each level; those from the rank on are places in blocks. blocks: the dimension of each
    block.
    """

    order: tuple[int, ...]
    blocks: tuple[int, ...]
    levels: tuple[SparseLevel, ...]


def densify(sparsity: Sparsity, shape: tuple[int, ...], values: Array, budget: Budget, tensor: str) -> Array:
    """Return the complete tensor, with zeros for missing values. `tensor` is its place in the file, for messages."""
    place = f"{budget.label}: {tensor}"
    _check(sparsity, shape, place)
    budget.spend(Cost.MEMORY, math.prod(shape) * values.itemsize, tensor)
    nodes = max(len(values), *(len(level.segments) for level in sparsity.levels))
    budget.spend(Cost.ELEMENTS, nodes * len(sparsity.levels), tensor)
    found, dimensions = _leaves(sparsity, len(values), place), len(sparsity.order)
    _must(len(found) == len(values), place, f"describes {len(found)} values, must describe the {len(values)} stored")
    coordinates = np.empty((len(found), dimensions), np.int64)
    coordinates[:, sparsity.order] = found
    index = coordinates[:, : len(shape)]
    for number, dimension in enumerate(sparsity.blocks):
        level = sparsity.levels[sparsity.order.index(len(shape) + number)]
        index[:, dimension] = index[:, dimension] * level.size + coordinates[:, len(shape) + number]
    inside = bool(((index >= 0) & (index < np.array(shape, np.int64))).all())
    _must(inside, place, f"has indices outside of its shape {list(shape)}, must have none")
    dense = np.zeros(shape, values.dtype)
    dense[tuple(index.T)] = values
    return dense


def _must(condition: bool, place: str, what: str) -> None:
    if not condition:
        raise BadFile(f"{place}: {what}")


def _check(sparsity: Sparsity, shape: tuple[int, ...], place: str) -> None:
    rank, order, blocks = len(shape), sparsity.order, sparsity.blocks
    _must(rank > 0, place, "is a scalar, must have a dimension to be sparse")
    whole = sorted(order) == list(range(rank + len(blocks)))
    _must(whole, place, f"traversal order is {list(order)}, must be a permutation")
    distinct = len(set(blocks)) == len(blocks) and all(0 <= d < rank for d in blocks)
    _must(distinct, place, f"block map is {list(blocks)}, must be different dimensions of 0 to {rank - 1}")
    count = len(sparsity.levels)
    _must(count == len(order), place, f"has {count} levels, must have {len(order)}")
    sizes = [level.size for level in sparsity.levels]
    _must(min(sizes, default=0) >= 0, place, f"has sizes {sizes}, must have none below 0")


def _leaves(sparsity: Sparsity, stored: int, place: str) -> Array:
    """Return the path to each stored value: an array [values, levels] of indices."""
    most = max(stored, *(len(level.segments) for level in sparsity.levels), 1)
    paths = np.zeros((1, 0), np.int64)
    for number, level in enumerate(sparsity.levels):
        nodes = len(paths)
        if level.dense:
            count = nodes * level.size
            _must(count <= most, place, f"level {number} has {count} nodes, must have at most {most}")
            parents = np.repeat(np.arange(nodes), level.size)
            children = np.tile(np.arange(level.size), nodes)
        else:
            segments, children = level.segments, level.indices
            whole = len(segments) == nodes + 1 and segments[0] == 0 and segments[-1] == len(children)
            sizes = np.diff(segments)
            _must(
                bool(whole) and bool((sizes >= 0).all()),
                place,
                f"level {number} must have {nodes + 1} segments that rise from 0 to {len(children)}",
            )
            parents = np.repeat(np.arange(nodes), sizes)
        paths = np.concatenate([paths[parents], children[:, None]], axis=1)
    return paths
