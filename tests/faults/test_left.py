"""What clients leave behind: work, objects, memory and lanes end with them, and one object's end is nobody else's matter."""

import gc
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import DeadObject
from nnhal.base.levels import V1_3
from nnhal.base.memory import Memory
from nnhal.drivers.reference import Reference
from nnhal.hal.device import Prepared
from nnhal.hal.request import Control
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import model_to_wire
from nnhal.ipc.service.burst import ServiceBurst
from nnhal.ipc.service.exports import Export
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.channel import Channel, end_of
from tests.faults.support import (
    LIMIT,
    WITNESS,
    Hostile,
    X,
    attempt,
    back_to,
    client_of,
    held,
    prepared,
    request,
    run,
    service,
    undisturbed,
    wait_until,
    works,
)
from tests.ipc.support import PROBE, a_share, inside, over, own_process, prepare, wide
from tests.models import doubling, make_model
from tests.waiting import Opened

EXPECTED = (X + X).tobytes()


# --------------------------------------------------------------------------------------------------- a close that raises


def test_a_driver_whose_close_raises_disturbs_neither_other_executions_nor_later_ends():
    with own_process(WITNESS) as device:
        sound = prepared(device, sleep=0.01)
        for _ in range(20):
            prepared(device, sulky=1).close()
        with ThreadPoolExecutor(3) as pool:
            for output in pool.map(lambda _: run(sound, X), range(30)):
                assert output.tobytes() == EXPECTED
        assert device.session.peer.dead is None
        assert works(device)


def test_clients_of_a_driver_whose_close_raises_leave_nothing():
    with service(WITNESS, "sulky"), client_of("sulky") as watcher:
        before = held(watcher)
        for _ in range(10):
            with client_of("sulky") as device:
                for _ in range(3):
                    assert run(prepared(device, sulky=1), X).tobytes() == EXPECTED
        back_to(before, watcher)


# ------------------------------------------------------------------------------------- objects that come after their client


def _leaves_while_it_prepares(gate: Path) -> None:
    gate.unlink(missing_ok=True)
    with Hostile("probe") as client:
        whole = model_to_wire(doubling(64), lambda _: wire.Pool("ashmem", 1, 0, True))
        options = json.dumps({"gate": str(gate)}).encode()
        reply = client.call(wire.PrepareModel(1, V1_3, whole, options=options))
        assert isinstance(reply, wire.Acknowledged), reply
    gate.touch()


def _leaves_without_a_word_after_much(gate: Path) -> None:
    with Hostile("probe") as client:
        number = client.prepare()
        client.send(wire.Allocate(number + 1, (64,), ((number, 0, False, 1.0),)))
        queues = _native.create_queues(16, 16)
        client.send(wire.ConfigureExecutionBurst(number + 2, number), (queues,))
        client.send(
            wire.PrepareModel(number + 3, V1_3, model_to_wire(doubling(64), lambda _: wire.Pool("ashmem", 1, 0, True)))
        )
        os.close(queues)


@pytest.mark.parametrize("leave", [_leaves_while_it_prepares, _leaves_without_a_word_after_much])
def test_objects_that_are_made_when_their_client_has_gone_are_ended_all_the_same(leave, tmp_path):
    with service(PROBE, "probe"), client_of("probe") as watcher:
        before = inside(watcher)
        for _ in range(5):
            leave(tmp_path / "gate")
        wait_until(lambda: inside(watcher)["begun"] == inside(watcher)["came"], "what was begun is prepared")
        wait_until(lambda: inside(watcher)["threads"] <= before["threads"], "threads of those that left")
        for what in ("prepared", "buffers", "bursts", "memories"):
            wait_until(lambda what=what: inside(watcher).get(what, 0) <= before.get(what, 0), what)


# ------------------------------------------------------------------------------------------------- memory of what is gone


def _heavy(n: int) -> nnhal.Model:
    return make_model(lambda b, x: b.add(x, np.ones(n, np.float32)), (n,))


@pytest.mark.nightly
def test_a_driver_keeps_nothing_of_a_large_model_that_its_client_dropped():
    """32 MiB of constants, of inputs and of outputs; allocators may keep what is small."""
    n = 8 << 20
    with own_process(WITNESS) as device:
        assert works(device)
        before = held(device)
        model = prepared(device, _heavy(n))
        x = np.ones(n, np.float32)
        for _ in range(2):
            assert run(model, x)[-1] == 2
        assert held(device)["resident"] - before["resident"] > 64 << 20, "nothing of it was there, so nothing was tried"
        model.close()
        del model, x
        gc.collect()
        wait_until(lambda: held(device)["mappings"] <= before["mappings"], "mappings of the model and its frames")
        wait_until(lambda: held(device)["resident"] - before["resident"] < 8 << 20, "resident memory")


# -------------------------------------------------------------------------------------------- executions nobody waits for


def _run(model: Prepared) -> None:
    request(model).execute(model.run, Control())


def _burst(model: Prepared) -> None:
    request(model).execute(model.burst().run, Control())


def _callback(model: Prepared) -> None:
    model.execute(request(model), Control(), lambda *_: None)


def _fenced(model: Prepared) -> None:
    model.execute_fenced(request(model), Control())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", [_run, _burst, _callback, _fenced], ids=lambda way: way.__name__.strip("_"))
def test_executions_of_a_client_that_left_end_and_leave_no_thread(way: Callable[[Prepared], Any]):
    """The driver looks at its control; each execution would take ten minutes."""
    with service(PROBE, "probe"), client_of("probe") as watcher:
        before = inside(watcher)
        for _ in range(3):
            with client_of("probe") as device:
                models = [prepare(device, doubling(64), sleep=10 * LIMIT) for _ in range(6)]
                threads = [threading.Thread(target=attempt, args=(lambda m=m: way(m),)) for m in models]
                for thread in threads:
                    thread.start()
                wait_until(lambda: inside(watcher)["inside"] == 6, "executions begin")
            wait_until(lambda: inside(watcher)["inside"] == 0, "executions end")
            for thread in threads:
                thread.join(LIMIT)
        wait_until(lambda: inside(watcher)["prepared"] == 0, "models are closed")
        wait_until(lambda: inside(watcher)["threads"] <= before["threads"], "threads end")


def test_fenced_executions_whose_fences_never_come_end_with_their_client(shared):
    """A stranger holds the other end of the pipe that they wait for."""
    ready, kept = os.pipe()
    out = wire.WireArgument(0, 256, 256, (64,))
    with undisturbed(shared), client_of(shared) as watcher:
        before = held(watcher)
        for _ in range(2):
            with Hostile(shared) as client:
                memory = Memory.allocate(512)
                pool = wire.Pool("ashmem", 512, 0, False)
                client.bind(client.prepare(), [pool], wire.WireArgument(0, 0, 256, (64,)), out, fds=(memory.fd,))
                binding = client.made
                for _ in range(50):
                    reply = client.make(wire.ExecuteFenced, binding, 1, fds=(ready,))
                    assert isinstance(reply, wire.Acknowledged), reply
                assert held(watcher)["threads"] >= before["threads"] + 50
            back_to(before, watcher)
    os.close(ready)
    os.close(kept)


# ------------------------------------------------------------------------------------------------------------ stray lanes


def test_no_lane_outlives_its_connection_whenever_it_is_attached(shared):
    """Lanes are attached on another lane until the connection has ended under it."""
    with undisturbed(shared), client_of(shared) as watcher:
        before = held(watcher)
        strays: list[Channel] = []
        for n in range(20):
            client = Hostile(shared)
            side = client.lane()
            client.close()
            for number in range(n):
                attach = wire.encode(wire.AttachLane(10**6 + number, False))
                came = attempt(lambda s=side, a=attach: s.call(a, (), int(LIMIT * 1e9)))
                if isinstance(came, DeadObject):
                    break
                if len(came[1]):  # else it was refused: the connection is ending
                    strays.append(Channel(end_of(came[1])))
            side.close()
        for stray in strays:
            wait_until(lambda stray=stray: isinstance(attempt(lambda: stray.call(QUERY)), DeadObject), "a lane's end")
            stray.close()
        back_to(before, watcher)


QUERY = wire.encode(wire.GetVersionString())


# ------------------------------------------------------------------------------------------------------- many memories


def test_a_thousand_memories_are_arguments_of_several_executions_in_any_order():
    """Each is an argument of several bindings, all are kept; the driver holds no descriptor of any."""
    count, width = 1000, 50
    with own_process(WITNESS) as device:
        adding = prepared(device, wide(width))
        before, ours = held(device), Opened()
        memories = [Memory.from_array(np.float32([n])) for n in range(count)]
        order = np.random.default_rng(5).permutation(np.repeat(np.arange(count), 3)).reshape(-1, width)
        for places in order:
            views = [memories[n].view(0, 4, np.float32, (1,)) for n in places]
            done = adding.request(views, [np.zeros(1, np.float32)])
            done.execute(adding.run, Control())
            assert done.results[0].tolist() == [float(places.sum())]
        now = held(device)
        assert now["descriptors"] <= before["descriptors"] + 1
        del memories, views, done
        wait_until(lambda: gc.collect() >= 0 and held(device)["mappings"] <= before["mappings"] + 2, "mappings")
        ours.closed()


def test_each_of_many_memories_in_turn_is_found_again():
    """No memory is mapped anew in the middle of being let go: the same ones come round again and again."""
    with own_process(WITNESS) as device:
        model = prepared(device)
        memories = [Memory.from_array(np.full(64, n, np.float32)) for n in range(300)]
        for _ in range(3):
            for n, memory in enumerate(memories):
                done = model.request([memory.view(0, 256, np.float32, (64,))], [np.zeros(64, np.float32)])
                done.execute(model.run, Control())
                assert done.results[0][7] == 2 * n
        assert works(device)


def test_a_model_over_a_thousand_memories_is_compiled_and_leaves_none():
    with own_process(WITNESS) as device:
        assert works(device)
        before = held(device)
        summing = prepared(device, over(1000))
        assert run(summing, np.float32([5])).tolist() == [5 + 999 * 1000 / 2]
        assert held(device)["mappings"] >= before["mappings"] + 1000
        summing.close()
        del summing
        back_to(before, device, "descriptors", "mappings")


class _Unheld:
    """Queues that cannot be held."""

    def __init__(self) -> None:
        self.closed = False

    def hold(self) -> None:
        raise MemoryError

    def close(self) -> None:
        self.closed = True

    def drop(self) -> None:
        """There is nothing to let go of."""


def test_a_burst_whose_listener_cannot_begin_holds_its_lane_not_up_and_lets_its_model_go():
    model = doubling(64)
    share = a_share()
    entry = Export(prepare(Reference(), model), model, "driver", share.take(prepared=1))
    fd = _native.create_queues(16, 16)
    burst = ServiceBurst(entry, fd, lambda _: pytest.fail("nothing is called"), V1_3, -1, share.take(bursts=1))
    os.close(fd)
    burst._queues = queues = _Unheld()  # type: ignore[assignment]
    starting = threading.Thread(target=burst.start)
    starting.start()
    starting.join(LIMIT)
    assert not starting.is_alive()
    wait_until(lambda: queues.closed and not entry._users, "the model is used no more")
