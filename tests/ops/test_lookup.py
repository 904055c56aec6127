"""Lookups: facts of their definitions, and the fingerprint that hashing rests on."""

from struct import pack

import farmhash
import numpy as np
import pytest

from nnhal.base.errors import InvalidModel
from nnhal.base.levels import V1_0, V1_2, V1_3, Level
from nnhal.base.operands import Value
from nnhal.ops.fingerprint import fingerprint64
from tests.ops.run import F16, F32, I32, Q8, Q8S, Operand, bound, result, run, value

HITS = result(Q8, None, 1.0, 0)
LEAST, GREATEST = -(2**31), 2**31 - 1
SPARSE_DEPRECATED, DENSE, SPARSE = 1, 2, 3


def ints(*numbers: int) -> Value:
    return value(I32, numbers)


# ------------------------------------------------------------------------------------------------------------------ rows


@pytest.mark.parametrize(("kind", "level"), [(F32, V1_0), (I32, V1_2), (Q8, V1_2), (F16, V1_3), (Q8S, V1_3)])
def test_rows_are_picked_by_index(kind: int, level: Level) -> None:
    scale = 0.5 if kind in (Q8, Q8S) else 0.0
    operands = [ints(2, 0), value(kind, [[1, 2], [3, 4], [5, 6]], scale)]
    assert run("EMBEDDING_LOOKUP", operands, result(kind, None, scale))[0].tolist() == [[5, 6], [1, 2]]
    assert bound("EMBEDDING_LOOKUP", operands, result(kind, None, scale)).level == level


def test_a_key_that_is_not_there_gives_zeros_and_no_hit() -> None:
    operands = [ints(1234, -292, -11, 0), ints(-11, 0, 1234), [[0.0, 0.1], [1.0, 1.1], [2.0, 2.1]]]
    rows, hits = run("HASHTABLE_LOOKUP", operands, result(), HITS)
    np.testing.assert_allclose(rows, [[2, 2.1], [0, 0], [0, 0.1], [1, 1.1]], rtol=1e-6)
    assert hits.tolist() == [1, 0, 1, 1]


def test_the_extremes_are_keys_like_others() -> None:
    operands = [ints(GREATEST, LEAST, 0), ints(LEAST, GREATEST), [[1.0], [2.0]]]
    rows, hits = run("HASHTABLE_LOOKUP", operands, result(), HITS)
    assert rows.tolist() == [[2], [1], [0]] and hits.tolist() == [1, 1, 0]


def test_a_table_without_keys_has_no_hits() -> None:
    rows, hits = run("HASHTABLE_LOOKUP", [ints(7), np.zeros(0, np.int32), np.zeros((0, 2), np.float32)], result(), HITS)
    assert rows.tolist() == [[0, 0]] and hits.tolist() == [0]


@pytest.mark.parametrize(
    ("operands", "outs", "message"),
    [
        ([ints(0), ints(1, 0), [[1.0], [2.0]]], (result(), HITS), "keys are not sorted, must be in ascending order"),
        ([ints(0), ints(0), [[1.0], [2.0]]], (result(), HITS), "values has 2 rows, must have 1, one per key"),
        ([ints(0), ints(0), [1.0]], (result(), HITS), r"input 2 \(values\) has shape \[1\], must have rank 2 to 8"),
        ([ints(0), ints(0), [[1.0]]], (result(), result(Q8, None, 0.5, 0)), "must be 1 and 0"),
        (
            [ints(0), ints(0), value(Q8S, [[1]], 0.5)],
            (result(Q8S, None, 0.5), HITS),
            "values.* is TENSOR_QUANT8_ASYMM_SIGNED, must be one of: TENSOR_FLOAT32",
        ),
    ],
)
def test_a_table_that_breaks_a_rule_is_rejected(operands: list[Operand], outs: tuple[Value, ...], message: str) -> None:
    with pytest.raises(InvalidModel, match=f"HASHTABLE_LOOKUP: .*{message}"):
        bound("HASHTABLE_LOOKUP", operands, *outs)


def test_rows_of_one_dimension_are_rejected() -> None:
    with pytest.raises(InvalidModel, match=r"EMBEDDING_LOOKUP: .* must have rank 2 to 8"):
        bound("EMBEDDING_LOOKUP", [ints(0), [1.0, 2.0]])


# --------------------------------------------------------------------------------------------------------------- hashing


def printed(data: bytes) -> int:
    return int(fingerprint64(np.frombuffer(data, np.uint8)[None])[0])


@pytest.mark.parametrize(
    ("size", "expected"),  # of the bytes 0, 1, 2, ...; from pyfarmhash 0.5.1, one size or more for each branch
    [
        (0, 0x9AE16A3B2F90404F),
        (3, 0x94A13D22E9EBA49A),
        (4, 0x82BFFD898958E540),
        (8, 0xAD5A13E1E8E93B98),
        (17, 0xBBB6A6F8F20D1F1C),
        (32, 0x1A9D8199972CDF49),
        (33, 0xE8756EC1CB75524E),
        (64, 0xF58504BB53DECC4B),
        (65, 0xC6A3282C3E793DBE),
        (130, 0xE9E1885E5FE0570D),
    ],
)
def test_fingerprints_are_those_of_the_published_library(size: int, expected: int) -> None:
    assert printed(bytes(range(size))) == expected


def test_fingerprints_of_any_size_are_those_of_the_published_library_itself() -> None:
    rng = np.random.default_rng(1)
    for size in range(200):
        data = rng.bytes(size)
        assert printed(data) == farmhash.fingerprint64(data), size


def sign(seed: float, rows: list[bytes], weights: list[float]) -> int:
    """The bit of one seed, as the definition has it: float32 seed, row, signed fingerprint, sum in double."""
    total = 0.0
    for row, weight in zip(rows, weights, strict=True):
        number = printed(pack("<f", seed) + row)
        total += weight * float(number - (number >> 63 << 64))
    return int(total > 0)


def test_a_bit_is_the_sign_of_the_weighted_fingerprints() -> None:
    seeds, x, weights = [[0.5, -1.25], [3.0, 1e-3]], [[1, 2], [-3, 4]], [0.5, -2.0]
    rows = [pack("<2i", *row) for row in x]
    bits = [[sign(s, rows, weights) for s in line] for line in seeds]
    operands: list[Operand] = [seeds, value(I32, x), weights]
    assert run("LSH_PROJECTION", [*operands, DENSE], result(I32))[0].tolist() == [*bits[0], *bits[1]]
    plain = [2 * high + low for high, low in bits]
    assert run("LSH_PROJECTION", [*operands, SPARSE_DEPRECATED], result(I32))[0].tolist() == plain
    assert run("LSH_PROJECTION", [*operands, SPARSE], result(I32))[0].tolist() == [plain[0], plain[1] + 4]


def test_weights_that_are_left_out_are_one() -> None:
    x = value(I32, [5, 6, 7])
    with_ones = run("LSH_PROJECTION", [[[0.5, 1.5]], x, [1.0, 1.0, 1.0], SPARSE], result(I32))[0]
    assert run("LSH_PROJECTION", [[[0.5, 1.5]], x, None, SPARSE], result(I32))[0].tolist() == with_ones.tolist()


def test_seeds_of_float16_are_hashed_as_float32_and_items_as_stored() -> None:
    x = value(F16, [1.5, -2.0])
    half = run("LSH_PROJECTION", [value(F16, [[0.5, 0.25]]), x, value(F16, [1, 1]), DENSE], result(I32))[0]
    assert half.tolist() == [sign(s, [pack("<e", 1.5), pack("<e", -2.0)], [1, 1]) for s in (0.5, 0.25)]


@pytest.mark.parametrize(("kind", "level"), [(SPARSE_DEPRECATED, V1_0), (DENSE, V1_0), (SPARSE, V1_2)])
def test_offsets_exist_since_1_2(kind: int, level: Level) -> None:
    a = bound("LSH_PROJECTION", [[[0.5, 1.0]], [1.0], [1.0], kind], result(I32))
    assert a.level == level and a.shapes == [(2,) if kind == DENSE else (1,)]


@pytest.mark.parametrize(
    ("functions", "bits", "fits"), [(1, 32, True), (1, 33, False), (2, 31, True), (2, 32, False), (3, 30, True)]
)
def test_a_sparse_signature_fits_32_bits(functions: int, bits: int, fits: bool) -> None:
    operands: list[Operand] = [np.ones((functions, bits), np.float32), [1.0], None, SPARSE]
    if fits:
        assert run("LSH_PROJECTION", operands, result(I32))[0].dtype == np.int32
    else:
        with pytest.raises(
            InvalidModel, match=f"sparse signatures need {bits + functions - 1} bits, must be at most 32"
        ):
            bound("LSH_PROJECTION", operands, result(I32))


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ([[[1.0]], [1.0, 2.0], [1.0], DENSE], "weight has 1 elements, must have 2"),
        ([[[1.0]], [1.0], value(F16, [1]), DENSE], "weight.* is TENSOR_FLOAT16, must be TENSOR_FLOAT32"),
        ([[[1.0]], value(Q8S, [1], 0.5), None, SPARSE], "input 1 .* is TENSOR_QUANT8_ASYMM_SIGNED, must be one of"),
        ([[[1.0]], [1.0], None, DENSE], r"input 2 \(weight\) is omitted, must be given for a dense projection"),
        ([[[1.0]], [1.0], [1.0], 4], r"input 3 \(kind\) = 4, must be one of 1 \(SPARSE_DEPRECATED\), 2 \(DENSE\)"),
        ([[1.0], [1.0], [1.0], DENSE], r"must be \[functions, bits\]"),
    ],
)
def test_a_projection_that_breaks_a_rule_is_rejected(operands: list[Operand], message: str) -> None:
    with pytest.raises(InvalidModel, match=f"LSH_PROJECTION: .*{message}"):
        bound("LSH_PROJECTION", operands, result(I32))


def test_nothing_hashes_to_zero() -> None:
    assert run("LSH_PROJECTION", [[[0.5, 1.0]], np.zeros((0, 2), np.float32), None, SPARSE], result(I32))[
        0
    ].tolist() == [0]
