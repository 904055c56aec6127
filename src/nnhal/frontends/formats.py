"""Which importer reads a file: told by what it holds, not by its name."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nnhal.base.answers import shown
from nnhal.base.errors import InvalidArgument, ShapeNeeded, UnsupportedModel
from nnhal.base.memory import Memory
from nnhal.frontends.common.fixed import Values
from nnhal.frontends.source import Source, is_onnx, opened, split

if TYPE_CHECKING:
    from nnhal.model.graph import Model
    from nnhal.model.outline import Outline

Shapes = Mapping[str, Sequence[int]] | Sequence[Sequence[int]]


def folder_of(source: Source) -> str | None:
    """Where files beside a model are looked for: a path's folder; nowhere for bytes, open files and members of bundles."""
    if not isinstance(source, str | os.PathLike):
        return None
    path, members = split(str(os.fspath(source)))
    return None if members else os.path.dirname(os.path.abspath(path))


def load_opened(
    label: str,
    memory: Memory,
    folder: str | None,
    *,
    signature: str | None = None,
    shapes: Shapes | None = None,
    values: Values | None = None,
) -> "Model":
    """The model of a file that is `opened`. folder: see `folder_of`. The rest as of `nnhal.load`."""
    if is_onnx(memory.bytes()):
        from nnhal.frontends import onnx

        if signature is not None:
            raise InvalidArgument(f"{label}: signature is {shown(signature)}, must be left out: an .onnx file has none")
        return onnx.load_opened(label, memory, folder=folder, shapes=shapes, values=values)
    from nnhal.frontends import tflite

    return tflite.load_opened(label, memory, signature=signature, shapes=shapes, values=values)


def refused_outline(source: Source, error: UnsupportedModel | ShapeNeeded, signature: str | None = None) -> "Outline":
    """What `load` refused with this error, operator by operator."""
    label, memory = opened(source)
    if is_onnx(memory.bytes()):
        from nnhal.frontends.onnx import outline

        return outline.refused_outline(label, memory, folder_of(source), error)
    from nnhal.frontends.tflite import outline as of_tflite

    return of_tflite.refused_outline(source, error, signature)
