"""Formats models, tensors and metadata for the output of commands, with the type names of NumPy."""

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

from nnhal.base.brief import with_count
from nnhal.base.columns import shortened
from nnhal.base.errors import BadFile
from nnhal.base.names import is_path, short
from nnhal.base.operands import Shape
from nnhal.base.records import as_dict
from nnhal.cli.common import size
from nnhal.model.metadata import AssociatedFile, Metadata, TensorMetadata
from nnhal.model.outline import Outline

NAME = 32  # columns of a name
LABELS = 3  # labels that are shown
_QUANTISED = {
    "QUANT8_ASYMM": "uint8",
    "QUANT8_ASYMM_SIGNED": "int8",
    "QUANT8_SYMM": "int8",
    "QUANT8_SYMM_PER_CHANNEL": "int8",
    "QUANT16_SYMM": "int16",
    "QUANT16_ASYMM": "uint16",
    "BOOL8": "bool",
}


def type_text(name: str) -> str:
    """Formats a type: `float32` for TENSOR_FLOAT32, `int8` for TENSOR_QUANT8_ASYMM_SIGNED."""
    plain = name.removeprefix("TENSOR_")
    return _QUANTISED.get(plain, plain.lower())


def tensor_text(type: str, shape: Shape | None) -> str:
    """Formats a tensor: `float32 [1,128,128,3]`."""
    dims = "?" if shape is None else ",".join("?" if d is None else str(d) for d in shape)
    return f"{type_text(type)} [{dims}]"


def shown_name(model: str) -> str:
    """Returns the name of a model for the output: of its file, of the member of a bundle, or of the zoo."""
    return PurePath(model.replace(":", "/")).stem if is_path(model) or "." in model else model


def hal_version(level: str) -> str:
    """Formats a HAL version: `HAL 1.2`, `feature level 8`."""
    return level if "level" in level else f"HAL {level}"


def count_text(number: int) -> str:
    """Formats a number: 12,345 or 1.23 M; "" for 0."""
    for power, unit in ((9, "G"), (6, "M")):
        if number >= 10**power:
            return f"{number / 10**power:.3g} {unit}"
    return f"{number:,}" if number else ""


def title(name: str, facts: Outline) -> str:
    """Formats the title: `face_detection_short_range: 164 ops, 30.8 M multiply-adds, float16 weights (198 KiB)`."""
    stored = facts.stored()
    weights: dict[str, int] = {}
    for type, (_, _, held) in stored.items():
        weights[type_text(type)] = weights.get(type_text(type), 0) + held
    words = [f"{len(facts.nodes)} op{'' if len(facts.nodes) == 1 else 's'}"]
    macs = sum(map(facts.macs, facts.nodes))
    if macs:
        words.append(f"{_macs(macs)} multiply-adds")
    if weights:
        kinds = " + ".join(sorted(weights, key=lambda kind: -weights[kind])[:2])
        words.append(f"{kinds} weights ({size(sum(weights.values()))})")
    return f"{shortened(name, 2 * NAME)}: {', '.join(words)}"


def _macs(number: int) -> str:
    return count_text(number) or "0"


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
