"""Evaluates a test specification: Python, without access to files, modules or Python's internals.

- Syntax: an allow-list of nodes. No name and no attribute begins with two underscores, but a class may define `__init__`.
- Attributes: each access becomes a call of `_attribute`, which knows the attributes of each type.
- UniqueNames: the language's, some builtins, and parts of a few modules. Random numbers begin from one seed.
"""

import ast
import builtins
import collections
import copy
import functools
import itertools
import math
import operator
import random
import string
import sys
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

import numpy as np
from numpy.random import RandomState

from nnhal.base.errors import InvalidArgument
from nnhal.base.levels import VERSIONS
from nnhal.conformance.specs.document import document
from nnhal.conformance.specs.expansion import at_line, expand
from nnhal.conformance.specs.graph import SpecType, Visible
from nnhal.conformance.specs.language import Specification

_GET, _SET = "__attribute__", "__set_attribute__"  # no specification can name them

_NODES = """
    Module Expr Assign AugAssign AnnAssign For While If Break Continue Pass Return Assert Raise FunctionDef ClassDef
    Import ImportFrom alias arguments arg keyword Global Nonlocal Delete
    BoolOp And Or BinOp Add Sub Mult Div FloorDiv Mod Pow MatMult LShift RShift BitOr BitXor BitAnd
    UnaryOp Invert Not UAdd USub Compare Eq NotEq Lt LtE Gt GtE Is IsNot In NotIn
    Try ExceptHandler Lambda IfExp Dict Set List Tuple ListComp SetComp DictComp GeneratorExp comprehension Yield YieldFrom
    Call Constant JoinedStr FormattedValue Attribute Subscript Starred Name Slice Load Store Del NamedExpr
""".split()

_BUILTINS = """
    abs all any bin bool chr dict divmod enumerate filter float frozenset hash hex int isinstance issubclass iter len list
    map max min next pow range repr reversed round set slice sorted str sum super tuple zip
    ArithmeticError AssertionError Exception IndexError KeyError TypeError ValueError ZeroDivisionError
    NotImplementedError RuntimeError StopIteration classmethod object ord property staticmethod
""".split()

_NUMPY = """
    abs all allclose any append arange argmax argmin argsort array array_equal asarray broadcast_to ceil clip concatenate
    copy cos cumprod cumsum diff divide dot e einsum equal exp expand_dims expm1 eye fill_diagonal flatnonzero flip float16
    float32 float64 floor full full_like hstack identity inf int16 int32 int64 int8 isclose isfinite isinf isnan linspace log
    log1p matmul max maximum mean median meshgrid min minimum mod moveaxis multiply nan ndindex negative newaxis nonzero
    ones ones_like outer pad pi power prod ravel repeat reshape rint roll rot90 round sign sin sinh sort split sqrt square
    squeeze stack std subtract sum swapaxes take tan tanh tensordot tile transpose tril triu true_divide trunc uint16 uint32
    uint8 unique var vstack where zeros zeros_like
""".split()

_RANDOM = "choice choices gauss getrandbits randint random randrange sample seed shuffle uniform".split()
_ARRAYS = "choice normal permutation rand randint randn random_sample seed shuffle uniform".split()

_SCALAR = "astype imag is_integer item real tolist"
_ATTRIBUTES: Mapping[type, str] = {
    dict: "copy get items keys pop setdefault update values",
    list: "append clear copy count extend index insert pop remove reverse sort",
    tuple: "count index",
    set: "add copy difference discard intersection issubset union update",
    str: "count endswith find index isdigit join lower lstrip replace rsplit rstrip split startswith strip upper zfill",
    float: _SCALAR,
    int: _SCALAR,
    np.generic: _SCALAR,
    SpecType: "GetNumberOfElements IsBool IsFloat IsScalar",
    np.ndarray: "T all any argmax argmin astype clip copy cumsum dot dtype fill flatten item max mean min ndim prod ravel "
    "repeat reshape round shape size sort squeeze std sum swapaxes take tolist transpose var",
}
_PLAIN = bool, int, float, str, list, tuple, dict, set, type(None)


class _Part(Visible):
    """The part of a module that specifications see."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        vars(self).update(names)


def read(path: str, text: str, version: str, specification: str) -> tuple[dict[str, Any], bytes]:
    """The document of a specification, and its blob.

    Args:
        path: of the file, for errors.
        text: what the file holds.
        version: the name of its folder, such as V1_2.
        specification: its name, such as add_v1_2.

    Raises:
        InvalidArgument: with file and line.
    """
    try:
        found = Specification(path, version if version in VERSIONS else None)
        _evaluate(path, text, found)
        return document(version, specification, expand(specification, found.examples, found.versions))
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}:{error}") from None


def _evaluate(path: str, text: str, found: Specification) -> None:
    code, modules = compiled(path, text), _Modules()
    scope = {
        **found.names(),
        "math": modules.imported("math"),  # specifications of Android 10 do not import these two
        "np": modules.imported("numpy"),
        "__name__": "specification",
        "__builtins__": {
            **{name: getattr(builtins, name) for name in _BUILTINS},
            "__build_class__": _class,
            "__import__": modules.imported,
            "print": lambda *_, **__: None,
            "type": _type,
        },
        _GET: _attribute,
        _SET: _set_attribute,
    }
    try:
        exec(code, scope)
    except Exception as error:
        raise at_line(_line(path, error), error) from None


def compiled(path: str, text: str) -> CodeType:
    """The code of a specification, with every access to an attribute guarded. InvalidArgument for other syntax."""
    guard = _Guard()
    try:
        tree = guard.visit(ast.parse(text, path))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)
    except (MemoryError, RecursionError):
        raise InvalidArgument(f"{guard.line}: syntax nests too deeply, must nest less: name its parts") from None
    except (SyntaxError, ValueError) as error:
        raise InvalidArgument(f"{getattr(error, 'lineno', None) or 1}: {error}, must be Python") from None


class _Guard(ast.NodeTransformer):
    """Checks every node and name, and makes calls of accesses to attributes. line: that of the last node."""

    line = 1

    def visit(self, node: ast.AST) -> Any:
        if type(node) is ast.Constant:  # nearly all nodes of a large specification
            return node
        line = self.line = getattr(node, "lineno", self.line)
        if type(node).__name__ not in _NODES:
            raise InvalidArgument(f"{line}: {type(node).__name__} is not part of the language of specifications")
        for field in ("id", "name", "asname", "arg", "attr"):
            name = getattr(node, field, None)
            if isinstance(name, str) and "__" in name[:2] and not _is_init(node):
                raise InvalidArgument(f"{line}: name is {name}, must not begin with two underscores")
        if isinstance(node, (ast.Global, ast.Nonlocal)) and any(name.startswith("__") for name in node.names):
            raise InvalidArgument(f"{line}: names are {node.names}, must not begin with two underscores")
        return super().visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            raise InvalidArgument(f"{node.lineno}: .{node.attr} is set among others, must be set by `x.name = value`")
        return ast.copy_location(_call(_GET, node.value, ast.Constant(node.attr)), node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        target = node.targets[0]
        if len(node.targets) > 1 or not isinstance(target, ast.Attribute):
            return self.generic_visit(node)
        if target.attr.startswith("_"):
            raise InvalidArgument(f"{target.lineno}: .{target.attr} is set, must not begin with an underscore")
        call = _call(_SET, self.visit(target.value), ast.Constant(target.attr), self.visit(node.value))
        return ast.copy_location(ast.Expr(call), node)


def _is_init(node: ast.AST) -> bool:
    return getattr(node, "name" if isinstance(node, ast.FunctionDef) else "attr", None) == "__init__"


def _call(function: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(function, ast.Load()), list(arguments), [])


def _attribute(value: Any, name: str) -> Any:
    """An attribute that a specification asks for. InvalidArgument for one that it must not see."""
    if _is_visible(value) and (not name.startswith("_") or name == "__init__"):
        return getattr(value, name)
    if isinstance(value, str) and name == "format":
        return functools.partial(_Formatter().format, value)
    if isinstance(value, tuple) and name in getattr(value, "_fields", ()):
        return getattr(value, name)
    if value is itertools.chain and name == "from_iterable":
        return itertools.chain.from_iterable
    for kind, names in _ATTRIBUTES.items():
        if isinstance(value, kind) and name in names.split():
            return getattr(value, name)
    raise InvalidArgument(f"{type(value).__name__} has no attribute {name} that a specification may use")


def _set_attribute(value: Any, name: str, to: Any) -> None:
    if not _is_visible(value) or isinstance(value, type):
        raise InvalidArgument(f".{name} of {type(value).__name__} is set, must be of an object of the language")
    setattr(value, name, to)


def _is_visible(value: Any) -> bool:
    """Whether it is an object or class of the language, or of a class that the specification defines."""
    of = getattr(value, "__self__", None) if isinstance(value, super) else value
    return issubclass(of if isinstance(of, type) else type(of), Visible)


def _class(body: Any, name: str, *bases: Any) -> Any:
    """A class that a specification defines. Its bases are classes of the language, and no others."""
    visible = [base for base in bases if base is not object] or [Visible]
    if wrong := [base for base in visible if not (isinstance(base, type) and issubclass(base, Visible))]:
        raise InvalidArgument(f"class {name} has the base {wrong[0]!r}, must have classes of the language")
    return builtins.__build_class__(body, name, *visible)


def _type(value: Any) -> Any:
    """The type of plain values and of objects of the language: other types make what a specification must not have."""
    if type(value) in _PLAIN or (_is_visible(value) and not isinstance(value, type)):
        return type(value)
    raise InvalidArgument(f"type of {type(value).__name__} is asked for, must be that of a plain value")


class _Formatter(string.Formatter):
    """`str.format` without attributes."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        if not field_name.replace("_", "").isalnum() and field_name:
            raise InvalidArgument(f"field is {{{field_name}}}, must be a number or a name")
        return super().get_field(field_name, args, kwargs)


class _Modules:
    """The modules of `import`: parts of modules, and random numbers with one seed."""

    def __init__(self) -> None:
        self._parts = {
            "collections": _Part({"namedtuple": collections.namedtuple, "OrderedDict": dict}),
            "copy": _of(copy, ["copy", "deepcopy"]),
            "functools": _of(functools, ["partial", "reduce"]),
            "itertools": _of(itertools, [name for name in dir(itertools) if not name.startswith("_")]),
            "math": _of(math, [name for name in dir(math) if not name.startswith("_")]),
            "numpy": _Part({**vars(_of(np, _NUMPY)), "random": _of(RandomState(0), _ARRAYS)}),
            "operator": _of(operator, "add floordiv itemgetter mod mul neg sub truediv".split()),
            "random": _Part({**vars(_seeded()), "Random": _seeded}),
            "sys": _of(sys, ["maxsize"]),
        }

    def imported(self, name: str, scope: Any = None, inner: Any = None, names: Any = (), level: int = 0) -> Any:
        """The part of a module, for `import` and `from ... import`."""
        if level or name not in self._parts:
            raise InvalidArgument(f"module is {name}, must be one of {', '.join(self._parts)}")
        return self._parts[name]


def _seeded(seed: Any = 0) -> _Part:
    return _of(random.Random(seed), _RANDOM)


def _of(module: Any, names: Sequence[str]) -> _Part:
    return _Part({name: getattr(module, name) for name in names})


def _line(path: str, error: BaseException) -> int:
    """The innermost line of the specification that an error went through."""
    line, trace = 1, error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
