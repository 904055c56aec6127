"""Cache files: what was written is known again byte by byte, and anything else is a miss that says why."""

import hashlib
import os
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnhal.base.errors import ContractBroken
from nnhal.hal.cache import files as subject
from nnhal.hal.cache.files import (
    Cache,
    CacheContent,
    CacheFiles,
    DamagedCacheFile,
    encode_files,
    parse_files,
    read_refusal,
    write_refusal,
)

pytestmark = pytest.mark.cache

TOKEN, OTHER = bytes(range(32)), bytes(32)
WHO, KEY = b"w" * 32, b"k" * 32
NAMES = st.text(min_size=1, max_size=9).filter(lambda text: text.isprintable())
SECTIONS = st.dictionaries(NAMES, st.binary(max_size=200), max_size=4)


def content() -> CacheContent:
    return CacheContent([{"code": b"abc", "facts": b""}], [{"weights": np.arange(5, dtype=np.int16)}, {}])


def made(what: CacheContent | None = None) -> tuple[list[bytes], bytes]:
    files, digest = encode_files(what or content(), TOKEN, WHO, KEY)
    return [bytes(file) for file in files], digest


def read(files, token=TOKEN, who=WHO, key=KEY, models=1):
    return parse_files(files[:models], files[models:], token, who, key)


@given(st.lists(SECTIONS, max_size=3), st.lists(SECTIONS, max_size=3))
def test_what_is_written_is_understood(model, data):
    files, digest = encode_files(CacheContent(model, data), TOKEN, WHO, KEY)
    found, again = parse_files(files[: len(model)], files[len(model) :], TOKEN, WHO, KEY)
    assert again == digest
    assert [{k: bytes(v) for k, v in each.items()} for each in found.model] == model
    assert [{k: bytes(v) for k, v in each.items()} for each in found.data] == data


def test_sections_lie_as_the_format_says():
    (file,), _ = made(CacheContent([{"ab": b"xyz"}]))
    assert file[:8] == b"NNHALcf\n"
    assert file[8:12] == (1).to_bytes(4, "little")  # format
    assert (file[12], file[13]) == (0, 0)  # a model file, the first
    assert int.from_bytes(file[16:24], "little") == len(file)
    assert int.from_bytes(file[24:28], "little") == 1
    assert file[48:80] == TOKEN and file[80:112] == WHO
    assert file[112:130] == (3).to_bytes(8, "little") + (2).to_bytes(4, "little") + bytes(4) + b"ab"
    assert file[192:195] == b"xyz" and len(file) == 195 + 32


def test_every_flipped_bit_is_found():
    files, _ = made()
    for number, file in enumerate(files):
        for bit in range(8 * len(file)):
            broken = bytearray(file)
            broken[bit // 8] ^= 1 << bit % 8
            with pytest.raises(DamagedCacheFile):
                read([bytes(broken) if n == number else each for n, each in enumerate(files)])


def test_every_other_length_is_found():
    files, _ = made()
    for length in range(len(files[0])):
        with pytest.raises(DamagedCacheFile, match="damaged: model file 0"):
            read([files[0][:length], *files[1:]])
    for more in (1, 64):
        with pytest.raises(DamagedCacheFile, match="damaged: data file 0 has"):
            read([files[0], files[1] + bytes(more), files[2]])


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"token": OTHER}, "is of another token"),
        ({"who": b"x" * 32}, "is of another driver, version, engine or processor"),
        ({"key": b"x" * 32}, "is not what was written, or was written with another key"),
    ],
)
def test_a_file_of_another_is_a_miss_that_says_so(other, why):
    with pytest.raises(DamagedCacheFile, match=f"model file 0 {why}"):
        read(made()[0], **other)


def test_files_may_not_take_each_others_places():
    files, _ = made(CacheContent([{"a": b"1"}], [{"a": b"1"}]))
    with pytest.raises(DamagedCacheFile, match="model file 0 was written as data file 0"):
        read(files[::-1])
    two, _ = made(CacheContent([{"a": b"1"}, {"a": b"1"}]))
    with pytest.raises(DamagedCacheFile, match="model file 0 was written as model file 1"):
        read(two[::-1], models=2)


def test_files_of_two_savings_together_have_a_hash_of_their_own():
    one, first = made(CacheContent([{"a": b"1"}], [{"b": b"1"}]))
    two, second = made(CacheContent([{"a": b"2"}], [{"b": b"2"}]))
    assert len({first, second, read([one[0], two[1]])[1], read([two[0], one[1]])[1]}) == 4


def test_the_hash_of_all_files_is_made_of_those_that_they_end_with_and_of_nothing_before():
    files, digest = made()
    ends = b"".join(file[-32:] for file in files)
    assert digest == hashlib.blake2b(ends, digest_size=32, key=KEY, person=b"nnhal entry").digest()


def test_a_later_format_is_a_miss(monkeypatch):
    monkeypatch.setattr(subject, "VERSION", 2)
    later = made()[0]
    monkeypatch.undo()
    with pytest.raises(DamagedCacheFile, match="model file 0 is of format 2, must be 1"):
        read(later)


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"": b""}, "a section called '', must be text of 1 to 255 bytes"),
        ({"x" * 256: b""}, "must be text of 1 to 255 bytes"),
        ({3: b""}, "a section called 3, must be text"),
        ({"a": "text"}, "for section a, must be contiguous bytes"),
        ({"a": np.zeros((4, 4))[:, 1]}, "for section a, must be contiguous bytes"),
        ({str(n): b"" for n in range(4097)}, "gave 4097 sections for a file, must be at most 4096"),
    ],
)
def test_what_cannot_be_written_is_the_drivers_fault(sections, why):
    with pytest.raises(ContractBroken, match=why):
        encode_files(CacheContent([sections]), TOKEN, WHO, KEY)


def test_a_file_larger_than_the_limit_is_neither_written_nor_read(monkeypatch):
    (file,), _ = made(CacheContent([{"a": bytes(100)}]))
    monkeypatch.setattr(subject, "LARGEST", len(file) - 1)
    with pytest.raises(ContractBroken, match=f"gave {len(file)} bytes for a file, must be at most {len(file) - 1}"):
        made(CacheContent([{"a": bytes(100)}]))
    with tempfile.TemporaryFile(buffering=0) as there:
        there.write(file)
        with pytest.raises(DamagedCacheFile, match=f"it has {len(file)} bytes, must be at most"):
            subject.read(there.fileno())
        monkeypatch.setattr(subject, "LARGEST", len(file))
        assert subject.read(there.fileno()) == file


@pytest.mark.parametrize("size", [0, -1, 1, 1 << 30])
def test_of_a_file_that_says_that_it_has_another_size_nothing_but_its_header_is_read(monkeypatch, size):
    (file,), _ = made(CacheContent([{"a": bytes(100)}]))
    with tempfile.TemporaryFile(buffering=0) as there:
        there.write(file)
        os.truncate(there.fileno(), len(file) + size)  # sparse
        pread, read = os.pread, []
        monkeypatch.setattr(os, "pread", lambda fd, size, at: read.append(size) or pread(fd, size, at))
        if size:
            with pytest.raises(DamagedCacheFile, match=f"it has {len(file) + size} bytes, must be {len(file)}"):
                subject.read(there.fileno())
            assert len(read) == 1 and read[0] <= 112
        else:
            assert subject.read(there.fileno()) == file


def test_a_file_that_does_not_fit_into_memory_is_damaged(monkeypatch):
    with tempfile.TemporaryFile(buffering=0) as there:
        there.write(b"of another form")
        pread = os.pread

        def full(fd: int, size: int, at: int) -> bytes:
            if size == 15:
                raise MemoryError
            return pread(fd, size, at)

        monkeypatch.setattr(os, "pread", full)
        with pytest.raises(DamagedCacheFile, match="its 15 bytes do not fit into memory"):
            subject.read(there.fileno())


@pytest.mark.parametrize("why", ["no room", "", "\x1b[31m", "x" * 5000])
def test_why_nothing_is_kept_stands_in_the_first_file(tmp_path, why):
    fds = [os.open(tmp_path / str(n), os.O_RDWR | os.O_CREAT) for n in range(2)]
    for fd in fds:
        os.write(fd, b"half of what was to be kept")
    write_refusal(Cache(TOKEN, (fds[0],), (fds[1],)), why)
    told = {"": "no reason given", "\x1b[31m": r"\x1b[31m"}.get(why, why[:1000])
    assert [read_refusal(fd) for fd in fds] == [told, ""]
    assert os.fstat(fds[1]).st_size == 0
    for fd in fds:
        os.close(fd)


def test_a_file_is_replaced_as_a_whole_wherever_its_position_is():
    with tempfile.TemporaryFile(buffering=0) as there:
        there.write(b"something longer that was there")
        subject.write(there.fileno(), bytearray(b"new"))
        assert subject.read(there.fileno()) == b"new"


def test_a_file_that_comes_in_pieces_is_read_to_the_size_that_it_had(monkeypatch):
    with tempfile.TemporaryFile(buffering=0) as there:
        there.write(b"abcdefgh")
        pread, pieces = os.pread, [3, 2, 100]

        def growing(fd: int, size: int, at: int) -> bytes:
            there.write(b"more")
            return pread(fd, min(size, pieces.pop(0)), at)

        monkeypatch.setattr(os, "pread", growing)
        assert subject.read(there.fileno()) == b"abcdefgh"


def test_a_file_that_shrinks_while_it_is_read_is_damaged(monkeypatch):
    with tempfile.TemporaryFile(buffering=0) as there:
        there.write(b"abcdef")
        pread = os.pread

        def shrinking(fd: int, size: int, at: int) -> bytes:
            os.ftruncate(fd, 4)
            return pread(fd, size, at)

        monkeypatch.setattr(os, "pread", shrinking)
        with pytest.raises(DamagedCacheFile, match="it ends at byte 4, was 6 bytes long"):
            subject.read(there.fileno())


def test_no_files_are_none():
    assert not CacheFiles()
    assert CacheFiles(1, 0) and CacheFiles(0, 1)
    empty = CacheContent.empty(CacheFiles(2, 1))
    assert (empty.model, empty.data) == ([{}, {}], [{}])
