"""Writes a failing vector alone: a folder that `nnhal test vectors` runs, with its arrays in an `.npz`."""

import copy
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from nnhal.base.errors import InvalidArgument, NnhalError
from nnhal.conformance.selection import Selection
from nnhal.conformance.suite import Outcome
from nnhal.conformance.vectors import Vector, index, members, read_member
from nnhal.model.text import text


def write(directory: Path, selection: Selection, outcome: Outcome) -> Path:
    """Write the vector of an outcome to a new folder in `directory`; return that folder.

    `index.json` and a zip hold the vector in the format of the test vectors, which can hold every operation.
    `arrays.npz` has its inputs, the expected and the actual outputs; `model.txt` is the model as text.
    """
    version, specification, _ = outcome.id.split("/", 2)
    folder = directory / "-".join([outcome.id.split("/", 2)[2], *filter(None, [outcome.variant])])
    vector = _found(selection.path, outcome.id)
    test, blob = _alone(vector)
    document = {"format": 1, "version": version, "spec": specification, "blob": f"{specification}.bin", "tests": [test]}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(folder / f"{version}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{specification}.json", json.dumps(document))
            archive.writestr(f"{specification}.bin", blob)
        (folder / "index.json").write_text(json.dumps({"tests": [index(selection.path)[outcome.id]]}))
        _write_arrays(folder / "arrays.npz", vector, outcome)
        (folder / "model.txt").write_text(_shown(vector, outcome.variant))
    except OSError as error:
        raise InvalidArgument(f"repro {folder}: {error.strerror}, must be a writable folder") from None
    return folder


def _found(path: Path, id: str) -> Vector:
    version, specification, _ = id.split("/", 2)
    for archive, name in members(path):
        if (archive.stem, name) == (version, f"{specification}.json"):
            for vector in read_member(archive, name):
                if vector.id == id:
                    return vector
    raise InvalidArgument(f"vectors: {id} is no longer in {path}")


def _alone(vector: Vector) -> tuple[dict[str, Any], bytes]:
    """Return the description of a vector, and the bytes that only it refers to."""
    test, blob = copy.deepcopy(vector.test), bytearray()
    for graph in (test["main"], *test.get("referenced", ())):
        for operand in graph["operands"]:
            if "data" in operand:
                offset, length = operand["data"]
                operand["data"] = [len(blob), length]
                blob += vector.blob[offset : offset + length]
                blob += bytes(-len(blob) % 8)
    return test, bytes(blob)


def _write_arrays(path: Path, vector: Vector, outcome: Outcome) -> None:
    signed = outcome.variant == "signed"
    arrays = {
        "input": vector.inputs(signed=signed),
        "expected": [expected.data for expected in vector.expected(signed=signed)],
        "output": outcome.outputs,
    }
    named = {f"{what}_{n}": a for what, several in arrays.items() for n, a in enumerate(several) if a is not None}
    np.savez(path, **named)  # type: ignore[arg-type]


def _shown(vector: Vector, variant: str) -> str:
    try:
        return text(vector.model(dynamic=variant == "dynamic", signed=variant == "signed"))
    except NnhalError as error:  # a vector that must fail
        return f"{error}\n"
