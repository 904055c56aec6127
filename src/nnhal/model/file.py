"""Model files in nnhal's own format: any model that NNAPI can express, in one file with its constants.

After 8 bytes that identify the format come the length of the head and the head, as MessagePack: the graphs, the sizes
of the pools, the states and the types at the edges. The pools follow, each at a multiple of 64 bytes. Metadata and notes
of an importer are left out.
"""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from nnhal.base.codes import type_name
from nnhal.base.errors import BadFile, InvalidArgument, InvalidModel
from nnhal.base.memory import Memory, aligned
from nnhal.base.operands import Array
from nnhal.base.records import replace
from nnhal.base.sealed import sealed
from nnhal.model.graph import EdgeForm, Model, State
from nnhal.model.stored import pack_device_view, unpack_device_view
from nnhal.model.validate import validate
from nnhal.ops.schema import F32, I32

MAGIC = b"\x00NNHAL\x01\n"
ALIGNMENT = 64
_Number = Annotated[int, Meta(ge=0)]


class _StoredState(msgspec.Struct, array_like=True, frozen=True):
    input: _Number
    output: _Number
    dtype: str
    shape: tuple[_Number, ...]
    initial: bytes


class _Edge(msgspec.Struct, array_like=True, frozen=True):
    operand: _Number
    scalar: bool
    wide: bool
    scale: Annotated[float, Meta(ge=0)] = 0.0
    most: _Number = 0


class _Head(msgspec.Struct, array_like=True, frozen=True):
    model: bytes
    pools: tuple[_Number, ...]
    states: tuple[_StoredState, ...]
    edges: tuple[_Edge, ...]


_decode = msgspec.msgpack.Decoder(_Head).decode


def write_model(model: Model, path: str | os.PathLike[str]) -> None:
    """Write a model to a file that `nnhal.load` reads.

    Args:
        model: The model.
        path: The file; an existing one is replaced.

    Raises:
        InvalidArgument: The file cannot be written.
    """
    pools = [pool.bytes() for pool in model.pools]
    head = head_of(model)
    temporary = Path(f"{os.fspath(path)}.{os.getpid()}")  # a reader never sees half a file
    try:
        with temporary.open("wb") as file:
            file.write(MAGIC + len(head).to_bytes(8, "little") + head)
            for pool in pools:
                file.write(bytes(aligned(file.tell(), ALIGNMENT) - file.tell()))
                file.write(pool.data)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InvalidArgument(f"{os.fspath(path)}: {error.strerror}, must be a writable file") from None


def head_of(model: Model) -> bytes:
    """Return everything of a model but the contents of its pools."""
    states = tuple(
        _StoredState(s.input, s.output, s.initial.dtype.str, s.initial.shape, s.initial.tobytes()) for s in model.states
    )
    edges = tuple(_Edge(index, form.scalar, form.wide, form.scale, form.most) for index, form in model.edge.items())
    return msgspec.msgpack.encode(
        _Head(pack_device_view(model), tuple(pool.size for pool in model.pools), states, edges)
    )


def is_model(data: Array) -> bool:
    """Whether bytes begin like a file that `write_model` wrote."""
    return data[: len(MAGIC)].tobytes() == MAGIC


def read_model(label: str, memory: Memory) -> Model:
    """Return the model of a file in nnhal's format.

    Args:
        label: The name of the file in messages.
        memory: Its bytes, sealed.

    Raises:
        BadFile: The file is damaged.
        InvalidModel: Its model breaks a rule.
    """
    data = memory.bytes()
    start = len(MAGIC) + 8
    length = int.from_bytes(data[len(MAGIC) : start].tobytes(), "little")
    if not is_model(data) or length > len(data) - start:
        raise BadFile(f"{label}: has {len(data)} bytes, must hold a head of {length} bytes")
    at = start + length

    def next_pool(_: int, size: int) -> Memory:
        nonlocal at
        at = aligned(at, ALIGNMENT)
        if size > len(data) - at:
            raise BadFile(f"{label}: has {len(data)} bytes, must hold a pool of {size} bytes at {at}")
        at += size
        return sealed(data[at - size : at])

    return model_of(label, data[start : start + length].tobytes(), next_pool)


def model_of(
    label: str, head: bytes, pool: Callable[[int, int], Memory], whole: Callable[[Model], Model] = lambda model: model
) -> Model:
    """Return the model of the bytes that `head_of` returned.

    Args:
        label: The name of the model or file in messages.
        head: The bytes.
        pool: Returns the sealed contents of a pool, from its number and its size in bytes.
        whole: Adds what the head lacks, before the model is validated.

    Raises:
        BadFile: The head is damaged.
        InvalidModel: The model breaks a rule.
    """
    try:
        found = _decode(head)
        pools = tuple(pool(number, size) for number, size in enumerate(found.pools))
        states = tuple(_state(each) for each in found.states)
        edge = {each.operand: EdgeForm(each.scalar, each.wide, each.scale, each.most) for each in found.edges}
        model = whole(replace(unpack_device_view(found.model, pools), states=states, edge=edge))
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        if isinstance(error, BadFile):
            raise
        raise BadFile(f"{label}: its head cannot be read: {error}") from None
    validate(model)
    main = model.main
    if any(s.input >= len(main.inputs) or s.output >= len(main.outputs) for s in states) or any(
        index >= len(main.operands) for index in edge
    ):
        raise InvalidModel(
            f"{label}: a state or edge names an operand that the model lacks, must be an input or output"
        )
    for index, form in edge.items():
        kinds = (F32,) if form.scale else (F32, I32)
        if form.converts and not (main.operands[index].type in kinds and math.isfinite(form.scale)):
            wanted = " or ".join(map(type_name, kinds))
            raise InvalidModel(f"{label}: edge of operand {index} is {form}, must be of {wanted}, with a finite scale")
    return model


def _state(each: _StoredState) -> State:
    dtype = np.dtype(each.dtype)
    if dtype.hasobject:
        raise ValueError(f"the type of a state is {each.dtype}, must be one of numbers")
    return State(each.input, each.output, np.frombuffer(each.initial, dtype).reshape(each.shape))
