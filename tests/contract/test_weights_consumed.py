"""Drivers that need the model's constants no more: who holds them for these alone lets them go, and none is read later."""

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import ContractBroken, DriverFailed
from nnhal.base.memory import Memory
from nnhal.drivers.null import Null, NullPrepared
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.wrappers import Recorded, WithHalLevel
from nnhal.ipc.client.process import ReconnectingDevice, start
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import CONSTANTS, Model
from nnhal.model.layouts import with_layout
from nnhal.runtime import discovery, isolation
from tests.contract.drivers import tunable
from tests.contract.drivers.tunable import LATE
from tests.models import make_model

DRIVER = Path(tunable.__file__)
X = np.arange(4, dtype=np.float32)
W = np.float32([5, 6, 7, 8])
KINDS = "none", "process"


@pytest.fixture(autouse=True)
def tunable_is_known():
    nnhal.load_driver(DRIVER)


def adding(memory: Memory | None = None) -> Model:
    """y = x + w, w in a pool of its own."""
    b = ModelBuilder("adding")
    kind = "TENSOR_FLOAT32"
    pool = b.add_pool(memory or Memory.from_array(W))
    x, y = (b.operand(nnhal.base.codes.OperandType[kind], (4,), name=name) for name in "xy")
    w = b.reference(nnhal.base.codes.OperandType[kind], (4,), pool, 0, 16)
    b.operation("ADD", [x, w, b.constant(nnhal.base.codes.OperandType.INT32, 0)], [y])
    return b.finish([x], [y])


def there(memory: weakref.ref[Memory]) -> bool:
    gc.collect()
    return memory() is not None


@pytest.mark.parametrize("fallback", ["forbid", "allow"])
def test_in_process_they_go_where_nothing_else_may_need_them(fallback):
    model = adding()
    kept = weakref.ref(model.pools[0])
    compiled = nnhal.compile(model, devices="tunable", fallback=fallback)
    del model
    assert there(kept) == (fallback == "allow")
    assert np.array_equal(compiled(X), X + W)
    with compiled.burst() as burst:
        assert np.array_equal(burst(X), X + W)
    assert np.array_equal(compiled.submit(X).result(), X + W)
    assert np.array_equal(compiled.execute_fenced(X).result(), X + W)
    assert np.array_equal(compiled.bind(X)(), X + W)
    assert nnhal.allocate([(compiled, "output", 0)]) is not None


def test_the_applications_own_model_keeps_them():
    model = adding()
    for kind in KINDS:
        nnhal.compile(model, devices="tunable", isolation=kind)(X)
    assert np.array_equal(nnhal.compile(model, devices="reference")(X), X + W)


def test_steps_that_did_not_say_so_keep_theirs():
    model = make_model(lambda b, x: b.mul(b.add(x, np.tile(W, 40)[:4]), np.float32([1, 2, 3, 4])), (4,))
    compiled = nnhal.compile(model, devices=["tunable", "reference"])
    del model
    gc.collect()
    consumed = {step.device.name: step.consumed for step in compiled._caller.plan.steps}
    assert consumed == {"tunable": True, "reference": False}
    assert np.array_equal(compiled(X), (X + W) * [1, 2, 3, 4])


def test_the_service_unmaps_its_pools(tmp_path):
    size = 8 << 20
    path = tmp_path / "weights"
    np.zeros(size // 4, np.float32).tofile(path)
    mapped = {}
    for said in (False, True):
        session = start(str(DRIVER), options=["--unconfined"])
        device = ReconnectingDevice("tunable", lambda session=session: session)
        b = ModelBuilder()
        kind = nnhal.base.codes.OperandType.TENSOR_FLOAT32
        x, y = b.operand(kind, (size // 4,)), b.operand(kind, (size // 4,))
        w = b.reference(kind, (size // 4,), b.add_pool(Memory.from_file(path)), 0, size)
        b.operation("ADD", [x, w, b.constant(nnhal.base.codes.OperandType.INT32, 0)], [y])
        prepared = checked_prepared(device, b.finish([x], [y]), Hints(options={"nonsense": {"weights_consumed": said}}))
        mapped[said] = str(path) in Path(f"/proc/{device.pid}/maps").read_text()
        prepared.close()
        device.close()
    assert mapped == {False: True, True: False}


def test_the_client_drops_its_copies_of_what_could_not_be_sent():
    model = adding(Memory.wrap(W.copy()))
    device = isolation.isolated("tunable")
    prepared = checked_prepared(device, model, Hints())
    assert not device.remote().session.pools._copies
    kept = checked_prepared(device, model, Hints(options={"nonsense": {"weights_consumed": False}}))
    assert len(device.remote().session.pools._copies) == 1
    for each in (prepared, kept):
        each.close()


def test_a_process_that_died_is_given_the_model_again():
    device = ReconnectingDevice("tunable", lambda: start(str(DRIVER)))
    compiled = nnhal.compile(adding(), devices=[device])
    assert np.array_equal(compiled(X), X + W)
    device._remote.session.peer.process.kill()
    device._remote.session.peer.process.wait()
    for _ in range(2):
        try:
            assert np.array_equal(compiled(X), X + W)
        except nnhal.DeadObject:
            continue
    assert device.restarts == 1
    compiled.close()
    device.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", LATE)
def test_who_reads_later_gets_an_error_that_names_the_device(kind, what):
    options = {"tunable": {"late": what}}
    compiled = nnhal.compile(adding(), devices="tunable", isolation=kind, driver_options=options)
    kind_of_error, text = (
        (DriverFailed, "bytes-like") if what == "values" else (ContractBroken, "declares weights_consumed")
    )
    with pytest.raises(kind_of_error, match=f"device tunable: .*{text}"):
        compiled(X)
    other = nnhal.compile(adding(), devices="tunable", isolation=kind)
    assert np.array_equal(other(X), X + W)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "nonsense", [{"weights_consumed": 1}, {"changeable": "gain"}, {"changeable": ["\n"]}, {"changeable": 3}]
)
def test_what_cannot_be_said_is_the_drivers_fault(kind, nonsense):
    (what,) = nonsense
    with pytest.raises(ContractBroken, match=rf"device tunable: {what} of a Prepared(\[0\])? is .*must be"):
        nnhal.compile(adding(), devices="tunable", isolation=kind, driver_options={"tunable": {"nonsense": nonsense}})


def test_wrappers_say_what_is_said():
    device = discovery.load_one("tunable")
    for wrapped in (WithHalLevel(device, nnhal.Level.V1_2), Recorded(device, [])):
        prepared = checked_prepared(wrapped, adding().again(), Hints())
        assert prepared.weights_consumed and prepared.changeable == ("gain", "slow") and not prepared.writes_later
        assert prepared.memory().weights_copied == 16


class Zeros(NullPrepared):
    weights_consumed = True


class OfOneLayout(Null):
    name, preferred_layout = "of one layout", "nchw"

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return Zeros(model)


def test_a_model_that_was_laid_out_for_a_device_is_that_devices_own_to_lose():
    b = nnhal.Builder()
    x = b.input((1, 4, 4, 8))
    weights = np.random.default_rng(0).normal(size=(8, 3, 3, 8)).astype(np.float32)
    model = b.finish([x], [b.conv_2d(x, weights, np.zeros(8, np.float32), padding="same", stride=1)])
    kept = with_layout(model, "nchw").model
    assert kept is not model
    for _ in range(2):
        compiled = nnhal.compile(model, devices=[OfOneLayout()])
        (step,) = compiled._caller.plan.steps
        assert step.laid.model.emptied and step.part.model.emptied and step.laid.model is not kept
        compiled(np.zeros((1, 4, 4, 8), np.float32))
    for each in (model, kept):
        assert [each.constant(o) is not None for o in each.main.operands if o.lifetime in CONSTANTS]
