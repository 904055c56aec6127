"""What import may spend and how large an archive may be, to the last byte: the figures of docs/how-to/models/run-onnx.md."""

import io
import struct
import zipfile

import numpy as np
import pytest

from nnhal.base.errors import BadFile
from nnhal.frontends.archive import Archive, _Seekable
from nnhal.frontends.common.budget import Budget, Cost
from nnhal.frontends.tflite.flat import FlatTable, length, target
from nnhal.frontends.tflite.sparse import SparseLevel, Sparsity, densify

MI = 1 << 20
ALLOWED = {  # for any file, for 3,200 bytes, for a file of 10 MiB, for the largest
    Cost.TABLES: (1000, 1400, MI, MI),
    Cost.RECORDS: (1024, 13_824, 1024 + 40 * MI, 1 << 32),
    Cost.OPERATIONS: (2000, 2100, 100_000, 100_000),
    Cost.MEMORY: (128 * MI, 128 * MI + 51_200, 288 * MI, 1 << 32),
    Cost.ELEMENTS: (4_000_000, 4_051_200, 4_000_000 + 160 * MI, 1 << 32),
}


@pytest.mark.parametrize("cost", Cost)
def test_a_file_may_spend_so_much_and_not_one_more(cost):
    for size, allowed in zip((0, 3200, 10 * MI, 1 << 40), ALLOWED[cost], strict=True):
        budget = Budget("x.tflite", size)
        assert budget.left[cost] == allowed
        budget.spend(cost, allowed - 1, "here")
        budget.spend(cost, 1, "here")
        with pytest.raises(BadFile) as caught:
            budget.spend(cost, 1, "here")
        assert str(caught.value) == (
            f"x.tflite: here: needs more than {allowed} {cost.value.what} to import, the most for a file of {size} bytes"
        )
        assert all(Budget("", size).left[other] == budget.left[other] for other in Cost if other is not cost)


def test_a_budget_without_a_place_is_the_files():
    with pytest.raises(BadFile, match=r"^x\.tflite: needs more than 1000 tables to import"):
        Budget("x.tflite", 0).spend(Cost.TABLES, 1001)


# ---------------------------------------------------------------------------------------------------------------- archives


def archive(comment: int = 0, before: bytes = b"", **members: bytes) -> bytearray:
    target = io.BytesIO()
    target.write(before)
    with zipfile.ZipFile(target, "a", zipfile.ZIP_DEFLATED) as made:
        for name, data in members.items():
            made.writestr(name, data)
        made.comment = b"c" * comment
    return bytearray(target.getvalue())


def opened(data: bytes) -> Archive:
    return Archive(np.frombuffer(bytes(data), np.uint8), "x.task")


def why(data: bytes) -> str:
    """What is said of an archive as a whole, "" where it opens."""
    try:
        opened(data)
    except BadFile as error:
        return str(error)
    return ""


def test_an_archive_of_a_thousand_members_and_a_directory_of_a_mebibyte_is_the_largest():
    data = archive(a=b"x")
    at = data.index(b"PK\x05\x06")
    for count, size, refused in ((1000, MI, False), (1001, 1, True), (1, MI + 1, True)):
        struct.pack_into("<HI", data, at + 10, count, size)
        assert ("must have at most 1000 and 1048576" in why(data)) is refused
        assert why(data)
    assert opened(archive(**{f"m{n}": b"" for n in range(1000)}))["m999"] == b""


def test_an_archive_with_the_end_of_a_larger_kind_is_refused():
    data = archive(a=b"x")
    at = data.index(b"PK\x05\x06")
    larger = data[:at] + b"PK\x06\x07" + bytes(16) + data[at:]
    assert "must have at most 1000 and 1048576" in why(larger)
    further = data[:at] + b"PK\x06\x07" + bytes(17) + data[at:]
    assert "must have 1000" not in why(further)


def test_the_end_of_an_archive_is_found_behind_the_longest_comment_and_must_be_whole():
    data = archive(0xFFFF, a=b"x")
    assert opened(data)["a"] == b"x"
    assert why(data + bytes(21)).endswith("is a zip file without its end, must be complete")
    short = archive(a=b"x")
    for cut in (1, 21, 22):
        assert why(short[:-cut]).endswith("is a zip file without its end, must be complete")


def test_a_member_may_have_a_mebibyte_or_a_hundred_times_the_archives_size():
    for size, fits in ((MI, True), (MI + 1, False)):
        found = opened(archive(zeros=bytes(size)))
        assert found.size_of("zeros") == size
        if fits:
            assert found["zeros"] == bytes(size)
        else:
            with pytest.raises(BadFile, match=r"x\.task: member zeros has 1048577 bytes, must have at most 1048576"):
                found["zeros"]
    bare = len(archive(zeros=bytes(2_000_000)))
    assert len(opened(archive(20_000 - bare, zeros=bytes(2_000_000)))["zeros"]) == 2_000_000
    with pytest.raises(BadFile, match="has 2000000 bytes, must have at most 1999900, 100 times the file"):
        opened(archive(19_999 - bare, zeros=bytes(2_000_000)))["zeros"]


def test_no_member_may_have_more_than_two_gibibytes():
    data = archive(a=b"x" * 50, before=bytes(22_000_000))
    at = data.index(b"PK\x01\x02") + 24  # of the directory: the size of the member
    struct.pack_into("<I", data, at, 1 << 31)
    assert opened(data)["a"] == b"x" * 50
    struct.pack_into("<I", data, at, (1 << 31) + 1)
    with pytest.raises(BadFile, match="has 2147483649 bytes, must have at most 2147483648"):
        opened(data)["a"]


def test_an_archive_is_a_mapping_of_its_files_without_folders():
    found = opened(archive(**{"b/": b"", "b/one": b"1", "two": b"2"}))
    assert list(found) == ["b/one", "two"] and len(found) == 2
    assert "two" in found and "b/" not in found and 2 not in found
    with pytest.raises(KeyError):
        found["three"]


def test_bytes_are_read_from_wherever_they_are_sought():
    file = _Seekable(np.arange(10, dtype=np.uint8))
    assert file.readable() and file.seekable()
    assert (file.seek(4), file.read(3)) == (4, bytes([4, 5, 6]))
    assert (file.seek(1, 1), file.read(1)) == (8, bytes([8]))
    assert (file.seek(-3, 2), file.read(9)) == (7, bytes([7, 8, 9]))
    assert (file.seek(-99, 1), file.read(1)) == (0, bytes([0]))
    assert (file.seek(99), file.read(1)) == (99, b"")


# -------------------------------------------------------------------------------------------------------------- flatbuffers


def table(fields: list[int], room: bytes, first: int = 0) -> tuple[bytes, int]:
    """A table whose fields lie at these offsets, 0 for none, with `room` behind its own word. first: bytes before it."""
    slots = struct.pack(f"<{len(fields) + 2}H", 4 + 2 * len(fields), 4 + len(room), *fields)
    return bytes(first) + slots + struct.pack("<i", len(slots)) + room, first + len(slots)


def test_a_table_says_what_its_fields_say():
    data, at = table([4, 0, 8], struct.pack("<if", -7, 2.5), first=3)
    found = FlatTable(data, at)
    assert (found.place(0), found.place(1), found.place(2), found.place(3)) == (at + 4, 0, at + 8, 0)
    assert (found.number(0), found.number(1), found.number(2, "f"), found.number(9, "Q")) == (-7, 0, 2.5, 0)
    assert found.number(0, "b") == -7 and found.number(0, "B") == 249
    assert (found.target(1), found.child(1), found.vector(1)) == (0, None, (0, 0))


def test_a_vector_begins_behind_its_length():
    data, at = table([4], struct.pack("<II3B", 4, 3, 7, 8, 9))
    found = FlatTable(data, at)
    assert found.target(0) == at + 8 == target(data, at + 4)
    assert found.vector(0) == (at + 12, 3) and length(data, at + 8) == 3


def test_only_the_24_fields_that_are_known_are_read():
    data, at = table([4] * 24 + [4] * 1000, struct.pack("<i", 5))
    assert [FlatTable(data, at).number(n) for n in (0, 23, 24)] == [5, 5, 0]
    backwards = struct.pack("<i", 5) + bytes(8)
    with pytest.raises(ValueError, match="refers to byte -5"):
        FlatTable(backwards, 0)
    at_begin = struct.pack("<HH", 4, 4) + struct.pack("<i", 4)
    assert FlatTable(at_begin, 4).number(0) == 0  # its list of fields is the very first


# ------------------------------------------------------------------------------------------------------------------- sparse


def level(size: int, segments: list[int] | None = None, indices: list[int] | None = None) -> SparseLevel:
    arrays = (np.array(each or [], np.int64) for each in (segments, indices))
    return SparseLevel(segments is None, size, *arrays)


def dense(sparsity: Sparsity, shape: tuple[int, ...], values: list[float], size: int = 1 << 20) -> np.ndarray:
    return densify(sparsity, shape, np.array(values, np.float32), Budget("x", size), "tensor 1")


def test_rows_and_columns_are_expanded_in_either_order():
    by_rows = Sparsity((0, 1), (), (level(3), level(4, [0, 2, 2, 3], [0, 3, 1])))
    assert dense(by_rows, (3, 4), [1, 2, 3]).tolist() == [[1, 0, 0, 2], [0, 0, 0, 0], [0, 3, 0, 0]]
    by_columns = Sparsity((1, 0), (), (level(4), level(3, [0, 1, 2, 2, 3], [0, 2, 0])))
    assert dense(by_columns, (3, 4), [1, 3, 2]).tolist() == [[1, 0, 0, 2], [0, 0, 0, 0], [0, 3, 0, 0]]


def test_blocks_are_expanded_along_the_dimension_they_are_of():
    blocks = Sparsity((0, 1, 2), (1,), (level(2), level(2, [0, 1, 2], [1, 0]), level(2)))
    assert dense(blocks, (2, 4), [1, 2, 3, 4]).tolist() == [[0, 0, 1, 2], [3, 4, 0, 0]]
    tall = Sparsity((0, 1, 2), (0,), (level(1), level(3, [0, 2], [0, 2]), level(2)))
    assert dense(tall, (2, 3), [1, 2, 3, 4]).tolist() == [[1, 0, 3], [2, 0, 4]]


ROWS, COLUMNS = level(2), level(2, [0, 1, 2], [0, 1])
CONTRADICTIONS = [
    ("is a scalar, must have a dimension to be sparse", Sparsity((), (), ()), ()),
    ("traversal order is [0, 0], must be a permutation", Sparsity((0, 0), (), (ROWS, COLUMNS)), (2, 2)),
    ("traversal order is [0], must be a permutation", Sparsity((0,), (), (ROWS,)), (2, 2)),
    (
        "block map is [0, 0], must be different dimensions of 0 to 0",
        Sparsity((0, 1, 2), (0, 0), (ROWS, ROWS, ROWS)),
        (2,),
    ),
    (
        "block map is [2], must be different dimensions of 0 to 1",
        Sparsity((0, 1, 2), (2,), (ROWS, COLUMNS, ROWS)),
        (2, 2),
    ),
    (
        "block map is [-1], must be different dimensions of 0 to 1",
        Sparsity((0, 1, 2), (-1,), (ROWS, COLUMNS, ROWS)),
        (2, 2),
    ),
    ("has 1 levels, must have 2", Sparsity((0, 1), (), (ROWS,)), (2, 2)),
    ("has sizes [2, -1], must have none below 0", Sparsity((0, 1), (), (ROWS, level(-1, [0, 1, 2], [0, 1]))), (2, 2)),
    (
        "describes 3 values, must describe the 2 stored",
        Sparsity((0, 1), (), (ROWS, level(2, [0, 1, 3], [0, 0, 1]))),
        (2, 2),
    ),
    (
        "level 1 must have 3 segments that rise from 0 to 2",
        Sparsity((0, 1), (), (ROWS, level(2, [0, 2], [0, 1]))),
        (2, 2),
    ),
    (
        "level 1 must have 3 segments that rise from 0 to 2",
        Sparsity((0, 1), (), (ROWS, level(2, [1, 1, 2], [0, 1]))),
        (2, 2),
    ),
    (
        "level 1 must have 3 segments that rise from 0 to 2",
        Sparsity((0, 1), (), (ROWS, level(2, [0, 1, 1], [0, 1]))),
        (2, 2),
    ),
    (
        "level 1 must have 3 segments that rise from 0 to 2",
        Sparsity((0, 1), (), (ROWS, level(2, [0, 3, 2], [0, 1]))),
        (2, 2),
    ),
    (
        "has indices outside of its shape [2, 2], must have none",
        Sparsity((0, 1), (), (ROWS, level(2, [0, 1, 2], [0, 2]))),
        (2, 2),
    ),
    (
        "has indices outside of its shape [2, 2], must have none",
        Sparsity((0, 1), (), (ROWS, level(2, [0, 1, 2], [-1, 1]))),
        (2, 2),
    ),
]


@pytest.mark.parametrize(("says", "sparsity", "shape"), CONTRADICTIONS)
def test_a_sparse_tensor_that_contradicts_itself_is_refused_with_the_rule(says, sparsity, shape):
    with pytest.raises(BadFile) as caught:
        dense(sparsity, shape, [1, 2])
    assert str(caught.value) == f"x: tensor 1: {says}"


def test_dense_levels_have_no_more_nodes_than_values_or_segments():
    wide = Sparsity((0, 1), (), (level(3), level(3)))
    with pytest.raises(BadFile, match="level 0 has 3 nodes, must have at most 2"):
        dense(wide, (3, 3), [1, 2])
    with pytest.raises(BadFile, match="level 1 has 9 nodes, must have at most 4"):
        dense(wide, (3, 3), [1, 2, 3, 4])
    assert dense(wide, (3, 3), list(range(9))).tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_a_sparse_tensor_is_paid_for_by_its_size_and_its_levels():
    budget = Budget("x", 0)
    before = dict(budget.left)
    by_rows = Sparsity((0, 1), (), (level(3), level(4, [0, 2, 2, 3], [0, 3, 1])))
    densify(by_rows, (3, 4), np.array([1, 2, 3], np.float32), budget, "tensor 1")
    assert before[Cost.MEMORY] - budget.left[Cost.MEMORY] == 3 * 4 * 4
    assert before[Cost.ELEMENTS] - budget.left[Cost.ELEMENTS] == 4 * 2  # the four segments, at each of two levels
