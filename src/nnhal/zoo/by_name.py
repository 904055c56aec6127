"""Models by name: what packages ship, what is made here; fetched or made when they are first used."""

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from nnhal import zoo
from nnhal.base.errors import BadFile
from nnhal.base.names import meant, short
from nnhal.zoo import Progress

SUFFIXES = (".tflite", ".task", ".onnx")
MOST_FILES = 1000  # looked through for what was meant


def path(name: str, progress: Progress | None = None) -> Path:
    """The file of a model or picture; `progress` is told what takes long. BadFile for a name that there is not, ZooError."""
    return zoo.path(name, progress) if _fetched(name) else _maker().path(name, progress)


def opened(name: str, progress: Progress | None = None) -> BinaryIO:
    """The same, open for reading, its digest checked: what is read is what was fetched or made."""
    return zoo.opened(name, progress) if _fetched(name) else _maker().opened(name, progress)


def usual_shapes(name: str) -> Mapping[str, tuple[int, ...]] | None:
    """The shapes that a model's inputs are usually given where its file leaves them open; None where it does not."""
    return (zoo.entry(name).shapes or None) if name in zoo.onnx_names() else None


def _maker() -> Any:
    """What makes models, which a start with one of the zoo does not import."""
    from nnhal.zoo import maker

    return maker


def _fetched(name: str) -> bool:
    """Whether a name is that of a model or picture of the zoo, not of one that is made here."""
    fetched = (*zoo.names(), *zoo.onnx_names(), *zoo.pictures())
    if name in fetched:
        return True
    made = _maker().names()
    if name in made:
        return False
    must = "must be a .tflite or .onnx file or one that `nnhal models` lists"
    raise BadFile(
        f"{short(name)}: is no file and no model of the zoo, {must}{meant(name, (*made, *fetched, *_beside(name)))}"
    )


def _beside(name: str) -> list[str]:
    """Models in the folder where the file of this name would be."""
    with suppress(OSError, ValueError):  # no folder, or no name that a file can have
        folder = Path(name).parent
        return [str(folder / file.name) for file in islice(folder.iterdir(), MOST_FILES) if file.suffix in SUFFIXES]
    return []
