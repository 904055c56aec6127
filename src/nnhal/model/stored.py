"""A model as bytes, without its pools. For the same version of nnhal, on the same machine."""

from typing import Annotated

import msgspec
from msgspec import Meta

from nnhal.base.errors import InvalidModel
from nnhal.base.memory import Memory
from nnhal.model.graph import Model, Subgraph, with_codes_of_here


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    graphs: Annotated[tuple[Subgraph, ...], Meta(min_length=1)]
    values: bytes
    pools: int
    relaxed: bool
    extensions: tuple[tuple[str, int], ...]
    name: str


_decode = msgspec.msgpack.Decoder(_Stored).decode


def pack_device_view(model: Model) -> bytes:
    """Return the parts of a model that devices see, except for the contents of its pools."""
    facts = model.values, len(model.pools), model.relaxed, model.extensions, model.name
    return msgspec.msgpack.encode(_Stored(tuple(model.subgraphs), *facts))


def unpack_device_view(data: bytes | memoryview, pools: tuple[Memory, ...]) -> Model:
    """Restore a model, not validated, with this process's extension codes; InvalidModel for invalid bytes."""
    try:
        found = _decode(data)
    except msgspec.DecodeError as error:
        raise InvalidModel(f"stored model: cannot be read: {error}") from None
    if found.pools != len(pools):
        raise InvalidModel(f"stored model: {len(pools)} pools are given, must be {found.pools}")
    main, *referenced = found.graphs
    facts = found.values, pools, found.relaxed, found.extensions
    return with_codes_of_here(Model(main, tuple(referenced), *facts, name=found.name))
