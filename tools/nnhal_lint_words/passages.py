"""Finds the prose of a Python file or a Markdown page, with the line that each piece of it begins in."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["docstring", "comment", "text", "paragraph", "heading", "cell"]


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of prose.

    Attributes:
        text: The prose, without indentation. Inline code is replaced by the word `code`; line breaks are those of the file.
        lines: The number of the source line for each line of `text`, from 1.
        kind: "docstring", "comment" or "text" (another string literal) in Python; "paragraph" (also a list item), "heading"
            or "cell" (of a table) in Markdown.
    """

    text: str
    lines: tuple[int, ...]
    kind: Kind

    def line_at(self, offset: int) -> int:
        """Returns the source line of a character of `text`."""
        return self.lines[min(self.text.count("\n", 0, offset), len(self.lines) - 1)]


_INLINE_CODE = re.compile(r"(`+)(?:(?!\1).)+?\1", re.DOTALL)
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_LINK_TARGET = re.compile(r"\]\([^)]*\)")
_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
_HEADING = re.compile(r"#{1,6}\s+(.*)")
_FENCE = re.compile(r"\s*(?:>\s*)?(`{3,}|~{3,}|:{3,})(.*)")
_ADMONITION = re.compile(r"\{(?:note|tip|hint|important|warning|caution|danger|seealso|admonition|dropdown)\}")
_TABLE_RULE = re.compile(r"\s*\|?[\s:|-]+\|[\s:|-]*$")


def plain(text: str) -> str:
    """Returns text with the word `code` in place of inline code and names of options, and without link targets."""
    text = _INLINE_CODE.sub(lambda code: "code" + "\n" * code[0].count("\n"), text)
    return _LINK_TARGET.sub("]", _OPTION.sub("code", text))


def of_python(source: str) -> Iterator[Passage]:
    """Yields the docstrings, comments and other texts of a Python module.

    A text is a string literal of at least three words, f-strings included: a message, a help text, a line of output.
    A quoted type annotation is not a text.
    """
    yield from _comments(source)
    tree = ast.parse(source)
    docstrings = set()
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            inside.update(node.values)
        elif isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
            inside.update(ast.walk(node.annotation))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            inside.update(ast.walk(node.returns))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield from _literal(node.value, node.lineno, "docstring" if node in docstrings else "text")
        elif isinstance(node, ast.JoinedStr):
            pieces = [str(part.value) if isinstance(part, ast.Constant) else "code" for part in node.values]
            yield from _literal("".join(pieces), node.lineno, "text")


def _literal(text: str, line: int, kind: Kind) -> Iterator[Passage]:
    """Yields each paragraph of a string literal."""
    if kind == "text" and len(text.split()) < 3:
        return
    for paragraph in re.finditer(r"(?:[^\n]*\S[^\n]*\n?)+", text):
        first = line + text.count("\n", 0, paragraph.start())
        stripped = plain("\n".join(part.strip() for part in paragraph[0].rstrip("\n").split("\n")))
        yield Passage(stripped, tuple(range(first, first + stripped.count("\n") + 1)), kind)


def _comments(source: str) -> Iterator[Passage]:
    """Yields the comments; those that stand alone in lines that follow each other are one passage."""
    block: list[tuple[int, str]] = []
    column = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, begin = token.start
        alone = not token.line[:begin].strip()
        if block and not (alone and begin == column and line == block[-1][0] + 1):
            yield _comment(block)
            block = []
        column = begin if alone else -1
        block.append((line, token.string.lstrip("#!: ")))
    if block:
        yield _comment(block)


def _comment(block: list[tuple[int, str]]) -> Passage:
    return Passage(plain("\n".join(text for _, text in block)), tuple(line for line, _ in block), "comment")


def of_markdown(source: str) -> Iterator[Passage]:
    """Yields the paragraphs, list items, headings and table cells of a page, without its code blocks and front matter."""
    block: list[tuple[int, str]] = []
    for number, line in _outside_code(source):
        heading, item = _HEADING.match(line), _ITEM.match(line)
        if not line.strip() or heading or item or line.lstrip().startswith("|"):
            if block:
                yield _paragraph(block)
            block = []
        if heading:
            yield Passage(plain(heading[1]), (number,), "heading")
        elif line.lstrip().startswith("|"):
            if not _TABLE_RULE.match(line):
                for cell in _cells(line):
                    yield Passage(plain(cell), (number,), "cell")
        elif line.strip():
            block.append((number, line[item.end() :].strip() if item else line.strip()))
    if block:
        yield _paragraph(block)


def _paragraph(block: list[tuple[int, str]]) -> Passage:
    return Passage(plain("\n".join(text for _, text in block)), tuple(number for number, _ in block), "paragraph")


def _outside_code(source: str) -> Iterator[tuple[int, str]]:
    """Yields numbered lines of prose; a line of a code block, of HTML or of front matter is empty.

    What stands in an admonition (a note, a warning) is prose, whichever characters fence it.
    """
    lines = source.split("\n")
    fences: list[tuple[str, bool]] = []  # with whether it holds code
    front = lines[0] == "---"
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        code = bool(fences) and fences[-1][1]
        prose = ""
        if front:
            front = number == 1 or line != "---"
        elif fence and fences and fence[1].startswith(fences[-1][0]) and not fence[2].strip():
            fences.pop()
        elif fence and not code:
            fences.append((fence[1], not (fence[1].startswith(":") or _ADMONITION.match(fence[2].strip()))))
        elif not (code or line.lstrip().startswith("<")):
            prose = line
        yield number, prose


def _cells(line: str) -> list[str]:
    """Returns the cells of a table's row, with their code; `\\|` does not end a cell."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def prose_lines(source: str) -> Iterator[tuple[int, str]]:
    """Yields numbered lines of a page that are prose: neither code nor table; links without their targets."""
    for number, line in _outside_code(source):
        if line.strip() and not line.lstrip().startswith("|"):
            yield number, _LINK_TARGET.sub("]", line)


def cells_of(source: str) -> Iterator[tuple[int, str]]:
    """Yields the cells of all tables of a page with their line; links without their targets."""
    for number, line in _outside_code(source):
        if line.lstrip().startswith("|"):
            for cell in _cells(line):
                yield number, _LINK_TARGET.sub("]", cell)


def sentences(passage: Passage) -> Iterator[tuple[int, int]]:
    """Yields for each sentence of a passage its line and its number of words; inline code is one word."""
    begin = 0
    text = passage.text
    for end in [*re.finditer(r"[.!?][*_\")\]]*(?=\s+|$)(?!\s+[a-z])", text), None]:
        until = len(text) if end is None else end.end()
        words = re.findall(r"[A-Za-z0-9][^\s]*", text[begin:until])
        if words:
            start = begin + len(text[begin:]) - len(text[begin:].lstrip())
            yield passage.line_at(start), len(words)
        begin = until
