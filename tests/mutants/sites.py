"""Where a file can be changed by little: each site is a stretch of its text and what may stand there instead.

What nobody can notice is left out: annotations, documentation, messages of errors, what is logged, and what is only told
to type checkers.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

COMPARED = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
COMPUTED = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.FloorDiv: "*",
    ast.Div: "*",
    ast.Mod: "+",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.LShift: ">>",
    ast.RShift: "<<",
}
SYMBOLS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Div: "/",
    ast.Mod: "%",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.LShift: "<<",
    ast.RShift: ">>",
}
TYPES = ("int", "float", "str", "bytes", "bool", "list", "tuple", "dict", "None")
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
SILENT = ("_log.", "warnings.", "logger(")
QUIET_CALLS = ("require", "must", "fail", "bad", "refuse")  # their last argument is a message


class Site(NamedTuple):
    """A change: the text from byte `start` to `end` becomes `text`. line: where, from 1. was: what stands there."""

    path: Path
    line: int
    start: int
    end: int
    was: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}  {' '.join(self.was.split())!r} -> {self.text!r}"

    def applied(self, source: bytes) -> bytes:
        """The file's text with the change."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def sites(path: Path, source: bytes) -> list[Site]:
    """All changes of one file, in the order of its text."""
    text = _Text(source)
    found = []
    for node in _that_count(ast.parse(source)):
        for start, end, instead in _changes(node, text):
            line = source.count(b"\n", 0, start) + 1
            found.append(Site(path, line, start, end, source[start:end].decode(), instead))
    return sorted(found, key=lambda site: (site.start, site.text))


class _Text:
    """A file's text by the places that `ast` gives."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def span(self, node: Any) -> tuple[int, int]:
        """Where a node begins and ends."""
        return self._lines[node.lineno - 1] + node.col_offset, self._lines[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: Any) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self.source[start:end].decode()

    def between(self, left: Any, right: Any, symbol: str) -> tuple[int, int]:
        """Where an operator stands that stands between two nodes."""
        start = self.span(left)[1]
        at = self.source.index(symbol.encode(), start, self.span(right)[0])
        return at, at + len(symbol)


def _that_count(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes whose change changes what the program does."""
    yield node
    skipped: list[ast.AST | None] = []
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.AnnAssign | ast.arg):
        skipped += [node.annotation]
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        skipped += [node.returns, *node.decorator_list]
    elif isinstance(node, ast.ClassDef):
        skipped += [*node.decorator_list, *node.bases, *node.keywords]  # what a record is made like stands there
    elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in QUIET_CALLS:
        skipped += node.args[-1:]
    elif isinstance(node, ast.Call):
        skipped += [word for word in node.keywords if word.arg == "strict"]  # of zip: lengths that are never unlike
    for child in ast.iter_child_nodes(node):
        if not (_silent(child) or any(child is each for each in skipped)):
            yield from _that_count(child)


def _silent(node: ast.AST) -> bool:
    """Whether a statement documents or tells, and does no more."""
    if not isinstance(node, ast.Expr):
        return False
    return isinstance(node.value, ast.Constant) or ast.unparse(node.value).startswith(SILENT)


def _changes(node: ast.AST, text: _Text) -> Iterator[tuple[int, int, str]]:  # noqa: PLR0912 (a table)
    """The changes of one node itself: from where, to where, what stands there instead."""
    match node:
        case ast.Compare():
            for left, kind, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                was, instead = COMPARED[type(kind)]
                yield *text.between(left, right, was), instead
        case ast.BinOp() if type(node.op) in COMPUTED and not _of_names(node):
            symbol = SYMBOLS[type(node.op)]
            yield *text.between(node.left, node.right, symbol), COMPUTED[type(node.op)]
        case ast.BoolOp():
            was, instead = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            yield *text.between(node.values[0], node.values[1], was), instead
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            start = text.span(node)[0]
            yield start, start + (3 if isinstance(node.op, ast.Not) else 1), ""
        case ast.Constant(value=bool() as value):
            yield *text.span(node), str(not value)
        case ast.Constant(value=int() | float()):
            yield *text.span(node), f"({text.of(node)} + 1)"
        case ast.Call(func=ast.Name(id=name)) if name in SWAPPED:
            yield *text.span(node.func), SWAPPED[name]
        case ast.If(test=ast.Name() | ast.Attribute() | ast.Call()):
            yield *text.span(node.test), f"not ({text.of(node.test)})"
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
            yield *text.span(node), "pass"
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield *text.span(value), "None"
        case ast.Break():
            yield *text.span(node), "continue"
        case ast.Continue():
            yield *text.span(node), "break"


def _of_names(node: ast.BinOp) -> bool:
    """Whether it joins types or texts."""
    sides = [node.left, node.right]
    texts = any(
        isinstance(s, ast.JoinedStr) or (isinstance(s, ast.Constant) and isinstance(s.value, str)) for s in sides
    )
    types = isinstance(node.op, ast.BitOr) and any(
        ast.unparse(s).split(".")[-1][:1].isupper() or ast.unparse(s) in TYPES for s in sides
    )
    return texts or types
