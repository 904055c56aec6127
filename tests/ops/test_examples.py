"""The worked examples of the records, run as the operation reference prints them."""

import numpy as np
import pytest
from generate_operations import call

from nnhal.base.codes import OperationType
from nnhal.drivers.reference import Reference
from nnhal.frontends.python import Builder
from nnhal.frontends.tensor import Tensor
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints
from nnhal.ops import OPS
from nnhal.ops.schema import Op
from tests.requests import run

RECORDS = [op for name, op in sorted(OPS.items()) if name in OperationType.__members__]


@pytest.mark.parametrize("record", RECORDS, ids=lambda op: op.name)
def test_example_gives_what_is_stated(record: Op) -> None:
    assert record.example is not None, f"{record.name} has no example"
    b = Builder()
    names: dict[str, object] = {"b": b}
    exec(call(record), names)
    y = names["y"]
    outputs = [y] if isinstance(y, Tensor) else y
    wanted = record.example.outputs if isinstance(record.example.outputs, tuple) else (record.example.outputs,)
    assert isinstance(outputs, list | tuple)
    done = run(checked_prepared(Reference(), b.finish([], outputs), Hints()), [])
    for actual, expected in zip(done.results, wanted, strict=True):
        if expected is not None:
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
            assert actual.shape == np.shape(expected)
