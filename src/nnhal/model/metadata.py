"""What a model's file says about itself, its inputs and its outputs: no part of what is computed."""

from collections.abc import Mapping

from nnhal.base.records import PartlyCompared, Record, field

NOTHING: Mapping[str, bytes] = {}


class AssociatedFile(Record, frozen=True):
    """A file that belongs to a model. kind: "axis labels", "value labels", "vocabulary", .. or "" where it is not stated."""

    name: str
    description: str = ""
    kind: str = ""
    locale: str = ""


class TensorMetadata(Record, frozen=True):
    """What is said of one input or output.

    content: "image", "feature", "bounding boxes", "audio" or "". colour: "RGB", "grayscale" or "". mean, std: of a picture's
    0 to 255, one for all channels or one each: the input is (value - mean) / std. least, greatest: what values are between.
    threshold: the score from which on a result counts.
    """

    name: str = ""
    description: str = ""
    dimension_names: tuple[str, ...] = ()
    content: str = ""
    colour: str = ""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    least: tuple[float, ...] = ()
    greatest: tuple[float, ...] = ()
    threshold: float | None = None
    files: tuple[AssociatedFile, ...] = ()


class Metadata(PartlyCompared, frozen=True):
    """What a file says about itself. contents: its associated files by name, each read when it is asked for.

    problem: why what it says could not be read, or not all of it.
    """

    name: str = ""
    description: str = ""
    version: str = ""
    author: str = ""
    licence: str = ""
    inputs: tuple[TensorMetadata, ...] = ()
    outputs: tuple[TensorMetadata, ...] = ()
    files: tuple[AssociatedFile, ...] = ()
    contents: Mapping[str, bytes] = field(default_factory=lambda: NOTHING)
    problem: str = ""

    _not_compared = _not_shown = frozenset({"contents"})

    def labels(self, tensor: TensorMetadata) -> tuple[str, ...]:
        """Labels of the places along a tensor's last dimension, or of its values. BadFile where they cannot be read."""
        found = [f for f in tensor.files if f.kind in ("axis labels", "value labels") and f.name in self.contents]
        best = min(found, key=lambda f: not (f.locale or "en").startswith("en"), default=None)
        if best is None:
            return ()
        lines = self.contents[best.name].decode(errors="replace").rstrip().splitlines()
        return tuple("".join(c for c in line if c.isprintable()) for line in lines)
