"""Formats models and tensors for the output of commands, with the type names of NumPy."""

from pathlib import PurePath

from nnhal.base.columns import shortened
from nnhal.base.names import is_path
from nnhal.base.operands import Shape
from nnhal.cli.common import size
from nnhal.model.outline import Outline

NAME = 32  # columns of a name
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
