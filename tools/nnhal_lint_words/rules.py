"""The words that the project does not use, what to write instead, and the measures of a page.

A rule is one entry of WORDS. If a word also has a good use, its pattern names the contexts of the bad one.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from nnhal_lint_words.passages import Passage, cells_of, of_markdown, of_python, prose_lines, sentences

MEAN_WORDS, P90_WORDS = 18, 28  # of the sentences of a page
LINE_CHARACTERS, CELL_CHARACTERS = 100, 160


class Finding(NamedTuple):
    """One place that breaks a rule.

    Attributes:
        file: The path, relative to the root of the repository.
        line: The line, from 1.
        found: The words that are there, or a measure.
        instead: What to write instead.
    """

    file: str
    line: int
    found: str
    instead: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.found} -> {self.instead}"


class Word(NamedTuple):
    """A rule.

    Attributes:
        pattern: What is forbidden, in a passage whose line breaks are spaces.
        instead: What to write instead.
        within: A pattern of the paths that the rule is for.
    """

    pattern: re.Pattern[str]
    instead: str
    within: re.Pattern[str]


def _word(pattern: str, instead: str, within: str = "", flags: int = re.IGNORECASE) -> Word:
    return Word(re.compile(pattern, flags), instead, re.compile(within))


_SOMEONE = (
    "(?:devices?|drivers?|engines?|models?|services?|runtime|nnhal|nnapi|litert|openvino|onnx runtime|it|they|that)"
)
_NOT_MODELS = r"^(?!src/nnhal/(?:ops|frontends|drivers|zoo|model)/|docs/(?:operations|.*operators|numerics)\.md)"

_USERS = r"^(?!src/)|^src/nnhal/cli/"  # the code has the class Level
_ONE = "(?:an?|one|each|this|that)"
_NOT_TURNED = r"(?! (?:into|to|out|off|on|up)\b)"
_START = r"(?:\A|(?<=[.!?:;] ))"
OPENINGS = (
    (rf"{_START}(?:What|Whatever|Who|Whoever|Whose) \w+", "the actor first: nnhal, the driver, the client, you"),
    (rf"{_START}Of (?:an?|the|what|each|several|all|one|its|those|which) ", "the actor first"),
    (rf"{_START}Where (?:an?|nothing|something|it|that|there|one|none|no) ", "If ... / When ..., or the actor first"),
    (r"\A(?:what|whatever|who|whoever|whose) \w+", "the actor first: nnhal, the driver, the client, you"),
)

WORDS = (
    *(_word(pattern, instead, flags=0) for pattern, instead in OPENINGS),
    _word(r"\bin (?:a )?process(?:es)? of (?:its|their) own\b", "isolated"),
    _word(r"\bof (?:its|his|their|your|my|our|(?:the |an? )?[a-z]+(?:'s|s')) own\b", "drop it, or name the owner"),
    _word(r"\bof (?:yours|theirs|ours|mine|nnhal's|somebody's|nobody's)\b", "your ... / nnhal's ..."),
    _word(r"\b(?:as|is|are|was|were|be|been) told\b", "reports / requested / receives"),
    _word(r"\btold\b", "reported, printed, logged, set"),
    _word(r"\btell(?:s|ing)?\b(?! \w+ apart)", "report, print, log"),
    _word(r"\b(?:says?|said|saying)\b", "report, declare, define"),
    _word(r"\bin (?:its |their |his |whose )?turns?\b", "alternately / one after another / when scheduled"),
    _word(r"\banew\b", "again / on each call"),
    _word(r"\bthat there (?:is|are)\b", "drop it"),
    _word(r"(?<!there )\b(?:is|are|was|were|be) (?-i:none)\b", "is not a ... / there is no ..."),
    _word(r"\bbesides\b", "also / in addition / except"),
    _word(r"\btak(?:e|es|en|ing) (?:it|them|this|that|one) for\b", "treats as / mistakes for"),
    _word(r"\ball else\b", "everything else, named"),
    _word(r"\b(?:for )?who (?:wants|has|needs|asks)\b", "you / the caller"),
    _word(r"\b(?:somebody|whoever)\b", "name the actor: you, the caller, another process"),
    _word(r"(?<!there )\bis no (?!longer\b|more\b|is\b)(?=[a-z])", "is not a ..."),
    _word(r"\bwhat (?:becomes|became|comes|came) of\b", "the outcome of"),
    _word(r"\blet(?:s|ting)? go\b", "release / close"),
    _word(r"\bg(?:ive|ives|ave|iving|iven) up\b", "time out / abandon"),
    # Terms.
    _word(
        r"(?<!time )(?<!quantisation )(?<!next )(?<!by )\bsteps?\b(?! by step| \d|-)(?! of (?:a|the) sequence)",
        "partition",
        _NOT_MODELS,
    ),
    _word(r"\bparts? of (?:a|the|its) model\b", "partition", _USERS),
    _word(r"\bcrossings?\b|\bcross(?:es|ed)? (?:between|from|to)\b|\bcross devices\b", "device transfer"),
    _word(
        rf"\b{_SOMEONE} (?:takes?|took)(?: (?:on|over))? (?:an |the |all |every |no |its )?operations?\b", "supports"
    ),
    _word(r"\b(?:does|do|did|can|cannot) not take\b|\bcannot take\b", "rejects"),
    _word(rf"\b{_SOMEONE} takes? (?:nothing|none|all|them|it)\b(?! for)", "supports / rejects"),
    _word(r"\bstated (?:performance|cost|price|figures?|times?|speed)\b", "declared"),
    _word(rf"\b{_SOMEONE} states?\b(?! of\b)", "declares"),
    _word(r"\b(?:un)?confine(?:d|s|ment)?\b", "sandbox, sandboxed"),
    _word(
        r"\bborders?\b(?![-:])",
        "IPC boundary",
        r"^(?!src/nnhal/(?:ops|frontends|drivers)/|docs/(?:operations|.*operators))",
    ),
    _word(
        r"(?<!editable )(?<!binary )(?<!text )(?<!closed )\bforms?\b(?! (?:an?|one|the|part) )",
        "kernel variant (an implementation) / signature (an argument list) / representation",
    ),
    _word(r"\b(?:dis)?pro(?:of|ofs|ve|ves|ved|ven|ving)\b(?! of concept)", "verify, verification"),
    _word(r"\bkept compilations?\b|\bwhat (?:is|was|were|are|it) kept\b", "compilation cache, cache entry"),
    _word(r"\btak(?:e|es|en|ing) out\b", "delete"),
    _word(r"\bpublished (?:test )?vectors?\b", "test vector"),
    _word(r"\bruns?/s\b|\bruns? (?:a|per) second\b", "throughput (inferences/s)"),
    _word(rf"\b(?:half|every|first|last|next|from|the|of|two|three|\d+|{_ONE}) turns?\b{_NOT_TURNED}", "iteration"),
    _word(r"(?<!simd )(?<!vector )\blanes?\b", "connection / channel"),
    _word(r"\brooms\b", "output buffers / packages"),
    _word(rf"\b(?:its|the|own|given|whose|their|caller's|{_ONE}) room\b", "output buffer"),
    _word(r"\broom (?:of|in bytes|code)\b", "output buffer"),
    _word(r"(?<!at a )\bstretch(?:ed|es|ing)?\b", "resize"),
    _word(r"\bfitted\b", "letterboxed"),
    _word(rf"\b(?:of|at|below|above|what|any|no|same|by|to|{_ONE}) levels?\b", "HAL version / feature level", _USERS),
    _word(
        r"\b(?:its|driver's|least|lowest|newest|older|higher|lower) levels?\b", "HAL version / feature level", _USERS
    ),
)


def in_python(file: str, source: str) -> Iterator[Finding]:
    """Yields what a Python module's docstrings, comments and texts must not have."""
    for passage in of_python(source):
        yield from _words(file, passage)


def in_markdown(file: str, source: str, *, measured: bool) -> Iterator[Finding]:
    """Yields what a page must not have.

    Args:
        file: The page's path.
        source: The page.
        measured: Whether users read it: then lengths of sentences, lines and cells count.
    """
    lengths = []
    for passage in of_markdown(source):
        yield from _words(file, passage)
        if passage.kind == "paragraph":
            lengths += [words for _, words in sentences(passage)]
    if not measured:
        return
    yield from _sentence_lengths(file, lengths)
    for line, text in prose_lines(source):
        if len(text) > LINE_CHARACTERS:
            yield Finding(file, line, f"a line of {len(text)} characters", f"at most {LINE_CHARACTERS}")
    for line, cell in cells_of(source):
        if len(cell) > CELL_CHARACTERS:
            yield Finding(file, line, f"a table cell of {len(cell)} characters", f"at most {CELL_CHARACTERS}")


def _words(file: str, passage: Passage) -> Iterator[Finding]:
    """Yields the forbidden words of a passage, each place once: the first rule counts."""
    text = passage.text.replace("\n", " ")
    taken: list[tuple[int, int]] = []
    for word in WORDS:
        if passage.kind == "heading" and word.instead.startswith(("the actor first", "If ...")):
            continue  # headings may be questions
        if not word.within.search(file):
            continue
        for match in word.pattern.finditer(text):
            begin, end = match.span()
            if passage.kind == "docstring" and text[end : end + 1] == ":" and " " not in match[0]:
                continue  # the name of an argument
            if any(begin < other_end and other_begin < end for other_begin, other_end in taken):
                continue
            taken.append((begin, end))
            yield Finding(file, passage.line_at(begin), f'"{match[0].strip()}"', word.instead)


def _sentence_lengths(file: str, lengths: list[int]) -> Iterator[Finding]:
    if not lengths:
        return
    mean, p90 = sum(lengths) / len(lengths), sorted(lengths)[int(0.9 * (len(lengths) - 1))]
    if mean > MEAN_WORDS:
        yield Finding(file, 1, f"sentences of {mean:.1f} words in the mean", f"at most {MEAN_WORDS}")
    if p90 > P90_WORDS:
        yield Finding(file, 1, f"sentences of {p90} words at p90", f"at most {P90_WORDS}")
