"""Requests in the HAL's form: laid out, read by a driver, collected."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnhal.base.errors import InvalidRequest
from nnhal.base.memory import ALIGNMENT, Memory
from nnhal.hal.arguments import (
    HalRequest,
    OutputShape,
    RequestArgument,
    Room,
    collect,
    lay_out,
    lay_out_in,
    output_shapes,
    to_arrays,
)
from nnhal.hal.request import Request
from tests.hal.old_drivers import X, added, reshaped

F32 = np.dtype(np.float32)
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
DTYPES = st.sampled_from([np.dtype(t) for t in ("f4", "i4", "u1", "f2", "?")])
ROOM = Room(F32, (3, 4), 48)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(SHAPES, DTYPES), max_size=5), st.booleans())
def test_every_argument_lies_where_the_form_says(arguments, in_one_pool):
    arrays = [np.full(shape, n, dtype) for n, (shape, dtype) in enumerate(arguments)]
    request = Request([*arrays, None], [None])
    laid = lay_out_in(request, [ROOM], Memory.allocate) if in_one_pool else lay_out(request, [ROOM])
    for array, argument in zip(arrays, laid.request.inputs, strict=False):
        assert (argument.dimensions, argument.length, argument.has_no_value) == (array.shape, array.nbytes, False)
        there = laid.request.pools[argument.pool].view(argument.offset, argument.length, array.dtype, array.shape)
        np.testing.assert_array_equal(there, array)
        assert np.shares_memory(there, array) == (not in_one_pool and array.size > 0)
    assert laid.request.inputs[-1] == RequestArgument(has_no_value=True)
    places = sorted((a.pool, a.offset, a.length) for a in (*laid.request.inputs[:-1], *laid.request.outputs))
    for (pool, start, length), (other, after, _) in itertools.pairwise(places):
        assert pool != other or start + length <= after
    assert all(offset % ALIGNMENT == 0 for _, offset, _ in places)


def test_results_that_the_driver_may_write_again_are_copied_out():
    request = Request([], [None])
    laid = lay_out_in(request, [ROOM], Memory.allocate)
    laid.outputs[0][:] = X.reshape(-1).view(np.uint8)
    collect(laid, request, [ROOM])
    laid.outputs[0][:] = 0
    np.testing.assert_array_equal(request.outputs[0], X)


def test_a_small_result_in_a_large_guess_does_not_keep_it_alive():
    room = Room(F32, None, 4096)
    for shape, kept in (((3, 4), False), ((32, 32), True)):
        request = Request([], [None])
        laid = lay_out(request, [room])
        laid.outputs[0][:] = 0
        collect(laid, request, [room], [OutputShape(shape)])
        assert request.outputs[0].shape == shape and np.shares_memory(request.outputs[0], laid.outputs[0]) == kept


def test_a_driver_reads_the_form_as_arrays_over_the_pools():
    y = np.zeros((3, 4), np.float32)
    arrays = to_arrays(lay_out(Request([X], [y]), [ROOM]).request, added())
    assert np.shares_memory(arrays.inputs[0], X)
    arrays.write(0, X + 1)
    np.testing.assert_array_equal(y, X + 1)
    assert output_shapes(arrays) == [((3, 4), True)]


def test_an_output_of_unknown_shape_is_room_in_bytes():
    form = lay_out(Request([X, np.int32([2, 6])], [None]), [Room(F32, None, 40)]).request
    arrays = to_arrays(form, reshaped(False))
    assert (arrays.outputs[0].dtype, arrays.outputs[0].shape) == (np.uint8, (40,))
    arrays.write(0, X)
    assert output_shapes(arrays) == [((3, 4), False)]


IN, OUT = RequestArgument(False, 0, 0, 48, (3, 4)), RequestArgument(False, 1, 0, 48)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ((), (OUT,), "request has 0 inputs, must have 1"),
        ((IN,), (OUT, OUT), "request has 2 outputs, must have 1"),
        ((RequestArgument(False, 2, 0, 48),), (OUT,), "input 0: pool is 2, must be below 2"),
        ((RequestArgument(False, -1, 0, 48),), (OUT,), "input 0: pool is -1, must be below 2"),
        ((RequestArgument(False, 0, 4, 48),), (OUT,), "input 0: bytes 4 to 52 must lie inside the pool's 48"),
        ((RequestArgument(False, 0, -4, 48),), (OUT,), "input 0: bytes -4 to 44 must lie inside the pool's 48"),
        ((RequestArgument(False, 0, 0, 48, (4, 3)),), (OUT,), r"input 0 has dimensions \[4, 3\], must be \[3, 4\]"),
        ((RequestArgument(False, 0, 0, 44),), (OUT,), r"input 0 has 44 bytes, must be 48 for \[3, 4\] of float32"),
        ((IN,), (RequestArgument(has_no_value=True),), "output 0 has no value, must have memory"),
        ((IN,), (RequestArgument(False, 0, 0, 48),), "output 0: pool 0 is for reading only, must be writable"),
    ],
)
def test_a_form_that_does_not_fit_is_refused_with_the_argument(inputs, outputs, message):
    fixed = X.copy()
    fixed.flags.writeable = False
    pools = Memory.wrap(fixed), Memory.allocate(48)
    with pytest.raises(InvalidRequest, match=message):
        to_arrays(HalRequest(inputs, outputs, pools), added())
