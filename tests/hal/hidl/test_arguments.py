"""Requests in the HAL's form: laid out, read by a driver, collected."""

import ctypes
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnhal.base.errors import ContractBroken, InvalidRequest
from nnhal.base.memory import Memory
from nnhal.hal.hidl.arguments import (
    HalRequest,
    OutputBuffer,
    RequestArgument,
    collect,
    lay_out,
    output_shapes,
    to_arrays,
)
from tests.hal.hidl.old_drivers import X, reshaped
from tests.models import doubling
from tests.requests import request_of

F32 = np.dtype(np.float32)
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
DTYPES = st.sampled_from([np.dtype(t) for t in ("f4", "i4", "u1", "f2", "?")])
ROOM = OutputBuffer(F32, (3, 4), 48)


def given_to(arrays):
    """A request that has these inputs, whatever its model is; its only output is left open."""
    return request_of(doubling(3, 4), arrays)


@settings(max_examples=50)
@given(st.lists(st.tuples(SHAPES, DTYPES), max_size=5))
def test_every_argument_lies_where_the_form_says(arguments):
    arrays = [np.full(shape, n, dtype) for n, (shape, dtype) in enumerate(arguments)]
    laid = lay_out(given_to([*arrays, None]), [ROOM])
    for array, argument in zip(arrays, laid.request.inputs, strict=False):
        assert (argument.dimensions, argument.length, argument.has_no_value) == (array.shape, array.nbytes, False)
        pool = laid.request.pools[argument.pool]
        there = pool.view(argument.offset, argument.length, array.dtype, array.shape)
        np.testing.assert_array_equal(there, array)
        assert pool.readonly and argument.offset % array.dtype.itemsize == 0
    assert laid.request.inputs[-1] == RequestArgument(has_no_value=True)
    places = [(a.pool, a.offset, a.offset + a.length) for a in (*laid.request.inputs[:-1], *laid.request.outputs)]
    assert all(one[0] < other[0] or one[2] <= other[1] for one, other in pairwise(sorted(places)))
    assert all(offset > 0 for _, offset, _ in places) and len(laid.request.pools) == 1 + bool(arrays)


def test_a_small_input_is_copied_and_a_larger_one_is_the_callers_memory():
    small, large = np.ones(1024, np.float32), np.ones(1025, np.float32)
    laid = lay_out(given_to([small, large]), [ROOM])
    pools = [laid.request.pools[each.pool] for each in laid.request.inputs]
    views = [p.view(a.offset, a.length, F32, a.dimensions) for p, a in zip(pools, laid.request.inputs, strict=True)]
    assert [np.shares_memory(view, x) for view, x in zip(views, (small, large), strict=True)] == [False, True]


def test_results_are_copied_out_of_what_the_driver_may_write_again():
    y = np.zeros((3, 4), np.float32)
    for rooms in (None, [y]):
        request = request_of(doubling(3, 4), [X], rooms)
        laid = lay_out(request, [ROOM])
        laid.outputs[0][:] = X.reshape(-1)
        collect(laid, request, [ROOM])
        laid.outputs[0][:] = 0
        np.testing.assert_array_equal(request.results[0], X)
    np.testing.assert_array_equal(y, X)


def test_an_output_that_was_not_filled_is_an_error_and_never_what_lay_there():
    request = request_of(doubling(3, 4), [X])
    with pytest.raises(
        ContractBroken, match="output 0 was taken to be filled in place and was not, must be filled wholly"
    ):
        collect(lay_out(request, [ROOM]), request, [ROOM])


def test_what_is_written_past_an_output_is_found():
    request = request_of(doubling(3, 4), [X])
    laid = lay_out(request, [ROOM])
    laid.outputs[0][:] = X.reshape(-1)
    ctypes.memset(laid.outputs[0].ctypes.data + 48, 0x11, 16)
    with pytest.raises(ContractBroken, match="output 0 was written past its end, must not be"):
        collect(laid, request, [ROOM])


def test_a_driver_reads_the_form_as_arrays_over_the_pools():
    laid = lay_out(given_to([X]), [ROOM])
    arrays = to_arrays(laid.request, doubling(3, 4))
    np.testing.assert_array_equal(arrays.inputs[0], X)
    arrays.write(0, X + 1)
    np.testing.assert_array_equal(laid.outputs[0].view(np.float32).reshape(3, 4), X + 1)
    assert output_shapes(arrays) == [((3, 4), True)]


def test_an_output_of_unknown_shape_is_room_in_bytes():
    form = lay_out(request_of(reshaped(False), [X, np.int32([2, 6])]), [OutputBuffer(F32, None, 40)]).request
    arrays = to_arrays(form, reshaped(False))
    assert (arrays.room(0).dtype, arrays.room(0).shape) == (np.uint8, (40,))
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
        to_arrays(HalRequest(inputs, outputs, pools), doubling(3, 4))
