"""The data of an interpreter: made from a model, stored in cache files, and restored from these."""

import json
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.errors import OperationFailed
from nnhal.base.memory import aligned
from nnhal.base.operands import Array, Value
from nnhal.base.records import Record, replace
from nnhal.drivers.litert.content import PAGE, Content
from nnhal.hal.cache.files import CacheContent


class Settings(Record, frozen=True):
    """The settings of interpreters.

    threads: at least 1. xnnpack: whether LiteRT's default delegate runs the operations that it supports. dynamic_range:
    whether layers of constant integer weights compute with them as LiteRT does, see `Litert`.
    """

    threads: int = 1
    xnnpack: bool = True
    dynamic_range: bool = False


class Lowered(NamedTuple):
    """A TFLite model and its relation to the NNAPI model from which it was made.

    inputs: (number of a model input, tensor it is written to). outputs: the tensor of each model output, None for one
    with undefined contents. values: the known facts of each model output. resets: variable tensors and their values
    before every run.
    """

    packed: Content
    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[int | None, ...]
    values: tuple[Value | None, ...]
    resets: tuple[tuple[int, Array], ...]

    @property
    def content(self) -> bytes:
        """Return a copy of the TFLite model, which may be written to a file."""
        return bytes(self.packed)


class Recipe(NamedTuple):
    """The data of an interpreter: the TFLite model, and element type and shape of each output of the NNAPI model."""

    lowered: Lowered
    outputs: tuple[tuple[Any, tuple[int, ...]], ...]
    settings: Settings


def save(recipe: Recipe, files: CacheContent) -> bool:
    """Save a recipe: the graph and its relation to the model in the model file, constants in the data file.

    Mapped constants stay in place; if one is not in the model's pools, nothing is saved.
    """
    lowered = recipe.lowered
    packed, (model,), (data,) = lowered.packed, files.model, files.data
    numbers = {id(pool): n for n, pool in enumerate(files.pools)}
    windows = [(numbers.get(id(w.pool())), w.start, w.length, w.at) for w in packed.windows]
    if any(number is None for number, *_ in windows):
        return False
    head = packed.head()
    model["graph"], data["constants"] = head[: packed.room], head[packed.room :]
    model["facts"] = json.dumps(
        {
            "size": len(packed),
            "windows": windows,
            "moves": packed.moves,
            "in_place": packed.in_place,
            "xnnpack": recipe.settings.xnnpack,
            "inputs": lowered.inputs,
            "outputs": [(t, np.dtype(d).str, s) for t, (d, s) in zip(lowered.outputs, recipe.outputs, strict=True)],
            "resets": [(tensor, value.dtype.str, value.shape) for tensor, value in lowered.resets],
        }
    ).encode()
    for n, (_, value) in enumerate(lowered.resets):
        data[f"reset {n}"] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return True


def restore(files: CacheContent, settings: Settings) -> Recipe:
    """Return a saved recipe. OperationFailed if the model's pools have changed since."""
    (model,), (data,) = files.model, files.data
    facts: dict[str, Any] = json.loads(bytes(model["facts"]))
    content, graph, constants = Content(facts["size"]), bytearray(model["graph"]), bytes(data["constants"])
    content.room, content.copied = len(graph), len(graph) + len(constants)
    content.in_place, content.moves = facts["in_place"], [(place, window) for place, window in facts["moves"]]
    end = content.copied
    for window, (number, start, length, was) in enumerate(facts["windows"]):
        pool = files.pools[number] if number < len(files.pools) else None
        if pool is None or start + length > aligned(pool.offset + pool.size, PAGE):
            raise OperationFailed(
                "litert: the model's memory has changed since the cache entry was written; delete the entry"
            )
        at = content.page(end)
        content.map_or_copy(at, pool, start, length)
        end = at + length
        for place in (place for place, its in content.moves if its == window):
            offset = int.from_bytes(graph[place : place + 8], "little") + at - was
            graph[place : place + 8] = offset.to_bytes(8, "little")
    content.write(0, bytes(graph))
    content.write(content.room, constants)
    resets = tuple(
        (tensor, np.frombuffer(bytes(data[f"reset {n}"]), dtype).reshape(shape))
        for n, (tensor, dtype, shape) in enumerate(facts["resets"])
    )
    outputs = tuple((np.dtype(dtype), tuple(shape)) for _, dtype, shape in facts["outputs"])
    inputs = tuple((number, tensor) for number, tensor in facts["inputs"])
    tensors = tuple(tensor for tensor, _, _ in facts["outputs"])
    settings = replace(settings, xnnpack=settings.xnnpack and facts["xnnpack"])
    return Recipe(Lowered(content, inputs, tensors, (), resets), outputs, settings)
