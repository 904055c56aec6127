"""What an importer tells: all that a file needs and NNAPI lacks, and which shapes somebody has to say."""

from collections.abc import Mapping, Sequence

from nnhal.base.errors import UnsupportedModel
from nnhal.base.names import short

Problems = Mapping[tuple[str, str], Sequence[str]]  # places by an operator's name and the reason
Left = list[tuple[str, tuple[int, ...], str]]  # an input's name, the shape it is taken as, and how the file's is shown


def unsupported(label: str, problems: Problems, hint: str = "") -> UnsupportedModel:
    """The one error that lists everything that cannot be expressed. hint: what may help."""
    parts = []
    for (name, reason), places in problems.items():
        where = " ".join([name, ", ".join(filter(None, places))]).strip()
        parts.append(f"{where}: {reason}" if reason else where)
    error = UnsupportedModel(f"{label}: cannot be expressed in NNAPI: {'; '.join([*parts, *filter(None, [hint])])}")
    error.refused = [(name, place, why) for (name, why), places in problems.items() for place in places]
    return error


def how(name: str, shape: tuple[int, ...]) -> str:
    """How to say the shape of an input: what works as it is written, with the sizes that one wants put in."""
    import shlex

    option = shlex.quote(f"{short(name)}={','.join(map(str, shape))}")
    return f"--shape {option}, or shapes={{{name!r}: {shape!r}}}, with sizes of yours says"


def ask(left: Left) -> str:
    """What to tell somebody who has to say shapes."""
    return "; ".join(f"{text} is open in the file, must be given; {how(name, shape)} it" for name, shape, text in left)
