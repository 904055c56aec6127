"""Places as engines take them, by NumPy's own slices."""

import numpy as np
import pytest

from nnhal.drivers.kit.movement import FAR, strided_slices
from nnhal.model.validate import validate
from nnhal.ops.schema import Bound
from tests.models import make_model


def strided_slice(size: int, begin: int, end: int, stride: int) -> Bound:
    """STRIDED_SLICE of one dimension."""
    model = make_model(lambda b, x: b.strided_slice(x, [begin], [end], [stride], 0, 0, 0), (size,))
    (bound,) = validate(model).subgraphs[0].operations
    assert bound is not None
    return bound


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("stride", [-3, -1, 1, 2])
def test_begin_and_end_pick_what_a_slice_picks_and_count_from_the_front(size: int, stride: int) -> None:
    x = np.arange(size)
    for begin in range(-size - 1, size + 2):
        for end in range(-size - 1, size + 2):
            (first,), (last,), (step,) = strided_slices(strided_slice(size, begin, end, stride))
            assert first >= 0 and (last >= 0 or last == -FAR)
            part = x[first : None if last == -FAR else last : step]
            assert part.tolist() == x[begin:end:stride].tolist()
