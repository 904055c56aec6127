"""Constants stay what they are, whatever a driver does to the memory that it was given."""

import numpy as np
import pytest

import nnhal
from nnhal.ipc.client.process import ReconnectingDevice, start
from tests.faults.support import WITNESS
from tests.models import make_model


def weighted(n: int) -> nnhal.Model:
    """y = x + (0, 1, ...)."""
    return make_model(lambda b, x: b.add(x, np.arange(n, dtype=np.float32)), (n,))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("size", [8, 4096, 1 << 18])
@pytest.mark.parametrize("way", ["call", "burst", "fenced"])
def test_a_driver_that_scribbles_over_its_memory_and_fails_leaves_the_cpu_the_right_weights(size, way):
    device = ReconnectingDevice("witness", lambda: start(WITNESS))
    x, want = np.ones(size, np.float32), np.arange(size, dtype=np.float32) + 1
    options = {"witness": {"scribble": 1, "fixed": 1}}
    try:
        compiled = nnhal.compile(weighted(size), devices=device, driver_options=options, fallback="allow")
        with compiled, compiled.burst() as burst:
            ways = {"call": compiled, "burst": burst, "fenced": lambda x: compiled.execute_fenced(x).result()}
            for _ in range(2):
                if way == "fenced":  # which has no fallback
                    with pytest.raises(nnhal.OperationFailed, match="the engine failed"):
                        ways[way](x)
                else:
                    assert np.array_equal(ways[way](x), want)
                assert (x == 1).all()
            with nnhal.compile(compiled._caller.plan.model, devices=["reference"]) as again:
                assert np.array_equal(again(x), want)
    finally:
        device.close()
