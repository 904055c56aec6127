"""The metadata of a model's file, as text and as JSON."""

from collections.abc import Iterator, Sequence
from typing import Any

from nnhal.base.brief import with_count
from nnhal.base.errors import BadFile
from nnhal.base.names import short
from nnhal.base.records import as_dict
from nnhal.model.metadata import AssociatedFile, Metadata, TensorMetadata

LABELS = 3  # labels that are shown


def said_of_model(said: Metadata) -> str:
    """Returns the name, version, author and description in metadata, and the associated files, in one line."""
    who = ", ".join(filter(None, (said.name, said.version, said.author, said.licence)))
    about = ": ".join(filter(None, (who, said.description.rstrip("."))))
    files = f"comes with {', '.join(map(_file, said.files))}" if said.files else ""
    return "; ".join(filter(None, (short(about), files)))


def metadata_facts(said: Metadata, tensors: Sequence[TensorMetadata]) -> list[str]:
    """Returns a line for each input or output.

    Args:
        said: The model's metadata.
        tensors: The metadata of the inputs or outputs.
    """
    return ["; ".join(map(short, _tensor(said, tensor))) for tensor in tensors]


def _tensor(said: Metadata, tensor: TensorMetadata) -> Iterator[str]:
    yield from filter(None, (tensor.description.rstrip("."), " ".join(filter(None, (tensor.content, tensor.colour)))))
    if tensor.dimension_names:
        yield f"dimensions {', '.join(tensor.dimension_names)}"
    if tensor.mean and tensor.std:
        yield f"(value - {_numbers(tensor.mean)}) / {_numbers(tensor.std)}"
    if tensor.least and tensor.greatest:
        yield f"between {_numbers(tensor.least)} and {_numbers(tensor.greatest)}"
    if tensor.threshold is not None:
        yield f"counts from {tensor.threshold:g} on"
    labels, problem = _labels(said, tensor)
    if problem:
        yield problem
    if labels:
        yield f"{with_count(len(labels), 'label')}: {', '.join(labels[:LABELS])}{', ..' * (len(labels) > LABELS)}"
    yield from map(_file, tensor.files)


def _labels(said: Metadata, tensor: TensorMetadata) -> tuple[tuple[str, ...], str]:
    """Returns labels, and the reason if they cannot be read."""
    try:
        return said.labels(tensor), ""
    except BadFile as error:
        return (), f"labels cannot be read: {error}"


def _numbers(values: tuple[float, ...]) -> str:
    """Formats numbers, or one number if all are equal."""
    texts = [f"{value:g}" for value in (values[:1] if len(set(values)) == 1 else values)]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _file(file: AssociatedFile) -> str:
    what = ", ".join(filter(None, (file.kind, file.locale, file.description)))
    return short(f"{file.name} ({what})" if what else file.name)


def metadata_document(said: Metadata | None) -> dict[str, Any] | None:
    """Returns all metadata for JSON; None if the file has none."""
    if said is None:
        return None
    words = {key: getattr(said, key) for key in ("name", "description", "version", "author", "licence", "problem")}
    sides = {
        side: [as_dict(tensor) | {"labels": _labels(said, tensor)[0]} for tensor in tensors]
        for side, tensors in (("inputs", said.inputs), ("outputs", said.outputs))
    }
    return {**words, **sides, "files": [as_dict(file) for file in said.files]}
