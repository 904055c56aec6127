"""Looks at a built wheel and source archive, as a package index and its users will: a program for ./wheels.

    python tests/packages.py WHEEL SDIST OTHER_WHEEL

OTHER_WHEEL: built of SDIST in another folder. Exit status 1 with a line for each thing that is wrong.
"""

import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MADE = re.compile(r"PKG-INFO|setup\.cfg|src/nnhal\.egg-info/.*")  # by setuptools, in a source archive
RELATIVE = re.compile(r"\]\((?!https?:|mailto:|#)[^)]*\)")
WANTED = "Author", "Keywords", "Classifier", "License-Expression", "Requires-Python", "Summary"


def metadata(text: str) -> Message:
    """The fields of a package; its description is the body."""
    return Parser().parsestr(text)


def of_fields(found: Message, version: str) -> Iterator[str]:
    """What is wrong with the metadata."""
    if found["Version"] != version:
        yield f"the version is {found['Version']}, must be {version}, as src/nnhal/base/version.py says"
    for name in WANTED:
        if not found.get(name):
            yield f"the metadata has no {name}"
    description = str(found.get_payload())
    if len(description) < 1000 or found["Description-Content-Type"] != "text/markdown":
        yield "the metadata has no README"
    for link in RELATIVE.findall(description):
        yield f"the README has the link {link[1:]}, which leads nowhere from a page of the index"


def of_wheel(path: Path) -> Iterator[str]:
    """What is wrong with what the wheel holds."""
    tags = path.name.removesuffix(".whl").split("-")[2:]
    if tags[:2] != ["cp311", "abi3"]:
        yield f"the wheel's tags are {tags}, must begin with cp311, abi3"
    if "linux" in tags[2] and "manylinux" not in tags[2]:
        print(f"note: {path.name} has no manylinux tag", file=sys.stderr)
    names = zipfile.ZipFile(path).namelist()
    tracked = {name.removeprefix("src/") for name in tracked_files() if name.startswith("src/nnhal/")}
    wanted = {name for name in tracked if not name.endswith((".c", ".h"))}
    held = {name for name in names if not name.endswith("/") and ".dist-info/" not in name}
    extensions = {name for name in held if name.endswith(".so")}
    yield from (f"the wheel lacks {name}" for name in sorted(wanted - held))
    yield from (f"the wheel has {name}, which is no part of the program" for name in sorted(held - wanted - extensions))
    if len(extensions) != sum(name.endswith(".c") for name in tracked):
        yield f"the wheel has the extensions {sorted(extensions)}, must have one for each .c file"


def of_sdist(path: Path) -> Iterator[str]:
    """What is wrong with what the source archive holds: it has what the repository has."""
    with tarfile.open(path) as archive:
        held = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    tracked = tracked_files()
    yield from (f"the source archive lacks {name}" for name in sorted(tracked - held))
    stray = (name for name in sorted(held - tracked) if not MADE.fullmatch(name))
    yield from (f"the source archive has {name}, which the repository has not" for name in stray)


def tracked_files() -> set[str]:
    """The files of the repository, with those that git does not ignore."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    out = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return {name for name in out.split("\0") if name and (ROOT / name).exists()}


def of_extensions(one: Path, other: Path) -> Iterator[str]:
    """Which extensions are not the same in two wheels."""
    first, second = (
        {name: archive.read(name) for name in archive.namelist() if name.endswith(".so")}
        for archive in map(zipfile.ZipFile, (one, other))
    )
    for name in sorted({*first, *second}):
        if first.get(name) != second.get(name):
            yield f"{name} differs between two folders that it was built in"


def main(wheel: str, sdist: str, other: str) -> int:
    """Print what is wrong."""
    version = re.search(r'"(.+)"', (ROOT / "src/nnhal/base/version.py").read_text().split("__version__")[1])
    assert version is not None
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    wrong = [
        *of_fields(metadata(archive.read(name).decode()), version[1]),
        *of_wheel(Path(wheel)),
        *of_sdist(Path(sdist)),
        *of_extensions(Path(wheel), Path(other)),
    ]
    for line in wrong:
        print(f"wrong: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
