"""Through isolated drivers, by the runtime's own calls: a real model against the same in this process, a step of a stream
against a plain call.
"""

from dataclasses import replace

import numpy as np

from nnhal.api import compile
from nnhal.base.errors import DeviceUnavailable
from nnhal.frontends.python import Builder
from nnhal.measure.latency import Ratio, ratio, timed_pairs
from nnhal.model.graph import State
from nnhal.zoo import ZooError, maker
from transport_peers.figures import Figure
from transport_peers.peer import Progress

MODEL, DRIVER = "mobilenet_v1", "litert"
TARGETS = {1: 1.02, 2: 1.03}  # by engine threads
STREAMING = "reference", "litert"
STREAM_TARGET = 1.5
STEPS = 100  # of a stream, in one pair of durations
WARM_UP = 10


def compare(threads: int, pairs: int) -> tuple[Ratio, Ratio]:
    """Isolated over in process, and the control: a second compilation in this process over the first."""
    path = maker.path(MODEL)
    here, again, apart = (
        compile(path, devices=DRIVER, threads=threads, isolation=isolation) for isolation in ("none", "none", "process")
    )
    with here, again, apart:
        spec = here.inputs[0]
        assert spec.shape is not None
        shape = [size or 1 for size in spec.shape]
        x = np.random.default_rng(0).uniform(-1, 1, shape).astype(spec.dtype)
        if not np.array_equal(here(x), apart(x)):
            raise RuntimeError(f"{MODEL}: the isolated driver's output differs, must be the same bits")
        with apart.burst() as burst:
            for _ in range(WARM_UP):
                here(x), again(x), burst(x)
            found = timed_pairs(lambda: burst(x), lambda: here(x), pairs)
        control = timed_pairs(lambda: again(x), lambda: here(x), pairs, seed=1)
    return ratio(found), ratio(control)


def step_over_call(driver: str, pairs: int) -> Ratio:
    """A step of a stream, whose state of 4 floats stays in the driver, over a plain call that carries it as an argument."""
    b = Builder()
    x, state = b.input((4,)), b.input((4,))
    carried = b.finish([x, state], [b.add(x, x), b.add(x, state)])
    model = replace(carried, states=(State(1, 1, np.zeros(4, np.float32)),))
    streaming, plain = (compile(m, devices=driver, isolation="process", fallback="forbid") for m in (model, carried))
    one, total = np.ones(4, np.float32), np.zeros(4, np.float32)
    with streaming, plain:
        stream = streaming.stream()
        if any(place.device is None for place in stream.state_placement):
            raise RuntimeError(f"{driver}: the state is not in the driver: {stream.state_placement}")
        for _ in range(WARM_UP):
            stream(one), plain(one, total)
        return ratio(timed_pairs(lambda: stream(one), lambda: plain(one, total), pairs, inner=STEPS))


def figures(pairs: int, progress: Progress) -> list[Figure]:
    """The ratios, that of the model with its control by the number of engine threads; not pinned."""
    found = []
    for driver in STREAMING:
        name = f"stream_step_over_plain_call_{driver}"
        progress(f"a stream on {driver}")
        try:
            found.append(Figure.of(name, step_over_call(driver, pairs), STREAM_TARGET))
        except DeviceUnavailable as error:
            found.append(Figure(name, None, STREAM_TARGET, missing=str(error)))
    for threads, target in TARGETS.items():
        name = f"mobilenet_isolated_over_in_process_{threads}"
        progress(f"{MODEL}, {threads} engine threads")
        try:
            measured, control = compare(threads, pairs)
        except (DeviceUnavailable, ZooError) as error:
            found.append(Figure(name, None, target, missing=str(error)))
            continue
        found.append(Figure.of(name, measured, target))
        found.append(Figure.of(f"{name}_control", control, None))
    return found
