"""An imported model as bytes, with its validation results: for the same version of nnhal and the same file."""

from collections.abc import Mapping

import msgspec
import numpy as np

from nnhal.base.errors import InvalidModel
from nnhal.base.memory import Memory
from nnhal.base.records import replace
from nnhal.model.graph import EdgeForm, Model, State
from nnhal.model.metadata import NOTHING, Metadata
from nnhal.model.stored import pack_device_view, unpack_device_view
from nnhal.model.validate import StoredValidation, stored_validation, validated_before


class _KeptModel(msgspec.Struct, array_like=True, frozen=True):
    """states: input, output, type, shape and bytes of each. edge: scalar, wide, scale and most, by operand."""

    model: bytes
    known: StoredValidation
    states: tuple[tuple[int, int, str, tuple[int, ...], bytes], ...]
    edge: dict[int, tuple[bool, bool, float, int]]
    metadata: Metadata | None
    notes: tuple[str, ...]
    alike: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]


_decode = msgspec.msgpack.Decoder(_KeptModel).decode


def pack_model(model: Model) -> bytes:
    """Return the bytes of a model, without the contents of its pools and of the files in its metadata."""
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
        found = _decode(data)
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
