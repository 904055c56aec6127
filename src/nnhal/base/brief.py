"""Short texts for people: one bounded line for `repr`, whatever the names contain; and durations."""

from collections.abc import Iterable, Sequence

from nnhal.base.codes import type_name

MOST = 120  # characters
_NAME = 32


def quoted_name(name: object) -> str:
    """Return a name in quotes and of bounded length, with escapes for control characters and invalid Unicode."""
    text = repr(str(name)[: _NAME + 1])
    return text if len(str(name)) <= _NAME and len(text) <= _NAME + 2 else f"{text[: _NAME - 2]}...{text[-1]}"


def tensor(name: object, type: int | str, shape: Sequence[int | None] | None) -> str:
    """Describe an operand: `'input' FLOAT32[1,?,3]`. type: its code, or a name."""
    kind = (type if isinstance(type, str) else type_name(type)).removeprefix("TENSOR_")
    dims = "?" if shape is None else ",".join("?" if d is None else str(d) for d in shape)
    kind += f"[{dims}]" if shape is None or shape else ""
    return f"{quoted_name(name)} {kind}" if name else kind


def with_count(count: int, what: str) -> str:
    """Return `1 input`, `2 inputs`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def short_repr(what: str, details: Iterable[str] = ()) -> str:
    """Return `<what: detail, detail>`, with as many details as fit."""
    text = what if len(what) <= MOST - 2 else f"{what[: MOST - 5]}..."
    between = ": "
    for detail in details:
        if len(text) + len(between) + len(detail) > MOST - len(", ...>") - 1:
            return f"<{text}{between}...>" if len(text) + len(between) + 5 <= MOST else f"<{text}>"
        text, between = f"{text}{between}{detail}", ", "
    return f"<{text}>"


def duration(seconds: float) -> str:
    """Return seconds as text, with at least three digits: `1.24 ms`."""
    if seconds >= 999.5:
        return f"{seconds:.0f} s"
    unit, factor = ("s", 1.0) if seconds >= 0.9995 else ("ms", 1e3) if seconds >= 0.9995e-3 else ("µs", 1e6)
    return f"{seconds * factor:.3g} {unit}"
