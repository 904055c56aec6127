"""Selects the importer of a file by its content, not by its name."""

import os
from typing import TYPE_CHECKING

from nnhal.base.answers import safe_repr
from nnhal.base.errors import InvalidArgument, InvalidModel, ShapeNeeded, UnsupportedModel
from nnhal.base.memory import Memory
from nnhal.frontends.common.inputs import Shapes, Values
from nnhal.frontends.source import Source, is_onnx, open_source, split
from nnhal.model.file import is_model, read_model

if TYPE_CHECKING:
    from nnhal.frontends.by_shape import Import
    from nnhal.model.graph import Model
    from nnhal.model.open import OpenModel
    from nnhal.model.outline import Outline


def folder_of(source: Source) -> str | None:
    """Return the folder of external files: a path's folder; None for bytes, open files and members of bundles."""
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
    """Return the model of an `opened` file. folder: see `folder_of`. For the others, see `nnhal.load`."""
    if is_model(memory.bytes()):
        for name, given in {"signature": signature, "shapes": shapes, "values": values}.items():
            if given:
                raise InvalidArgument(
                    f"{label}: {name} is {safe_repr(given)}, must be left out: nnhal's own format has none"
                )
        return read_model(label, memory)
    if is_onnx(memory.bytes()):
        from nnhal.frontends import onnx

        if signature is not None:
            raise InvalidArgument(
                f"{label}: signature is {safe_repr(signature)}, must be left out: an .onnx file has no signatures"
            )
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
    """Return the model of a file that `load_opened` refused for missing sizes; raise other refusals.

    at: imports it for sizes. For the others, see `load_opened`.
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
    """Return the outline of a file that `load` refused with this error, operator by operator."""
    label, memory = open_source(source)
    if is_onnx(memory.bytes()):
        from nnhal.frontends.onnx import outline

        return outline.refused_outline(label, memory, folder_of(source), error)
    from nnhal.frontends.tflite import outline as of_tflite

    return of_tflite.refused_outline(source, error, signature)
