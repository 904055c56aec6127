"""`nnhal cache`: lists, verifies and deletes cached compilations."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from nnhal.base.errors import InvalidArgument, NnhalError
from nnhal.base.records import replace
from nnhal.cli import common
from nnhal.hal.cache.files import CacheFiles
from nnhal.hal.cache.keeper import verify_files
from nnhal.runtime.cache.folder import CacheFolder, OpenFiles
from nnhal.runtime.cache.manifest import Listed, NoEntry
from nnhal.runtime.cache.wanted import CacheSettings

SHORT = 12  # characters of a key that are shown
UNDELETED = "an entry cannot be deleted: "


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --cache-dir and --json to a command."""
    return common.cache_dir_option(common.json_option(command))


@click.group("cache")
def command() -> None:
    """List, verify and delete cached compilations.

    Each command has --json, and --cache-dir for another folder.
    """


@command.command("list")
@options
def list_entries(cache_dir: str | None, as_json: bool) -> None:
    """List cache entries, the last used first."""
    folder = _folder(cache_dir)
    _tell(folder, folder.entries(), as_json)


@command.command("show")
@click.argument("key")
@options
def show(key: str, cache_dir: str | None, as_json: bool) -> None:
    """Show one cache entry.

    KEY is the beginning of its key.
    """
    folder = _folder(cache_dir)
    (entry,) = _chosen(folder, [key])
    if as_json:
        _tell(folder, [entry], as_json)
        return
    for name, value in _plain(entry).items():
        common.console.print(f"{name:12} {value}", markup=False)


@command.command("verify")
@click.argument("keys", nargs=-1)
@options
def verify(keys: Sequence[str], cache_dir: str | None, as_json: bool) -> int:
    """Check the content of cache entries.

    Reads every file of the entries, or of those with KEYS. The exit code is 1 if one is damaged.
    """
    folder = _folder(cache_dir)
    found = [_verified(folder, entry) for entry in _chosen(folder, keys)]
    _tell(folder, found, as_json, read=True)
    return 1 if any(entry.problem for entry in found) else 0


@command.command("prune")
@click.option(
    "--size", type=click.IntRange(0), metavar="MIB", help="Size to prune to (default: the limit of the folder)."
)
@options
def prune(size: int | None, cache_dir: str | None, as_json: bool) -> None:
    """Delete damaged and long unused entries."""
    folder = _folder(cache_dir)
    with _failing(folder.path, UNDELETED):
        gone = folder.prune(None if size is None else size << 20)
    _tell(folder, folder.entries(), as_json, gone)


@command.command("clear")
@click.argument("keys", nargs=-1)
@options
def clear(keys: Sequence[str], cache_dir: str | None, as_json: bool) -> None:
    """Delete all entries, or those with KEYS."""
    folder = _folder(cache_dir)
    gone = [entry.key for entry in _chosen(folder, keys)]
    with _failing(folder.path, UNDELETED):
        folder.take_out(gone)
    _tell(folder, folder.entries(), as_json, gone)


class _NoFolder(NamedTuple):
    """A cache folder that does not exist. The commands treat it as empty and do not create it."""

    path: Path
    most: int

    def entries(self) -> list[Listed]:
        return []

    def entry(self, key: str, count: CacheFiles, *, used: bool = True) -> OpenFiles:
        raise NoEntry("there is no entry")

    def prune(self, most: int | None = None) -> list[str]:
        return []

    def take_out(self, keys: Iterable[str]) -> None:
        pass


_Folder = CacheFolder | _NoFolder


def _folder(cache_dir: str | None) -> _Folder:
    wanted = CacheSettings.wanted(common.cache_folder(cache_dir), None)
    if wanted.folder is None:
        raise InvalidArgument(f"cache: {wanted.why}")
    with _failing(wanted.folder):
        if not wanted.folder.exists():
            return _NoFolder(wanted.folder, wanted.most)
        return CacheFolder(wanted.folder, wanted.most)


@contextmanager
def _failing(folder: Path, what: str = "") -> Iterator[None]:
    """Converts an error of the operating system. what: the operation that failed."""
    try:
        yield
    except OSError as error:
        raise InvalidArgument(f"cache folder {folder}: {what}{error.strerror}") from None


def _chosen(folder: _Folder, keys: Sequence[str]) -> list[Listed]:
    """Returns the entries whose keys begin with one of `keys`; all entries if there are no `keys`."""
    entries = folder.entries()
    for key in keys:
        count = sum(entry.key.startswith(key) for entry in entries)
        if count != 1 or not key:
            there = ", ".join(entry.key[:SHORT] for entry in entries) or "there are none"
            raise InvalidArgument(f"key {key!r} begins {count} entries, must be one: {there}")
    return [entry for entry in entries if not keys or any(entry.key.startswith(key) for key in keys)]


def _verified(folder: _Folder, entry: Listed) -> Listed:
    """Reads an entry; returns it with the problem that was found."""
    if entry.problem or entry.manifest is None:
        return entry
    count = CacheFiles(entry.manifest.model_files, entry.manifest.data_files)
    try:
        files = folder.entry(entry.key, count, used=False)
    except (NoEntry, OSError) as error:
        return replace(entry, problem=str(error))
    try:
        verify_files(files.cache(bytes.fromhex(entry.key)))
    except NnhalError as error:
        return replace(entry, problem=str(error))
    finally:
        files.close()
    return entry


def _plain(entry: Listed) -> dict[str, Any]:
    facts = {} if entry.manifest is None else entry.manifest.facts
    named = {
        name: facts.get(name, "") for name in ("model", "device", "version", "place", "preference", "priority", "token")
    }
    counts = {name: facts.get(name, 0) for name in ("operations", "of", "made")}
    uses = {"size": entry.size, "uses": entry.uses, "problem": entry.problem}
    return {"key": entry.key} | {n: str(v) for n, v in named.items()} | counts | uses


def _tell(
    folder: _Folder, entries: Sequence[Listed], as_json: bool, gone: Sequence[str] = (), *, read: bool = False
) -> None:
    """Prints entries; `read` is whether all their bytes were read."""
    size = sum(entry.size for entry in entries)
    if as_json:
        facts = {"folder": str(folder.path), "size": size, "most": folder.most}
        common.print_json({**facts, "entries": [_plain(entry) for entry in entries], "gone": list(gone)})
        return
    for key in gone:
        common.console.print(f"deleted {key[:SHORT]}", markup=False)
    rows = []
    for entry in entries:
        plain = _plain(entry)
        part = f"{plain['operations']} of {plain['of']}"
        rows.append(
            [
                *(plain["key"][:SHORT], plain["model"], f"{plain['device']} {plain['version']}".strip(), part),
                *(
                    common.size(entry.size),
                    str(entry.uses),
                    _age(plain["made"]),
                    entry.problem or ("whole" if read else ""),
                ),
            ]
        )
    if rows:
        common.table(["key", "model", "device", ">operations", ">size", ">uses", ">age", "state"], rows)
    most = common.size(folder.most)
    common.console.print(f"{folder.path}: {len(rows)} entries, {common.size(size)} of {most}", markup=False)


def _age(made: Any) -> str:
    seconds = max(0.0, time.time() - made) if isinstance(made, int | float) and made else 0.0
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
