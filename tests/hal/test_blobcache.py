"""A driver's store for blobs: what was put comes back whole, or not at all, in every process."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nnhal.base.errors import InvalidArgument
from nnhal.drivers.reference import Reference
from nnhal.hal import blobcache
from nnhal.hal.blobcache import BlobCache, blobs_of
from nnhal.hal.cache import tokens
from nnhal.hal.cache.state import StateFile
from tests.execution import run_python
from tests.waiting import Opened

pytestmark = [pytest.mark.cache, pytest.mark.usefixtures("state")]


class Mine(Reference):
    name = "mine"


def file_in(state: Path) -> Path:
    (found,) = state.glob("mine-*.blobs")
    return found


def test_what_was_put_is_there_in_this_store_and_the_next() -> None:
    blobs = blobs_of(Mine())
    assert blobs.has_file and blobs.get(b"k") is None
    assert blobs.put(b"k", b"value") and blobs.put(b"empty", b"") and blobs.put(b"k" * 1024, bytearray(b"long"))
    for store in (blobs, blobs_of(Mine())):
        assert (store.get(b"k"), store.get(b"empty"), store.get(b"k" * 1024)) == (b"value", b"", b"long")
        assert store.get(b"other") is None


def test_the_value_put_last_counts() -> None:
    blobs = blobs_of(Mine())
    for value in (b"one", b"two", b"three"):
        blobs.put(b"k", value)
        assert blobs.get(b"k") == value
    assert blobs_of(Mine()).get(b"k") == b"three"


def test_another_process_finds_it_and_its_own_is_found() -> None:
    blobs = blobs_of(Mine())
    blobs.put(b"k", b"mine")
    program = (
        "from tests.hal.test_blobcache import Mine, blobs_of\n"
        "b = blobs_of(Mine()); print(b.get(b'k')); b.put(b'theirs', b'x' * 100000)"
    )
    assert run_python(program).stdout == "b'mine'\n"
    assert blobs.get(b"theirs") == b"x" * 100000


def test_another_version_and_another_driver_find_nothing() -> None:
    blobs_of(Mine()).put(b"k", b"value")

    class Next(Mine):
        version = "next"

    class Other(Mine):
        name = "other"

    assert blobs_of(Next()).get(b"k") is None and blobs_of(Other()).get(b"k") is None
    assert blobs_of(Mine()).get(b"k") == b"value"


@pytest.mark.parametrize("at", range(0, 130))
def test_a_bit_flipped_anywhere_gives_the_value_or_nothing(state: Path, at: int) -> None:
    blobs = blobs_of(Mine())
    blobs.put(b"first", b"a" * 20)
    blobs.put(b"second", b"b" * 20)
    data = bytearray(file_in(state).read_bytes())
    data[at] ^= 1 << at % 8
    file_in(state).write_bytes(data)
    for store in (blobs, blobs_of(Mine())):
        assert store.get(b"first") in (None, b"a" * 20)
        assert store.get(b"second") in (None, b"b" * 20)


def test_what_stands_half_hides_nothing(state: Path) -> None:
    blobs = blobs_of(Mine())
    blobs.put(b"whole", b"w" * 100)
    size = file_in(state).stat().st_size
    blobs.put(b"half", b"h" * 1000)
    for length in (size + 1, size + 30, size + 60, size + 700):
        os.truncate(file_in(state), length)
        again = blobs_of(Mine())
        assert again.get(b"half") is None and again.get(b"whole") == b"w" * 100
        assert again.put(b"after", b"f" * 2000) and blobs_of(Mine()).get(b"after") == b"f" * 2000
        os.truncate(file_in(state), size)
        blobs_of(Mine()).put(b"half", b"h" * 1000)


def test_a_value_that_looks_like_blobs_is_a_value() -> None:
    blobs = blobs_of(Mine())
    value = blobcache._BLOB.pack(b"blob", 1, 4, bytes(32)) + b"kfake"
    blobs.put(b"outer", value * 3)
    assert blobs.get(b"outer") == value * 3 and blobs.get(b"k") is None


def test_limits_of_a_key_a_value_and_the_file(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobcache, "MOST", 4096)
    monkeypatch.setattr(blobcache, "MOST_VALUE", 1000)
    blobs = blobs_of(Mine())
    for wrong in (b"", b"x" * 1025, "text", 3):
        with pytest.raises(InvalidArgument, match=r"key is .*must be 1 to 1024 bytes"):
            blobs.put(wrong, b"")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="key is"):
            blobs.get(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="must be contiguous bytes"):
        blobs.put(b"k", "text")  # type: ignore[arg-type]
    assert not blobs.put(b"k", bytes(1001)) and blobs.put(b"k", bytes(1000))
    assert [blobs.put(b"%d" % n, bytes(1000)) for n in range(5)] == [True, True, False, False, False]
    assert file_in(state).stat().st_size <= 4096


def test_a_full_file_keeps_its_newer_half_at_the_next_start(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobcache, "MOST", 4096)
    blobs = blobs_of(Mine())
    for n in range(4):
        assert blobs.put(b"%d" % n, bytes([n]) * 900)
    again = blobs_of(Mine())
    assert [again.get(b"%d" % n) for n in range(4)] == [None, None, bytes([2]) * 900, bytes([3]) * 900]
    assert file_in(state).stat().st_size <= 40 + 2048
    assert blobs.get(b"0") == bytes(900)  # whoever has the old one goes on with it


FULL = """
import sys
from nnhal.hal import blobcache
from tests.hal.test_blobcache import Mine
blobcache.MOST = 4096
print([blobcache.blobs_of(Mine()).get(b"%d" % n) is not None for n in range(4)])
"""


def test_a_full_file_stays_while_another_process_has_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """What that process puts is found by the next one."""
    monkeypatch.setattr(blobcache, "MOST", 4096)
    blobs = blobs_of(Mine())
    for n in range(3):
        assert blobs.put(b"%d" % n, bytes([n]) * 900)
    blobs.put(b"3", bytes(500))
    for there in (True, False):
        run = run_python(FULL)
        assert run.stdout == ("[True, True, True, True]\n" if there else "[False, False, True, True]\n")
        blobs = BlobCache(None, bytes(32))  # and let go of the file


def test_what_is_put_when_the_file_was_removed_goes_to_the_new_one(state: Path) -> None:
    blobs = blobs_of(Mine())
    blobs.put(b"old", b"v")
    file_in(state).unlink()
    assert blobs.put(b"new", b"w") and blobs.get(b"new") == b"w" and blobs_of(Mine()).get(b"new") == b"w"
    alone = BlobCache(StateFile.to_read(file_in(state).name), bytes(32))
    file_in(state).unlink()
    assert not alone.put(b"k", b"v")


@pytest.mark.parametrize("length", [0, 10, 40, 100])
def test_a_file_that_is_cut_off_ends_no_process(state: Path, length: int) -> None:
    blobs = blobs_of(Mine())
    blobs.put(b"k", b"x" * 100_000)
    assert blobs.get(b"k") == b"x" * 100_000
    os.truncate(file_in(state), length)
    assert blobs.get(b"k") is None
    assert blobs.put(b"k", b"y") and blobs.get(b"k") == b"y"
    after = blobs_of(Mine())
    assert after.get(b"k") == b"y" and after.put(b"k", b"z") and after.get(b"k") == b"z"


def test_of_a_file_that_is_too_large_the_end_is_looked_at(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = blobs_of(Mine())
    blobs.put(b"old", b"v")
    os.truncate(file_in(state), 1 << 40)  # sparse
    with file_in(state).open("ab") as file:
        file.write(b"blob")
    assert blobs.get(b"old") is None and not blobs.put(b"new", b"w")
    after = blobs_of(Mine())
    assert after.put(b"new", b"w") and after.get(b"new") == b"w" and file_in(state).stat().st_size < 1000


def test_a_file_that_is_none_begins_anew(state: Path) -> None:
    blobs_of(Mine()).put(b"k", b"v")
    file_in(state).write_bytes(b"something else")
    again = blobs_of(Mine())
    assert again.get(b"k") is None and again.put(b"k", b"v") and again.get(b"k") == b"v"


def test_without_a_folder_nothing_is_kept_and_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NNHAL_STATE_DIR", str(tmp_path / "file" / "state"))
    blobs = blobs_of(Mine())
    assert not blobs.has_file and not blobs.put(b"k", b"v") and blobs.get(b"k") is None


def test_a_refusal_of_the_system_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = blobs_of(Mine())

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(blobcache.os, "write", full)
    assert not blobs.put(b"k", b"v")
    monkeypatch.undo()
    assert blobs.get(b"k") is None


def test_threads_and_processes_at_once_lose_nothing() -> None:
    program = (
        "import sys, threading\nfrom tests.hal.test_blobcache import Mine, blobs_of\n"
        "b = blobs_of(Mine()); p = sys.argv[1].encode()\n"
        "t = [threading.Thread(target=lambda k=k: [b.put(p + b'%d-%d' % (k, n), p * 3000) for n in range(50)])"
        " for k in range(2)]\n"
        "[x.start() for x in t]; [x.join() for x in t]"
    )
    blobs = blobs_of(Mine())
    others = [subprocess.Popen([sys.executable, "-c", program, name]) for name in "ab"]
    wrong: list[object] = []

    def read() -> None:
        while any(other.poll() is None for other in others):
            value = blobs.get(b"a0-7")
            if value not in (None, b"a" * 3000):
                wrong.append(value)

    reader = threading.Thread(target=read)
    reader.start()
    assert [other.wait() for other in others] == [0, 0]
    reader.join()
    assert not wrong
    found = [blobs.get(b"%s%d-%d" % (p, k, n)) == p * 3000 for p in (b"a", b"b") for k in range(2) for n in range(50)]
    assert found == [True] * 200


def test_a_store_that_is_dropped_closes_its_file() -> None:
    def used() -> None:
        blobs = blobs_of(Mine())
        blobs.put(b"k", b"v")
        assert blobs.get(b"k") == b"v"

    used()
    opened = Opened()
    for _ in range(20):
        used()
    opened.closed()


def test_a_store_without_a_file_is_one_too() -> None:
    blobs = BlobCache(None, bytes(32))
    assert blobs.get(b"k") is None and not blobs.put(b"k", b"v")


def test_a_process_that_opened_its_file_ahead_uses_that_one_when_it_can_open_none_any_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in (blobcache, tokens):
        monkeypatch.setattr(module, "_only", [])
    blobcache.open_ahead("mine")
    (tmp_path / "file").touch()
    monkeypatch.setenv("NNHAL_STATE_DIR", str(tmp_path / "file"))
    blobs = blobs_of(Mine())
    assert blobs.put(b"k", b"v") and blobs_of(Mine()).get(b"k") == b"v"
    monkeypatch.setattr(blobcache, "_only", [])
    blobcache.open_ahead("mine")  # now there is none to be had
    assert not blobs_of(Mine()).has_file
