"""Models by name: those of packages and generated ones, fetched or made when they are first used."""

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from nnhal import zoo
from nnhal.base.errors import BadFile
from nnhal.base.names import short, suggestion
from nnhal.zoo import Progress

SUFFIXES = (".tflite", ".task", ".onnx")
MOST_FILES = 1000  # searched for similar names


def path(name: str, progress: Progress | None = None) -> Path:
    """Return the file of a model or picture.

    Args:
        name: The name.
        progress: Called with a line of text before a slow action.

    Raises:
        BadFile: There is no such name.
        ZooError: The file is unavailable.
    """
    return zoo.path(name, progress) if _fetched(name) else _maker().path(name, progress)


def opened(name: str, progress: Progress | None = None) -> BinaryIO:
    """Open the file of a model or picture for reading, with its digest verified.

    Arguments and errors are those of `path`.
    """
    return zoo.opened(name, progress) if _fetched(name) else _maker().opened(name, progress)


def usual_shapes(name: str) -> Mapping[str, tuple[int, ...]] | None:
    """Return the usual shapes of a model's inputs if its file leaves them open, else None."""
    return (zoo.entry(name).shapes or None) if name in zoo.onnx_names() else None


def has_random_weights(name: str) -> bool:
    """Return whether a model looks like a trained one and has random weights."""
    if name in (*zoo.names(), *zoo.onnx_names()):
        return False
    maker = _maker()
    return name in maker.names() and "random weights" in maker.description(name)


def _maker() -> Any:
    """Import the module that makes models; a start with a model of the zoo does not need it."""
    from nnhal.zoo import maker

    return maker


def _fetched(name: str) -> bool:
    """Whether a name is that of a file of a package, not of a generated one."""
    fetched = (*zoo.names(), *zoo.onnx_names(), *zoo.pictures(), *zoo.datasets())
    if name in fetched:
        return True
    made = (*_maker().names(), *_maker().trained_names())
    if name in made:
        return False
    must = "must be a .tflite or .onnx file or a name that `nnhal models` lists"
    raise BadFile(
        f"{short(name)}: no such file or zoo model, {must}{suggestion(name, (*made, *fetched, *_beside(name)))}"
    )


def _beside(name: str) -> list[str]:
    """Return models in the folder of this name."""
    with suppress(OSError, ValueError):  # no such folder, or an invalid file name
        folder = Path(name).parent
        return [str(folder / file.name) for file in islice(folder.iterdir(), MOST_FILES) if file.suffix in SUFFIXES]
    return []
