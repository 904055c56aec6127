"""Writes a folder of test vectors out of a folder of specifications."""

import json
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from nnhal.base.errors import InvalidArgument
from nnhal.conformance.specs.document import entry
from nnhal.conformance.specs.process import SpecReader

SUFFIX = ".mod.py"
_SKIPPED = "experimental"  # operations that NNAPI does not have
UNTESTED = "has no Example that becomes a test"


class BuiltVectors(NamedTuple):
    """The result of a build.

    specifications, tests: the numbers of those that were read. errors: one for each unreadable specification.
    untested: the files of specifications without a test.
    """

    specifications: int
    tests: int
    errors: Sequence[str]
    untested: Sequence[Path]


def specifications(path: Path) -> list[Path]:
    """The specifications under a folder, or the one file, by folder and name.

    Raises:
        InvalidArgument: where there are none, or two folders with specifications have one name.
    """
    found = [path] if path.is_file() else sorted(p for p in path.rglob(f"*{SUFFIX}") if p.parent.name != _SKIPPED)
    if not found or not found[0].name.endswith(SUFFIX):
        raise InvalidArgument(
            f"specifications: {path} has no {SUFFIX} file, must be AOSP's runtime/test/specs or the like"
        )
    folders: dict[str, Path] = {}
    for folder in dict.fromkeys(each.resolve().parent for each in found):
        if folders.setdefault(folder.name, folder) != folder:
            raise InvalidArgument(f"specifications: {folders[folder.name]} and {folder} must have different names")
    return sorted(found, key=lambda each: (_order(each.resolve().parent.name), each.name))


@cache
def own_specification(path: str, id: str) -> str:
    """The file of a vector's specification under a folder; the path itself where it is a file, or has none."""
    version, name, _ = id.split("/", 2)
    found = (f for f in Path(path).rglob(f"{name}{SUFFIX}") if f.resolve().parent.name == version)
    return path if Path(path).is_file() else str(next(found, path))


def build(path: Path, folder: Path, jobs: int = 1) -> Iterator[tuple[int, int] | BuiltVectors]:
    """Write the vectors of the specifications under `path` into `folder`.

    Yields the numbers of specifications that are read and of all, then what was written.
    """
    files = specifications(path)
    entries, errors, untested, done = [], [], [], 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if present := next(folder.iterdir(), None):
            raise InvalidArgument(f"vectors: {folder} has {present.name}, must be empty or not there")
        with _Readers(jobs) as readers:
            for version, group in groupby(files, lambda file: file.resolve().parent.name):
                with zipfile.ZipFile(folder / f"{version}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
                    of_version = list(group)
                    for file, read in zip(of_version, readers.read(of_version), strict=True):
                        done += 1
                        yield done, len(files)
                        if isinstance(read, InvalidArgument):
                            errors.append(str(read))
                        elif read[0]["tests"]:
                            entries += _write(archive, *read)
                        else:
                            untested.append(file)
        _write_index(folder / "index.json", entries)
    except OSError as error:
        raise InvalidArgument(f"vectors {folder}: {error.strerror}, must be a folder that can be written") from None
    yield BuiltVectors(len(files) - len(errors), len(entries), errors, untested)


def _order(version: str) -> tuple[bool, str]:
    """HIDL's versions before those of AIDL, which are later ones."""
    return version.startswith("AIDL"), version


class _Readers:
    """Several processes that read, each used by one thread at a time."""

    def __init__(self, jobs: int) -> None:
        self._readers = [SpecReader() for _ in range(jobs)]
        self._idle = list(self._readers)
        self._threads = ThreadPoolExecutor(jobs)

    def __enter__(self) -> "_Readers":
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for reader in self._readers:
            reader.kill()
        self._threads.shutdown()
        for reader in self._readers:
            reader.close()

    def read(self, files: Sequence[Path]) -> Iterator[tuple[dict[str, Any], bytes] | InvalidArgument]:
        """The documents in order, or why there is none."""
        return self._threads.map(self._read, files)

    def _read(self, file: Path) -> tuple[dict[str, Any], bytes] | InvalidArgument:
        reader = self._idle.pop()
        try:
            return reader.read(file)
        except InvalidArgument as error:
            return error
        finally:
            self._idle.append(reader)


def _write(archive: zipfile.ZipFile, document: dict[str, Any], blob: bytes) -> list[str]:
    """Write one specification, with no time, so that equal ones make equal files; returns its lines of the index."""
    name = document["spec"]
    for member, content in (f"{name}.json", _compact(document).encode()), (document["blob"], blob):
        archive.writestr(zipfile.ZipInfo(member), content, zipfile.ZIP_DEFLATED)
    return [_compact(entry(document["version"], name, test)) for test in document["tests"]]


def _write_index(path: Path, entries: Sequence[str]) -> None:
    """One entry a line, so that two indices can be compared."""
    lines = ",\n".join(entries)
    path.write_text(f'{{"format":"nnapi-test-corpus-index/1","tests":[\n{lines}\n]}}\n', encoding="utf-8")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
