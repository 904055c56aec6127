"""What holds for every record of elementwise operations, reductions and pools, whatever it computes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from nnhal.base.operands import Value
from nnhal.ops import OPS
from nnhal.ops.schema import agree, bind
from tests.ops.run import Q8, Q8S, Type, run
from tests.oracles.strategies import STABLE, Example, quantised
from tests.strategies import ELEMENTWISE, POOLS, REDUCTIONS, calls

FEW = settings(STABLE, max_examples=60)
NAMES = (*ELEMENTWISE, *REDUCTIONS, *POOLS)
ALL = [pytest.param(name, kind, id=f"{name}-{Type(kind).name}") for name in NAMES for kind in OPS[name].types]
KNOWN = (lambda s: s, lambda s: (None, *s[1:]), lambda s: (None,) * len(s), lambda s: None)  # of a shape, at build time
BOTH = [name for name in NAMES if {Q8, Q8S} <= set(OPS[name].types) and name != "CAST"]


def made(name: str, example: Example) -> np.ndarray:
    return run(name, example.inputs, example.output)[0]


@pytest.mark.parametrize(("name", "kind"), ALL)
def test_level_and_shape_are_known_as_far_as_they_can_be(name, kind):
    @FEW
    @given(calls(name, kind))
    def holds(example: Example) -> None:
        op, array = OPS[name], made(name, example)
        a = bind(op, example.inputs, [example.output])
        assert a.shapes == [array.shape]
        assert a.level >= max(op.since, op.types[kind])
        for known in KNOWN:
            inputs = [replace(v, shape=known(v.shape), data=None) if v.shape else v for v in example.inputs]
            a = bind(op, inputs, [example.output])
            assert a.shapes[0] is None or agree(a.shapes[0], array.shape)
            assert a.deferred or a.shapes == [array.shape]

    holds()


@pytest.mark.parametrize("name", BOTH)
def test_signed_elements_are_the_unsigned_ones_less_128(name):
    def signed(v: Value) -> Value:
        if v.type != Q8:
            return v
        data = None if v.data is None else (v.data.astype(np.int16) - 128).astype(np.int8)
        return replace(v, type=Q8S, zero_point=v.zero_point - 128, data=data)

    @FEW
    @given(calls(name, Q8))
    def holds(example: Example) -> None:
        one = made(name, example).astype(np.int16)
        other = made(name, Example(tuple(map(signed, example.inputs)), signed(example.output)))
        wanted = one - 128 if quantised(example.output.type) else one
        if name == "AVERAGE_POOL_2D":  # a tie goes up where it is unsigned, away from 0 where it is signed
            wanted = wanted - ((wanted - other == 1) & (other < 0))
        np.testing.assert_array_equal(other, wanted)

    holds()


@pytest.mark.parametrize("name", POOLS)
def test_either_layout_gives_the_same(name):
    @FEW
    @given(calls(name, next(iter(OPS[name].types))))
    def holds(example: Example) -> None:
        x, *rest = example.inputs
        if rest[-1].type != Type.BOOL or rest[-1].array:
            return
        turned = np.moveaxis(x.array, -1, 1)
        nchw = replace(rest[-1], data=np.array(True))
        other = Example((replace(x, shape=turned.shape, data=turned), *rest[:-1], nchw), example.output)
        np.testing.assert_array_equal(made(name, other), np.moveaxis(made(name, example), -1, 1))

    holds()
