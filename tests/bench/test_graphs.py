"""The graphs that growth is measured of have as many operations as they are asked for, and say what they are."""

import numpy as np
import pytest

import nnhal
from nnhal.bench.graphs import GRAPHS, beams, chain, fan

X = np.float32([-1, 0, 2, 3])


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("n", [1, 6])
def test_each_has_as_many_operations_as_asked_on_four_elements(name, n):
    model = GRAPHS[name](n)
    assert len(model.main.operations) == n
    assert {model.main.operands[i].dimensions for i in (*model.main.inputs, *model.main.outputs)} == {(4,)}


def ends(model: nnhal.Model) -> tuple[int, int]:
    return len(model.main.inputs), len(model.main.outputs)


def test_a_chain_reads_its_input_at_every_other_operation():
    model = chain(5)
    (x,) = model.main.inputs
    assert ends(model) == (1, 1) and [x in o.inputs for o in model.main.operations] == [True, False, True, False, True]
    assert nnhal.compile(model, devices="reference")(X).tolist() == [-1, 0, 8, 12]  # relu(relu(2x) + x) + x


def test_a_fan_has_one_input_and_many_outputs_and_beams_have_many_of_both():
    assert ends(fan(3)) == (1, 3) and ends(beams(3)) == (3, 3)
    for result in nnhal.compile(fan(3), devices="reference")(X):
        assert result.tolist() == [0, 0, 2, 3]
    results = nnhal.compile(beams(3), devices="reference")(X, X + 1, X + 2)
    assert [r.tolist() for r in results] == [[0, 0, 2, 3], [0, 1, 3, 4], [1, 2, 4, 5]]
