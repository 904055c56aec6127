"""The code under test on a simulated stage: its modules' globals are replaced for the time of a block, nothing else.

Its statements become steps: each function gets code that is compiled anew with a call before every statement.
"""

import ast
import contextlib
import fcntl
import gc
import importlib
import inspect
import mmap
import os
import queue
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

from nnhal.base import memory, native
from nnhal.ipc.transport import _native
from tests.nightly.simulation import kernel, threads
from tests.nightly.simulation import native as lanes

STAGED = (
    *(f"nnhal.base.{name}" for name in ("answers", "descriptors", "memory", "time")),
    *(f"nnhal.hal.{name}" for name in ("background", "burst", "device", "fence", "host", "memory", "request")),
    *(
        f"nnhal.ipc.client.{name}"
        for name in (
            "buffer",
            "burst",
            "device",
            "endings",
            "first_channel",
            "frames",
            "housekeeper",
            "peer",
        )
    ),
    *(f"nnhal.ipc.client.{name}" for name in ("channels", "pending", "pools", "prepared", "trace_follower")),
    *(
        f"nnhal.ipc.service.{name}"
        for name in ("binding", "burst", "calls", "compilations", "connection", "executions", "exports")
    ),
    *(f"nnhal.ipc.service.{name}" for name in ("pools", "quota", "scope")),
    "nnhal.ipc.client.session",
    "nnhal.ipc.transport.channel",
    "nnhal.ipc.transport.peer_end",
)
STEPPED = ("nnhal.ipc.client.", "nnhal.ipc.service.", "nnhal.hal.background", "nnhal.hal.request", "nnhal.hal.fence")
_STEP = "__between_statements__"


class OrderedSet(dict[Any, None]):
    """A set whose order is that of its making, for runs that come again as they were."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        super().__init__(dict.fromkeys(items))

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)

    def __iand__(self, others: Any) -> "OrderedSet":  # type: ignore[misc]
        for item in [item for item in self if item not in others]:
            del self[item]
        return self


class OrderedWeakSet:
    """weakref.WeakSet, in order."""

    def __init__(self) -> None:
        self._items: dict[int, weakref.ref[Any]] = {}

    def add(self, item: Any) -> None:
        key = id(item)
        self._items[key] = weakref.ref(item, lambda _: self._items.pop(key, None))

    def discard(self, item: Any) -> None:
        self._items.pop(id(item), None)

    def __iter__(self) -> Iterator[Any]:
        return iter([item for ref in list(self._items.values()) if (item := ref()) is not None])

    def __len__(self) -> int:
        return len(self._items)


class _EachProcess:
    """A deque of a module's, one for each process."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(kernel.here().locals.setdefault(self._name, deque()), name)


_weakref = SimpleNamespace(**vars(weakref) | {"WeakSet": OrderedWeakSet})
_INSTEAD: dict[int, Any] = {
    id(real): instead
    for real, instead in (
        (threading, threads.threading),
        (time, threads.time),
        (os, kernel.os),
        (select, kernel.select),
        (socket, kernel.socket),
        (fcntl, kernel.fcntl),
        (mmap, kernel.mmap),
        (weakref, _weakref),
        (native.Gate, threads.Gate),
        (native.Mapping, kernel.Mapping),
        (_native, lanes.native),
        (native.Owner, kernel.Owner),
        (queue.SimpleQueue, threads.SimpleQueue),
        (queue.PriorityQueue, threads.PriorityQueue),
    )
}
_NAMED: dict[str, dict[str, Any]] = {
    "nnhal.ipc.transport.peer_end": {"_libc": kernel.libc},
    "nnhal.hal.fence": {"_libc": lambda: kernel.libc},
    "nnhal.hal.background": {"_idle": _EachProcess("idle workers")},
    "nnhal.ipc.service.connection": {"set": OrderedSet},
    "nnhal.ipc.client.frames": {"set": OrderedSet},
    "nnhal.hal.queue": {"_now": lambda: 0},  # it measures nothing: how long a run takes here is of the real clock
}


def modules() -> list[ModuleType]:
    """What is put on the stage, as far as there is such a module."""
    return [importlib.import_module(name) for name in STAGED]


@contextlib.contextmanager
def staged() -> Iterator[None]:
    """The modules see the simulated world, in which garbage goes when a run says so."""
    before: list[tuple[ModuleType, str, Any]] = []
    missing = object()
    memory._memfds()  # is asked once: of the real kernel, so that the first run is as any other
    for module in modules():
        for name, value in list(vars(module).items()):
            instead = _INSTEAD.get(id(value), missing)
            if instead is not missing:
                before.append((module, name, value))
                setattr(module, name, instead)
    for where, names in _NAMED.items():
        module = importlib.import_module(where)
        for name, instead in names.items():
            before.append((module, name, getattr(module, name, missing)))
            setattr(module, name, instead)
    collecting = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if collecting:
            gc.enable()
        for module, name, value in before:
            if value is missing:
                delattr(module, name)
            else:
                setattr(module, name, value)


# ---------------------------------------------------------------------------------------------------------- statements


class _Between(ast.NodeTransformer):
    """Puts a call before each statement of a function's."""

    def __init__(self) -> None:
        self._depth = 0

    def _function(self, node: Any) -> Any:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1
        return node

    def visit(self, node: ast.AST) -> Any:
        return self._function(node) if isinstance(node, ast.FunctionDef) else super().visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if self._depth:
            for field in ("body", "orelse", "finalbody"):
                block = getattr(node, field, None)
                if isinstance(block, list):
                    setattr(node, field, [part for each in block for part in self._with_step(each)])
        return node

    @staticmethod
    def _with_step(node: Any) -> list[Any]:
        if not isinstance(node, ast.stmt) or isinstance(node, ast.Nonlocal | ast.Global):
            return [node]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return [node]  # a docstring
        call = ast.Expr(ast.Call(ast.Name(_STEP, ast.Load()), [], []))
        return [ast.fix_missing_locations(ast.copy_location(call, node)), node]


def _codes(code: CodeType, found: dict[tuple[str, int], CodeType]) -> dict[tuple[str, int], CodeType]:
    for part in code.co_consts:
        if isinstance(part, CodeType):
            found[part.co_qualname, part.co_firstlineno] = part
            _codes(part, found)
    return found


def _functions(owner: Any, module: str) -> Iterator[FunctionType]:
    for value in list(vars(owner).values()):
        inner = value
        if isinstance(inner, property):
            inner = inner.fget
        elif isinstance(inner, staticmethod | classmethod):
            inner = inner.__func__
        inner = inspect.unwrap(inner) if callable(inner) and not inspect.isclass(inner) else inner
        if isinstance(inner, FunctionType) and inner.__module__ == module:
            yield inner
        elif inspect.isclass(value) and value.__module__ == module and owner is not value:
            yield from _functions(value, module)


Changes = Sequence[tuple[str, str, str]]  # module, text, what stands there instead, with as many lines


@contextlib.contextmanager
def stepped(changes: Changes = ()) -> Iterator[None]:
    """Statements of the code under test are steps, as often as the world at hand likes. changes: made to the code before."""
    before: list[tuple[FunctionType, CodeType]] = []
    named: list[ModuleType] = []

    def between() -> None:
        world = threads._world
        if world is not None and world.fine:
            world.statement()

    steps = [name for name in STAGED if name.startswith(STEPPED)]
    for name in dict.fromkeys((*steps, *(name for name, _, _ in changes))):
        module = importlib.import_module(name)
        path = str(module.__file__)
        source = Path(path).read_text(encoding="utf-8")
        for where, text, instead in changes:
            if where == name:
                assert text in source and text.count("\n") == instead.count("\n"), f"{name}: has no {text!r} any more"
                source = source.replace(text, instead)
        tree = ast.parse(source, path)
        if name in steps:
            tree = _Between().visit(tree)
        codes = _codes(compile(tree, path, "exec"), {})
        setattr(module, _STEP, between)
        named.append(module)
        for function in set(_functions(module, name)):
            code = codes.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
            if code is not None and code.co_freevars == function.__code__.co_freevars:
                before.append((function, function.__code__))
                function.__code__ = code
    try:
        yield
    finally:
        for function, code in before:
            function.__code__ = code
        for module in named:
            delattr(module, _STEP)
