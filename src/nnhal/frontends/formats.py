"""Which importer reads a file: told by what it holds, not by its name."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nnhal.base.answers import shown
from nnhal.base.errors import InvalidArgument, InvalidModel, ShapeNeeded, UnsupportedModel
from nnhal.base.memory import Memory
from nnhal.frontends.common.fixed import Values
from nnhal.frontends.source import Source, is_onnx, opened, split

if TYPE_CHECKING:
    from nnhal.frontends.by_shape import Import
    from nnhal.model.graph import Model
    from nnhal.model.open import OpenModel
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


def open_by_shape(
    label: str,
    memory: Memory,
    folder: str | None,
    at: "Import",
    refused: UnsupportedModel | InvalidModel,
    signature: str | None,
    shapes: Shapes,
    values: Values | None,
) -> "OpenModel":
    """The model of a file that `load_opened` refused, where that is for want of sizes; else raises what it was refused with.

    at: imports it for sizes. The rest as of `load_opened`.
    """
    if is_onnx(memory.bytes()):
        from nnhal.frontends import onnx

        inputs = onnx.open_inputs(label, memory, folder=folder, shapes=shapes, values=values)
    else:
        from nnhal.frontends import tflite

        inputs = tflite.open_inputs(label, memory, signature=signature, shapes=shapes, values=values)
    if not inputs.open:
        raise refused
    from nnhal.frontends.by_shape import open_model

    return open_model(inputs, at, refused, label)


def refused_outline(source: Source, error: UnsupportedModel | ShapeNeeded, signature: str | None = None) -> "Outline":
    """What `load` refused with this error, operator by operator."""
    label, memory = opened(source)
    if is_onnx(memory.bytes()):
        from nnhal.frontends.onnx import outline

        return outline.refused_outline(label, memory, folder_of(source), error)
    from nnhal.frontends.tflite import outline as of_tflite

    return of_tflite.refused_outline(source, error, signature)
