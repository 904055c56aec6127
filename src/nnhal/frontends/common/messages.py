"""Messages of importers: the parts of a file that NNAPI lacks, and the shapes that the user must specify."""

from collections.abc import Mapping, Sequence

from nnhal.base.errors import UnsupportedModel
from nnhal.base.names import short

Problems = Mapping[tuple[str, str], Sequence[str]]  # places, by an operator's name and the reason
Left = list[tuple[str, tuple[int, ...], str]]  # an input's name, its assumed shape, and the text of the file's shape


def unsupported(label: str, problems: Problems, hint: str = "") -> UnsupportedModel:
    """Return one error that lists everything that cannot be expressed. hint: what may help."""
    parts = []
    for (name, reason), places in problems.items():
        where = " ".join([name, ", ".join(filter(None, places))]).strip()
        parts.append(f"{where}: {reason}" if reason else where)
    error = UnsupportedModel(f"{label}: cannot be expressed in NNAPI: {'; '.join([*parts, *filter(None, [hint])])}")
    error.refused = [(name, place, why) for (name, why), places in problems.items() for place in places]
    return error


def shape_hint(name: str, shape: tuple[int, ...]) -> str:
    """Return the option that sets the shape of an input, ready to copy."""
    import shlex

    option = shlex.quote(f"{short(name)}={','.join(map(str, shape))}")
    return f"--shape {option}, or shapes={{{name!r}: {shape!r}}}, with your sizes sets"


def shapes_needed_message(left: Left) -> str:
    """Return the message that asks for shapes."""
    return "; ".join(
        f"{text} is open in the file, must be given; {shape_hint(name, shape)} it" for name, shape, text in left
    )
