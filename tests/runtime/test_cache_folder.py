"""A cache folder: entries come whole or not at all, within a quota, whoever dies in between."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nnhal.hal.cache.files import CacheFiles, write_refusal
from nnhal.runtime.cache import manifest
from nnhal.runtime.cache.folder import MAKING, CacheFolder
from nnhal.runtime.cache.making import EntryBeingWritten, NewEntry, NothingCached
from nnhal.runtime.cache.manifest import Manifest, NoEntry
from tests.execution import run_python

pytestmark = pytest.mark.cache

TOKEN = bytes(32)
ONE, TWO, THREE = (f"{n:064x}" for n in (1, 2, 3))
PAIR = CacheFiles(1, 1)


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    return CacheFolder(tmp_path / "cache", 1 << 20)


def publish(folder: CacheFolder, key: str = ONE, data: bytes = b"data", facts: dict | None = None) -> None:
    entry = NewEntry(folder, key, PAIR)
    try:
        for fd in entry.files.cache(TOKEN).files:
            os.write(fd, data)
        entry.publish(TOKEN, facts or {})
    finally:
        entry.close()


def read(folder: CacheFolder, key: str = ONE) -> list[bytes]:
    files = folder.entry(key, PAIR)
    try:
        cache = files.cache(TOKEN)
        assert (len(cache.model_files), len(cache.data_files)) == PAIR
        return [os.read(fd, 1000) for fd in cache.files]
    finally:
        files.close()


def left(folder: CacheFolder) -> list[str]:
    """Files of entries, finished or not; the marks of those that are being made."""
    own = sorted(name for name in os.listdir(folder.path) if name not in ("uses", "written", "recent", MAKING))
    return own + os.listdir(folder.path / MAKING)


def test_an_entry_is_there_once_it_was_published_and_not_before(folder):
    with pytest.raises(NoEntry, match="there is no entry"):
        folder.entry(ONE, PAIR)
    entry = NewEntry(folder, ONE, PAIR)
    for n, fd in enumerate(entry.files.cache(TOKEN).files):
        os.write(fd, b"%d" % n)
    with pytest.raises(NoEntry, match="there is no entry"):
        folder.entry(ONE, PAIR)
    entry.publish(TOKEN, {"model": "m"})
    entry.close()
    assert read(folder) == [b"0", b"1"]
    (found,) = folder.entries()
    assert (found.key, found.size, found.problem) == (ONE, 2, "")
    assert found.manifest is not None and found.manifest.facts == {"model": "m"}


def test_files_are_open_to_read_and_write_from_their_beginning(folder):
    publish(folder)
    files = folder.entry(ONE, PAIR)
    for fd in files.cache(TOKEN).files:
        assert os.lseek(fd, 0, os.SEEK_CUR) == 0
        os.pwrite(fd, b"DATA", 0)
    files.close()
    assert read(folder) == [b"DATA", b"DATA"]


def test_an_entry_in_which_nothing_was_written_is_none(folder):
    with pytest.raises(NothingCached, match="the device kept nothing of it"):
        publish(folder, data=b"")
    assert folder.entries() == [] and left(folder) == []


def test_an_entry_stays_unwritten_where_its_driver_cannot_keep_what_it_was_to_write(folder):
    entry = NewEntry(folder, ONE, PAIR)
    entry.publish(TOKEN, {}, unwritten=True)
    entry.close()
    again = EntryBeingWritten(folder.entry(ONE, PAIR))
    write_refusal(again.files.cache(TOKEN), "no room")
    with pytest.raises(NothingCached, match="the device did not keep it: no room"):
        again.publish(TOKEN, {}, unwritten=True)
    again.close()
    assert read(folder) == [b"", b""]


def test_what_is_given_up_leaves_nothing_and_the_old_entry(folder):
    publish(folder, data=b"old")
    entry = NewEntry(folder, ONE, PAIR)
    os.write(entry.files.cache(TOKEN).files[0], b"new")
    entry.close()
    assert read(folder) == [b"old", b"old"]
    assert len(left(folder)) == 4  # entry, used, two files


def test_a_reader_keeps_what_is_replaced_under_it(folder):
    publish(folder, data=b"old")
    files = folder.entry(ONE, PAIR)
    publish(folder, data=b"new")
    assert [os.read(fd, 9) for fd in files.cache(TOKEN).files] == [b"old", b"old"]
    files.close()
    assert read(folder) == [b"new", b"new"]
    assert len(left(folder)) == 4


def test_another_number_of_files_is_a_miss(folder):
    publish(folder)
    with pytest.raises(NoEntry, match="the entry has 1 model and 1 data files, the device has 2 and 0 now"):
        folder.entry(ONE, CacheFiles(2, 0))


def test_a_missing_file_is_a_miss(folder):
    publish(folder)
    next(folder.path.glob("*.d0")).unlink()
    with pytest.raises(NoEntry, match="a file of the entry is missing"):
        folder.entry(ONE, PAIR)
    assert folder.entries()[0].problem == "damaged: a file of the entry is missing"


def test_every_flipped_bit_of_the_description_is_a_miss_or_changes_nothing(folder):
    publish(folder, facts={"model": "m"})
    manifest = folder.path / f"{ONE}.entry"
    data = manifest.read_bytes()
    for bit in range(8 * len(data)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        manifest.write_bytes(broken)
        try:
            assert read(folder) == [b"data", b"data"]
        except NoEntry as missing:
            assert str(missing)
    manifest.write_bytes(data)
    assert read(folder) == [b"data", b"data"]


@pytest.mark.parametrize("field", [{"facts": {"model": "n"}}, {"data_files": 0}, {"blamed": "it is bad"}])
def test_a_description_that_was_edited_is_a_miss(folder, field):
    """It is a whole description, which only its checksum tells from the one that was written."""
    publish(folder, facts={"model": "m"})
    description = folder.path / f"{ONE}.entry"
    description.write_text(json.dumps(json.loads(description.read_text()) | field))
    with pytest.raises(NoEntry, match="the entry's description is not what was written"):
        folder.entry(ONE, PAIR)


class Replaced(CacheFolder):
    """Another process replaces the entry so many times after this one has read its description."""

    times = 0

    def _read(self, key: str) -> Manifest:
        found = super()._read(key)
        if self.times:
            self.times -= 1
            publish(CacheFolder(self.path, self.most), key, b"newer %d" % self.times)
        return found


@pytest.mark.parametrize("times", [1, 2])
def test_an_entry_that_is_replaced_while_it_is_opened_is_read_anew(tmp_path, times):
    folder = Replaced(tmp_path / "cache", 1 << 20)
    publish(folder, data=b"old")
    folder.times = times
    assert read(folder) == [b"newer 0"] * 2


def test_files_are_on_the_disk_before_the_entry_names_them(folder, monkeypatch):
    calls = []
    fsync, rename = os.fsync, os.rename

    def recorded_fsync(fd):
        calls.append(os.readlink(f"/proc/self/fd/{fd}").rpartition(".")[2])
        fsync(fd)

    def recorded_rename(*names, **folders):
        calls.append("renamed")
        rename(*names, **folders)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "rename", recorded_rename)
    publish(folder)
    assert {"m0", "d0", "new"} <= set(calls[: calls.index("renamed")])
    assert calls[calls.index("renamed") + 1 :], "the folder itself has to be on the disk too"


def test_an_entry_under_another_key_is_a_miss(folder):
    publish(folder)
    for file in folder.path.glob(f"{ONE}*"):
        file.rename(folder.path / file.name.replace(ONE, TWO))
    with pytest.raises(NoEntry, match="the entry is that of another key"):
        folder.entry(TWO, PAIR)


def test_an_entry_of_another_format_is_a_miss(folder, monkeypatch):
    publish(folder)
    monkeypatch.setattr(manifest, "FORMAT", 2)
    with pytest.raises(NoEntry, match="the entry is of another format"):
        folder.entry(ONE, PAIR)


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"{}", b'{"check": 1}', b"\xff", b"[" * 100_000])
def test_a_description_that_is_none_is_a_miss(folder, text):
    publish(folder)
    (folder.path / f"{ONE}.entry").write_bytes(text)
    with pytest.raises(NoEntry, match="damaged: the entry's description"):
        folder.entry(ONE, PAIR)


def test_a_description_does_not_lead_to_other_files():
    body = Manifest(ONE, "../../etc/passwd", 1, 0).packed()
    with pytest.raises(NoEntry, match="damaged"):
        Manifest.unpacked(body, ONE)


# -------------------------------------------------------------------------------------------------------------- quota


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    folder = CacheFolder(tmp_path / "cache", 20)
    for key in (ONE, TWO):
        publish(folder, key, b"1234")  # 8 bytes an entry
    read(folder, ONE)
    publish(folder, THREE, b"1234")
    assert [entry.key for entry in folder.entries()] == [THREE, ONE]
    assert [(entry.last_use > 0, entry.uses) for entry in folder.entries()] == [(True, 0), (True, 1)]


def test_the_order_of_uses_is_no_time(tmp_path, monkeypatch):
    folder = CacheFolder(tmp_path / "cache", 1 << 20)
    for key in (ONE, TWO, THREE):
        publish(folder, key)
    for file in folder.path.iterdir():
        os.utime(file, ns=(0, random.Random(file.name).randrange(1 << 60)))
    read(folder, ONE)
    assert [entry.key for entry in folder.entries()] == [ONE, THREE, TWO]


def test_a_number_of_uses_at_its_end_begins_anew(folder):
    publish(folder)
    (folder.path / "uses").write_bytes(b"\xff" * 8)
    (folder.path / f"{ONE}.used").write_bytes(b"\xff" * 16)
    assert read(folder) == [b"data", b"data"]
    assert [(entry.last_use, entry.uses) for entry in folder.entries()] == [(0, 2**64 - 1)]


def test_a_quota_that_is_too_small_for_one_entry_keeps_none(tmp_path):
    folder = CacheFolder(tmp_path / "cache", 7)
    publish(folder, ONE, b"1234")
    assert folder.entries() == [] and left(folder) == []


def test_pruning_says_what_went(folder):
    for key in (ONE, TWO, THREE):
        publish(folder, key, b"1234")
    assert folder.prune(17) == [ONE]
    assert folder.prune(0) == [TWO, THREE]
    assert left(folder) == []


def test_taking_out_takes_the_files_too(folder):
    publish(folder, ONE)
    publish(folder, TWO)
    folder.take_out([ONE])
    assert [entry.key for entry in folder.entries()] == [TWO]
    assert not list(folder.path.glob(f"{ONE}*"))


def test_a_damaged_entry_goes_when_the_folder_is_counted(folder):
    publish(folder, ONE)
    (folder.path / f"{ONE}.entry").write_bytes(b"{}")
    publish(folder, TWO)
    folder.prune()
    assert [entry.key for entry in folder.entries()] == [TWO]
    assert not list(folder.path.glob(f"{ONE}*"))


PRUNE = """
import sys
from pathlib import Path
from nnhal.runtime.cache.folder import CacheFolder
CacheFolder(Path(sys.argv[1]), 1 << 20).prune(0)
"""


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "another process"])
def test_what_is_being_made_is_not_tidied_away(folder, elsewhere):
    entry = NewEntry(folder, ONE, PAIR)
    os.write(entry.files.cache(TOKEN).files[0], b"x")
    publish(folder, TWO)
    if elsewhere:
        run_python(PRUNE, folder.path)
    else:
        folder.prune(0)
    assert [entry.key for entry in folder.entries()] == []
    entry.publish(TOKEN, {})
    entry.close()
    assert read(folder)[0] == b"x"


def test_a_forked_child_keeps_nothing_of_what_its_parent_was_making(folder):
    entry = NewEntry(folder, ONE, PAIR)
    os.write(entry.files.cache(TOKEN).files[0], b"x")
    until, end = os.pipe()
    if not (child := os.fork()):  # it lives on, with all descriptors, when its parent has died
        os.read(until, 1)
        os._exit(0)
    try:
        entry._mark.close()  # as the parent's death does
        run_python(PRUNE, folder.path)
        assert left(folder) == []
    finally:
        os.close(end)
        os.close(until)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_publishing_costs_the_same_whatever_the_folder_holds(folder, monkeypatch):
    def calls() -> int:
        count = 0

        def counted(call):
            def run(*a, **k):
                nonlocal count
                count += 1
                return call(*a, **k)

            return run

        with monkeypatch.context() as patch:
            for name in ("open", "stat", "fstat", "pread", "listdir", "unlink", "access"):
                patch.setattr(os, name, counted(getattr(os, name)))
            publish(folder, f"{os.urandom(32).hex()}")
        return count

    for n in range(20):
        publish(folder, f"{n:064x}")
    few = calls()
    for n in range(20, 120):
        publish(folder, f"{n:064x}")
    assert calls() == few


def test_what_a_driver_writes_to_published_files_counts(tmp_path):
    folder = CacheFolder(tmp_path / "cache", 1 << 20)
    for key in (ONE, TWO):
        publish(folder, key)
        files = folder.entry(key, PAIR)
        os.pwrite(files.cache(TOKEN).files[0], bytes(700_000), 0)
        files.close()
    publish(folder, THREE)
    assert [entry.key for entry in folder.entries()] == [THREE, TWO]


def test_the_next_use_of_an_entry_tidies_up_where_a_driver_wrote_more_than_the_quota(tmp_path):
    folder = CacheFolder(tmp_path / "cache", 1 << 20)
    for key in (ONE, TWO):
        publish(folder, key)
    files = folder.entry(TWO, PAIR)
    os.pwrite(files.cache(TOKEN).files[0], bytes((1 << 20) - 8), 0)
    files.close()
    assert read(folder, ONE)
    assert [entry.key for entry in folder.entries()] == [ONE]


def test_counting_makes_room_for_more_than_the_last_entry(tmp_path):
    folder = CacheFolder(tmp_path / "cache", 160)
    for n in range(21):
        publish(folder, f"{n:064x}", b"1234")  # 8 bytes
    assert [entry.key for entry in folder.entries()] == [f"{n:064x}" for n in range(20, 3, -1)]


def test_a_folder_that_was_never_counted_is(folder):
    publish(folder, ONE)
    (folder.path / "written").unlink()
    (folder.path / f"{TWO}.{16 * 'a'}.m0").write_bytes(b"of a process that died")
    publish(folder, THREE)
    assert (folder.path / "written").stat().st_size == 1 and len(left(folder)) == 8


def test_a_folder_in_the_place_of_a_description_is_replaced_or_keeps_no_other_entry(folder):
    (folder.path / f"{ONE}.entry").mkdir()
    publish(folder, ONE)
    assert read(folder, ONE) == [b"data", b"data"]
    (folder.path / f"{TWO}.entry").mkdir()
    (folder.path / f"{TWO}.entry" / "notes.txt").touch()
    with pytest.raises(OSError, match="not empty"):
        folder.prune(0)
    assert left(folder) == [f"{TWO}.entry"]


def test_other_files_in_the_folder_stay(folder):
    (folder.path / "notes.txt").write_text("mine")
    publish(folder)
    folder.prune(0)
    assert left(folder) == ["notes.txt"]


# ------------------------------------------------------------------------------------------------------------- deaths

CALLS = ["open", "write", "pwrite", "fsync", "rename", "unlink", "close", "fchmod", "listdir"]


def die_after(calls: int, folder: CacheFolder) -> int:
    """Publish in a process of its own that is killed at a system call; how it ended."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    left = calls

    def counted(call):
        def run(*a, **k):
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*a, **k)

        return run

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    try:
        publish(folder, data=b"new!")
    finally:
        os._exit(0)


def test_a_writer_killed_at_any_call_leaves_the_old_entry_or_the_new(folder):
    publish(folder, data=b"old!")
    seen = set()
    for calls in range(200):
        ended = die_after(calls, folder)
        found = read(folder)
        assert found in ([b"old!", b"old!"], [b"new!", b"new!"])
        seen.add(found[0])
        if ended == 0:
            break
        assert ended == signal.SIGKILL
        publish(folder, TWO)  # tidies up
        publish(folder, data=b"old!")
        assert len(left(folder)) == 8  # two entries with their numbers and two files each
    assert ended == 0 and seen == {b"old!", b"new!"}


WRITING = """
import os, sys
from pathlib import Path
from nnhal.hal.cache.files import CacheFiles
from nnhal.runtime.cache.folder import CacheFolder
from nnhal.runtime.cache.making import NewEntry
from nnhal.runtime.cache.manifest import NoEntry

folder, own = CacheFolder(Path(sys.argv[1]), 64), sys.argv[2].encode() * 8
for n in range(int(sys.argv[3])):
    key = "%064x" % (n % 5)
    if n % 2:
        try:
            files = folder.entry(key, CacheFiles(1, 1))
        except NoEntry:
            continue
        one, two = (os.read(fd, 100) for fd in files.cache(bytes(32)).files)
        assert one == two and len(one) == 8 and len(set(one)) == 1, (one, two)
        files.close()
    else:
        entry = NewEntry(folder, key, CacheFiles(1, 1))
        for fd in entry.files.cache(bytes(32)).files:
            os.write(fd, own)
        entry.publish(bytes(32), {})
        entry.close()
"""


def storm(path: Path, processes: int, rounds: int) -> None:
    """Processes that read and write the same keys, and never see half of an entry."""
    running = [subprocess.Popen([sys.executable, "-c", WRITING, path, str(n), str(rounds)]) for n in range(processes)]
    assert [each.wait() for each in running] == [0] * processes
    folder = CacheFolder(path, 64)
    folder.prune()
    assert sum(entry.size for entry in folder.entries()) <= 64
    assert len(left(folder)) <= 4 * 4


def test_processes_that_read_and_write_the_same_keys_see_whole_entries(folder):
    storm(folder.path, 4, 60)


@pytest.mark.nightly
def test_processes_that_read_and_write_the_same_keys_for_long_see_whole_entries(folder):
    storm(folder.path, 8, 2000)


def test_the_description_is_json_for_people(folder):
    publish(folder, facts={"model": "m"})
    body = json.loads((folder.path / f"{ONE}.entry").read_text())
    assert (body["facts"], body["key"], body["format"], body["model_files"]) == ({"model": "m"}, ONE, 1, 1)
