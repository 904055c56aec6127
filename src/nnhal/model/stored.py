"""A model as bytes, without its pools: as devices see it, or as imported. For the same version of nnhal and machine."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from nnhal.base.errors import InvalidModel
from nnhal.base.memory import Memory
from nnhal.base.records import replace
from nnhal.model.graph import EdgeForm, Model, State, Subgraph, with_codes_of_here
from nnhal.model.metadata import NOTHING, Metadata
from nnhal.model.validate import StoredValidation, stored_validation, validated_before


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    graphs: Annotated[tuple[Subgraph, ...], Meta(min_length=1)]
    values: bytes
    pools: int
    relaxed: bool
    extensions: tuple[tuple[str, int], ...]
    name: str


_decode_view = msgspec.msgpack.Decoder(_Stored).decode


def pack_device_view(model: Model) -> bytes:
    """Return the parts of a model that devices see, except for the contents of its pools."""
    facts = model.values, len(model.pools), model.relaxed, model.extensions, model.name
    return msgspec.msgpack.encode(_Stored(tuple(model.subgraphs), *facts))


def unpack_device_view(data: bytes | memoryview, pools: tuple[Memory, ...]) -> Model:
    """Restore a model, not validated, with this process's extension codes; InvalidModel for invalid bytes."""
    try:
        found = _decode_view(data)
    except msgspec.DecodeError as error:
        raise InvalidModel(f"stored model: cannot be read: {error}") from None
    if found.pools != len(pools):
        raise InvalidModel(f"stored model: {len(pools)} pools are given, must be {found.pools}")
    main, *referenced = found.graphs
    facts = found.values, pools, found.relaxed, found.extensions
    return with_codes_of_here(Model(main, tuple(referenced), *facts, name=found.name))


class _KeptModel(msgspec.Struct, array_like=True, frozen=True):
    """states: input, output, type, shape and bytes of each. edge: scalar, wide, scale and most, by operand."""

    model: bytes
    known: StoredValidation
    states: tuple[tuple[int, int, str, tuple[int, ...], bytes], ...]
    edge: dict[int, tuple[bool, bool, float, int]]
    metadata: Metadata | None
    notes: tuple[str, ...]
    alike: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]


_decode_model = msgspec.msgpack.Decoder(_KeptModel).decode


def pack_model(model: Model) -> bytes:
    """Return the bytes of an imported model, with its validation, without the contents of its pools and metadata files."""
    states = tuple((s.input, s.output, s.initial.dtype.str, s.initial.shape, s.initial.tobytes()) for s in model.states)
    edge = {n: (form.scalar, form.wide, form.scale, form.most) for n, form in model.edge.items()}
    metadata = None if model.metadata is None else replace(model.metadata, contents=NOTHING)
    found = _KeptModel(
        pack_device_view(model), stored_validation(model), states, edge, metadata, model.notes, model.alike
    )
    return msgspec.msgpack.encode(found)


def unpack_model(data: bytes | memoryview, pools: tuple[Memory, ...], contents: Mapping[str, bytes]) -> Model:
    """Restore a model from `pack_model`, validated as before; InvalidModel for other bytes.

    contents: of the files in its metadata. The bytes are trusted: they must come from `pack_model`.
    """
    try:
        found = _decode_model(data)
    except msgspec.DecodeError as error:
        raise InvalidModel(f"kept model: cannot be read: {error}") from None
    states = [
        State(given, gives, np.frombuffer(initial, kind).reshape(shape))
        for given, gives, kind, shape, initial in found.states
    ]
    model = replace(
        unpack_device_view(found.model, pools),
        states=tuple(states),
        edge={n: EdgeForm(*form) for n, form in found.edge.items()},
        metadata=None if found.metadata is None else replace(found.metadata, contents=contents),
        notes=found.notes,
        alike=found.alike,
    )
    return validated_before(model, found.known)
