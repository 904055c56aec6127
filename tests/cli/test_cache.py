"""`nnhal cache`, in this process."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.cli import cache
from tests.cli.test_run import called

pytestmark = pytest.mark.cache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with entries of two models; the second was used once, the first not at all."""
    monkeypatch.setenv("NNHAL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("NNHAL_CACHE_DIR", str(tmp_path / "cache"))
    for name, times in (("one", 1), ("two", 2)):
        b = nnhal.Builder(name)
        x = b.input((2,))
        model = b.finish([x], [b.mul(x, np.float32([1, len(name) + times]))])
        for _ in range(times):
            nnhal.compile(model, devices="sample-full-1.3").close()
    return tmp_path / "cache"


def listed(capsys: Any, *words: str, code: int = 0) -> dict[str, Any]:
    return dict(json.loads(called(capsys, "cache", *words, "--json", code=code)[0]))


def test_entries_are_listed_the_one_used_last_first(capsys, folder):
    found = listed(capsys, "list")
    assert [(e["model"], e["device"], e["uses"], e["operations"], e["of"]) for e in found["entries"]] == [
        ("two", "sample-full-1.3", 1, 1, 1),
        ("one", "sample-full-1.3", 0, 1, 1),
    ]
    assert found["size"] == sum(e["size"] for e in found["entries"]) > 400
    assert (found["folder"], found["most"], found["gone"]) == (str(folder), 1 << 30, [])
    text, _ = called(capsys, "cache", "list")
    assert [line.split()[1] for line in text.splitlines()[1:3]] == ["two", "one"]
    assert text.splitlines()[-1].startswith(f"{folder}: 2 entries, ")
    assert "whole" not in text  # nobody looked


def test_one_entry_is_shown_by_the_begin_of_its_key(capsys):
    key = listed(capsys, "list")["entries"][1]["key"]
    text, _ = called(capsys, "cache", "show", key[:8])
    assert dict(line.split(maxsplit=1) for line in text.splitlines() if len(line.split()) > 1)["key"] == key
    assert listed(capsys, "show", key)["entries"][0]["model"] == "one"


@pytest.mark.parametrize(("key", "why"), [("", "begins 2 entries"), ("x", "begins 0 entries")])
def test_a_key_must_be_that_of_one_entry(capsys, key, why):
    for verb in ("show", "verify", "clear"):
        _, said = called(capsys, "cache", verb, key, code=3)
        assert f"key {key!r} {why}, must be one: " in said
    assert len(listed(capsys, "list")["entries"]) == 2


def test_what_is_damaged_is_named_and_goes_with_the_next_pruning(capsys, folder):
    assert [e["problem"] for e in listed(capsys, "verify")["entries"]] == ["", ""]
    assert called(capsys, "cache", "verify")[0].count(" whole") == 2
    entry = listed(capsys, "list")["entries"][0]
    file = next(folder.glob(f"{entry['key']}.*.m0"))
    data = bytearray(file.read_bytes())
    data[200] ^= 1
    file.write_bytes(data)
    found = listed(capsys, "verify", code=1)["entries"]
    assert found[0]["problem"].startswith("damaged: model file 0 is not what was written") and not found[1]["problem"]
    assert [e["uses"] for e in found] == [1, 0]  # to look is no use
    (folder / f"{entry['key']}.entry").write_bytes(b"{}")
    found = listed(capsys, "prune")
    assert found["gone"] == [entry["key"]] and len(found["entries"]) == 1


def test_files_of_a_drivers_own_form_are_its_own_to_judge(capsys, folder):
    entry = listed(capsys, "list")["entries"][0]
    for file in folder.glob(f"{entry['key']}.*.[md]0"):
        file.write_bytes(b"of a form of its own")
    assert "driver's private format" in listed(capsys, "verify", code=1)["entries"][0]["problem"]


def test_room_is_made_by_what_was_not_used_for_longest(capsys):
    keys = [e["key"] for e in listed(capsys, "list")["entries"]]
    assert listed(capsys, "prune", "--size", "1")["gone"] == []
    assert listed(capsys, "prune", "--size", "0")["gone"] == keys[::-1]


def test_entries_are_taken_out_by_key_or_all(capsys):
    keys = [e["key"] for e in listed(capsys, "list")["entries"]]
    assert listed(capsys, "clear", keys[0])["gone"] == keys[:1]
    assert "deleted " + keys[1][:12] in called(capsys, "cache", "clear")[0]
    assert listed(capsys, "list")["entries"] == []
    assert called(capsys, "cache", "list")[0].endswith(": 0 entries, 0 B of 1024 MiB\n")


@pytest.mark.parametrize("words", [["clear"], ["prune", "--size", "0"]], ids=" ".join)
def test_entries_of_a_read_only_folder_cannot_be_deleted(capsys, monkeypatch, folder, words):
    keys = [e["key"] for e in listed(capsys, "list")["entries"]]
    open_, writing = os.open, os.O_WRONLY | os.O_RDWR

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        patch.setattr(os, "open", lambda p, f, *a, **k: refuse() if f & writing else open_(p, f, *a, **k))
        _, said = called(capsys, "cache", *words, code=3)
    assert f"cache folder {folder}: an entry cannot be deleted: Permission denied" in said
    assert [e["key"] for e in listed(capsys, "list")["entries"]] == keys
    called(capsys, "cache", "clear")
    (folder / "written").unlink()  # the sum cannot be written either
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", lambda p, f, *a, **k: refuse() if f & writing else open_(p, f, *a, **k))
        assert listed(capsys, *words)["gone"] == []


@pytest.mark.parametrize("verb", ["list", "verify", "prune", "clear"])
def test_a_missing_folder_is_empty_and_stays_missing(capsys, tmp_path, verb):
    other = tmp_path / "other"
    found = listed(capsys, verb, "--cache-dir", str(other))
    assert (found["folder"], found["entries"], found["gone"]) == (str(other), [], [])
    assert not other.exists()


def test_a_folder_is_named_and_one_that_others_may_use_is_refused(capsys, tmp_path, folder):
    assert listed(capsys, "list", "--cache-dir", str(tmp_path / "other"))["entries"] == []
    folder.chmod(0o755)
    _, said = called(capsys, "cache", "list", code=3)
    assert f"cache folder {folder}: has mode 0755, must be this user's alone" in said


@pytest.mark.parametrize(
    ("seconds", "told"), [(0, "0 s"), (59, "59 s"), (60, "1 min"), (7200, "2 h"), (86_400 * 3, "3 d"), (-5, "0 s")]
)
def test_ages(monkeypatch, seconds, told):
    monkeypatch.setattr(cache.time, "time", lambda: 1_000_000 + seconds)
    assert cache._age(1_000_000) == told and cache._age("yesterday") == "0 s"
