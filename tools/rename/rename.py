"""Renames classes, functions, methods, attributes and parameters of a checkout of nnhal, by a table.

    CHECKOUT/.venv/bin/python rename.py CHECKOUT [--table names.tsv] [--dry-run] [--only PATTERN]

The table has one name a line: old TAB scope TAB new [TAB flags]. README.md explains it.
"""

import argparse
import ast
import bisect
import io
import re
import subprocess
import sys
import textwrap
import time
import tokenize
import tomllib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
EXTRA = ("dir", "vars")
WORD = r"(?<![\w]){}(?![\w])"


# ---------------------------------------------------------------- table


@dataclass(eq=False)
class Entry:
    line: int
    old: str
    scope: str
    new: str
    flags: frozenset[str]
    kind: str = ""  # global, attr, param
    module: str = ""
    owner: str = ""  # class of an attribute; function of a parameter (qualified in its module)
    refused: list[str] = field(default_factory=list)
    edits: int = 0
    unknown: list[str] = field(default_factory=list)

    def refuse(self, why: str) -> None:
        if why not in self.refused:
            self.refused.append(why)

    def __str__(self) -> str:
        return f"{self.scope} -> {self.new}"


def read_table(path: Path) -> list[Entry]:
    entries, seen = [], {}
    for number, text in enumerate(path.read_text().splitlines(), 1):
        if not text.strip() or text.startswith("#"):
            continue
        parts = [part.strip() for part in text.split("\t")]
        if len(parts) not in (3, 4):
            sys.exit(f"{path}:{number}: has {len(parts)} columns, must be old, scope, new and perhaps flags")
        old, scope, new = parts[:3]
        flags = frozenset(parts[3].split(",")) - {""} if len(parts) == 4 else frozenset()
        if flags - {"any=rename", "any=leave"}:
            sys.exit(f"{path}:{number}: unknown flags {sorted(flags)}")
        entry = Entry(number, old, scope, new, flags)
        if not new.isidentifier() or not old.isidentifier() or old == new:
            sys.exit(f"{path}:{number}: {old} and {new} must be two identifiers")
        if scope in seen:
            sys.exit(f"{path}:{number}: {scope} stands in line {seen[scope]} already")
        seen[scope] = number
        entry.module, _, rest = scope.partition(":")
        if match := re.fullmatch(r"([\w.]+)\((\w+)\)", rest):
            entry.kind, entry.owner, last = "param", match[1], match[2]
        elif "." in rest:
            entry.kind = "attr"
            entry.owner, _, last = rest.rpartition(".")
        else:
            entry.kind, last = "global", rest
        if last != old:
            sys.exit(f"{path}:{number}: the scope must end with {old}")
        entries.append(entry)
    return entries


# ---------------------------------------------------------------- types, by mypy


class Types:
    """What mypy knows of the checkout: modules, classes, and the type of each receiver."""

    def __init__(self, root: Path, files: list[str]) -> None:
        from mypy import build
        from mypy.find_sources import create_source_list
        from mypy.fscache import FileSystemCache
        from mypy.main import process_options

        cache = FileSystemCache()
        arguments = ["--config-file", "pyproject.toml", "--cache-dir=/dev/null", "--follow-imports=normal"]
        arguments += ["--check-untyped-defs", "--explicit-package-bases", "--namespace-packages"]
        _, options = process_options([*arguments, *files], fscache=cache)
        options.mypy_path = [str(root / part) for part in ("src", "tools", "docs", ".")]
        options.export_types = options.preserve_asts = True
        options.incremental = False
        sources = create_source_list(files, options, cache)
        result = build.build(sources, options, fscache=cache)
        self.errors = result.errors
        self.types = result.types
        self.trees = {}  # module -> MypyFile, of the project
        self.module_of = {}  # file -> module
        self.all_trees = result.files
        for source in sources:
            if source.module in result.files:
                self.trees[source.module] = result.files[source.module]
                self.module_of[source.path] = source.module
        self.infos = []  # classes of the project
        self.class_at = {}  # (module, line, name) -> TypeInfo
        self.function_at = {}  # (module, line, name) -> FuncDef
        self.members = {}  # module -> {position: MemberExpr or SuperExpr}
        self.expressions = {}  # module -> {position: type} of receivers, callees and first arguments
        self.calls = {}
        for module, tree in self.trees.items():
            self._collect(module, tree)
        self.project = {id(info) for info in self.infos}

    def _collect(self, module: str, tree) -> None:
        members, expressions, calls = {}, {}, {}
        types = self.types

        def position(e):
            return e.line, e.column, e.end_line, e.end_column

        for node in every_node(tree):
            kind = type(node).__name__
            if kind in ("MemberExpr", "SuperExpr"):
                members[position(node)] = node
            elif kind == "CallExpr":
                for part in (node.callee, *node.args):
                    if (t := types.get(part)) is not None:
                        expressions[position(part)] = t
                calls[position(node)] = node
            elif kind == "ClassDef":
                self.infos.append(node.info)
                self.class_at[module, node.line, node.name] = node.info
            elif kind == "FuncDef":
                self.function_at[module, node.line, node.name] = node
        self.members[module], self.expressions[module], self.calls[module] = members, expressions, calls

    def classes(self, t):
        """Returns the classes that a receiver of type `t` may be of; None is in it where that is unknown."""
        from mypy import types as T
        from mypy.types import get_proper_type

        t = get_proper_type(t) if t is not None else None
        if t is None or isinstance(t, (T.AnyType, T.UninhabitedType, T.ErasedType, T.DeletedType, T.UnboundType)):
            return [None]
        if isinstance(t, T.Instance):
            return [t.type]
        if isinstance(t, T.UnionType):
            return [info for item in t.items for info in self.classes(item)]
        if isinstance(t, T.NoneType):
            return []
        if isinstance(t, T.TypeVarType):
            if t.values:
                return [info for item in t.values for info in self.classes(item)]
            return self.classes(t.upper_bound)
        if isinstance(t, T.TupleType):
            return self.classes(t.partial_fallback)
        if isinstance(t, T.TypedDictType):
            return self.classes(t.fallback)
        if isinstance(t, T.LiteralType):
            return self.classes(t.fallback)
        if isinstance(t, T.TypeType):
            return self.classes(t.item)
        if isinstance(t, T.CallableType):
            if t.is_type_obj():
                return self.classes(t.ret_type)
            return self.classes(t.fallback)
        if isinstance(t, T.Overloaded):
            return self.classes(t.items[0])
        return [None]

    def definer(self, info, name: str):
        """Returns the class of `info`'s bases that has `name`, or None."""
        for base in info.mro:
            if name in base.names:
                return base
        return None


NOT_CHILDREN = {"node", "info", "names", "expanded", "analyzed", "type", "unanalyzed_type", "original_def", "related", "defn"}
FIELDS: dict[type, list[str]] = {}


def every_node(tree):
    """Yields all statements, expressions and patterns of a tree of mypy (its visitors are compiled, closed to subclasses)."""
    from mypy.nodes import Argument, Expression, Statement
    from mypy.patterns import Pattern

    wanted = (Statement, Expression, Pattern, Argument)
    seen, todo = set(), list(tree.defs)
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        cls = type(node)
        if cls not in FIELDS:
            FIELDS[cls] = [
                name
                for name in dir(cls)
                if name not in NOT_CHILDREN and not name.startswith("__") and type(getattr(cls, name)).__name__ == "getset_descriptor"
            ]
        for name in FIELDS[cls]:
            try:
                value = getattr(node, name)
            except (AttributeError, AssertionError):
                continue
            stack = [value]
            while stack:
                value = stack.pop()
                if isinstance(value, wanted):
                    todo.append(value)
                elif isinstance(value, (list, tuple)):
                    stack.extend(value)


# ---------------------------------------------------------------- scopes of a file


class Scope:
    def __init__(self, node, kind: str, parent: "Scope | None") -> None:
        self.node, self.kind, self.parent = node, kind, parent
        self.bound: dict[str, set[str]] = defaultdict(set)  # name -> ways: param, import, def, class, assign
        self.imports: dict[str, tuple[str, str | None]] = {}
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        self.info = None  # of a class
        self.used: set[str] = set()


class File:
    """A file of the checkout: its text, its syntax tree, its scopes."""

    def __init__(self, path: str, module: str, is_package: bool, text: str) -> None:
        self.path, self.module, self.is_package = path, module, is_package
        self.text = text
        self.data = text.encode()
        self.starts = [0]
        for line in self.data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.tree = ast.parse(text)
        self.edits: dict[int, tuple[int, bytes, Entry]] = {}
        self.scope_of: dict[ast.AST, Scope] = {}  # where a node's names are looked up
        self.own_scope: dict[ast.AST, Scope] = {}
        self.parent: dict[ast.AST, ast.AST] = {}
        self.scopes: list[Scope] = []
        self._build()

    def at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def line_of(self, offset: int) -> int:
        return bisect.bisect_right(self.starts, offset)

    def where(self, node) -> str:
        return f"{self.path}:{node.lineno}"

    def _new(self, node, kind, parent) -> Scope:
        scope = Scope(node, kind, parent)
        self.own_scope[node] = scope
        self.scopes.append(scope)
        return scope

    def _build(self) -> None:
        self.top = self._new(self.tree, "module", None)
        for child in self.tree.body:
            self._visit(child, self.top, self.tree)

    def _target(self, level: int, module: str | None) -> str:
        if not level:
            return module or ""
        parts = self.module.split(".")
        drop = level - (1 if self.is_package else 0)
        base = parts[: len(parts) - drop] if drop else parts
        return ".".join([*base, module] if module else base)

    def _bind(self, scope: Scope, name: str, way: str) -> None:
        if name in scope.globals:
            scope = self.top
        elif name in scope.nonlocals:
            outer = scope.parent
            while outer is not None and (outer.kind == "class" or name not in outer.bound):
                outer = outer.parent
            scope = outer or scope
        if scope.kind == "comprehension" and way == "walrus":
            while scope.kind == "comprehension":
                scope = scope.parent
        scope.bound[name].add(way)

    def _visit(self, node, scope: Scope, parent) -> None:
        self.parent[node] = parent
        self.scope_of[node] = scope
        visit = self._visit
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._bind(scope, node.name, "def")
            inner = self._new(node, "function", scope)
            for statement in ast.walk(node):
                if isinstance(statement, ast.Global):
                    inner.globals.update(statement.names)
                elif isinstance(statement, ast.Nonlocal):
                    inner.nonlocals.update(statement.names)
            for part in node.decorator_list:
                visit(part, scope, node)
            self._arguments(node.args, scope, inner, node)
            if node.returns:
                visit(node.returns, scope, node)
            for part in node.body:
                visit(part, inner, node)
        elif isinstance(node, ast.Lambda):
            inner = self._new(node, "function", scope)
            self._arguments(node.args, scope, inner, node)
            visit(node.body, inner, node)
        elif isinstance(node, ast.ClassDef):
            self._bind(scope, node.name, "class")
            inner = self._new(node, "class", scope)
            for part in (*node.decorator_list, *node.bases, *node.keywords):
                visit(part, scope, node)
            for part in node.body:
                visit(part, inner, node)
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            inner = self._new(node, "comprehension", scope)
            for index, generator in enumerate(node.generators):
                self.parent[generator] = node
                self.scope_of[generator] = inner
                visit(generator.target, inner, generator)
                visit(generator.iter, scope if index == 0 else inner, generator)
                for part in generator.ifs:
                    visit(part, inner, generator)
            for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
                visit(part, inner, node)
        elif isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                self._bind(scope, node.id, "assign")
            scope.used.add(node.id)
        elif isinstance(node, ast.NamedExpr):
            self.parent[node.target] = node
            self.scope_of[node.target] = scope
            self._bind(scope, node.target.id, "walrus")
            visit(node.value, scope, node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                self.parent[alias] = node
                self.scope_of[alias] = scope
                name = alias.asname or alias.name.partition(".")[0]
                self._bind(scope, name, "import")
                if isinstance(node, ast.Import):
                    scope.imports[name] = (alias.name if alias.asname else name, None)
                else:
                    scope.imports[name] = (self._target(node.level, node.module), alias.name)
        else:
            if isinstance(node, ast.ExceptHandler) and node.name:
                self._bind(scope, node.name, "assign")
            elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
                self._bind(scope, node.name, "assign")
            elif isinstance(node, ast.MatchMapping) and node.rest:
                self._bind(scope, node.rest, "assign")
            for child in ast.iter_child_nodes(node):
                visit(child, scope, node)

    def _arguments(self, arguments: ast.arguments, outer: Scope, inner: Scope, node) -> None:
        self.parent[arguments] = node
        self.scope_of[arguments] = outer
        for argument in every_argument(arguments):
            self.parent[argument] = arguments
            self.scope_of[argument] = inner
            inner.bound[argument.arg].add("param")
            if argument.annotation:
                self._visit(argument.annotation, outer, argument)
        for default in (*arguments.defaults, *filter(None, arguments.kw_defaults)):
            self._visit(default, outer, arguments)

    def binder(self, name: str, scope: Scope) -> Scope | None:
        """Returns the scope that binds `name` where it is read in `scope`; None: a builtin."""
        current = scope
        first = True
        while current is not None:
            if name in current.globals:
                return self.top
            if name in current.bound and (current.kind != "class" or first):
                return current
            if current.kind != "comprehension":
                first = False
            current = current.parent
        return None

    def edit(self, start: int, old: str, new: str, entry: Entry) -> bool:
        wanted = old.encode()
        end = start + len(wanted)
        if self.data[start:end] != wanted:
            return False
        previous = self.edits.get(start)
        if previous and previous[1] != new.encode():
            entry.refuse(f"{self.path}:{self.line_of(start)} would become {previous[1].decode()} and {new}")
            previous[2].refuse(f"{self.path}:{self.line_of(start)} would become {previous[1].decode()} and {new}")
            return True
        self.edits[start] = (end, new.encode(), entry)
        return True


def every_argument(arguments: ast.arguments) -> list[ast.arg]:
    found = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return found + [a for a in (arguments.vararg, arguments.kwarg) if a]


# ---------------------------------------------------------------- the rename


class Renamer:
    def __init__(self, root: Path, entries: list[Entry]) -> None:
        self.root, self.entries = root, entries
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=root, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        self.listed = [path for path in listed if (root / path).is_file() and not (root / path).is_symlink()]
        self.python = [p for p in self.listed if p.endswith(".py") and not p.endswith(".mod.py")]
        self.types = Types(root, self.python)
        self.files: dict[str, File] = {}
        for path in self.python:
            module = self.types.module_of.get(path)
            if module is None:
                print(f"warning: mypy did not read {path}")
                continue
            self.files[module] = File(path, module, path.endswith("__init__.py"), (root / path).read_text())
        for path in self.listed:  # stubs have names, too: read by mypy as modules of their own
            if path.endswith(".pyi"):
                module = path.removeprefix("src/").removesuffix(".pyi").replace("/", ".")
                if module not in self.files:
                    self.files[module] = File(path, module, False, (root / path).read_text())
        self.unsure: list[str] = []
        self._link_classes()
        self.by_global: dict[str, Entry] = {}
        self.by_attr: dict[tuple[int, str], Entry] = {}
        self.by_param: dict[tuple[str, str], Entry] = {}
        self.families: dict[Entry, list] = {}
        self.resolve_table()

    # ---- what the table means

    def _link_classes(self) -> None:
        for module, file in self.files.items():
            for node, scope in file.own_scope.items():
                if scope.kind != "class":
                    continue
                lines = [node.lineno, *(d.lineno for d in node.decorator_list)]
                for line in lines:
                    if info := self.types.class_at.get((module, line, node.name)):
                        scope.info = info
        self.children = defaultdict(list)
        for info in self.types.infos:
            for base in info.mro[1:]:
                self.children[id(base)].append(info)
        self.protocols = [info for info in self.types.infos if info.is_protocol]

    def canonical(self, module: str, name: str):
        """Returns (the full name, the node) of a module's name, through its imports."""
        tree = self.types.all_trees.get(module)
        symbol = tree.names.get(name) if tree is not None else None
        if symbol is None or symbol.node is None:
            lazily = self.lazy(module).get(name)
            if lazily and lazily != module:
                return self.canonical(lazily, name)
            return f"{module}.{name}", None
        full = symbol.node.fullname or f"{module}.{name}"
        if type(symbol.node).__name__ == "MypyFile":
            return full, symbol.node
        if full.rpartition(".")[2] != name:  # another name for it
            file = self.files.get(module)
            target = file.top.imports.get(name) if file else None
            if target and target[1] and target[1] != name:
                return self.canonical(target[0], target[1])
            return f"{module}.{name}", symbol.node
        return full, symbol.node

    def lazy(self, module: str) -> dict[str, str]:
        """Returns what a package exports lazily: name -> module."""
        if not hasattr(self, "_lazy"):
            self._lazy = {}
        if module not in self._lazy:
            found = {}
            if file := self.files.get(module):
                for name, where, _ in lazy_names(file.tree):
                    found[name] = where
            self._lazy[module] = found
        return self._lazy[module]

    def component(self, info, name: str) -> list:
        """Returns all classes that define attribute `name` and belong together by inheritance or protocol."""
        found, todo = {}, [info]
        while todo:
            current = todo.pop()
            if id(current) in found:
                continue
            found[id(current)] = current
            below = [current, *self.children[id(current)]]
            for each in below:
                for base in each.mro:
                    if name in base.names and id(base) not in found:
                        todo.append(base)
            for protocol in self.protocols:
                if name not in protocol.names:
                    continue
                members = [m for base in protocol.mro if base.is_protocol for m in base.names if not m.startswith("__")]
                if current is protocol:
                    for other in self.types.infos:
                        if not other.is_protocol and all(other.get(m) for m in members):
                            definer = self.types.definer(other, name)
                            if definer is not None and id(definer) not in found:
                                todo.append(definer)
                elif any(all(each.get(m) for m in members) for each in below):
                    todo.append(protocol)
        return list(found.values())

    def resolve_table(self) -> None:
        public = set(self.lazy("nnhal")) | set(self.lazy("nnhal.driver"))
        if "nnhal.driver" in self.files:  # "these names are public and stay"
            public |= {name for name in self.files["nnhal.driver"].top.bound if name != "exports"}
        entry_points = set(re.findall(r'"([\w.]+:\w+)"', (self.root / "pyproject.toml").read_text()))
        others = "\n".join((self.root / p).read_text(errors="replace") for p in self.listed if p.endswith(".c"))
        self.c_strings = set(re.findall(r'"(\w+)"', others))
        self.c_looks_up = set(re.findall(r'GetAttrString\([^;]*?"(\w+)"', others))
        for entry in self.entries:
            file = self.files.get(entry.module)
            if file is None:
                entry.refuse("there is no such module")
                continue
            if entry.old in (self.c_looks_up if entry.kind == "global" else self.c_strings):
                entry.refuse("a C file has this name in a string")
            if f"{entry.module}:{entry.old}" in entry_points:
                entry.refuse("it is an entry point")
            if entry.kind == "global":
                if entry.old not in file.top.bound or "import" in file.top.bound[entry.old]:
                    entry.refuse("the module does not define it")
                    continue
                full = f"{entry.module}.{entry.old}"
                if entry.old in public and self.canonical("nnhal", entry.old)[0] == full:
                    entry.refuse("nnhal exports it")
                if entry.old in public and self.canonical("nnhal.driver", entry.old)[0] == full:
                    entry.refuse("nnhal.driver exports it")
                if entry.new in file.top.bound:
                    entry.refuse(f"{entry.module} has {entry.new} already")
                if "class" in file.top.bound[entry.old] and file.path.startswith("src/"):
                    for other in self.files.values():  # one name, one class: tests/test_names.py
                        if other.path.startswith("src/") and "class" in other.top.bound.get(entry.new, ()):
                            entry.refuse(f"{other.module} has a class {entry.new}")
                    if any(e.new == entry.new and e is not entry and e.kind == "global" for e in self.entries):
                        entry.refuse(f"{entry.new} is in the table twice")
                self.by_global[full] = entry
            elif entry.kind == "attr":
                scope = self.class_scope(file, entry.owner)
                if scope is None or scope.info is None:
                    entry.refuse("there is no such class")
                    continue
                definer = self.types.definer(scope.info, entry.old)
                if definer is None:
                    entry.refuse("the class has no such attribute")
                    continue
                family = self.component(definer, entry.old)
                self.families[entry] = family
                if "__slots__" in scope.info.names:
                    pass
                for info in family:
                    if id(info) not in self.types.project:
                        entry.refuse(f"{info.fullname} has it, which is not of the project")
                        continue
                    key = (id(info), entry.old)
                    if key in self.by_attr and self.by_attr[key].new != entry.new:
                        other = self.by_attr[key]
                        entry.refuse(f"belongs with {other}")
                        other.refuse(f"belongs with {entry}")
                    self.by_attr.setdefault(key, entry)
                    for each in (info, *self.children[id(info)]):
                        if (there := self.types.definer(each, entry.new)) is not None:
                            entry.refuse(f"{there.fullname} has {entry.new} already")
                    if info.is_enum:
                        entry.refuse(f"{info.fullname} is an Enum")
            else:
                self.resolve_param(entry, file)

    def class_scope(self, file: File, qualified: str) -> Scope | None:
        scope = file.top
        for part in qualified.split("."):
            for candidate in file.scopes:
                if candidate.kind == "class" and candidate.parent is scope and candidate.node.name == part:
                    scope = candidate
                    break
            else:
                return None
        return scope

    def resolve_param(self, entry: Entry, file: File) -> None:
        owner, _, name = entry.owner.rpartition(".")
        scope = self.class_scope(file, owner) if owner else file.top
        if scope is None:
            entry.refuse("there is no such class")
            return
        functions = []
        if owner and name != "__init__" and name != "__new__":
            definer = self.types.definer(scope.info, name) if scope.info else None
            if definer is None:
                entry.refuse("there is no such method")
                return
            for info in self.component(definer, name):
                if id(info) not in self.types.project:
                    entry.refuse(f"{info.fullname} has {name}, which is not of the project")
                    continue
                functions += [(f, n) for f, n in self.functions_of(info, name)]
        else:
            functions = [
                (file, s.node)
                for s in file.scopes
                if s.kind == "function" and s.parent is scope and getattr(s.node, "name", "") == name
            ]
        with_it = [(f, n) for f, n in functions if any(a.arg == entry.old for a in every_argument(n.args))]
        if not with_it:
            entry.refuse("there is no such parameter")
        entry.functions = with_it
        for f, n in with_it:
            if any("click" in ast.unparse(d) or "option" in ast.unparse(d) for d in n.decorator_list):
                entry.refuse("click passes it by name")
            for key in (f.module, n.lineno, n.name), *((f.module, d.lineno, n.name) for d in n.decorator_list):
                self.by_param[key, entry.old] = entry

    def functions_of(self, info, name: str):
        file = self.files.get(info.module_name)
        if file is None:
            return
        for scope in file.scopes:
            if scope.kind == "class" and scope.info is info:
                for inner in file.scopes:
                    if inner.kind == "function" and inner.parent is scope and getattr(inner.node, "name", "") == name:
                        yield file, inner.node

    # ---- all files

    def run(self) -> None:
        self.olds = {entry.old for entry in self.entries if not entry.refused}
        self.attrs = {e.old for e in self.entries if e.kind == "attr"}
        self.globals_old = {e.old for e in self.entries if e.kind == "global"}
        self.unknown: dict[str, list] = defaultdict(list)
        for file in self.files.values():
            Walker(self, file).run()
        self.params()
        self.settle_unknown()
        self.collisions()

    def attr_entry(self, t, name: str):
        """Returns ("yes", entry), ("no", None) or ("unknown", None) for attribute `name` of a receiver of type `t`."""
        entries, sure = set(), True
        other = False
        for info in self.types.classes(t):
            if info is None:
                sure = False
                continue
            definer = self.types.definer(info, name)
            if definer is None:
                if info.fallback_to_any or info.get("__getattr__") or info.fullname in ("builtins.object", "types.ModuleType", "builtins.type"):
                    sure = False
                # a class seen only through a protocol or an isinstance: a subclass may have it
                elif any(name in child.names for child in self.children[id(info)]):
                    sure = False
                else:
                    other = True
                continue
            entry = self.by_attr.get((id(definer), name))
            if entry is None:
                other = True
            else:
                entries.add(entry)
        if len({e.new for e in entries}) > 1 or (entries and other):
            for entry in entries:
                entry.refuse(f"a receiver of attribute {name} has several types: " + ", ".join(map(str, entries)))
            return "no", None
        if entries:
            return "yes", next(iter(entries))
        if not sure:
            return "unknown", None
        return "no", None

    def settle_unknown(self) -> None:
        """An attribute of an unknown receiver: renamed where all definitions of that name are, to one name."""
        definers = defaultdict(list)
        for info in self.types.infos:
            for name in info.names:
                if name in self.attrs:
                    definers[name].append(info)
        global_names = defaultdict(set)
        for module, file in self.files.items():
            for name in file.top.bound:
                if name in self.attrs and "import" not in file.top.bound[name]:
                    global_names[name].add(f"{module}.{name}")
        for name, places in self.unknown.items():
            if name not in self.attrs:
                continue
            entries = [e for e in self.entries if e.kind == "attr" and e.old == name]
            flags = set().union(*(e.flags for e in entries))
            live = [e for e in entries if not e.refused]
            if not live:
                continue
            news = {e.new for e in live}
            rest = [i.fullname for i in definers[name] if self.by_attr.get((id(i), name)) not in live]
            rest += [f for f in global_names[name] if f not in self.by_global]
            if name in FOREIGN and "any=rename" not in flags:
                rest.append(f"{FOREIGN[name]} of Python or numpy")
            one = len(news) == 1
            if (one and not rest and "any=leave" not in flags) or (one and "any=rename" in flags):
                for file, start, _ in places:
                    if file.edit(start, name, live[0].new, live[0]):
                        live[0].edits += 1
                    else:
                        self.unsure.append(f"{file.path}:{file.line_of(start)}: .{name} is not where it should be")
            elif "any=leave" in flags:
                for file, start, _ in places:
                    self.unsure.append(f"{file.path}:{file.line_of(start)}: .{name} of an unknown receiver stays")
            else:
                where = ", ".join(f"{file.path}:{file.line_of(start)}" for file, start, _ in places[:6])
                for entry in live:
                    entry.refuse(
                        f"{len(places)} receivers of .{name} are of unknown type ({where}); "
                        + (f"others have it: {', '.join(rest[:4])}" if rest else f"new names: {', '.join(sorted(news))}")
                    )

    def params(self) -> None:
        for entry in self.entries:
            if entry.kind != "param" or entry.refused:
                continue
            for file, node in entry.functions:
                scope = file.own_scope[node]
                rename_local(file, scope, node, entry, self)

    def collisions(self) -> None:
        """No renamed name may be bound already, or be taken for another, where it is used."""
        for file in self.files.values():
            if not file.edits:
                continue
            for name, new, scope, entry, node in file.bare:
                current = scope
                binder = file.binder(name, scope)
                while current is not None:
                    if new in current.bound and not all_renamed_away(current, new, file):
                        if not (current.kind == "class" and current is not scope):
                            entry.refuse(f"{new} is a name already in {file.path}:{getattr(current.node, 'lineno', 1)}")
                    if current is binder:
                        break
                    current = current.parent
                if binder is not None and binder.kind != "class":
                    # names that were something else (a builtin, a global) below the binder
                    for other in file.scopes:
                        if new in other.used and other is not binder and within(other, binder):
                            found = file.binder(new, other)
                            if found is None or (found is not binder and not within(found, binder)):
                                entry.refuse(f"{new} means something else in {file.path}:{getattr(other.node, 'lineno', 1)}")
                    if new in binder.used and new not in binder.bound:
                        entry.refuse(f"{new} means something else in {file.path}")

    # ---- writing

    def write(self, dry: bool) -> list[str]:
        changed = []
        self.old_lines, self.new_lines = {}, {}
        for file in self.files.values():
            edits = sorted((s, e, t, n) for s, (e, t, n) in file.edits.items() if not n.refused)
            if not edits:
                continue
            out, last = [], 0
            for start, end, text, entry in edits:
                out += [file.data[last:start], text]
                last = end
                entry.edits += 1
            out.append(file.data[last:])
            data = b"".join(out)
            self.old_lines[file.path] = file.data.decode().splitlines()
            self.new_lines[file.path] = data.decode().splitlines()
            changed.append(file.path)
            if not dry:
                (self.root / file.path).write_bytes(data)
        return changed


def within(scope: Scope, outer: Scope) -> bool:
    current = scope
    while current is not None:
        if current is outer:
            return True
        current = current.parent
    return False


def all_renamed_away(scope: Scope, name: str, file: File) -> bool:
    return False


def rename_local(file: File, scope: Scope, node, entry: Entry, renamer: Renamer) -> None:
    """Renames a parameter in its function: the argument, its uses, its line in the docstring."""
    for argument in every_argument(node.args):
        if argument.arg == entry.old:
            file.edit(file.at(argument.lineno, argument.col_offset), entry.old, entry.new, entry)
    for other in file.names.get(entry.old, ()):
        at = file.scope_of[other]
        if within(at, scope) and file.binder(entry.old, at) is scope:
            if not file.edit(file.at(other.lineno, other.col_offset), entry.old, entry.new, entry):
                place_in_fstring(file, other, entry.old, entry, renamer, attribute=False)
            file.bare.append((entry.old, entry.new, at, entry, other))
    if entry.new in scope.bound:
        entry.refuse(f"{entry.new} is a name already in {file.path}:{node.lineno}")
    file.bare.append((entry.old, entry.new, scope, entry, node))
    doc = node.body and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
    owner = scope.parent.node if node.name == "__init__" and scope.parent.kind == "class" else None
    for holder in (node, owner):
        if holder is None or not holder.body:
            continue
        first = holder.body[0]
        if not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)):
            continue
        start = file.at(first.value.lineno, first.value.col_offset)
        end = file.at(first.value.end_lineno, first.value.end_col_offset)
        text = file.data[start:end].decode()
        for match in re.finditer(rf"(?m)^ +({entry.old})(?= \([^\n]*\):|:)|`({entry.old})`", text):
            group = 1 if match[1] else 2
            file.edit(start + len(text[: match.start(group)].encode()), entry.old, entry.new, entry)


def lazy_names(tree: ast.Module):
    """Yields (name, module, its string's node) of the tables of lazy exports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                    if isinstance(key.value, str) and isinstance(value.value, str) and value.value.startswith("nnhal."):
                        if key.value.isidentifier():
                            yield key.value, value.value, key
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "fromkeys"
            and len(node.args) == 2
            and isinstance(node.args[1], ast.Constant)
            and isinstance(node.args[1].value, str)
            and node.args[1].value.startswith("nnhal.")
            and isinstance(node.args[0], (ast.Tuple, ast.List, ast.Set))
        ):
            for item in node.args[0].elts:
                if isinstance(item, ast.Constant) and isinstance(item.value, str):
                    yield item.value, node.args[1].value, item


def place_in_fstring(file: File, node, old: str, entry: Entry, renamer: Renamer, attribute: bool) -> None:
    """Python 3.11 does not know where names of f-strings stand: found by text, if that is sure."""
    outer = node
    while outer is not None and not isinstance(outer, ast.JoinedStr):
        outer = file.parent.get(outer)
    while isinstance(file.parent.get(outer), (ast.JoinedStr, ast.FormattedValue)):
        outer = file.parent[outer]
    if outer is None:
        entry.refuse(f"{file.where(node)}: {old} is not where it should be")
        return
    start, end = file.at(outer.lineno, outer.col_offset), file.at(outer.end_lineno, outer.end_col_offset)
    text = file.data[start:end].decode()
    pattern = r"(?<=\.)" + re.escape(old) + r"\b" if attribute else r"(?<![\w.])" + re.escape(old) + r"\b(?!\s*=[^=])"
    # count names that mean the same in the tree with those in the text (in braces only)
    spots = [m.start() for m in re.finditer(pattern, text) if in_braces(text, m.start())]
    want = 0
    for inner in ast.walk(outer):
        if attribute and isinstance(inner, ast.Attribute) and inner.attr == old:
            want += 1
        elif not attribute and isinstance(inner, ast.Name) and inner.id == old:
            want += 1
    key = (id(outer), old, attribute)
    file.fstrings[key] = file.fstrings.get(key, 0) + 1
    file.fstring_want[key] = (want, spots, start, text, entry, old)


def in_braces(text: str, at: int) -> bool:
    depth, index = 0, 0
    while index < at:
        if text[index] == "{":
            if text[index : index + 2] == "{{" and depth == 0:
                index += 1
            else:
                depth += 1
        elif text[index] == "}":
            if text[index : index + 2] == "}}" and depth == 0:
                index += 1
            elif depth:
                depth -= 1
        index += 1
    return depth > 0


class Walker:
    """Finds what to rename in one file."""

    def __init__(self, renamer: Renamer, file: File) -> None:
        self.renamer, self.file, self.types = renamer, file, renamer.types
        self.members = self.types.members.get(file.module, {})
        self.expressions = self.types.expressions.get(file.module, {})
        self.calls = self.types.calls.get(file.module, {})
        file.bare, file.fstrings, file.fstring_want = [], {}, {}
        file.names = defaultdict(list)

    def run(self) -> None:
        olds = {e.old for e in self.renamer.entries}
        for node in ast.walk(self.file.tree):
            kind = type(node)
            if kind is ast.Name:
                if node.id in olds:
                    self.file.names[node.id].append(node)
                    self.name(node)
            elif kind is ast.Attribute:
                if node.attr in olds:
                    self.attribute(node)
            elif kind in (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
                if node.name in olds:
                    self.definition(node)
            elif kind is ast.ImportFrom:
                self.import_from(node)
            elif kind is ast.Call:
                self.call(node)
            elif kind is ast.Global:
                for name in node.names:
                    if entry := self.renamer.by_global.get(f"{self.file.module}.{name}"):
                        self.word_in(node, name, entry)
            elif kind is ast.MatchClass:
                self.match_class(node)
            elif kind is ast.Constant and isinstance(node.value, str):
                self.string(node)
            elif kind is ast.JoinedStr and not isinstance(self.file.parent.get(node), ast.FormattedValue):
                self.code(node)
                self.dotted(node)
        for name, where, node in lazy_names(self.file.tree):
            full, _ = self.renamer.canonical(where, name)
            if entry := self.renamer.by_global.get(full):
                self.in_string(node, name, entry)
        self.fstrings()

    def fstrings(self) -> None:
        for key, count in self.file.fstrings.items():
            want, spots, start, text, entry, old = self.file.fstring_want[key]
            if count == want == len(spots):
                for spot in spots:
                    self.file.edit(start + len(text[:spot].encode()), old, entry.new, entry)
            else:
                entry.refuse(f"{self.file.path}:{self.file.line_of(start)}: {old} in an f-string is not sure")

    # ---- bare names

    def meaning(self, name: str, scope: Scope):
        """Returns ("global", full name, node), ("attr", class), ("module", name), ("local", scope) or None."""
        binder = self.file.binder(name, scope)
        if binder is None:
            return None
        if binder.kind == "class":
            return "attr", binder, None
        if binder.kind == "module":
            if name in binder.imports and binder.bound[name] == {"import"}:
                return self.imported(*binder.imports[name])
            full, node = self.renamer.canonical(self.file.module, name)
            if full.rpartition(".")[2] == name and not full.startswith(self.file.module + "."):
                return "global", full, node
            return "global", f"{self.file.module}.{name}", node
        if binder.bound[name] == {"import"}:
            return self.imported(*binder.imports[name])
        return "local", binder, None

    def imported(self, module: str, name: str | None):
        if name is None:
            return "module", module, None
        if f"{module}.{name}" in self.types.all_trees and (
            module not in self.types.all_trees or name not in self.types.all_trees[module].names
            or type(self.types.all_trees[module].names[name].node).__name__ == "MypyFile"
        ):
            return "module", f"{module}.{name}", None
        full, node = self.renamer.canonical(module, name)
        if type(node).__name__ == "MypyFile":
            return "module", full, None
        return "global", full, node

    def name(self, node: ast.Name) -> None:
        meaning = self.meaning(node.id, self.file.scope_of[node])
        if meaning is None:
            return
        entry = None
        if meaning[0] == "global":
            entry = self.renamer.by_global.get(meaning[1])
            if entry and entry.old != node.id:
                return
        elif meaning[0] == "attr" and meaning[1].info is not None:
            definer = self.types.definer(meaning[1].info, node.id)
            entry = definer and self.renamer.by_attr.get((id(definer), node.id))
        if entry is None:
            return
        if not self.file.edit(self.file.at(node.lineno, node.col_offset), node.id, entry.new, entry):
            place_in_fstring(self.file, node, node.id, entry, self.renamer, attribute=False)
        self.file.bare.append((node.id, entry.new, self.file.scope_of[node], entry, node))

    def definition(self, node) -> None:
        scope = self.file.scope_of[node]
        entry = None
        if scope.kind == "module" or node.name in scope.globals:
            entry = self.renamer.by_global.get(f"{self.file.module}.{node.name}")
        elif scope.kind == "class" and scope.info is not None:
            definer = self.types.definer(scope.info, node.name)
            entry = definer and self.renamer.by_attr.get((id(definer), node.name))
        if entry is None:
            return
        start = self.file.at(node.lineno, node.col_offset)
        match = re.compile(rb"(?:async\s+)?(?:def|class)\s+").match(self.file.data, start)
        self.file.edit(match.end(), node.name, entry.new, entry)
        self.file.bare.append((node.name, entry.new, scope, entry, node))
        if entry.kind == "global" and is_fixture(node):
            self.fixture(node, entry)

    def import_from(self, node: ast.ImportFrom) -> None:
        module = self.file._target(node.level, node.module)
        for alias in node.names:
            if alias.name == "*":
                for entry in self.renamer.entries:
                    if entry.kind == "global" and entry.module == module:
                        entry.refuse(f"{self.file.where(node)} imports *")
                continue
            full, _ = self.renamer.canonical(module, alias.name)
            entry = self.renamer.by_global.get(full)
            if entry and entry.old == alias.name:
                start = self.file.at(alias.lineno, alias.col_offset)
                self.file.edit(start, alias.name, entry.new, entry)
                if alias.asname is None:
                    self.file.bare.append((alias.name, entry.new, self.file.scope_of[node], entry, node))

    # ---- attributes

    def module_of(self, node):
        """Returns the module that an expression is, or None."""
        if isinstance(node, ast.Name):
            meaning = self.meaning(node.id, self.file.scope_of[node])
            return meaning[1] if meaning and meaning[0] == "module" else None
        if isinstance(node, ast.Attribute) and (outer := self.module_of(node.value)):
            if outer in self.types.all_trees:
                tree = self.types.all_trees[outer]
                if node.attr in tree.names and type(tree.names[node.attr].node).__name__ == "MypyFile":
                    return tree.names[node.attr].node.fullname
                if node.attr in tree.names:
                    return None
            return f"{outer}.{node.attr}" if f"{outer}.{node.attr}" in self.types.all_trees else None
        return None

    def class_of(self, node):
        """Returns the class that an expression names, or None."""
        if isinstance(node, ast.Name):
            meaning = self.meaning(node.id, self.file.scope_of[node])
            if meaning and meaning[0] == "global" and type(meaning[2]).__name__ == "TypeInfo":
                return meaning[2]
        if isinstance(node, ast.Attribute) and (module := self.module_of(node.value)):
            found = self.renamer.canonical(module, node.attr)[1]
            return found if type(found).__name__ == "TypeInfo" else None
        return None

    def attribute(self, node: ast.Attribute) -> None:
        start = self.file.at(node.end_lineno, node.end_col_offset) - len(node.attr.encode())
        if module := self.module_of(node.value):
            full, _ = self.renamer.canonical(module, node.attr)
            entry = self.renamer.by_global.get(full)
            if entry and entry.old == node.attr:
                self.put_attribute(node, start, entry)
            return
        if node.attr not in self.renamer.attrs:
            return
        verdict, entry = self.receiver(node.value, node)
        if verdict == "yes":
            self.put_attribute(node, start, entry)
        elif verdict == "unknown":
            if self.file.data[start : start + len(node.attr)] != node.attr.encode():
                for each in self.renamer.entries:
                    if each.kind == "attr" and each.old == node.attr:
                        each.refuse(f"{self.file.where(node)}: in an f-string, of unknown type")
                return
            self.renamer.unknown[node.attr].append((self.file, start, node))

    def receiver(self, value, node):
        name = node.attr
        if (info := self.class_of(value)) is not None:
            definer = self.types.definer(info, name)
            if definer is not None:
                entry = self.renamer.by_attr.get((id(definer), name))
                return ("yes", entry) if entry else ("no", None)
        key = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
        member = self.members.get(key)
        if member is None:
            return "unknown", None
        if type(member).__name__ == "SuperExpr":
            info = member.info
            for base in info.mro[1:] if info else ():
                if name in base.names:
                    entry = self.renamer.by_attr.get((id(base), name))
                    return ("yes", entry) if entry else ("no", None)
            return "unknown", None
        t = self.types.types.get(member.expr)
        if t is None:
            return self.enclosing_self(value, name)
        verdict = self.renamer.attr_entry(t, name)
        if verdict[0] == "unknown":
            return self.enclosing_self(value, name)
        return verdict

    def enclosing_self(self, value, name: str):
        """`self` of a method, where mypy has no type (unreachable code)."""
        if isinstance(value, ast.Name) and value.id in ("self", "cls"):
            binder = self.file.binder(value.id, self.file.scope_of[value])
            if binder and binder.kind == "function" and binder.parent.kind == "class" and binder.parent.info:
                definer = self.types.definer(binder.parent.info, name)
                if definer is not None:
                    entry = self.renamer.by_attr.get((id(definer), name))
                    return ("yes", entry) if entry else ("no", None)
        return "unknown", None

    def put_attribute(self, node, start: int, entry: Entry) -> None:
        if not self.file.edit(start, node.attr, entry.new, entry):
            place_in_fstring(self.file, node, node.attr, entry, self.renamer, attribute=True)

    def match_class(self, node: ast.MatchClass) -> None:
        if not node.kwd_attrs:
            return
        info = self.class_of(node.cls)
        for attr, pattern in zip(node.kwd_attrs, node.kwd_patterns, strict=True):
            if attr not in self.renamer.attrs:
                continue
            definer = info and self.types.definer(info, attr)
            entry = definer and self.renamer.by_attr.get((id(definer), attr))
            if entry:
                before = self.file.data[: self.file.at(pattern.lineno, pattern.col_offset)]
                match = re.search(rb"(" + attr.encode() + rb")\s*=\s*\(?\s*$", before)
                self.file.edit(match.start(1), attr, entry.new, entry)

    # ---- calls: keywords, and names in strings

    def type_of(self, node):
        key = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
        return self.expressions.get(key)

    def keyword_start(self, keyword: ast.keyword) -> int:
        return self.file.at(keyword.lineno, keyword.col_offset)

    def put_keyword(self, keyword: ast.keyword, entry: Entry) -> None:
        if not self.file.edit(self.keyword_start(keyword), keyword.arg, entry.new, entry):
            entry.refuse(f"{self.file.path}:{keyword.lineno}: {keyword.arg}= is not where it should be")

    def call(self, node: ast.Call) -> None:
        callee = node.func
        last = callee.attr if isinstance(callee, ast.Attribute) else callee.id if isinstance(callee, ast.Name) else ""
        param_olds = {e.old for e in self.renamer.entries if e.kind == "param"}
        for keyword in node.keywords:
            if keyword.arg in self.renamer.attrs:
                self.field_keyword(node, keyword, last)
            if keyword.arg in param_olds:
                self.param_keyword(node, keyword, last)
        if last in ("getattr", "hasattr", "setattr", "delattr", "object", "setitem") or last == "methodcaller":
            arguments = node.args
            if len(arguments) >= 2 and isinstance(arguments[1], ast.Constant) and isinstance(arguments[1].value, str):
                self.named_attribute(arguments[0], arguments[1])
        if last == "attrgetter" or last == "methodcaller":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and argument.value in self.renamer.attrs:
                    for entry in self.renamer.entries:
                        if entry.kind == "attr" and entry.old == argument.value:
                            entry.refuse(f"{self.file.where(node)}: attrgetter")

    def named_attribute(self, receiver, constant: ast.Constant) -> None:
        name = constant.value
        if module := self.module_of(receiver):
            full, _ = self.renamer.canonical(module, name)
            entry = self.renamer.by_global.get(full)
            if entry and entry.old == name:
                self.in_string(constant, name, entry)
            return
        if name not in self.renamer.attrs:
            return
        info = self.class_of(receiver)
        if info is not None:
            definer = self.types.definer(info, name)
            entry = definer and self.renamer.by_attr.get((id(definer), name))
            if entry:
                self.in_string(constant, name, entry)
            return
        verdict, entry = self.renamer.attr_entry(self.type_of(receiver), name)
        if verdict == "unknown":
            verdict, entry = self.enclosing_self(receiver, name)
        if verdict == "yes":
            self.in_string(constant, name, entry)
        elif verdict == "unknown":
            start = self.string_start(constant, name)
            if start is not None:
                self.renamer.unknown[name].append((self.file, start, constant))

    def field_keyword(self, node: ast.Call, keyword: ast.keyword, last: str) -> None:
        """Keywords that are fields: of a dataclass, record or named tuple made or replaced."""
        name = keyword.arg
        if last in ("replace", "_replace", "evolve"):
            on = node.func.value if last == "_replace" else node.args[0] if node.args else None
            key = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
            if on is None:
                return
            if last == "_replace":
                member = self.members.get((node.func.lineno, node.func.col_offset, node.func.end_lineno, node.func.end_col_offset))
                t = self.types.types.get(member.expr) if member is not None else None
            else:
                t = self.type_of(on)
            if last == "replace" and isinstance(node.func, ast.Attribute) and self.module_of(node.func.value) is None:
                return
            verdict, entry = self.renamer.attr_entry(t, name)
            if verdict == "unknown":
                verdict, entry = self.enclosing_self(on, name)
            if verdict == "yes":
                self.put_keyword(keyword, entry)
            elif verdict == "unknown":
                self.renamer.unknown[name].append((self.file, self.keyword_start(keyword), node))
            return
        info = self.class_of(node.func)
        if info is None:
            t = self.type_of(node.func)
            from mypy.types import CallableType, Overloaded, TypeType, get_proper_type

            t = get_proper_type(t) if t is not None else None
            if isinstance(t, Overloaded):
                t = t.items[0]
            if (isinstance(t, CallableType) and t.is_type_obj()) or isinstance(t, TypeType):
                found = self.types.classes(t)
                info = found[0] if found else None
            elif t is None or type(t).__name__ == "AnyType":
                # SimpleNamespace, Mock or an unknown maker: told
                self.renamer.loose.append((self.file, keyword, name))
                return
        if info is None:
            return
        if info.fullname in ("types.SimpleNamespace", "unittest.mock.Mock", "unittest.mock.MagicMock"):
            self.renamer.loose.append((self.file, keyword, name))
            return
        definer = self.types.definer(info, name)
        entry = definer and self.renamer.by_attr.get((id(definer), name))
        if entry and constructor_has_fields(info, name):
            self.put_keyword(keyword, entry)

    def param_keyword(self, node: ast.Call, keyword: ast.keyword, last: str) -> None:
        name = keyword.arg
        definition = self.called(node)
        if definition is not None:
            entry = self.renamer.by_param.get((definition, name))
            if entry:
                self.put_keyword(keyword, entry)
            return
        for entry in self.renamer.entries:
            if entry.kind == "param" and entry.old == name:
                function = entry.owner.rpartition(".")[2]
                maker = entry.owner.rpartition(".")[0].rpartition(".")[2]
                if last == function or (function == "__init__" and last == maker) or last == "partial":
                    entry.refuse(f"{self.file.where(node)}: {last}({name}=) is not known")
                else:
                    self.renamer.loose.append((self.file, keyword, name))

    def called(self, node: ast.Call):
        """Returns (module, line, name) of the function that a call calls, or None."""
        from mypy.types import CallableType, Overloaded, get_proper_type

        definition = None
        info = self.class_of(node.func)
        if info is None:
            t = self.type_of(node.func)
            t = get_proper_type(t) if t is not None else None
            if isinstance(t, Overloaded):
                t = t.items[0]
            if isinstance(t, CallableType):
                definition = t.definition
                if t.is_type_obj():
                    found = self.types.classes(t)
                    info = found[0] if found else None
        if info is not None:
            symbol = info.get("__init__")
            definition = symbol.node if symbol else None
        if definition is None and isinstance(node.func, ast.Name):
            meaning = self.meaning(node.func.id, self.file.scope_of[node.func])
            definition = meaning[2] if meaning and meaning[0] == "global" else None
        if definition is None and isinstance(node.func, ast.Attribute) and (module := self.module_of(node.func.value)):
            definition = self.renamer.canonical(module, node.func.attr)[1]
        if type(definition).__name__ == "Decorator":
            definition = definition.func
        if type(definition).__name__ != "FuncDef":
            return None
        full = definition.fullname
        owner = definition.info
        module = owner.module_name if owner else full.rpartition(".")[0]
        return module, definition.line, definition.name

    # ---- strings

    def string_start(self, node: ast.Constant, name: str) -> int | None:
        start, end = self.file.at(node.lineno, node.col_offset), self.file.at(node.end_lineno, node.end_col_offset)
        spots = list(re.finditer(WORD.format(re.escape(name)).encode(), self.file.data[start:end]))
        return start + spots[0].start() if len(spots) == 1 else None

    def in_string(self, node: ast.Constant, name: str, entry: Entry) -> None:
        start = self.string_start(node, name)
        if start is None or not self.file.edit(start, name, entry.new, entry):
            entry.refuse(f"{self.file.where(node)}: {name} in a string is not sure")

    def word_in(self, node, name: str, entry: Entry) -> None:
        start, end = self.file.at(node.lineno, node.col_offset), self.file.at(node.end_lineno, node.end_col_offset)
        for match in re.finditer(WORD.format(re.escape(name)).encode(), self.file.data[start:end]):
            self.file.edit(start + match.start(), name, entry.new, entry)

    def string(self, node: ast.Constant) -> None:
        value = node.value
        parent = self.file.parent.get(node)
        if isinstance(parent, ast.JoinedStr) or len(value) < 2:
            return
        if isinstance(parent, ast.Expr):
            return  # a docstring: see comments
        scope = self.file.scope_of.get(node)
        # annotations and names in quotes
        if "\n" not in value and self.is_annotation(node):
            for match in re.finditer(r"(?<![\w.])[A-Za-z_]\w*", value):
                word = match[0]
                meaning = self.meaning(word, scope)
                entry = self.renamer.by_global.get(meaning[1]) if meaning and meaning[0] == "global" else None
                if entry and entry.old == word:
                    self.word_in(node, word, entry)
            return
        if value.isidentifier() and self.in_all(node):
            full, _ = self.renamer.canonical(self.file.module, value)
            if entry := self.renamer.by_global.get(full):
                self.in_string(node, value, entry)
            return
        if value.isidentifier() and value in self.renamer.attrs and self.in_slots(node):
            holder = self.holder(node)
            if holder is not None and holder.info is not None:
                definer = self.types.definer(holder.info, value)
                entry = definer and self.renamer.by_attr.get((id(definer), value))
                if entry:
                    self.in_string(node, value, entry)
            return
        self.dotted(node)
        if len(value) > 5:
            self.code(node)

    def holder(self, node) -> Scope | None:
        scope = self.file.scope_of.get(node)
        while scope is not None and scope.kind != "class":
            scope = scope.parent
        return scope

    def assigned_to(self, node) -> str:
        current = node
        while current is not None and not isinstance(current, ast.stmt):
            current = self.file.parent.get(current)
        if isinstance(current, ast.Assign) and isinstance(current.targets[0], ast.Name):
            return current.targets[0].id
        if isinstance(current, (ast.AnnAssign, ast.AugAssign)) and isinstance(current.target, ast.Name):
            return current.target.id
        return ""

    def in_all(self, node) -> bool:
        return self.assigned_to(node) == "__all__"

    def in_slots(self, node) -> bool:
        return self.assigned_to(node) in ("__slots__", "__match_args__")

    def is_annotation(self, node) -> bool:
        current, child = self.file.parent.get(node), node
        while current is not None:
            if isinstance(current, ast.arg) and current.annotation is child:
                return True
            if isinstance(current, (ast.FunctionDef, ast.AsyncFunctionDef)) and current.returns is child:
                return True
            if isinstance(current, ast.AnnAssign) and current.annotation is child:
                return True
            if isinstance(current, ast.Call):
                name = getattr(current.func, "id", getattr(current.func, "attr", ""))
                return bool(name == "cast" and current.args and current.args[0] is child)
            if isinstance(current, ast.Assign) and isinstance(child, (ast.BinOp, ast.Subscript)) and child is current.value:
                return isinstance(current.targets[0], ast.Name) and current.targets[0].id[:1].isupper()
            if isinstance(current, ast.ClassDef) and child in current.bases:
                return True
            if isinstance(current, ast.stmt):
                return False
            current, child = self.file.parent.get(current), current
        return False

    def raw_and_value_agree(self, node) -> tuple[int, str] | None:
        start, end = self.file.at(node.lineno, node.col_offset), self.file.at(node.end_lineno, node.end_col_offset)
        return start, self.file.data[start:end].decode()

    def dotted(self, node) -> None:
        """`nnhal.a.b.name`, `nnhal.a.b:name` and attributes after it, in any string."""
        start, text = self.raw_and_value_agree(node)
        for match in re.finditer(r"\b(?:nnhal|tests|benchmarks)(?:\.\w+)+(?::\w+(?:\.\w+)*)?", text):
            self.dotted_path(match[0], start + len(text[: match.start()].encode()))

    def dotted_path(self, path: str, offset: int) -> None:
        parts = re.split(r"[.:]", path)
        module, index = parts[0], 1
        while index < len(parts) and f"{module}.{parts[index]}" in self.types.all_trees:
            module, index = f"{module}.{parts[index]}", index + 1
        if index >= len(parts) or module not in self.types.all_trees:
            return
        at = len(".".join(parts[:index])) + 1
        full, target = self.renamer.canonical(module, parts[index])
        entry = self.renamer.by_global.get(full)
        if entry and entry.old == parts[index]:
            self.file.edit(offset + at, entry.old, entry.new, entry)
        if index + 1 < len(parts) and type(target).__name__ == "TypeInfo":
            name = parts[index + 1]
            definer = self.types.definer(target, name)
            entry = definer and self.renamer.by_attr.get((id(definer), name))
            if entry:
                self.file.edit(offset + at + len(parts[index]) + 1, name, entry.new, entry)

    def code(self, node: ast.Constant) -> None:
        """Code in a string (python -c): names that it imports from the project."""
        start, text = self.raw_and_value_agree(node)
        value = text if isinstance(node, ast.JoinedStr) else node.value
        tree = None
        if not isinstance(node, ast.JoinedStr):
            try:
                tree = ast.parse(textwrap.dedent(value))
            except (SyntaxError, ValueError):
                tree = None
        imported: dict[str, Entry] = {}
        modules: dict[str, str] = {}
        if tree is not None:
            for inner in ast.walk(tree):
                if isinstance(inner, ast.ImportFrom) and inner.module and not inner.level:
                    for alias in inner.names:
                        full, _ = self.renamer.canonical(inner.module, alias.name)
                        entry = self.renamer.by_global.get(full)
                        if entry and entry.old == alias.name:
                            imported[alias.name] = entry
                        if f"{inner.module}.{alias.name}" in self.types.all_trees:
                            modules[alias.asname or alias.name] = f"{inner.module}.{alias.name}"
        else:
            for match in re.finditer(r"from ([\w.]+) import ([\w, ]+)", value):
                for name in re.split(r"\s*,\s*", match[2].strip()):
                    name = name.split(" ")[0]
                    full, _ = self.renamer.canonical(match[1], name)
                    entry = self.renamer.by_global.get(full)
                    if entry and entry.old == name:
                        imported[name] = entry
                    if f"{match[1]}.{name}" in self.types.all_trees:
                        modules[name] = f"{match[1]}.{name}"
        for match in re.finditer(r"from (nnhal[\w.]*) import \*", value):
            for entry in self.renamer.entries:
                if entry.kind == "global" and entry.module == match[1]:
                    imported.setdefault(entry.old, entry)
        for name, entry in imported.items():
            for match in re.finditer(r"(?<![\w.])" + name + r"\b(?!\s*=[^=])", text):
                self.file.edit(start + len(text[: match.start()].encode()), name, entry.new, entry)
        for local, module in {**self.string_modules(), **modules}.items():
            for match in re.finditer(r"(?<![\w.])" + local + r"\.(\w+)", text):
                full, _ = self.renamer.canonical(module, match[1])
                entry = self.renamer.by_global.get(full)
                if entry and entry.old == match[1]:
                    self.file.edit(start + len(text[: match.start(1)].encode()), match[1], entry.new, entry)
        if tree is not None and any(isinstance(inner, (ast.Import, ast.ImportFrom)) for inner in ast.walk(tree)):
            for inner in ast.walk(tree):
                if isinstance(inner, ast.Attribute) and inner.attr in self.renamer.attrs:
                    spots = list(re.finditer(r"(?<=\.)" + inner.attr + r"\b", text))
                    for spot in spots:
                        place = start + len(text[: spot.start()].encode())
                        if place not in self.file.edits:
                            self.renamer.unknown[inner.attr].append((self.file, place, node))

    def string_modules(self) -> dict[str, str]:
        """Modules of the project that code in this file's strings imports: it may stand in several strings."""
        if not hasattr(self, "_string_modules"):
            self._string_modules = {}
            for match in re.finditer(r"""["'\n; ]from (nnhal[\w.]*) import ([\w, ]+)""", self.file.text):
                for name in re.split(r"\s*,\s*", match[2].strip()):
                    name = name.split(" ")[0]
                    if f"{match[1]}.{name}" in self.types.all_trees:
                        self._string_modules[name] = f"{match[1]}.{name}"
        return self._string_modules

    # ---- fixtures

    def fixture(self, node, entry: Entry) -> None:
        """A fixture's name is a parameter of the tests that see it."""
        here = Path(self.file.path)
        for file in self.renamer.files.values():
            path = Path(file.path)
            if not file.path.startswith("tests/"):
                continue
            same = file is self.file
            if not same:
                if here.name == "conftest.py" and here.parent in path.parents:
                    pass
                elif entry.old in file.top.imports and file.top.imports[entry.old] == (self.file.module, entry.old):
                    pass
                else:
                    continue
                if entry.old in file.top.bound and "import" not in file.top.bound[entry.old]:
                    continue  # a fixture of its own
            entry.fixture_files = [*getattr(entry, "fixture_files", []), file]


def is_fixture(node) -> bool:
    return any("fixture" in ast.unparse(d).partition("(")[0] for d in node.decorator_list)


def constructor_has_fields(info, name: str) -> bool:
    for base in info.mro:
        if "dataclass" in base.metadata or base.metadata.get("dataclass_tag"):
            return True
        if base.dataclass_transform_spec is not None or base.is_named_tuple:
            return True
        if base.fullname in ("msgspec.Struct", "msgspec._core.Struct"):
            return True
    return bool(info.metaclass_type and info.metaclass_type.type.dataclass_transform_spec)


def fixtures(renamer: Renamer) -> None:
    for entry in renamer.entries:
        if entry.refused:
            continue
        for file in getattr(entry, "fixture_files", ()):
            for scope in file.scopes:
                node = scope.node
                if scope.kind != "function" or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    continue
                test = node.name.startswith("test_") or is_fixture(node)
                if not test or not any(a.arg == entry.old for a in every_argument(node.args)):
                    continue
                if any("parametrize" in ast.unparse(d) and re.search(WORD.format(entry.old), ast.unparse(d)) for d in node.decorator_list):
                    continue
                if scope.parent.kind == "class" and entry.old in scope.parent.bound:
                    continue
                rename_local(file, scope, node, entry, renamer)
            for node in ast.walk(file.tree):
                if isinstance(node, ast.Call):
                    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                    if name in ("usefixtures", "getfixturevalue"):
                        for argument in node.args:
                            if isinstance(argument, ast.Constant) and argument.value == entry.old:
                                start = file.at(argument.lineno, argument.col_offset)
                                offset = file.data[start : start + 80].find(entry.old.encode())
                                file.edit(start + offset, entry.old, entry.new, entry)


# ---------------------------------------------------------------- prose: comments, docstrings, pages


def prose(renamer: Renamer, dry: bool) -> int:
    """Names in backquotes, where one thing alone has that name: in comments, docstrings and pages."""
    live = [e for e in renamer.entries if not e.refused]
    by_old = defaultdict(set)
    for entry in live:
        if entry.kind != "param":
            by_old[entry.old].add(entry.new)
    used = Counter()  # definitions that stay, by name
    for file in renamer.files.values():
        for name, ways in file.top.bound.items():
            if name in by_old and ways - {"import"} and f"{file.module}.{name}" not in {
                f for f, e in renamer.by_global.items() if not e.refused
            }:
                used[name] += 1
    for info in renamer.types.infos:
        for name in info.names:
            if name in by_old:
                entry = renamer.by_attr.get((id(info), name))
                if entry is None or entry.refused:
                    used[name] += 1
    words = {  # JSON keys and other words of strings, which prose may mean
        node.value
        for file in renamer.files.values()
        if file.path.startswith("src/")
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in by_old
    }
    alone = {
        old: next(iter(news))
        for old, news in by_old.items()
        if len(news) == 1 and not used[old] and old not in words and not (old.islower() and "_" not in old)
    }
    by_file = defaultdict(dict)  # module -> old -> new, for what it defines itself
    for entry in live:
        if entry.kind == "param":
            continue
        if by_file[entry.module].setdefault(entry.old, entry.new) != entry.new:
            by_file[entry.module][entry.old] = None
    count = 0

    def replaced(text: str, names: dict[str, str | None]) -> str:
        nonlocal count

        def inside(match):
            nonlocal count
            code = match[0]

            def one(word):
                nonlocal count
                new = names.get(word[0])
                if not new:
                    return word[0]
                count += 1
                return new

            return re.sub(r"[A-Za-z_]\w*", one, code)

        return re.sub(r"(?<!`)`[^`\n]+`(?!`)", inside, text)

    for file in renamer.files.values():
        names = {**alone, **{k: v for k, v in by_file[file.module].items() if v}}
        if not names:
            continue
        path = renamer.root / file.path
        source = path.read_text() if not dry else file.text
        spans = []
        try:
            tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
        except (tokenize.TokenError, SyntaxError) as error:
            print(f"warning: {file.path} after the rename: {error}")
            continue
        lines = source.splitlines(keepends=True)
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        docstrings = {
            (node.lineno, node.col_offset)
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        }
        for token in tokens:
            docstring = token.type == tokenize.STRING and token.start in docstrings
            if token.type == tokenize.COMMENT or docstring:
                spans.append((starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1]))
        out, last = [], 0
        for start, end in spans:
            out += [source[last:start], wrapped(replaced(source[start:end], names), source, start, end)]
            last = end
        out.append(source[last:])
        text = "".join(out)
        if text != source and not dry:
            path.write_text(text)
    for name in renamer.listed:
        if not name.endswith(".md") or name.startswith(("CHANGELOG", "docs/changes/", "docs/roadmap")):
            continue
        path = renamer.root / name
        source = path.read_text()
        text = replaced(source, alone)
        text = fences(text, renamer)
        if text != source and not dry:
            path.write_text(text)
    return count


def wrapped(text: str, source: str, start: int, end: int, limit: int = 120) -> str:
    """Breaks lines of a docstring that the new names made too long."""
    before = set(source[start:end].split("\n"))
    if text == source[start:end] or not text.lstrip("rRuU").startswith('"""'):
        return text
    column = start - (source.rfind("\n", 0, start) + 1)
    lines = text.split("\n")
    out = []
    for index, line in enumerate(lines):
        width = len(line) + (column if index == 0 else 0)
        if width > limit + 5 and line not in before and " " in line.strip() and index + 1 <= len(lines):
            at = line.rfind(" ", 0, limit - (column if index == 0 else 0))
            indent = " " * (len(line) - len(line.lstrip()) if index else column)
            if at > len(indent):
                out += [line[:at].rstrip(), indent + line[at + 1 :]]
                continue
        out.append(line)
    return "\n".join(out)


def fences(text: str, renamer: Renamer) -> str:
    """Code blocks of pages: names that they import from the project."""

    def block(match):
        body = match[2]
        for found in re.finditer(r"from ([\w.]+) import ([\w, ]+)", body):
            for name in re.split(r"\s*,\s*", found[2].strip()):
                full, _ = renamer.canonical(found[1], name.split(" ")[0])
                entry = renamer.by_global.get(full)
                if entry and not entry.refused and entry.old == name:
                    body = re.sub(r"(?<![\w.])" + name + r"\b(?!\s*=[^=])", entry.new, body)
        return match[1] + body + match[3]

    return re.sub(r"(?ms)^(\s*```python[^\n]*\n)(.*?)(^\s*```)", block, text)


def equivalent(renamer: Renamer, dry: bool) -> list[str]:
    """The lines that tests/mutants/equivalent.toml quotes."""
    path = renamer.root / "tests/mutants/equivalent.toml"
    if not path.exists():
        return []
    text = path.read_text()
    table = tomllib.loads(text)
    problems, moved = [], {}
    for change in table.get("change", ()):
        file, line = change["file"], change["line"]
        if file not in renamer.old_lines:
            continue
        old, new = renamer.old_lines[file], renamer.new_lines[file]
        found = {new[i].strip() for i, each in enumerate(old) if each.strip() == line}
        now = {each.strip() for each in (renamer.root / file).read_text().splitlines()} if not dry else set(map(str.strip, new))
        if not found:
            continue
        if len(found) > 1:
            problems.append(f"{file}: {line!r} becomes several lines: {sorted(found)}")
            continue
        target = found.pop()
        if target not in now:
            # comments change with the prose; the formatter breaks lines
            near = [each for each in now if re.sub(r"`[^`]*`", "", each) == re.sub(r"`[^`]*`", "", target)]
            if len(near) == 1:
                target = near[0]
            else:
                problems.append(f"{file}: the formatter broke the line that was {line!r}: now {target!r}")
                continue
        if target != line:
            moved[file, line] = target
    if not moved:
        return problems
    out, current = [], None
    for raw in text.splitlines(keepends=True):
        if match := re.match(r'file = "(.*)"', raw):
            current = match[1]
        if raw.startswith("line = "):
            value = tomllib.loads(raw)["line"]
            if (current, value) in moved:
                target = moved[current, value]
                raw = f"line = {quoted(target)}\n"
        out.append(raw)
    if not dry:
        path.write_text("".join(out))
    print(f"tests/mutants/equivalent.toml: {len(moved)} lines")
    return problems


def quoted(text: str) -> str:
    if "'" not in text:
        return f"'{text}'" if '"' in text or "\\" in text else f'"{text}"'
    if '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# ---------------------------------------------------------------- names of Python and numpy


def foreign() -> dict[str, str]:
    import collections
    import os
    import pathlib
    import queue
    import socket
    import struct
    import threading

    import msgspec
    import numpy as np

    found = {}
    for owner in (
        str, bytes, bytearray, memoryview, list, dict, set, tuple, int, float, BaseException, OSError, type, object,
        np, np.ndarray, np.dtype, np.random.Generator, os, pathlib.Path, queue.Queue, socket.socket, struct.Struct,
        threading.Thread, threading.Event, threading.Condition, threading, time, collections.deque, Counter, msgspec,
        subprocess, subprocess.Popen, subprocess.CompletedProcess, re.Match, re.Pattern, io.StringIO, ast,
    ):
        for name in dir(owner):
            found.setdefault(name, getattr(owner, "__name__", str(owner)))
    return found


FOREIGN: dict[str, str] = {}


def main() -> int:
    parser = argparse.ArgumentParser(description="Renames what the table names in a checkout of nnhal.")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--table", type=Path, default=HERE / "names.tsv")
    parser.add_argument("--dry-run", action="store_true", help="report what would change, write nothing")
    parser.add_argument("--only", help="entries whose scope matches this regular expression")
    parser.add_argument("--no-format", action="store_true", help="do not run ruff after the rename")
    options = parser.parse_args()
    root = options.checkout.resolve()
    import os

    os.chdir(root)
    entries = read_table(options.table.resolve())
    if options.only:
        entries = [e for e in entries if re.search(options.only, e.scope)]
    FOREIGN.update(foreign())
    began = time.monotonic()
    sys.setrecursionlimit(10000)
    renamer = Renamer(root, entries)
    renamer.loose = []
    print(f"read {len(renamer.files)} files in {time.monotonic() - began:.0f} s")
    renamer.run()
    fixtures(renamer)
    renamer.collisions()
    # what is refused takes what it shares an attribute's family or an unknown receiver with
    changed = renamer.write(options.dry_run)
    count = prose(renamer, options.dry_run)
    if not options.dry_run and not options.no_format:
        ruff = [sys.executable, "-m", "ruff"]
        subprocess.run([*ruff, "check", "-q", "--fix", "--select", "I001,RUF022,RUF023", "."], cwd=root, check=False)
        subprocess.run([*ruff, "format", "-q", "."], cwd=root, check=False)
    problems = equivalent(renamer, options.dry_run)
    left = leftovers(renamer)
    for entry in renamer.entries:
        if entry.refused:
            print(f"refused: {entry} (line {entry.line}): " + "; ".join(entry.refused[:4]))
    for text in dict.fromkeys(renamer.unsure):
        print(f"not sure: {text}")
    for text in problems:
        print(f"equivalent.toml: {text}")
    for file, keyword, name in renamer.loose:
        if any(e.old == name and not e.refused for e in renamer.entries):
            print(f"look at: {file.path}:{keyword.lineno}: {name}= of an unknown callee")
    for text in left:
        print(f"look at: {text}")
    done = [e for e in entries if not e.refused]
    print(
        f"renamed {len(done)} of {len(entries)} names in {len(changed)} files: {sum(e.edits for e in done)} places, "
        f"{count} mentions in prose; {time.monotonic() - began:.0f} s"
    )
    for entry in done:
        if not entry.edits:
            print(f"warning: nothing changed for {entry}")
    return 0


def leftovers(renamer: Renamer) -> list[str]:
    """Strings that are a renamed name and nothing else: they may name it."""
    found = []
    live = defaultdict(set)
    for entry in renamer.entries:
        if not entry.refused:
            live[entry.old].add(entry.new)
    for file in renamer.files.values():
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in live and not (node.value.isalpha() and node.value.islower()):
                start = file.at(node.lineno, node.col_offset)
                if not any(start <= edit <= start + 4 for edit in file.edits):
                    found.append(f"{file.where(node)}: the string {node.value!r}")
    return found


if __name__ == "__main__":
    sys.exit(main())
