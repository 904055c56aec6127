"""Sorts nodes so that each can be computed: names are written once, read after they are written, without cycles."""

from collections.abc import Collection, Iterable, Iterator, Sequence

from nnhal.base.errors import BadFile
from nnhal.base.names import short
from nnhal.base.records import replace
from nnhal.frontends.onnx.file import OnnxFileGraph, OnnxNode


def inner_graphs(node: OnnxNode) -> Iterator[OnnxFileGraph]:
    """Yield the graphs among a node's attributes."""
    for value in node.attributes.values():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, OnnxFileGraph):
                yield each


def reads(node: OnnxNode) -> Iterator[str]:
    """Yield the names that a node, with its inner graphs, reads from its graph."""
    yield from filter(None, node.inputs)
    for graph in inner_graphs(node):
        yield from captured(graph)


def captured(graph: OnnxFileGraph) -> Iterator[str]:
    """Yield the names that a graph reads from enclosing ones."""
    own = {*graph.constants, *(e.name for e in graph.inputs), *(name for node in graph.nodes for name in node.outputs)}
    for node in graph.nodes:
        yield from (name for name in reads(node) if name not in own)
    yield from (e.name for e in graph.outputs if e.name not in own)


def arranged(
    nodes: Sequence[OnnxNode],
    inputs: Iterable[str],
    constants: Collection[str],
    outputs: Iterable[str],
    outer: Sequence[Collection[str]],
    where: str,
) -> list[OnnxNode]:
    """Return the nodes of a graph and its inner graphs, each after those that it reads.

    outer: the names of each enclosing graph.
    """
    own = set(constants)
    for name in inputs:
        if name in own:
            raise BadFile(f"{where}: input {short(name)!r} occurs twice, must occur once")
        own.add(name)
    writers: dict[str, int] = {}
    for n, node in enumerate(nodes):
        for name in filter(None, node.outputs):
            if name in writers or name in own:
                raise BadFile(
                    f"{where}: {node.label} writes {short(name)!r}, which is defined before, must be defined once"
                )
            writers[name] = n
    names = [{*own, *writers}, *outer]
    waiting = [{writers[name] for name in reads(node) if name in writers} for node in nodes]
    for node in nodes:
        for name in reads(node):
            if not any(name in scope for scope in names):
                raise BadFile(f"{where}: {node.label} reads {short(name)!r}, which no node writes")
    for name in outputs:
        if not any(name in scope for scope in names):
            raise BadFile(f"{where}: output {short(name)!r} is not written by any node")
    return [_inside(nodes[n], names, where) for n in _sorted(waiting, nodes, where)]


def _sorted(waiting: Sequence[set[int]], nodes: Sequence[OnnxNode], where: str) -> list[int]:
    """Return the numbers of nodes, each after those it waits for, in the file's order if possible."""
    if all(before < n for n, needs in enumerate(waiting) for before in needs):
        return list(range(len(nodes)))
    followers: list[list[int]] = [[] for _ in nodes]
    left = [len(needs) for needs in waiting]
    for n, needs in enumerate(waiting):
        for before in needs:
            followers[before].append(n)
    free = [n for n in reversed(range(len(nodes))) if not left[n]]
    found = []
    while free:
        n = free.pop()
        found.append(n)
        for follower in reversed(followers[n]):
            left[follower] -= 1
            if not left[follower]:
                free.append(follower)
    if len(found) < len(nodes):
        first = next(n for n, count in enumerate(left) if count)
        raise BadFile(f"{where}: {nodes[first].label} is part of a cycle: it reads a value that depends on it")
    return found


def _inside(node: OnnxNode, names: Sequence[Collection[str]], where: str) -> OnnxNode:
    """Return the node, with its inner graphs sorted."""
    if not any(True for _ in inner_graphs(node)):
        return node

    def ordered(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(ordered, value))
        if not isinstance(value, OnnxFileGraph):
            return value
        place = f"{where}: {node.label}"
        inputs, outputs = [e.name for e in value.inputs], [e.name for e in value.outputs]
        nodes = arranged(value.nodes, inputs, value.constants, outputs, names, place)
        return OnnxFileGraph(value.name, tuple(nodes), value.constants, value.inputs, value.outputs, value.known)

    attributes = {name: ordered(value) for name, value in node.attributes.items()}
    return replace(node, attributes=attributes)
