"""The suite vts: the reference and a healthy driver pass, and each fault is found by the promise that it breaks."""

import ctypes
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import ErrorStatus, OperandType
from nnhal.base.errors import MissedDeadline, NnhalError, OperationFailed
from nnhal.base.memory import Memory
from nnhal.base.operands import Array, Value
from nnhal.conformance.mutate import BAD_HINTS, MUTATIONS
from nnhal.conformance.suites.process_state import difference, state_of_process, state_of_this_process
from nnhal.conformance.suites.run import run_suite
from nnhal.conformance.suites.suite import Context, SuiteRun
from nnhal.conformance.suites.vts import SUITE, Vts, death, packets
from nnhal.conformance.suites.vts.files import NAMES
from nnhal.conformance.suites.vts.left_files import entries, left_behind, new_files
from nnhal.conformance.suites.vts.promise import PROMISES, Probe
from nnhal.conformance.suites.worker import outcome_of
from nnhal.conformance.validate.drawing import Drawing
from nnhal.conformance.validate.trial import RequirementNotMet
from nnhal.conformance.verdict import TypeVerdicts
from nnhal.hal.background import ExecutionInfo, FencedExecution
from nnhal.hal.device import YES, Capabilities, Device, Hints, Prepared, Verdict
from nnhal.hal.fence import Fence, fence_pair
from nnhal.hal.host import HostBuffer
from nnhal.hal.memory import BufferDesc, BufferRole
from nnhal.hal.request import Control, Request, Timing
from nnhal.hal.wrappers import Wrapper
from nnhal.ipc.protocol import wire
from nnhal.ipc.transport.packets import pack
from nnhal.model.graph import Model
from nnhal.ops.schema import Bound
from nnhal.runtime import discovery, isolation
from tests.suites.faulty.application import DRIVER
from tests.suites.faulty.driver import VARIABLE
from tests.suites.faulty.driver.faults import made
from tests.suites.faulty.driver.graphs import Timed
from tests.suites.faulty.driver.healthy import Arithmetic, Engine, Healthy

OPERATION = "ADD"
RUN = SuiteRun(device="reference", scale=0.25)
ISOLATED = SuiteRun(device="reference", isolate=True, scale=0.1)


def looked(name: str, device: Device, operation: str = OPERATION, run: SuiteRun = RUN) -> tuple[str, str]:
    """Verdict and reason of a promise, looked at in this process."""
    own = f"{name}/{operation}" if PROMISES[name].per == "operation" else name
    case = next(case for case in SUITE.cases(run) if case.name == own)
    outcome = outcome_of(Vts(), case, Context(device, run, lambda stage: None), ["suite"])
    return outcome.verdict, outcome.reason


def finds(name: str, device: Device, words: str, operation: str = OPERATION) -> None:
    """A promise is broken, for this reason, and kept by the healthy driver."""
    verdict, reason = looked(name, device, operation)
    assert verdict == "failed" and words in reason and PROMISES[name].rule in reason, (verdict, reason)


# -------------------------------------------------------------------------------------------------------------- the suite


def test_the_cases_are_the_same_each_time_and_their_names_are_unique() -> None:
    for run in (RUN, ISOLATED):
        names = [case.name for case in SUITE.cases(run)]
        assert names == [case.name for case in SUITE.cases(run)] and len(set(names)) == len(names)
        assert len(names) > 3000


def test_each_of_the_21_mutations_is_looked_at_with_each_operation() -> None:
    kinds = {f"models/{kind.replace(' ', '-')}" for kind in MUTATIONS} | {f"models/{hint}" for hint in BAD_HINTS}
    assert len(kinds) == 21 and kinds <= set(PROMISES)
    assert {f"{kind}/CONV_2D" for kind in kinds} <= {case.name for case in SUITE.cases(RUN)}


def test_the_reference_keeps_a_sample_of_the_promises_in_processes_of_the_suite() -> None:
    chosen = r"^(queries/restart|process/loading|[a-z/-]+/RELU)$"
    outcomes = [
        outcome
        for progress in run_suite("vts", SuiteRun(device="reference", scale=0.25, pattern=chosen), 1)
        for outcome in progress.outcomes
    ]
    assert len(outcomes) > 25
    assert [each for each in outcomes if each.verdict not in ("passed", "skipped")] == []
    assert sum(each.verdict == "passed" for each in outcomes) > 20


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [
        *("buffers/roles", "buffers/states", "buffers/copies", "buffers/uses", "buffers/models", "buffers/closed"),
        *("buffers/independent", "deadlines/prepare", "deadlines/execute", "deadlines/priorities", "fences/none"),
        *("fences/signalled", "fences/all", "fences/chain", "fences/failed", "fences/failing", "fences/abandoned"),
        *("fences/info", "fences/duration", "models/operand-type", "models/removed-input", "models/execution-order"),
        *("models/priority", "process", "queries/threads", "requests/inputs", "requests/omitted", "requests/shapes"),
        *("requests/types", "shapes/small", "signed"),
    ],
)
def test_a_healthy_driver_keeps_the_promise(name: str) -> None:
    assert looked(name, Healthy()) == ("passed", "")


def test_what_a_driver_does_not_have_is_unsupported_or_skipped_with_the_reason() -> None:
    assert looked("shapes/small", Healthy(), "TOPK_V2")[0] == "unsupported"
    assert looked("files/swapped", Healthy())[0] == "unsupported"
    assert looked("times", Healthy()) == ("skipped", "run() returns no times")


# ----------------------------------------------------------------------------------------------------------------- models


class SupportsByTable(Healthy):
    """Looks operations up in a table, without a default."""

    def supports(self, model: Model) -> Any:
        return [{0: YES}[operation.type] for operation in model.main.operations]


def test_a_driver_that_accepts_invalid_models_is_found_with_the_operand() -> None:
    for kind in ("operand-type", "operand-lifetime", "input-index", "removed-output", "execution-order"):
        finds(f"models/{kind}", made("yes-to-all"), f"supports() accepts a model with {kind.replace('-', ' ')}: ")


def test_a_driver_that_raises_keyerror_for_an_unknown_operation_is_found() -> None:
    finds("models/operation-type", SupportsByTable(), "supports() of a model with operation type: #0 is 106: ")


def test_a_hint_that_does_not_exist_and_has_an_effect_is_found() -> None:
    class Wrong(Engine):
        add = 0

        def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
            return [each + each.dtype.type(self.add) for each in super().computed(inputs, control)]

    class ByPreference(Healthy):
        engine = Wrong

        def prepare(self, model: Model, hints: Hints) -> Prepared:
            prepared: Any = super().prepare(model, hints)
            prepared.add = 9 * (hints.preference not in (0, 1, 2))
            return prepared

    finds("models/preference", ByPreference(), "prepared with preference -1")


# --------------------------------------------------------------------------------------------------------------- requests


class OmittedIsZero(Engine):
    """Takes an omitted input for zeros."""

    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        shapes = [self.device.shape_of(self, n) for n in range(len(inputs))]  # type: ignore[attr-defined]
        return super().computed(
            [np.zeros(s.shape, s.dtype) if x is None else x for x, s in zip(inputs, shapes, strict=True)], control
        )


class WithShapes(Healthy):
    engine = OmittedIsZero

    def shape_of(self, engine: Engine, place: int) -> Any:
        value = next(v for i, v in _values(engine) if i == engine.main.inputs[place])
        return np.empty(value.shape, value.dtype)


def _values(engine: Engine) -> Iterator[tuple[int, Any]]:
    for operation, bound in zip(engine.main.operations, engine.bound, strict=True):
        assert bound is not None
        for index, (_, value) in zip(operation.inputs, bound.inputs, strict=False):
            if isinstance(value, Value):
                yield index, value


def test_an_omitted_input_that_is_taken_for_zeros_is_found() -> None:
    finds("requests/omitted", WithShapes(), "without input 0, which is not refused: output 0 differs")


class SpoiltByRefusals(Engine):
    """Adds 1 to all results after an execution that failed."""

    failed = 0

    def run(self, request: Request, control: Control) -> Timing | None:
        try:
            results = self.computed(request.inputs, control)
        except Exception:
            self.failed += 1
            raise
        self.give(request, [each + each.dtype.type(3 * self.failed) for each in results])
        return None


class Spoilt(Healthy):
    engine = SpoiltByRefusals


def test_a_request_that_spoils_later_executions_is_found() -> None:
    finds("requests/inputs", Spoilt(), "after a request without its last input")


# ------------------------------------------------------------------------------------------------------------------ shapes


class FailsWithoutRoom(Engine):
    """Fails where an output does not fit, and reports no shapes."""

    def give(self, request: Request, results: Sequence[Array]) -> None:
        for place, result in enumerate(results):
            room = request.room(place)
            if room is not None and room.nbytes < result.nbytes:
                raise OperationFailed("no room")
            request.write(place, result)


class SaysWrongShape(Engine):
    """Reports zeros for the shapes where an output does not fit."""

    def give(self, request: Request, results: Sequence[Array]) -> None:
        small = [(room := request.room(n)) is not None and room.nbytes < r.nbytes for n, r in enumerate(results)]
        if any(small):
            request.lacks([(0,) * r.ndim for r in results], [not each for each in small])
        else:
            super().give(request, results)


@pytest.mark.parametrize(
    ("engine", "words"), [(FailsWithoutRoom, "must report the shapes"), (SaysWrongShape, "its shape is (0,")]
)
def test_a_buffer_that_is_too_small_and_is_not_reported_with_its_shape_is_found(engine: Any, words: str) -> None:
    device = Healthy()
    device.engine = engine
    finds("shapes/small", device, words)


# ------------------------------------------------------------------------------------------------------------------ signed


class UnsignedOnly(Healthy):
    """Lacks the signed variants."""

    def judged(self, a: Bound | None) -> Verdict:
        verdict = super().judged(a)
        signed = a is not None and any(v.type == OperandType.TENSOR_QUANT8_ASYMM_SIGNED for v in a.outs)
        return Verdict(False, "only unsigned") if signed else verdict


class SignedOff(Arithmetic):
    """Takes no account of the zero points of signed inputs."""

    def real(self, a: Bound, place: int, x: Array) -> Array:
        real = super().real(a, place, x)
        return real + 128 * float(a.inputs[place][1].scale) if x.dtype == np.int8 else real  # type: ignore[union-attr]


def test_a_driver_without_the_signed_variant_or_with_other_results_of_it_is_found() -> None:
    finds("signed", UnsignedOnly(), "rejects the same call on signed tensors: only unsigned")
    device = Healthy()
    device.arithmetic = SignedOff()
    finds("signed", device, "on signed tensors: output 0 differs")


# ----------------------------------------------------------------------------------------------------------------- buffers


class KeepsAfterFailure(HostBuffer):
    """Keeps its contents when a copy fails."""

    def copy_from(self, memory: Memory, dimensions: tuple[int, ...] = (), control: Any = None) -> None:
        kept = self._contents
        try:
            super().copy_from(memory, dimensions)
        except NnhalError:
            self._contents = kept
            raise


class ZerosAtFirst(HostBuffer):
    """Has zeros for contents before it is written."""

    def __init__(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> None:
        super().__init__(desc, roles)
        if self._room is not None:
            self._room[...] = 0
            self._contents = self._room


class AnySize(HostBuffer):
    """Copies as much as fits."""

    def copy_to(self, memory: Memory) -> None:
        data = self.array().reshape(-1).view(np.uint8)[: memory.size]
        memory.writable()[: data.size] = data


class ForAll(HostBuffer):
    """Is for every use."""

    def check_role(self, prepared: Any, index: int, output: bool) -> None:
        pass


class UsedAfterEnd(HostBuffer):
    """Goes on after its end."""

    def close(self) -> None:
        pass


_one: dict[str, Any] = {}


class TheSameMemory(HostBuffer):
    """Lies where the last buffer of this size lies."""

    def make(self, shape: tuple[int, ...]) -> Array:
        return _one.setdefault(f"{shape} {self.dtype}", np.empty(shape, self.dtype))


@pytest.mark.parametrize(
    ("name", "buffer", "words"),
    [
        ("buffers/states", ZerosAtFirst, "a copy out of a buffer that is new is accepted"),
        ("buffers/states", KeepsAfterFailure, "a copy out of a buffer after a failed copy is accepted"),
        ("buffers/copies", AnySize, "bytes out, into"),
        ("buffers/uses", ForAll, "driver memory for an input as an output is accepted"),
        ("buffers/closed", UsedAfterEnd, "an execution with driver memory after its end is accepted"),
        ("buffers/independent", TheSameMemory, "with the first of two buffers"),
    ],
)
def test_driver_memory_that_breaks_the_contract_is_found(name: str, buffer: Any, words: str) -> None:
    class Allocates(Healthy):
        def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Any:
            return buffer(desc, roles)

    finds(name, Allocates(), words)


def test_memory_for_roles_that_the_driver_does_not_look_at_is_found() -> None:
    class Any2(HostBuffer):
        def __init__(self) -> None:
            pass

        def close(self) -> None:
            pass

    class Careless(Healthy):
        def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Any:
            return Any2()

    finds("buffers/roles", Careless(), "memory for no roles is accepted")


# ------------------------------------------------------------------------------------------------------------------ fences


class Fenced(Engine):
    """Executes when its own rule of waiting says so."""

    def waits(self, wait_for: Sequence[Fence]) -> ErrorStatus:
        raise NotImplementedError

    def execute_fenced(
        self, request: Request, control: Control, wait_for: Sequence[Fence] = (), after: int | None = None
    ) -> FencedExecution:
        fence, done = fence_pair()
        launched = FencedExecution(fence)
        held = [each.duplicate() for each in wait_for]

        def work() -> None:
            status = self.waits(held)
            if status == ErrorStatus.NONE:
                request.execute(self.run, Control())
            error = None if status == ErrorStatus.NONE else OperationFailed("its fence failed")
            launched.finish(error, ExecutionInfo(Timing(), Timing()))
            done.set(status)

        threading.Thread(target=work, daemon=True).start()
        return launched


class AnyEnd(Fenced):
    """Takes a fence that failed for one that is signalled."""

    def waits(self, wait_for: Sequence[Fence]) -> ErrorStatus:
        for fence in wait_for:
            with suppress(NnhalError):
                fence.wait()
        return ErrorStatus.NONE


@pytest.mark.parametrize(
    ("name", "engine", "words"),
    [
        ("fences/failed", AnyEnd, "a fence that has signalled GENERAL_FAILURE is accepted"),
        ("fences/failing", AnyEnd, "its fence signals NONE though the fence that it waits for fails"),
        ("fences/abandoned", AnyEnd, "its fence signals NONE though nobody can signal"),
    ],
)
def test_a_failing_fence_that_is_ignored_is_found(name: str, engine: Any, words: str) -> None:
    device = Healthy()
    device.engine = engine
    finds(name, device, words)


def test_an_execution_that_does_not_wait_for_its_fences_is_found() -> None:
    finds("fences/all", made("fences-ignored"), "has ended after 0 of 3 fences were signalled")


def test_execution_info_before_the_end_is_found() -> None:
    class Early(AnyEnd):
        def execute_fenced(self, request: Any, control: Any, wait_for: Any = (), after: Any = None) -> Any:
            launched = super().execute_fenced(request, control, wait_for, after)
            launched.finish(None, ExecutionInfo(Timing(), Timing()))
            return launched

    device = Healthy()
    device.engine = Early
    finds("fences/info", device, "execution info before its end is given, must be an error")


# --------------------------------------------------------------------------------------------------------------- deadlines


class MissesAll(Engine):
    """Misses every deadline, however far."""

    def run(self, request: Request, control: Control) -> Timing | None:
        if control.deadline is not None:
            raise MissedDeadline("too slow")
        return super().run(request, control)


class FailsLate(Engine):
    """Says that it failed where it missed a deadline."""

    def run(self, request: Request, control: Control) -> Timing | None:
        ahead = 0 if control.deadline is None else control.deadline - time.monotonic_ns()
        if 0 < ahead < 1_000_000_000:
            threading.Event().wait(ahead / 1e9)
            raise OperationFailed("too slow")
        return super().run(request, control)


@pytest.mark.parametrize(
    ("engine", "words"),
    [(MissesAll, "must give its result"), (FailsLate, "too slow, must be a result or MissedDeadline")],
)
def test_a_deadline_that_is_missed_wrongly_is_found(engine: Any, words: str) -> None:
    device = Healthy()
    device.engine = engine
    finds("deadlines/execute", device, words)


def test_a_compilation_that_fails_at_its_deadline_with_another_error_is_found() -> None:
    class Fails(Healthy):
        def prepare(self, model: Model, hints: Hints) -> Prepared:
            if hints.deadline is not None:
                raise OperationFailed("too slow")
            return super().prepare(model, hints)

    finds("deadlines/prepare", Fails(), "must be MissedDeadline")


def test_an_execution_that_is_wrong_only_beside_one_of_a_higher_priority_is_found() -> None:
    finds("deadlines/priorities", made("preempted"), "at once with others: output 0 differs")


# ----------------------------------------------------------------------------------------------------------------- queries


def test_answers_that_differ_between_threads_are_found() -> None:
    class ByThread(Healthy):
        def capabilities(self) -> Any:
            return Capabilities.uniform(0.5 if threading.current_thread().name == "nnhal-vts" else 0.1)

    finds("queries/threads", ByThread(), "a query of 4 threads gives")


OTHER_EACH_TIME = """
import os
from tests.suites.faulty.driver.healthy import Healthy
class Changing(Healthy):
    name, version = "changing", str(os.getpid())
def device(): return Changing()
"""


@pytest.fixture
def driver(tmp_path: Path) -> Callable[[str, str], SuiteRun]:
    """A driver under development, from its text."""

    def write(name: str, text: str) -> SuiteRun:
        path = tmp_path / f"{name}.py"
        root = Path(__file__).parents[2]
        path.write_text(f"import sys; sys.path.insert(0, {str(root)!r})\n{text}")
        return SuiteRun(drivers=(str(path),), scale=0.25)

    return write


def test_answers_that_change_with_a_restart_are_found(driver: Callable[[str, str], SuiteRun]) -> None:
    run = driver("changing", OTHER_EACH_TIME)
    device = discovery.load_driver(run.drivers[0])
    verdict, reason = looked("queries/restart", device, run=run)
    assert verdict == "failed" and "after a restart, must be the same" in reason and str(os.getpid()) in reason


def test_a_query_that_takes_memory_of_the_size_of_tensors_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = SuiteRun(drivers=(str(DRIVER),), pattern="^queries/large$")
    for fault, verdict in (("supports-allocates", "failed"), ("", "passed")):
        monkeypatch.setenv(VARIABLE, fault)
        (outcome,) = (each for progress in run_suite("vts", run, 1) for each in progress.outcomes)
        assert outcome.verdict == verdict and ("a query about ADD of 16,384 x 32,768" in outcome.reason) == bool(fault)


# ------------------------------------------------------------------------------------------------------------------- files


def test_a_compilation_that_only_its_own_process_can_restore_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "restores-here")
    run = SuiteRun(drivers=(str(DRIVER),), scale=0.25)
    group = next(f"files/elsewhere-{n + 1}-of-6" for n in range(6) if OPERATION in NAMES[n::6])
    verdict, reason = looked(group, discovery.load_driver(str(DRIVER)), run=run)
    assert verdict == "failed" and "saved here and restored in a fresh process" in reason, reason
    assert "saved it" in reason


def test_files_that_are_trusted_whatever_is_in_them_are_found() -> None:
    finds("files/swapped", made("cache-trusts"), "with file 0 of another compilation are accepted, must be a miss")
    finds("files/number", made("cache-trusts"), "are accepted, must be a miss")


# ------------------------------------------------------------------------------------------------------------ surroundings

_libm = ctypes.CDLL("libm.so.6")
_DOWNWARD = {"x86_64": 0x400, "aarch64": 0x800000}[os.uname().machine]


def _flush() -> None:
    """Set flush-to-zero."""
    environment = ctypes.create_string_buffer(256)
    _libm.fegetenv(environment)
    at = 28 if os.uname().machine == "x86_64" else 0
    bit = 1 << (15 if at else 24)
    value = int.from_bytes(environment.raw[at : at + 4], "little") | bit
    changed = environment.raw[:at] + value.to_bytes(4, "little") + environment.raw[at + 4 :]
    _libm.fesetenv(changed)


CHANGES: dict[str, tuple[Callable[[], object], str]] = {
    "rounding": (lambda: _libm.fesetround(_DOWNWARD), "rounding mode is"),
    "flush": (_flush, "floating-point control is"),
    "folder": (lambda: os.chdir("/"), "working directory is /, was"),
    "umask": (lambda: os.umask(0o777), "Umask is 0777"),
    "handler": (lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN), "handler of SIGUSR2 is"),
    "blocked": (lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2}), "SigBlk is"),
    "variable": (lambda: os.environ.update(NNHAL_VTS_TEST="1"), "NNHAL_VTS_TEST=1"),
    "numpy": (lambda: np.seterr(all="raise"), "numpy's handling of errors is"),
}


@pytest.fixture
def restored() -> Iterator[None]:
    """The state of this process, as it was before."""
    environment = ctypes.create_string_buffer(256)
    _libm.fegetenv(environment)
    mask, folder, errors = os.umask(0), os.getcwd(), np.geterr()
    os.umask(mask)
    handler, blocked = signal.getsignal(signal.SIGUSR2), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    _libm.fesetenv(environment)
    os.umask(mask)
    os.chdir(folder)
    np.seterr(**errors)
    signal.signal(signal.SIGUSR2, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    os.environ.pop("NNHAL_VTS_TEST", None)


@pytest.mark.parametrize("where", ["run", "prepare", "close"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.usefixtures("restored")
def test_a_process_that_a_driver_leaves_changed_is_found(change: str, where: str) -> None:
    act, words = CHANGES[change]

    class Changes(Engine):
        def run(self, request: Request, control: Control) -> Timing | None:
            timing = super().run(request, control)
            if where == "run":
                act()
            return timing

        def close(self) -> None:
            super().close()
            if where == "close":
                act()

    class Changing(Healthy):
        engine = Changes

        def prepare(self, model: Model, hints: Hints) -> Prepared:
            prepared = super().prepare(model, hints)
            if where == "prepare":
                act()
            return prepared

    verdict, reason = looked("process", Changing())
    assert verdict == "failed" and f"after {where}(), " in reason and words in reason, reason


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("name", ["requests/inputs", "fences/none", "times"])
def test_a_variable_that_each_execution_sets_is_found_by_whatever_runs_first(name: str) -> None:
    class Sets(Engine):
        def run(self, request: Request, control: Control) -> Timing | None:
            os.environ["NNHAL_VTS_TEST"] = "1"
            return super().run(request, control)

    device = Healthy()
    device.engine = Sets
    verdict, reason = looked(name, device)
    words = "environment variables is NNHAL_VTS_TEST=1, must be NNHAL_VTS_TEST unset as before"
    assert verdict == "failed" and words in reason, reason


# ------------------------------------------------------------------------------------------------------------------- files


def test_a_temporary_file_of_each_prepared_model_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = SuiteRun(drivers=(str(DRIVER),))
    monkeypatch.setenv(VARIABLE, "leaves-files")
    verdict, reason = looked("process/files", Healthy(), run=run)
    assert verdict == "failed" and re.search(r"leaves \d files, such as TMPDIR/faulty-", reason), reason
    monkeypatch.setenv(VARIABLE, "")
    assert looked("process/files", Healthy(), run=run) == ("passed", "")


def test_files_count_that_are_new_in_each_round_and_still_there(tmp_path: Path) -> None:
    own, elsewhere = tmp_path / "own", tmp_path / "elsewhere"
    own.mkdir()
    elsewhere.mkdir()
    known = entries([str(elsewhere)])
    rounds = []
    for number in range(4):
        (elsewhere / f"of {number}").write_text("")
        rounds.append(new_files([str(elsewhere)], known))
    assert left_behind(rounds, str(own), ended=True).endswith(f"leaves 1 files, such as {elsewhere}/of 3")
    (elsewhere / "of 2").unlink()  # not all remain: they may be another process's
    assert left_behind(rounds, str(own), ended=True) == ""


@pytest.mark.parametrize(("ended", "found"), [(True, "left 2 files in TMPDIR, such as one/kept"), (False, "")])
def test_a_file_that_a_process_keeps_for_all_models_is_too_many_after_its_end(
    ended: bool, found: str, tmp_path: Path
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "kept").write_text("")
    rounds = [new_files([str(tmp_path)], ())] * 3
    assert left_behind(rounds, str(tmp_path), ended=ended).endswith(found)
    assert bool(left_behind(rounds, str(tmp_path), ended=ended)) == ended


def test_the_state_of_another_process_has_what_the_kernel_tells() -> None:
    own, seen = state_of_this_process(), state_of_process(os.getpid())
    assert {"working directory", "Umask", "SigIgn", "SigCgt", "RLIMIT_NOFILE"} <= set(seen)
    assert [name for name in ("working directory", "Umask", "nice value") if own[name] != seen[name]] == []
    assert difference(seen, {**seen, "Umask": "x"}).startswith("Umask is x, was ")


# ------------------------------------------------------------------------------------------------------------------- times


@pytest.mark.parametrize(
    ("fault", "words"),
    [("times-in-microseconds", "they may be in microseconds"), ("times-in-picoseconds", "of a call of")],
)
def test_times_in_another_unit_are_found(fault: str, words: str) -> None:
    finds("times", made(fault), words)


def test_times_in_nanoseconds_pass() -> None:
    device = Healthy()
    device.engine = Timed
    assert looked("times", device) == ("passed", "")


def test_times_of_operations_outside_the_execution_are_found() -> None:
    class Profiled(Engine):
        profiles = True

        def run(self, request: Request, control: Control) -> Timing | None:
            if control.profile is not None:
                control.profile(0, 0, time.monotonic_ns())
            return super().run(request, control)

    device = Healthy()
    device.engine = Profiled
    finds("times/profile", device, "operation 0 took from ")


# ---------------------------------------------------------------------------------------------------------------- isolated


@pytest.fixture(scope="module")
def isolated() -> Device:
    return isolation.at_level("reference", own_process=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["packets/mutated", "requests/wire", "death/run", "death/fence", "death/others"])
def test_an_isolated_reference_keeps_the_promise(name: str, isolated: Device) -> None:
    assert looked(name, isolated, run=ISOLATED) == ("passed", "")


@pytest.mark.parametrize("name", ["models/input-index", "models/priority", "requests/types", "requests/inputs"])
def test_an_isolated_reference_refuses_what_is_invalid(name: str, isolated: Device) -> None:
    assert looked(name, isolated, run=ISOLATED) == ("passed", "")


def test_a_method_that_answers_after_the_death_of_its_process_is_found(isolated: Device) -> None:
    look = death._dead("status", lambda d: None, lambda d, held: None)
    probe = Probe(isolated, ISOLATED, "", lambda op: Drawing(op, 0, 1), lambda stage: None, {}, TypeVerdicts())
    with pytest.raises(
        RequirementNotMet, match=r"status\(\) after the death of its process succeeds, must be DeadObject"
    ):
        look(probe)


def test_a_mutated_packet_that_is_executed_is_a_fault_and_none_of_the_mutants_is_valid() -> None:
    done, failed = pack(wire.encode(wire.DONE)), pack(wire.encode(wire.Failed(1, "InvalidArgument", "no")))
    assert packets.problem_of(done) == "is answered with Acknowledged, must be an error"
    assert packets.problem_of(failed) == ""
    assert "cannot be read" in packets.problem_of(failed[:12] + b"\xff" * 12)
    packet = pack(wire.encode(wire.ExecuteSynchronously(wire.ExecuteSynchronously.forms[-1], 7)))
    found = dict(packets._mutants(packet, np.random.default_rng(0), 200))
    assert len(found) > 20 and packet not in found.values()


CHANGES_AT_LOAD = """
import os
os.environ["NNHAL_VTS_TEST"] = "1"
if {changes}: os.umask(0o777)
from tests.suites.faulty.driver.healthy import Healthy
class Changing(Healthy): name = "{name}"
def device(): return Changing()
"""


@pytest.mark.parametrize(("name", "changes"), [("changes-umask", True), ("changes-nothing", False)])
def test_a_driver_that_changes_the_process_while_it_loads_is_found(
    name: str, changes: bool, driver: Callable[[str, str], SuiteRun]
) -> None:
    run = driver(name, CHANGES_AT_LOAD.format(name=name, changes=changes))
    verdict, reason = looked("process/loading", Healthy(), run=run)
    assert verdict == ("failed" if changes else "passed") and ("Umask is 0777" in reason) == changes, reason


def test_a_driver_that_ignores_deadlines_is_found() -> None:
    finds("deadlines/execute", made("deadline-ignored"), "s after its deadline, must poll control.check()")


class Silent(HostBuffer):
    """Ignores a copy that does not give its dimensions."""

    def copy_from(self, memory: Memory, dimensions: tuple[int, ...] = (), control: Any = None) -> None:
        if dimensions:
            super().copy_from(memory, dimensions)


class AllocatesSilent(Wrapper):
    """The reference, with such memory."""

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Any:
        return Silent(desc, roles)


def test_driver_memory_that_takes_contents_without_dimensions_is_found() -> None:
    assert looked("buffers/open", discovery.cpu()) == ("passed", "")
    finds("buffers/open", AllocatesSilent(discovery.cpu()), "a copy without dimensions into memory of open dimensions")
