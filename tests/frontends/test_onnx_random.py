"""Random graphs as ONNX Runtime computes them, and the page that lists operators."""

from collections import Counter

import pytest

from tests.nightly.random_onnx import judge


@pytest.mark.parametrize("device", ["reference", "litert"])
def test_random_graphs_give_what_onnx_runtime_gives(device):
    found = [judge((7, number), device) for number in range(120)]
    verdicts = Counter(verdict for verdict, _ in found)
    assert [what for verdict, what in found if verdict == "wrong"] == []
    assert verdicts["pass"] >= 115
