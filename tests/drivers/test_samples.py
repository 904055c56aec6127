"""The sample drivers: found by name only, each with its operations and figures; and the faulty one."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperandType as Type
from nnhal.base.codes import OperationType
from nnhal.base.errors import (
    ContractBroken,
    DeviceUnavailable,
    DriverFailed,
    InvalidArgument,
    OperationFailed,
    UnsupportedModel,
)
from nnhal.base.levels import V1_0, V1_1, V1_2, V1_3
from nnhal.base.once import OnceTable
from nnhal.drivers.samples import faulty, limited
from nnhal.drivers.samples.faulty import Faulty
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.request import Control
from nnhal.model.builder import ModelBuilder
from nnhal.ops import OPS
from nnhal.runtime import discovery
from tests import requests
from tests.execution import PROGRAM_LIMIT
from tests.models import make_model

LIMITED = ["sample-float-fast", "sample-float-slow", "sample-minimal", "sample-quant", "sample-partial"]
LEVELS = {"sample-full-1.0": V1_0, "sample-full-1.1": V1_1, "sample-full-1.2": V1_2, "sample-full-1.3": V1_3}
X = np.arange(16, dtype=np.float32).reshape(1, 2, 2, 4)


def pooled(type="TENSOR_FLOAT32") -> nnhal.Model:
    b = nnhal.Builder()
    x = b.input((1, 2, 2, 4), type, **({} if "FLOAT" in type else {"scale": 0.5}))
    y = b.max_pool_2d(x, padding="same", filter_size=2)
    return b.finish([x], [b.add(y, y, **({} if "FLOAT" in type else {"scale": 1.0}))])


def takes(name: str, model: nnhal.Model) -> list[bool]:
    return [v.ok for v in discovery.select([name])[0].supports(model)]


# ---------------------------------------------------------------------------------------------- all


@pytest.mark.parametrize("name", [*LIMITED, *LEVELS, "faulty"])
def test_a_sample_is_found_by_its_name(name):
    assert discovery.select([name])[0].name == name


def test_no_sample_is_a_candidate_where_no_device_is_named():
    assert not {f.name for f in nnhal.devices()} & {*LIMITED, *LEVELS, "faulty"}
    for name in LIMITED:
        discovery.select([name])
    assert not {f.name for f in nnhal.devices()} & {*LIMITED, *LEVELS, "faulty"}


def test_the_command_line_takes_a_sample_by_name():
    program = [sys.executable, "-m", "nnhal.cli.main", "run", "add4", "--device", "sample-full-1.0"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "sample-full-1.0  1 (all)" in done.stdout, done.stderr


@pytest.mark.parametrize(("name", "level"), LEVELS.items())
def test_a_full_sample_is_of_its_level_and_takes_what_that_has(name, level):
    device = discovery.select([name])[0]
    assert device.level == level and takes(name, pooled()) == [True, True]
    assert device.capabilities().of(Type.TENSOR_FLOAT32) == (1.1, 1.1)
    compiled = nnhal.compile(pooled(), devices=name)
    largest = X[0, 1, 1]  # of each channel: the first window covers all four places
    np.testing.assert_array_equal(compiled(X)[0, 0, 0], 2 * largest)


# ---------------------------------------------------------------------------------------------- the limited ones


def test_figures_are_those_of_the_published_sample_drivers():
    figures = {
        name: [
            discovery.select([name])[0].capabilities().of(kind, relaxed=relaxed)
            for kind, relaxed in ((Type.TENSOR_FLOAT32, False), (Type.TENSOR_FLOAT32, True), (Type.TENSOR_INT32, False))
        ]
        for name in LIMITED[:4]
    }
    assert figures == {
        "sample-float-fast": [(0.8, 1.2), (0.7, 1.1), (1.0, 1.0)],
        "sample-float-slow": [(1.3, 0.7), (1.2, 0.6), (1.0, 1.0)],
        "sample-minimal": [(0.4, 0.5), (0.4, 0.5), (1.0, 1.0)],
        "sample-quant": [(50.0, 1.0), (50.0, 1.0), (50.0, 1.0)],
    }


def test_each_states_its_figures_whichever_way_it_is_made():
    """Execution time and power of float32, relaxed float32, and all others."""
    cpu = (1.0, 1.0)
    for make, figures in (
        (limited.float_fast, [(0.8, 1.2), (0.7, 1.1), cpu]),
        (limited.float_slow, [(1.3, 0.7), (1.2, 0.6), cpu]),
        (limited.minimal, [(0.4, 0.5), (0.4, 0.5), cpu]),
        (limited.quant, [(50.0, 1.0)] * 3),
        (limited.partial_, [(0.9, 0.9)] * 3),
    ):
        stated = make().capabilities()
        for kind in Type:
            floating = kind in (Type.TENSOR_FLOAT32, Type.FLOAT32)
            assert stated.of(kind) == (figures[0] if floating else figures[2])
            assert stated.of(kind, relaxed=True) == (figures[1] if floating else figures[2])
        assert stated.if_performance == stated.while_performance == figures[2]


def test_what_a_sample_takes_it_prepares_and_what_has_too_few_inputs_it_refuses():
    device = limited.float_fast()
    assert requests.run(checked_prepared(device, pooled(), Hints()), [X]).results[0].shape == (1, 2, 2, 4)
    for takes_what, place in ((limited.takes_float, 0), (limited.takes_quantised, 1)):
        kind = OperationType.ABS if place == 0 else OperationType.SELECT
        empty = nnhal.model.graph.Operation(kind, (), ())
        assert takes_what(pooled(), empty) == f"has no input {place}"
    b = nnhal.Builder()
    x = b.input((2,))
    for build, told in ((b.abs, "supports only ADD, CONCATENATION, CONV_2D"), (lambda x: b.add(x, x), "")):
        model = b.finish([x], [build(x)])
        assert {v.reason for v in limited.minimal().supports(model)} >= {told}


@pytest.mark.parametrize(
    ("name", "floats", "quantised", "half"),
    [
        ("sample-float-fast", [True, True], [False, False], [False, False]),
        ("sample-float-slow", [True, True], [False, False], [False, False]),
        ("sample-minimal", [False, True], [False, False], [False, False]),
        ("sample-quant", [False, False], [True, True], [False, False]),
    ],
)
def test_each_takes_its_types_and_operations(name, floats, quantised, half):
    assert takes(name, pooled()) == floats
    assert takes(name, pooled("TENSOR_QUANT8_ASYMM")) == quantised == takes(name, pooled("TENSOR_QUANT8_ASYMM_SIGNED"))
    assert takes(name, pooled("TENSOR_FLOAT16")) == half


def test_quant_looks_at_what_select_chooses_from():
    b = ModelBuilder()
    kinds = Type.TENSOR_BOOL8, Type.TENSOR_QUANT8_ASYMM, Type.TENSOR_QUANT8_ASYMM
    operands = [b.operand(kind, (4,), 0.0 if kind == Type.TENSOR_BOOL8 else 0.5) for kind in kinds]
    y = b.operand(Type.TENSOR_QUANT8_ASYMM, (4,), 0.5)
    b.operation(OperationType.SELECT, operands, [y])
    assert takes("sample-quant", b.finish(operands, [y])) == [True]


@pytest.mark.parametrize(
    ("preference", "devices"),
    [
        ("fast_single_answer", ["sample-float-fast", "sample-float-fast"]),  # so small that it is no step's worth
        ("low_power", ["sample-float-slow", "sample-minimal"]),
    ],
)
def test_operations_go_to_the_sample_that_states_the_best_figure(preference, devices):
    compiled = nnhal.compile(pooled(), devices=LIMITED[:4], preference=preference)
    assert [c.device for c in compiled.placement.choices] == devices
    best = [min(c.costs, key=c.costs.__getitem__) for c in compiled.placement.choices]
    assert best == [devices[0], "sample-minimal"]


def test_what_a_sample_refuses_it_does_not_prepare():
    with pytest.raises(
        InvalidArgument, match="sample-minimal: MAX_POOL_2D #0: supports only ADD, CONCATENATION, CONV_2D"
    ):
        limited.minimal().prepare(pooled(), Hints())
    with pytest.raises(UnsupportedModel, match="input 0 must be TENSOR_QUANT8_ASYMM or"):
        nnhal.compile(pooled(), devices="sample-quant")


def test_partial_takes_the_same_half_for_the_same_seed(monkeypatch):
    def half(seed):
        monkeypatch.setenv(limited.SEED, seed)
        device = limited.partial_()
        verdicts = [device._takes(None, o) == "" for o in operations]
        assert verdicts == [device._takes(None, o) == "" for o in operations]
        return verdicts

    known = [name for name in OPS if "." not in name]  # other tests may have registered operations of extensions
    operations = [nnhal.model.graph.Operation(OperationType[name], (), ()) for name in known]
    first, again, other = half("1"), half("1"), half("2")
    assert first == again != other
    assert all(abs(sum(half) - len(known) // 2) <= len(OPS) - len(known) for half in (first, other))


# ---------------------------------------------------------------------------------------------- the faulty one


def prepared(**options) -> Prepared:
    return checked_prepared(Faulty(), pooled(), Hints(options=options))


def run(**options):
    return requests.run(prepared(**options), [X]).results[0]


PROGRAM = """
import numpy as np, nnhal
b = nnhal.Builder()
x = b.input((2,))
print("ready", flush=True)
nnhal.compile(b.finish([x], [b.add(x, x)]), devices="faulty", driver_options={"faulty": {OPTIONS}})(np.ones(2, "f4"))
print("survived")
"""


def start(options="", orders=""):
    program = [sys.executable, "-c", PROGRAM.replace("{OPTIONS}", "{" + options + "}")]
    environment = {**os.environ, faulty.VARIABLE: orders}
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize(
    ("fault", "code"),
    [("segv", -signal.SIGSEGV), ("kill", -signal.SIGKILL), ("abort", -signal.SIGABRT), ("exit:7", 7)],
)
def test_it_dies_as_it_is_told(fault, code):
    process = start(f'"run": "{fault}"')
    assert process.communicate(timeout=PROGRAM_LIMIT)[0] == "ready\n"
    assert process.returncode == code


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("options", "orders"), [('"run": "hang"', ""), ("", "supports=hang"), ("", "prepare=freeze")])
def test_it_hangs_where_it_is_told(options, orders):
    with start(options, orders) as process:
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        process.kill()


def test_without_orders_it_works():
    assert start().communicate(timeout=PROGRAM_LIMIT)[0] == "ready\nsurvived\n"
    np.testing.assert_array_equal(run(), nnhal.compile(pooled(), devices="reference")(X))


@pytest.mark.parametrize("lie", ["nan", "negative"])
def test_capabilities_that_lie_keep_the_driver_out(lie):
    with pytest.raises(InvalidArgument, match=r"device faulty: performance of .* must be a number above 0"):
        discovery.check(Faulty(f"capabilities={lie}"))


@pytest.mark.parametrize(
    ("lie", "message"),
    [("short", "1 verdicts, must be 2"), ("long", "3 verdicts, must be 2"), ("nothing", "the driver failed to answer")],
)
def test_verdicts_that_lie_are_refused(lie, message):
    with pytest.raises(UnsupportedModel, match=message):
        nnhal.compile(pooled(), devices=Faulty(f"supports={lie}"))


def test_it_says_yes_and_fails_to_prepare():
    device = Faulty("prepare=fail")
    with pytest.raises(OperationFailed, match="failed on command"):
        nnhal.compile(pooled(), devices=device)
    compiled = nnhal.compile(pooled(), devices=device, fallback="allow")
    assert {c.device for c in compiled.placement.choices} == {"reference"}


def test_errors_of_an_execution():
    with pytest.raises(DriverFailed, match="device faulty: RuntimeError: raised on command"):
        run(run="raise")
    with pytest.raises(OperationFailed, match="failed on command"):
        run(run="fail")


def test_results_that_lie():
    right = run()
    with pytest.raises(ContractBroken, match=r"output 0 is given shape \[7, 7, 7\], must be \[1, 2, 2, 4\]"):
        run(run="wrong-shape")
    assert run(run="wrong-value").shape == right.shape and (run(run="wrong-value") != right).all()


def test_faults_begin_after_as_many_calls_as_said():
    failing = prepared(run="fail", after=2)
    for _ in range(2):
        requests.run(failing, [X])
    with pytest.raises(OperationFailed, match="failed on command"):
        requests.run(failing, [X])


def test_leaks_grow_from_call_to_call(monkeypatch):
    monkeypatch.setattr(faulty, "_kept", kept := [])
    leaking = prepared(run="leak-descriptors:3")
    for n in range(1, 5):
        requests.run(leaking, [X])
        assert len(set(kept)) == 3 * n
    for descriptor in kept:
        os.close(descriptor)  # each is open
    kept.clear()
    run(run="leak-memory:2")
    run(run="leak-memory:2")
    assert sum(array.nbytes for array in kept) == 4 << 20


@pytest.mark.parametrize("fault", ["read-file", "write-file", "socket", "exec", "sleep:0", "allocate:64"])
def test_what_an_unconfined_process_may_do_it_does(fault):
    assert run(run=fault) is not None


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        ("walk=hang", "NNHAL_FAULTY: stage is 'walk', must be one of make, capabilities"),
        ("run=nan", "NNHAL_FAULTY: run is 'nan', must be one of hang, spin"),
        ("run=sleep:long", "run is 'sleep:long', must have a number after the colon"),
    ],
)
def test_orders_that_do_not_exist_are_refused(orders, message):
    with pytest.raises(InvalidArgument, match=message):
        Faulty(orders)


DEEDS = [
    ("kill", signal.SIGKILL),
    ("kill:15", signal.SIGTERM),
    ("exit", 3),
    ("exit:7", 7),
    ("sleep", 0.1),
    ("sleep:0.5", 0.5),
]


@pytest.mark.parametrize(("order", "wanted"), DEEDS)
def test_an_order_has_its_number_or_the_one_that_it_has_by_itself(monkeypatch, order, wanted):
    done = []
    monkeypatch.setattr(os, "kill", lambda pid, number: done.append(number) if pid == os.getpid() else None)
    monkeypatch.setattr(os, "_exit", done.append)
    monkeypatch.setattr(faulty.time, "sleep", lambda seconds: None)
    monkeypatch.setitem(
        faulty.FAULTS, "sleep", faulty.Fault(done.append, faulty.FAULTS["sleep"].default)
    )  # which took hold of time.sleep when it was made
    Faulty(f"make={order}")
    assert done == [wanted] and (order.startswith("sleep") or type(done[0]) is int)


@pytest.mark.parametrize(("order", "mebibytes"), [("leak-memory", 16), ("leak-memory:3", 3)])
def test_memory_leaks_by_the_mebibyte(monkeypatch, order, mebibytes):
    monkeypatch.setattr(faulty, "_kept", kept := [])
    Faulty(f"make={order}")
    assert [array.nbytes for array in kept] == [mebibytes << 20] and kept[0].all()


def test_descriptors_leak_8_at_once(monkeypatch):
    monkeypatch.setattr(faulty, "_kept", kept := [])
    Faulty("make=leak-descriptors")
    assert len(set(kept)) == 8
    for descriptor in kept:
        assert os.fstat(descriptor).st_rdev == os.stat(os.devnull).st_rdev
        os.close(descriptor)


@pytest.mark.parametrize(("order", "blocks"), [("allocate:64", 4), ("allocate:79", 4), ("allocate", 256)])
def test_memory_is_taken_in_blocks_of_16_mebibytes_4_gibibytes_by_itself(monkeypatch, order, blocks):
    made = []
    monkeypatch.setattr(faulty.np, "ones", lambda size, kind: made.append((size, np.dtype(kind))))
    Faulty(f"make={order}")
    assert made == [(1 << 24, np.dtype(np.uint8))] * blocks


def test_what_leaves_reads_and_runs_does_it(monkeypatch, tmp_path):
    with pytest.raises(SystemExit) as left:
        Faulty("make=sys-exit")
    assert left.value.code == 1
    with pytest.raises(RuntimeError, match="raised on command"):
        Faulty("make=raise")
    with pytest.raises(OperationFailed, match="faulty: failed on command"):
        Faulty("make=fail")
    ran = []
    monkeypatch.setattr(subprocess, "run", lambda words, check: ran.append((words, check)))
    Faulty("make=exec")
    assert ran == [([sys.executable, "-c", ""], True)]
    written = []
    monkeypatch.setattr(faulty.tempfile, "NamedTemporaryFile", lambda: (tmp_path / "x").open("wb"))
    Faulty("make=write-file")
    assert (tmp_path / "x").read_bytes() == b"faulty" and not written


class Opened:
    """Whoever connects or reads is told of here."""

    def __init__(self, *what, **how):
        self.said = [(what, how)]

    def __getattr__(self, name):
        return lambda *what: self.said.append(name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.said.append("closed")


def test_a_socket_and_a_file_are_opened_used_and_closed(monkeypatch):
    made = []
    monkeypatch.setattr(faulty.socket, "socket", lambda *kind: made.append(Opened(*kind)) or made[-1])
    Faulty("make=socket")
    assert made[0].said == [((faulty.socket.AF_INET, faulty.socket.SOCK_STREAM), {}), "close"]
    monkeypatch.setattr(faulty, "open", lambda *what: made.append(Opened(*what)) or made[-1], raising=False)
    Faulty("make=read-file")
    assert made[1].said == [(("/etc/passwd", "rb"), {}), "read", "closed"]


@pytest.mark.parametrize("stage", ["make", "capabilities", "supports", "prepare", "run"])
def test_each_stage_is_one_at_which_it_fails(stage):
    with pytest.raises(OperationFailed, match="failed on command"):
        device = Faulty(f"{stage}=fail")
        device.capabilities()
        device.supports(pooled())
        requests.run(checked_prepared(device, pooled(), Hints()), [X])
    assert stage in faulty.STAGES and len(faulty.STAGES) == 5


@pytest.mark.parametrize(
    ("lie", "stages"),
    [
        ("nan", {"capabilities"}),
        ("negative", {"capabilities"}),
        ("short", {"supports"}),
        ("long", {"supports"}),
        ("nothing", {"supports", "prepare"}),
        ("wrong-shape", {"run"}),
        ("wrong-value", {"run"}),
    ],
)
def test_a_lie_is_for_the_stages_that_can_tell_it(lie, stages):
    for stage in faulty.STAGES:
        if stage in stages:
            Faulty(f"{stage}={lie}")
        else:
            with pytest.raises(InvalidArgument, match=f"{stage} is {lie!r}, must be one of hang, "):
                Faulty(f"{stage}={lie}")


def test_orders_are_counted_by_stage_and_parted_by_commas():
    device = Faulty(" capabilities = nan , supports = short ,after=1")
    first, second = (device.capabilities().of(Type.TENSOR_FLOAT32) for _ in range(2))
    assert first == (1, 1) and np.isnan(second.exec_time)
    assert [len(device.supports(pooled())) for _ in range(3)] == [2, 1, 1]
    assert len(Faulty("supports=short").supports(make_model(lambda b, x: b.relu(b.relu(b.relu(x))), (1,)))) == 2
    verdicts = Faulty("supports=long").supports(pooled())
    assert [v.ok for v in verdicts] == [True] * 3
    assert (
        Faulty("supports=nothing").supports(pooled()) is None
        and Faulty("prepare=nothing").prepare(pooled(), Hints()) is None
    )
    assert Faulty("capabilities=negative").capabilities().of(Type.TENSOR_FLOAT32).exec_time == -1


def test_wrong_values_are_every_bit_turned_and_time_is_told():
    right, wrong = run(), run(run="wrong-value")
    assert (right.view(np.uint8) ^ wrong.view(np.uint8) == 255).all()
    made = prepared(run="wrong-value")
    timing = made.request([X]).execute(made.run, Control(measure=True))
    assert timing is not None and timing.in_driver > 0


def test_a_driver_that_dies_of_an_error_when_it_is_made_is_unavailable(monkeypatch):
    monkeypatch.setenv(faulty.VARIABLE, "make=raise")
    monkeypatch.setattr(discovery, "_loaded", OnceTable(str))
    with pytest.raises(DeviceUnavailable, match="'faulty' does not load: RuntimeError: raised on command"):
        discovery.select(["faulty"])
