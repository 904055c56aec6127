"""A driver's private record of what it cached."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nnhal.hal.cache import tokens
from nnhal.hal.cache.tokens import TokenStore, state_folder
from tests.execution import run_python

pytestmark = [pytest.mark.cache, pytest.mark.usefixtures("state")]

A, B, C = (bytes([n]) * 32 for n in (1, 2, 3))


def file_of(state: Path) -> Path:
    (file,) = state.glob("*.tokens")
    return file


def test_what_was_noted_is_known_by_driver_token_and_hash_together():
    store = TokenStore.open("npu")
    store.remember(A, B, C)
    assert store.knows(A, B, C)
    for other in ((A, B, A), (A, A, C), (B, B, C), (B, A, C)):
        assert not store.knows(*other)


def test_it_outlives_the_process_and_is_noted_once(state):
    store = TokenStore.open("npu")
    store.remember(A, B, C)
    size = file_of(state).stat().st_size
    again = TokenStore.open("npu")
    assert again.knows(A, B, C) and again.key == store.key and len(store.key) == 32
    again.remember(A, B, C)
    assert file_of(state).stat().st_size == size == 40 + 104


def test_each_driver_has_its_own_key_and_record(state):
    one, two = TokenStore.open("npu"), TokenStore.open("../npu")
    one.remember(A, B, C)
    assert not two.knows(A, B, C) and one.key != two.key
    assert {stat.S_IMODE(each.stat().st_mode) for each in state.iterdir()} == {0o600}
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_of_one_token_several_may_be_known():
    store = TokenStore.open("npu")
    store.remember(A, B, C)
    store.remember(A, B, A)
    assert store.knows(A, B, C) and store.knows(A, B, A)


def test_every_flipped_bit_is_unknown_or_harmless(state):
    store = TokenStore.open("npu")
    store.remember(A, B, C)
    data = file_of(state).read_bytes()
    for bit in range(8 * 40, 8 * len(data)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        file_of(state).write_bytes(broken)
        assert not store.knows(A, B, C)


def test_half_a_record_is_none_and_the_next_is_whole(state):
    store = TokenStore.open("npu")
    store.remember(A, B, C)
    data = file_of(state).read_bytes()
    for length in range(40, len(data)):
        file_of(state).write_bytes(data[:length])
        after = TokenStore.open("npu")
        assert not after.knows(A, B, C) and after.key == store.key
        after.remember(A, A, C)
        assert TokenStore.open("npu").knows(A, A, C)


def test_half_a_record_hides_nothing_from_a_process_that_goes_on(state):
    store = TokenStore.open("npu")
    with file_of(state).open("ab") as file:
        file.write(b"x" * 40)
    store.remember(A, B, C)
    assert store.knows(A, B, C) and TokenStore.open("npu").knows(A, B, C)


def test_a_record_that_cannot_be_written_whole_is_an_error(monkeypatch):
    store, write = TokenStore.open("npu"), os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:40]))  # as a full disk does
    with pytest.raises(OSError, match="No space left on device"):
        store.remember(A, B, C)


@pytest.mark.parametrize("records", [0, 100])
def test_a_look_reads_no_more_than_the_last_records(monkeypatch, state, records):
    monkeypatch.setattr(tokens, "MOST", 10)
    store, read = TokenStore.open("npu"), []
    with file_of(state).open("ab") as file:
        file.write(bytes(104 * records))
    store.remember(A, B, C)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: read.append(size) or pread(fd, size, at))
    assert store.knows(A, B, C) and 104 <= sum(read) <= 104 * 20


FULL = """
import sys
from nnhal.hal.cache import tokens
tokens.MOST = 10
store = tokens.TokenStore.open("npu")
print(store.knows(b"a" * 32, bytes(32), b"c" * 32))
"""


def test_a_full_record_stays_while_another_process_has_it_open(monkeypatch, state):
    """That process may be confined, and could not open a new one."""
    monkeypatch.setattr(tokens, "MOST", 10)
    store = TokenStore.open("npu")
    store.remember(b"a" * 32, bytes(32), b"c" * 32)
    for n in range(1, 12):
        store.remember(b"a" * 32, bytes([n]) * 32, b"c" * 32)
    run = run_python(FULL)
    assert run.stdout == "True\n" and not store.gone
    del store
    run = run_python(FULL)
    assert run.stdout == "False\n" and file_of(state).stat().st_size == 40 + 5 * 104


OPEN = """
import sys
from nnhal.hal.cache.tokens import TokenStore
store = TokenStore.open(sys.argv[1])
if sys.argv[2:]:
    store.remember(b"a" * 32, bytes(32), b"c" * 32)
"""


def test_records_of_drivers_that_kept_nothing_go_when_another_is_made(state):
    for args in (["one"], ["two"], ["kept", "something"], ["three"]):
        run_python(OPEN, *args)
    mine = TokenStore.open("mine")
    run_python(OPEN, "four")
    assert {each.name.partition("-")[0] for each in state.glob("*.tokens")} == {"kept", "mine", "four"}
    assert not mine.gone


@pytest.mark.parametrize("length", [0, 1, 39])
def test_a_head_that_is_none_begins_anew(state, length):
    store = TokenStore.open("npu")
    store.remember(A, B, C)
    file_of(state).write_bytes(file_of(state).read_bytes()[:length])
    anew = TokenStore.open("npu")
    assert anew.key != store.key and not anew.knows(A, B, C)
    anew.remember(A, B, C)
    assert TokenStore.open("npu").knows(A, B, C)


def test_beyond_the_limit_the_older_half_is_forgotten(monkeypatch, state):
    monkeypatch.setattr(tokens, "MOST", 10)
    store = TokenStore.open("npu")
    names = [bytes([n]) * 32 for n in range(11)]
    for name in names:
        store.remember(A, name, C)
    assert TokenStore.open("npu").key == store.key
    assert [TokenStore.open("npu").knows(A, name, C) for name in names] == [False] * 6 + [True] * 5
    assert store.gone and not TokenStore.open("npu").gone
    assert len(list(state.glob("npu*"))) == 1


def test_what_a_process_left_in_the_middle_of_that_is_in_nobodys_way(monkeypatch, state):
    store = TokenStore.open("npu")
    store.remember(A, B, C)
    file_of(state).with_name(file_of(state).name + ".new").write_bytes(b"half")
    file_of(state).write_bytes(b"")
    assert not TokenStore.open("npu").knows(A, B, C)
    assert len(list(state.glob("npu*"))) == 1


NOTING = """
import sys
from nnhal.hal.cache.tokens import TokenStore
store = TokenStore.open("npu")
for n in range(50):
    store.remember(b"a" * 32, bytes([int(sys.argv[1]), n]) * 16, b"c" * 32)
"""


def test_processes_and_threads_note_side_by_side():
    TokenStore.open("npu")
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(subprocess.run, [sys.executable, "-c", NOTING, str(n)], check=True) for n in range(4)]
        assert all(each.result() for each in done)
    store = TokenStore.open("npu")
    assert all(store.knows(b"a" * 32, bytes([p, n]) * 16, b"c" * 32) for p in range(4) for n in range(50))


def test_a_folder_or_file_that_is_not_private_is_refused(state):
    TokenStore.open("npu")
    file_of(state).chmod(0o644)
    with pytest.raises(OSError, match="has mode 0644"):
        TokenStore.open("npu")
    file_of(state).chmod(0o600)
    state.chmod(0o755)
    with pytest.raises(OSError, match="has mode 0755"):
        TokenStore.open("npu")


def test_where_the_record_lies(monkeypatch, tmp_path):
    assert state_folder() == tmp_path / "state"
    monkeypatch.delenv("NNHAL_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state_folder() == tmp_path / "xdg" / "nnhal"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert state_folder() == tmp_path / "home" / ".local" / "state" / "nnhal"


def test_a_process_that_opened_its_record_ahead_uses_that_one(monkeypatch, state):
    monkeypatch.setattr(tokens, "_only", [])
    assert tokens.opened_ahead() is None
    tokens.open_ahead("npu")
    only = tokens.opened_ahead()
    assert only is not None and file_of(state).stat().st_size == 40
    only.remember(A, B, C)
    assert TokenStore.open("npu").knows(A, B, C)


def test_where_there_can_be_no_record_none_is_opened_ahead(monkeypatch, tmp_path):
    monkeypatch.setattr(tokens, "_only", [])
    (tmp_path / "file").touch()
    monkeypatch.setenv("NNHAL_STATE_DIR", str(tmp_path / "file"))
    tokens.open_ahead("npu")
    with pytest.raises(OSError, match="is a link or no folder, must be a folder"):
        tokens.opened_ahead()
    monkeypatch.setattr(tokens, "_only", [])
    monkeypatch.delenv("NNHAL_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "~nobody-of-this-name")
    tokens.open_ahead("npu")
    with pytest.raises(OSError, match="is below a home folder that is not known"):
        tokens.opened_ahead()
