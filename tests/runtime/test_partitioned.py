"""A share of `python -m tests.nightly.partitioned`: random models over random partial drivers against the reference."""

import os

import numpy as np
import pytest

from tests.nightly.partitioned import difference, run
from tests.runtime.drawn import draw

SEED = int(os.environ.get("NNHAL_SEED", "1"))


@pytest.mark.parametrize(("isolate", "count"), [(False, 20), (True, 10)], ids=["here", "isolated"])
def test_a_partitioned_model_gives_what_the_whole_one_gives(isolate: bool, count: int) -> None:
    told, wrong = run(SEED, range(count), isolate)
    assert not wrong, "\n".join(wrong)
    assert told["models"] == count and told["steps"] > 2 * count
    assert told["loops and branches of the runtime's"] > count / 10 and told["of several devices inside"] > 0


def test_a_seed_draws_the_same_model_and_inputs_each_time_and_another_one_others() -> None:
    (one, x), (same, y), (other, _) = draw([3, 4]), draw([3, 4]), draw([3, 5])
    assert one == same and one != other
    assert all(np.array_equal(a, b) for given in zip(x, y, strict=True) for a, b in zip(*given, strict=True))


def test_outcomes_differ_in_bits_shapes_types_and_errors() -> None:
    x = np.array([0.0, 1.0], np.float32)
    assert difference([x], [x.copy()]) == "" == difference("DeadObject: one", "DeadObject: another")
    for other in (-x, x[:1], x.astype("f2"), x.reshape(1, 2)):
        assert difference([x], [other])
    assert (
        difference("DeadObject: one", "Closed: one") and difference([x], "Closed: x") and difference("Closed: x", [x])
    )
