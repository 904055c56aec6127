"""A real model through `litert`, isolated with a burst, against the same in this process, by the runtime's own calls."""

import numpy as np

from nnhal.api import compile
from nnhal.base.errors import DeviceUnavailable
from nnhal.bench import maker
from nnhal.bench.latency import Ratio, interleaved, ratio
from nnhal.bench.zoo import ZooError
from transport_peers.figures import Figure
from transport_peers.peer import Progress

MODEL, DRIVER = "mobilenet_v1", "litert"
TARGETS = {1: 1.02, 2: 1.03}  # by engine threads
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
            found = interleaved(lambda: burst(x), lambda: here(x), pairs)
        control = interleaved(lambda: again(x), lambda: here(x), pairs, seed=1)
    return ratio(found), ratio(control)


def figures(pairs: int, progress: Progress) -> list[Figure]:
    """The ratio and its control by the number of engine threads; not pinned."""
    found = []
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
