"""A compiled model as applications use it: calls, outputs, streams, fallback, threads, forks, the end."""

import os
import resource
import select
import signal
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

import nnhal
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import State
from nnhal.runtime import inflight
from tests.models import make_model
from tests.runtime.devices import Fake, failing
from tests.waiting import LIMIT, until

SHAPE = (1, 4, 4, 2)


def pooled(times: int = 1, shape=SHAPE) -> nnhal.Model:
    b = nnhal.Builder("pooled")
    x = y = b.input(shape, name="x")
    for _ in range(times):
        y = b.max_pool_2d(y, padding="same", filter_size=2, name="y")
    return b.finish([x], [y])


def expected(x: np.ndarray, times: int = 1) -> np.ndarray:
    for _ in range(times):
        padded = np.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)), constant_values=-np.inf)
        x = np.maximum.reduce([padded[:, i : i + 4, j : j + 4] for i in (0, 1) for j in (0, 1)])
    return x


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)


def test_arrays_in_arrays_out(x):
    y = nnhal.compile(pooled(), devices="reference")(x)
    assert (y == expected(x)).all()


def test_a_mapping_in_gives_a_mapping_out(x):
    result = nnhal.compile(pooled(), devices="reference")({"x": x})
    assert list(result) == ["y"] and (result["y"] == expected(x)).all()


def test_each_call_gives_a_fresh_array(x):
    compiled = nnhal.compile(pooled(), devices="reference")
    assert not np.may_share_memory(compiled(x), compiled(x))


def test_out_is_written_and_returned(x):
    out = np.empty(SHAPE, np.float32)
    assert nnhal.compile(pooled(), devices="reference")(x, out=out) is out
    assert (out == expected(x)).all()


def test_bound_arrays_are_read_and_written_in_place(x):
    compiled = nnhal.compile(pooled(), devices="reference")
    out = np.empty(SHAPE, np.float32)
    run = compiled.bind(x, out=out)
    x[:] = 7
    assert run() is out and (out == 7).all()


def test_unknown_dimensions_are_known_with_each_call():
    compiled = nnhal.compile(pooled(shape=(None, 4, 4, 2)), devices="reference")
    for batch in (1, 3):
        assert compiled(np.zeros((batch, 4, 4, 2), np.float32)).shape == (batch, 4, 4, 2)


def test_an_output_of_unknown_shape_does_not_share_memory_with_its_input():
    compiled = nnhal.compile(make_model(lambda b, x: b.reshape(x, [-1]), (None, 4)), devices="reference")
    given = np.ones((2, 4), np.float32)
    assert not np.shares_memory(compiled(given), given)


def test_devices_split_a_model_and_agree_with_one(x):
    compiled = nnhal.compile(pooled(5), devices=[Fake(takes=lambda n: n % 2 == 0), "reference"])
    assert compiled.placement.devices() == {"fake": 3, "reference": 2}
    assert compiled.placement.transfers == 4
    assert (compiled(x) == expected(x, 5)).all()


def test_eight_threads_see_what_one_sees():
    compiled = nnhal.compile(pooled(4), devices=[Fake(takes=lambda n: n % 2 == 0), "reference"])
    inputs = np.random.default_rng(2).normal(size=(2000, *SHAPE)).astype(np.float32)
    with ThreadPoolExecutor(8) as pool:
        results = np.stack(list(pool.map(compiled, inputs)))
    assert (results[:, 0] == expected(inputs[:, 0], 4)).all()


# ---------------------------------------------------------------------------------------------------------- fallback


def test_named_devices_do_not_fall_back_unless_asked():
    with pytest.raises(nnhal.OperationFailed, match=r"device fake: prepare\(\) raised RuntimeError: no memory"):
        nnhal.compile(pooled(), devices=[Fake(on_prepare=failing(RuntimeError("no memory")))])


# ------------------------------------------------------------------------------------------------ executions in flight


# ------------------------------------------------------------------------------------------------------------ streams


def counter() -> nnhal.Model:
    """y = max(x, state), and the state becomes y."""
    builder = ModelBuilder("running maximum")
    x, s = (builder.operand(3, SHAPE, name=n) for n in ("x", "state"))
    y, kept = (builder.operand(3, SHAPE, name=n) for n in ("y", "state_out"))
    builder.operation("MAXIMUM", [x, s], [y])
    builder.operation("MAXIMUM", [s, y], [kept])
    return builder.finish([x, s], [y, kept], states=[State(1, 1, np.zeros(SHAPE, np.float32))])


def test_a_stream_carries_the_state_and_a_call_does_not():
    compiled = nnhal.compile(counter(), devices="reference")
    one, three = (np.full(SHAPE, v, np.float32) for v in (1, 3))
    stream = compiled.stream()
    assert [stream(v).max() for v in (one, three, one)] == [1, 3, 3]
    assert compiled(one).max() == 1
    stream.reset()
    assert stream(one).max() == 1


def test_two_streams_do_not_see_each_other():
    compiled = nnhal.compile(counter(), devices="reference")
    first, second = compiled.stream(), compiled.stream()
    first(np.full(SHAPE, 9, np.float32))
    assert second(np.full(SHAPE, 1, np.float32)).max() == 1


# ------------------------------------------------------------------------------------------------------------ the end


def test_use_after_close_is_an_error_and_closing_twice_is_not(x):
    compiled = nnhal.compile(pooled(), devices="reference")
    compiled.close()
    compiled.close()
    for use in (compiled, compiled.submit, compiled.run):
        with pytest.raises(nnhal.Closed, match="was closed; compile it again"):
            use(x)


def in_child(call):
    """What a forked child says: what it raised, or "nothing"; "hangs" where it does not end."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        signal.alarm(10)
        try:
            call()
            said = "nothing"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as answer:
        return answer.read() or "hangs"


USES = {
    "result": lambda execution: execution.result(),
    "result by a deadline": lambda execution: execution.result(5),
    "await": lambda execution: next(execution.__await__()),
    "done": lambda execution: execution.done(),
    "cancel": lambda execution: execution.cancel(),
    "fileno": lambda execution: execution.fileno(),
}


@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize("use", USES)
def test_an_execution_in_flight_is_closed_in_a_forked_child(use, isolation, x):
    compiled = nnhal.compile(pooled(), devices="reference", isolation=isolation)
    executions = [compiled.submit(x) for _ in range(8)]
    assert in_child(lambda: USES[use](executions[-1])).startswith("Closed: execution: was launched before")
    for execution in executions:
        assert (execution.result() == expected(x)).all()


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_fenced_execution_in_flight_is_closed_in_a_forked_child(isolation, x):
    compiled = nnhal.compile(pooled(), devices="reference", isolation=isolation)
    ready, signal_ = nnhal.fence_pair()
    fenced = compiled.execute_fenced(x, wait_for=[ready])
    for use in (fenced.result, fenced.get_execution_info, fenced.done):
        assert in_child(use).startswith("Closed: fenced execution: was launched before")
    signal_.set()
    assert (fenced.result(LIMIT) == expected(x)).all()


CLOSED = {
    "bind": lambda compiled, stream, x: compiled.bind(x),
    "stream": lambda compiled, stream, x: compiled.stream(),
    "reset": lambda compiled, stream, x: stream.reset(),
    "step": lambda compiled, stream, x: stream(x),
    "placement": lambda compiled, stream, x: stream.state_placement,
    "allocate": lambda compiled, stream, x: nnhal.allocate([(compiled, "output", 0)]),
}


@pytest.mark.parametrize("use", CLOSED)
def test_a_closed_model_and_a_closed_stream_take_nothing_any_more(use):
    compiled = nnhal.compile(counter(), devices="reference")
    stream, x = compiled.stream(), np.ones((1, 2), np.float32)
    if use in ("reset", "step", "placement"):
        ended = compiled.stream()
        ended.close()
        with pytest.raises(nnhal.Closed, match="stream: used after close"):
            CLOSED[use](compiled, ended, x)
    compiled.close()
    with pytest.raises(nnhal.Closed, match="the compiled model was closed"):
        CLOSED[use](compiled, stream, x)


def test_a_burst_with_a_call_in_flight_is_closed_in_a_forked_child():
    entered, gate = threading.Event(), threading.Event()
    burst = added(devices=[Fake(on_run=lambda: (entered.set(), gate.wait(LIMIT)))]).burst()
    results = []
    call = threading.Thread(target=lambda: results.append(burst(F, F).tolist()), daemon=True)
    call.start()
    assert entered.wait(LIMIT)
    assert in_child(burst.close) == "nothing"
    gate.set()
    call.join(LIMIT)
    assert results == [[2, 4, 6, 8]]


def test_a_forked_child_gets_closed_not_a_hang(x):
    compiled = nnhal.compile(pooled(), devices="reference")
    assert "compiled before this process was forked" in in_child(lambda: compiled(x))
    assert (compiled(x) == expected(x)).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": "abacus"}, "device 'abacus' is not known, must be one of"),
        ({"fallback": "maybe"}, "must be one of allow, warn, forbid"),
        ({"preference": "luck"}, "must be one of low_power, fast_single_answer, sustained_speed"),
        ({"priority": 7}, "must be one of low, medium, high"),
        ({"threads": -1}, "threads is -1, must be an integer of at least 0"),
        (
            {"devices": "reference", "driver_options": {"x": {}}},
            "is 'x', must be the name of one of the devices: reference",
        ),
    ],
)
def test_wrong_arguments_are_named_with_the_alternatives(arguments, message):
    with pytest.raises((nnhal.InvalidArgument, nnhal.DeviceUnavailable), match=message):
        nnhal.compile(pooled(), **arguments)


@pytest.mark.parametrize("where", ["run", "leave"])
def test_a_worker_of_which_something_raises_takes_the_next_and_close_returns(where, monkeypatch, x):
    compiled = nnhal.compile(pooled(), devices="reference")
    broken = [True]

    def fail(*_):
        if broken:
            broken.clear()
            raise RuntimeError("broken")

    if where == "leave":
        monkeypatch.setattr(compiled._caller.use, "left", fail)
    else:
        monkeypatch.setattr(inflight._Item, "run", lambda item, run=inflight._Item.run: fail() or run(item))
    first = compiled.submit(x)
    with nullcontext() if where == "leave" else pytest.raises(RuntimeError, match="broken"):
        first.result(LIMIT)
    for _ in range(10):
        assert (compiled.submit(x).result(LIMIT) == expected(x)).all()
    monkeypatch.undo()
    closer = threading.Thread(target=compiled.close, daemon=True)
    closer.start()
    closer.join(LIMIT)
    assert not closer.is_alive()


def test_a_descriptor_of_an_end_that_cannot_be_had_is_resource_exhausted_and_can_be_later(x):
    compiled = nnhal.compile(pooled(), devices="reference")
    execution = compiled.submit(x)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(nnhal.ResourceExhausted, match="descriptor"):
            execution.fileno()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert select.select([execution], [], [], 10)[0] == [execution]


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def test_an_application_sees_what_is_documented_and_nothing_else():
    compiled = nnhal.compile(make_model(lambda b, x: b.relu(x), (2,)), devices="reference")
    given = np.zeros(2, np.float32)
    assert public(compiled) == {
        *(
            "bind",
            "burst",
            "cache",
            "close",
            "configure",
            "execute_fenced",
            "inputs",
            "memory",
            "outputs",
            "placement",
            "run",
        ),
        *("stream", "submit"),
    }
    assert public(compiled.burst()) == {"close", "free_memory", "run", "ways"}
    assert public(compiled.bind(given)) == {"outputs"}
    assert public(compiled.stream()) == {"close", "reset", "state_placement"}
    assert public(compiled.submit(given)) == {"cancel", "done", "fileno", "result", "wait"}
    assert public(compiled.execute_fenced(given)) == {"done", "fence", "get_execution_info", "result", "way"}
    assert public(nnhal.allocate([(compiled, "input", 0)])) == {
        *("close", "copy_from", "copy_to", "device", "read", "reason", "shape", "token", "write")
    }


# ------------------------------------------------------------------------------------------------------- bound, submitted


def added(**how) -> nnhal.Compiled:
    model = make_model(lambda b, x, y: b.add(x, y), name="added", x=(4,), y=(4,))
    return nnhal.compile(model, **{"devices": "reference", **how})


F = np.float32([1, 2, 3, 4])


@pytest.mark.parametrize("given", [[1, 2, 3, 4], np.repeat(F, 2)[::2], F.view(type("Own", (np.ndarray,), {}))])
def test_only_arrays_that_are_read_in_place_can_be_bound(given):
    with pytest.raises(
        nnhal.InvalidRequest, match=r"^input 1: must be a contiguous numpy array of the input's type to be bound$"
    ):
        added().bind(F, given)


def test_named_inputs_cannot_be_bound_and_a_binding_gives_what_it_gave_last():
    compiled = added()
    with pytest.raises(nnhal.InvalidRequest, match=r"^inputs: are a mapping, must be given in order to be bound$"):
        compiled.bind({"x": F, "y": F})
    run = compiled.bind(F, F)
    assert run.outputs is None and repr(run) == "<Binding of 'added'>"
    assert run().tolist() == run.outputs.tolist() == [2, 4, 6, 8]


def test_four_that_were_submitted_run_at_once_and_no_more():
    gate, lock, now, most = threading.Event(), threading.Lock(), [0], [0]

    def work():
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        gate.wait(LIMIT)
        with lock:
            now[0] -= 1

    compiled = added(devices=[Fake(on_run=work)])
    executions = [compiled.submit(F, F) for _ in range(9)]
    until(lambda: now[0] == 4, "four run")
    assert now == [4] and not any(e.done() for e in executions)
    gate.set()
    assert all(e.result(LIMIT).tolist() == [2, 4, 6, 8] for e in executions) and most == [4]


def test_what_is_asked_for_of_one_that_is_submitted_reaches_the_driver():
    seen = []
    device = Fake()
    compiled = added(devices=[device])
    inner, run = device.prepared[0].inner, device.prepared[0].inner.run
    inner.run = lambda request, control: (seen.append(control), run(request, control))[1]
    compiled.submit(F, F, loop_timeout=3, deadline=10).result(LIMIT)
    compiled.submit(F, F).result(LIMIT)
    assert [c.loop_timeout for c in seen] == [3_000_000_000, 2_000_000_000]
    assert [c.deadline is None for c in seen] == [False, True] and not any(c.measure for c in seen)
    out = np.empty(4, np.float32)
    assert compiled.submit({"x": F, "y": F}, out=out).result(LIMIT) is not None and out.tolist() == [2, 4, 6, 8]


@pytest.mark.parametrize("use", ["submit", "execute_fenced"])
def test_what_was_refused_is_not_in_use(use):
    device = Fake()
    compiled = added(devices=[device])
    compiled.close()
    with pytest.raises(nnhal.Closed):
        getattr(compiled, use)(F, F)
    assert device.prepared[0].closed and not compiled._caller.use.calls and not compiled._caller.use.behind
    with pytest.raises(nnhal.InvalidRequest):
        getattr(added(), use)(F)


@pytest.mark.parametrize("way", ["call", "run", "bind", "burst", "submit"])
def test_closing_waits_for_a_call_in_flight_and_no_longer(way):
    gate, entered = threading.Event(), threading.Event()
    device = Fake(on_run=lambda: (entered.set(), gate.wait(LIMIT)))
    compiled = added(devices=[device])
    results = []
    ways = {
        "call": lambda: compiled(F, F),
        "run": lambda: compiled.run(F, F, deadline=10)[0],
        "bind": compiled.bind(F, F),
        "burst": partial(compiled.burst(), F, F),
        "submit": lambda: compiled.submit(F, F).result(LIMIT),
    }
    caller = threading.Thread(target=lambda: results.append(ways[way]().tolist()))
    caller.start()
    assert entered.wait(LIMIT)
    closer = threading.Thread(target=compiled.close, daemon=True)
    closer.start()
    closer.join(0.05)
    assert closer.is_alive() and not device.prepared[0].closed
    gate.set()
    closer.join(LIMIT)
    caller.join(LIMIT)
    assert not closer.is_alive() and device.prepared[0].closed and results == [[2, 4, 6, 8]]


def test_a_closed_model_says_why_to_whoever_holds_a_burst_or_a_binding_of_it():
    with added() as compiled:
        burst, run, stream = compiled.burst(), compiled.bind(F, F), compiled.stream()
        assert run().tolist() == burst(F, F).tolist() == stream(F, F).tolist() == [2, 4, 6, 8]
    for use in (run, lambda: burst(F, F), lambda: stream(F, F), lambda: compiled(F, F), lambda: compiled.memory):
        with pytest.raises(
            nnhal.Closed, match=r"^added: the compiled model was closed; (compile it again|open another)$"
        ):
            use()
    assert repr(burst).startswith("<CompiledBurst 'added', the compiled model was closed, 1 partition")


def test_a_model_that_is_dropped_at_the_exit_of_python_closes_nothing():
    assert added()._finalizer.atexit is False
