"""The metadata of a model's file, its inputs and its outputs. It has no effect on results."""

from collections.abc import Mapping

from nnhal.base.records import PartlyCompared, Record, field

NOTHING: Mapping[str, bytes] = {}


class AssociatedFile(Record, frozen=True):
    """A file that belongs to a model. kind: "axis labels", "value labels", "vocabulary", ..., or "" if unknown."""

    name: str
    description: str = ""
    kind: str = ""
    locale: str = ""


class TensorMetadata(Record, frozen=True):
    """The metadata of one input or output.

    content: "image", "feature", "bounding boxes", "audio" or "". colour: "RGB", "grayscale" or "". mean, std: of an
    image's 0 to 255, one for all channels or one each: the input is (value - mean) / std. least, greatest: the range of
    values. threshold: the least score of a result that counts.
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
    """The metadata of a file. contents: its associated files by name, read on demand.

    problem: why the metadata could not be read, or not completely.
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
        """Return the labels of the places along a tensor's last dimension, or of its values; BadFile if unreadable."""
        found = [f for f in tensor.files if f.kind in ("axis labels", "value labels") and f.name in self.contents]
        best = min(found, key=lambda f: not (f.locale or "en").startswith("en"), default=None)
        if best is None:
            return ()
        lines = self.contents[best.name].decode(errors="replace").rstrip().splitlines()
        return tuple("".join(c for c in line if c.isprintable()) for line in lines)
