"""Random graphs as ONNX Runtime computes them, hostile files, and the page that lists operators."""

from collections import Counter

import pytest

from tests.faults import fuzz_files
from tests.faults.onnx_mutations import bases, mutated
from tests.frontends.random_onnx import judge


@pytest.mark.parametrize("device", ["reference", "litert"])
def test_random_graphs_give_what_onnx_runtime_gives(device):
    found = [judge((7, number), device) for number in range(120)]
    verdicts = Counter(verdict for verdict, _ in found)
    assert [what for verdict, what in found if verdict == "wrong"] == []
    assert verdicts["pass"] >= 115


@pytest.mark.faults
def test_hostile_files_end_in_results_or_errors():
    found = fuzz_files.fuzz(400, lambda number: mutated(11, number))
    assert found.found == []
    assert found.ends["load: BadFile"] > 100
    assert found.ends["reference: ran"] > 20


@pytest.mark.faults
def test_the_files_that_hostile_ones_are_made_of_run():
    found = fuzz_files.fuzz(len(bases()), bases().__getitem__)
    assert found.found == []
    assert found.ends["reference: ran"] > 0.85 * len(bases())  # some inputs are not for random numbers
