"""The published vectors: on the reference device all pass; the other devices fail nothing that they take."""

import json
import math
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from nnhal.conformance.compare import compare, tolerance
from nnhal.conformance.suite import run_vector, variants
from nnhal.conformance.vectors import Expected, index, read
from nnhal.hal.proofs import choices_of
from nnhal.model.validate import level_of
from nnhal.runtime import discovery
from tests.matrix.devices import DEVICES, INSTALLED

# Vectors whose stated level is not the level of their model, by specification, with the reason.
LEVEL_DIFFERS: dict[str, str] = {}


# Which operation must fail, and why, by specification, for the vectors that must fail.
MUST_FAIL: dict[str, str] = {
    "depthwise_conv2d_invalid_filter_dims": r"DEPTHWISE_CONV_2D #\d: input 1 \(filter\) has dimension 0 = 2, must be 1",
    "if_no_value": r"IF #0: input 0 \(condition\) is omitted, must be given",
    "while_infinite_loop": r"WHILE #0: has run for .* ms, must end within its loop time-out of 1 ms",
    "cast_mismatching_shapes": r"CAST #0: output 0 \(output\) has shape \[100\], must be \[2, 3\]",
    "concat_invalid_rank": r"CONCATENATION #0: input 0 \(parts\) has shape .*, must have rank 1 to 4",
    "conv2d_v1_3_invalid_rank": r"CONV_2D #\d: input 0 \(input\) has shape \[1, 3, 3\], must be \[batch, height, width, ",
}


def report_of(*arguments: str) -> dict:
    program = [sys.executable, "-m", "nnhal.cli.main", "test", "vectors", "--vectors", *arguments, "--json"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


ALL = 7072 + 6426 + 656
LEAST = {"reference": ALL, "litert": 11_500, "onnxruntime": 11_700, "openvino": 11_500}  # of ALL that a device takes
# The check runs these shares of the vectors of each operation, and at least one; the nightly run all vectors.
SHARE = {"reference": 0.08, "litert": 0.03, "onnxruntime": 0.02, "openvino": 0.005}


def part_and_whole(devices: list[str]) -> Iterator[ParameterSet]:
    for device in devices:
        if (share := SHARE.get(device, 1.0)) < 1:
            yield pytest.param(device, share, id=f"{device} in part")
        yield pytest.param(device, 1.0, id=device, marks=pytest.mark.nightly if share < 1 else ())


def share_of_each_operation(vectors: Path, share: float) -> list[str]:
    """The identifiers that come first by a hash, at least one for each operation."""
    by_operation = defaultdict(list)
    for id, entry in index(vectors).items():
        by_operation[entry.get("primary")].append(id)
    return [
        id
        for ids in by_operation.values()
        for id in sorted(ids, key=lambda id: sha256(id.encode()).digest())[: math.ceil(share * len(ids))]
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("device", "share"), list(part_and_whole(DEVICES)))
def test_an_installed_device_fails_nothing_that_it_takes(vectors, device, share):
    flags = {id: entry.get("flags", ()) for id, entry in index(vectors).items()}
    chosen = share_of_each_operation(vectors, share)
    only = ["--filter", rf"^({'|'.join(map(re.escape, chosen))})( \(|$)"] if share < 1 else []
    found = report_of(str(vectors), "--device", device, *only)
    assert found["groups"] == []
    wanted = sum(len(list(variants(flags[id]))) for id in chosen)
    assert len(found["suites"][0]["cases"]) == wanted and (share < 1 or wanted == ALL)
    assert (
        found["totals"]["passed"]
        >= (0.9 if share < 1 and device != "reference" else 1) * wanted * LEAST.get(device, 1) / ALL
    )
    assert max(case["time_ns"] for case in found["suites"][0]["cases"]) < 2e9 or device != "reference"


FORMS = [name for name, device in INSTALLED.items() if choices_of(device)]
LAYERS = "ADD", "AVERAGE_POOL_2D", "CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "GROUPED_CONV_2D", "MUL"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("share", [0.02, pytest.param(1.0, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("device", FORMS)
def test_where_a_fast_form_fails_a_vector_the_proof_has_refused_it(vectors, tmp_path, monkeypatch, device, share):
    chosen = ["--sample", str(share), "--filter", "quant", *(f"--operation={name}" for name in LAYERS)]
    found = report_of(str(vectors), "--device", device, "--option", "forms=fast", *chosen)
    assert found["totals"]["passed"] > 500 * share
    failed = {operation for group in found["groups"] for operation in group["operations"]}
    monkeypatch.setenv("NNHAL_STATE_DIR", str(tmp_path))
    program = [sys.executable, "-m", "nnhal.cli.main", "verify", device, "--json"]
    for name in failed:
        done = subprocess.run([*program, "--operation", name], capture_output=True, text=True, check=False)
        (said,) = json.loads(done.stdout)
        assert any(row["form"] != row["known"][0] for row in said["operations"]), found["groups"]


def test_the_level_of_every_model_is_the_one_stated(vectors):
    differing = {}
    for vector in read(vectors):
        if vector.level is not None and not vector.expect_failure:
            level = level_of(vector.model())
            if level != vector.level:
                differing.setdefault(vector.id.split("/")[1], f"{vector.id} is {level}, stated {vector.level}")
    assert set(differing) == set(LEVEL_DIFFERS), differing


def test_vectors_that_must_fail_name_the_operation_and_the_reason(vectors):
    flags = index(vectors)
    wanted = [v for v in read(vectors) if v.expect_failure]
    assert len(wanted) == sum("expectFailure" in e.get("flags", ()) for e in flags.values())
    for vector in wanted:
        outcome = run_vector(vector, discovery.cpu())
        assert outcome.verdict == "passed", outcome
        assert re.search(MUST_FAIL[vector.id.split("/")[1]], outcome.reason), outcome


def test_a_wrong_value_is_reported_with_its_place():
    import numpy as np

    from nnhal.base.codes import OperandType as Type

    wanted = Expected(np.array([1.0, 2.0], np.float32), (2,), Type.TENSOR_FLOAT32, False)
    assert compare(np.array([1.0, 2.1], np.float32), wanted, tolerance(wanted.type, False)) == (
        "1 of 2 elements differ, the first at [1]: 2.1, must be 2"
    )
    assert compare(np.array([1.0], np.float32), wanted, tolerance(wanted.type, False)) == "has shape [1], must be [2]"
    assert compare(np.array([1.0, np.nan], np.float32), wanted, tolerance(wanted.type, False))
    assert tolerance(Type.TENSOR_BOOL8, False) == (0.0, 0.0)


def test_a_vector_only_moves_elements_if_all_its_operations_do_and_there_is_one_scale(vectors):
    specs = {"transpose_quant8_1": True, "avg_pool_quant8_1": False, "concat_mixed_quant": False}
    found = {(spec, v.moves) for v in read(vectors) if (spec := v.id.split("/")[1]) in specs and "internal" not in v.id}
    assert found == set(specs.items())
