"""Compares two folders of test vectors, test by test: names, operands, data and flags."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from nnhal.conformance.vectors import index, read


class Comparison(NamedTuple):
    """Tests of the other folder: how many there are, and the ids of those that differ or are missing."""

    tests: int
    different: Sequence[str]
    missing: Sequence[str]

    @property
    def equal(self) -> int:
        """How many tests are equal."""
        return self.tests - len(self.different) - len(self.missing)


def compare(folder: Path, other: Path) -> Comparison:
    """Compare with every test of `other`; more tests in `folder` are no difference."""
    found, wanted = _contents(folder), _contents(other)
    missing = [id for id in wanted if id not in found]
    different = [id for id, content in wanted.items() if found.get(id, content) != content]
    return Comparison(len(wanted), different, missing)


def _contents(folder: Path) -> dict[str, Any]:
    """Returns each test with its data in place of the data's offset."""
    entries = index(folder)
    return {vector.id: (entries.get(vector.id), _with_data(vector.test, vector.blob)) for vector in read(folder)}


def _with_data(test: Mapping[str, Any], blob: bytes) -> dict[str, Any]:
    graphs = [test["main"], *test.get("referenced", ())]
    return {**test, "main": None, "referenced": [_graph_with_data(graph, blob) for graph in graphs]}


def _graph_with_data(graph: Mapping[str, Any], blob: bytes) -> dict[str, Any]:
    operands = [dict(operand) for operand in graph["operands"]]
    for operand in operands:
        if "data" in operand:
            offset, length = operand["data"]
            operand["data"] = length, blake2b(blob[offset : offset + length]).digest()
    return {**graph, "operands": operands}
