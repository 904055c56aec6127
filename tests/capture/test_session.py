"""What a capture has: every model, request and outcome of a session, up to a crash, within its limit."""

import os
import signal
import stat
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import BadFile, BadState, InvalidArgument, OperationFailed
from nnhal.hal.request import CheckedRequest, Request
from nnhal.runtime import captured
from nnhal.runtime.capturing.reader import CaptureReader, PreparedPart
from nnhal.runtime.capturing.records import FRAME, MAGIC
from nnhal.runtime.capturing.requests import RecordedCheckedRequest
from nnhal.runtime.capturing.session import Capture
from nnhal.runtime.compiled import Compiled
from tests.execution import run_python
from tests.models import make_model
from tests.runtime.devices import Fake, failing
from tests.runtime.graphs import counter, sums
from tests.runtime.test_flow import doubling, two

X, B = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
ISOLATION = pytest.mark.parametrize("isolation", ["none", "process"])


def relu() -> nnhal.Model:
    """A model whose output shape is unknown before the execution."""
    return make_model(lambda b, x: b.relu(x, name="y"), name="open", x=(0,))


def use(compiled: Compiled, *inputs: Any) -> None:
    """Execute in each way."""
    compiled(*inputs)
    with compiled.burst() as burst:
        burst(*inputs)
    ready, signals = nnhal.fence_pair()
    launched = compiled.execute_fenced(*inputs, wait_for=[ready])
    signals.set()
    launched.result()


def arrays(capture: CaptureReader, part: PreparedPart, n: int) -> tuple[list[Any], list[Any]]:
    request = part.requests[n]
    assert request.end is not None
    given = [x and capture.array(x) for x in request.given.inputs]
    return given, [x and capture.array(x) for x in request.end.outputs]


@ISOLATION
def test_a_session_has_models_requests_ways_and_results(tmp_path: Path, isolation: Any) -> None:
    with nnhal.capture(tmp_path / "a") as running:
        use(nnhal.compile(sums(2), devices="reference", isolation=isolation, priority="high"), X, B)
        compiled = nnhal.compile(relu(), devices="reference", isolation=isolation)
        compiled(-X)
        with pytest.raises(nnhal.OutputInsufficientSize):
            compiled(X, out=np.zeros(4, np.uint8))
        compiled(X, out=np.zeros(16, np.uint8))
    assert running.path == tmp_path / "a" and captured.running.session is None
    capture = CaptureReader(tmp_path / "a")
    assert capture.complete and not capture.notes and capture.head.pid == os.getpid()
    first, second = capture.parts.values()
    assert (first.given.device, first.given.where["isolation"], first.given.priority) == ("reference", isolation, 2)
    assert [r.given.way for r in first.requests] == ["plain", "burst", "fenced" if isolation == "process" else "plain"]
    for n in range(3):
        given, made = arrays(capture, first, n)
        assert [x.tolist() for x in given] == [X.tolist(), B.tolist()] and made[0].tolist() == (X + 2).tolist()
    ends = [r.end for r in second.requests]
    assert [e and e.status for e in ends] == [0, ErrorStatus.OUTPUT_INSUFFICIENT_SIZE, 0]
    assert [e and e.shapes for e in ends] == [((4,),)] * 3 and arrays(capture, second, 2)[1][0].tolist() == X.tolist()
    assert capture.model(first.given.model) == sums(2) and len(capture.placements) == 2


def test_inputs_behind_fences_are_those_of_the_execution(tmp_path: Path) -> None:
    with nnhal.capture(tmp_path / "a"):
        compiled = nnhal.compile(sums(), devices="reference", isolation="process")
        ready, signals = nnhal.fence_pair()
        given = X.copy()
        launched = compiled.execute_fenced(given, B, wait_for=[ready])
        given += 10  # it is read when the fence is signalled
        signals.set()
        wanted = launched.result()
        forgotten = compiled.execute_fenced(X, B)
        assert forgotten.fence is not None
        forgotten.fence.wait()
    capture = CaptureReader(tmp_path / "a")
    inputs, outputs = arrays(capture, capture.parts[0], 0)
    assert (inputs[0] == X + 10).all() and (outputs[0] == wanted).all() and (wanted == X + 11).all()
    unasked = capture.parts[0].requests[1]  # nobody asked for its result
    assert unasked.given.way == "fenced" and unasked.end is None


@ISOLATION
def test_driver_memory_is_captured_with_its_contents(tmp_path: Path, isolation: Any) -> None:
    with nnhal.capture(tmp_path / "a"):
        compiled = nnhal.compile(sums(), devices="reference", isolation=isolation)
        a, b = (nnhal.allocate([(compiled, "input", 0), (compiled, "output", 0)]) for _ in range(2))
        a.write(X)
        compiled(a, B, out=b)
    capture = CaptureReader(tmp_path / "a")
    given, made = arrays(capture, capture.parts[0], 0)
    assert (given[0] == X).all() and (made[0] == X + 1).all()
    argument = capture.parts[0].requests[0].given.inputs[0]
    assert argument is not None and argument.buffer == (isolation == "process")


WEIGHTS = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)


def dense() -> nnhal.Model:
    b = nnhal.Builder("weights")
    x = b.input((1, 64), name="x")
    return b.finish([x], [b.fully_connected(b.relu(x), WEIGHTS, np.zeros(64, np.float32))])


def test_partitions_and_fallbacks_are_captured_and_weights_once(tmp_path: Path) -> None:
    model = dense()
    fake = Fake(takes=lambda n: n == 1, on_run=failing(OperationFailed("no")))
    with nnhal.capture(tmp_path / "a"):
        compiled = nnhal.compile(model, devices=[fake, "reference"], fallback="allow")
        compiled(np.ones((1, 64), np.float32))
        nnhal.compile(dense(), devices="reference")  # the same weights in other memory
    capture = CaptureReader(tmp_path / "a")
    assert sorted(p.given.device for p in capture.parts.values()) == ["fake", *["reference"] * 3]
    of_fake = next(p for p in capture.parts.values() if p.given.device == "fake")
    (failed,) = of_fake.requests
    assert failed.end is not None and (failed.end.status, failed.end.error) == (
        ErrorStatus.GENERAL_FAILURE,
        "device fake: no",
    )
    assert capture.model(of_fake.given.model).main.operations[0].type == model.main.operations[1].type
    assert (tmp_path / "a").read_bytes().count(WEIGHTS.tobytes()) == 1
    assert set(capture.placements[0].parts) < set(capture.parts) and len(capture.placements) == 2


def test_each_partition_of_interpreted_control_flow_is_captured(tmp_path: Path) -> None:
    with nnhal.capture(tmp_path / "a"):
        compiled = nnhal.compile(doubling(), devices=[*two(), "reference"])
        compiled(X, np.array([2], np.int32))
    capture = CaptureReader(tmp_path / "a")
    ran = Counter(p.given.device for p in capture.parts.values() for _ in p.requests)
    assert set(ran) <= {"adder", "multiplier", "reference"} and ran["adder"] >= 5  # condition 3, body 2
    assert len(capture.placements) == 1


def test_a_state_is_an_input_and_an_output_of_each_request(tmp_path: Path) -> None:
    with nnhal.capture(tmp_path / "a"):
        stream = nnhal.compile(counter(), devices="reference").stream()
        stream(X)
        stream(X)
    capture = CaptureReader(tmp_path / "a")
    given, made = arrays(capture, capture.parts[0], 1)
    assert (given[1] == X).all() and (made[1] == 2 * X).all()
    assert capture.model(0).main == counter().main


def test_a_failed_preparation_is_captured(tmp_path: Path) -> None:
    with nnhal.capture(tmp_path / "a"), pytest.raises(OperationFailed):
        nnhal.compile(sums(), devices=[Fake(on_prepare=failing(OperationFailed("cannot")))])
    capture = CaptureReader(tmp_path / "a")
    end = capture.parts[0].end
    assert end is not None and (end.status, end.error) == (ErrorStatus.GENERAL_FAILURE, "device fake: cannot")
    assert capture.model(0) == sums()


def test_an_execution_that_the_runtime_gives_up_is_captured_as_ended_then(tmp_path: Path) -> None:
    begun, release = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        release.wait()

    with nnhal.capture(tmp_path / "a"):
        compiled = nnhal.compile(sums(), devices=[Fake(on_run=block)])
        execution = compiled.submit(X, B)
        begun.wait()
        execution.cancel()
        with pytest.raises(nnhal.Cancelled):
            execution.result()
        release.set()
        compiled.close()
    end = CaptureReader(tmp_path / "a").parts[0].requests[0].end
    assert end is not None and end.error == "device fake: cancelled by its owner" and end.outputs == ()


def test_off_nothing_stands_in_the_way(tmp_path: Path) -> None:
    compiled = nnhal.compile(sums(), devices="reference")
    (line,) = compiled._caller.lines
    assert line.step.capture is None and line.signature.make in (Request, CheckedRequest)
    with nnhal.capture(tmp_path / "a"):
        compiled(X, B)  # compiled before: not captured
        during = nnhal.compile(sums(), devices="reference")
    during(X, B)  # the capture has ended
    (line,) = nnhal.compile(sums(), devices="reference")._caller.lines
    assert line.step.capture is None and line.signature.make in (Request, CheckedRequest)
    assert CaptureReader(tmp_path / "a").parts[0].requests == []


def test_checked_requests_stay_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNHAL_CHECK", "1")
    with nnhal.capture(tmp_path / "a"):
        compiled = nnhal.compile(sums(), devices="reference")
        compiled(X, B)
    assert compiled._caller.lines[0].signature.make is RecordedCheckedRequest
    assert len(CaptureReader(tmp_path / "a").parts[0].requests) == 1


def test_one_capture_runs_at_a_time_and_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with nnhal.capture(tmp_path / "a"), pytest.raises(BadState, match="another one is running"):
        nnhal.capture(tmp_path / "b").start()
    for wrong in ({"max_bytes": 1}, {"max_bytes": "a"}, {"data": 1}):
        with pytest.raises(InvalidArgument):
            nnhal.capture(tmp_path / "b", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="cannot be written"):
        nnhal.capture(tmp_path / "none" / "b").start()


def test_without_data_arrays_have_only_types_and_shapes(tmp_path: Path) -> None:
    with nnhal.capture(tmp_path / "a", data=False):
        nnhal.compile(sums(), devices="reference")(X + 40, B)
    capture = CaptureReader(tmp_path / "a")
    given = capture.parts[0].requests[0].given.inputs[0]
    assert given is not None and (given.dtype, given.shape, given.contents) == ("<f4", (4,), b"")
    with pytest.raises(BadFile, match="the capture has no data"):
        capture.array(given)
    assert (X + 40).tobytes() not in (tmp_path / "a").read_bytes()


def test_a_full_capture_leaves_data_out_then_records_and_says_so(tmp_path: Path, caplog: Any) -> None:
    with nnhal.capture(tmp_path / "a", max_bytes=1 << 16):
        compiled = nnhal.compile(sums(shape=(2048,)), devices="reference")
        for n in range(300):
            compiled(np.full(2048, n, np.float32), np.ones(2048, np.float32))
    assert (tmp_path / "a").stat().st_size <= 1 << 16
    capture = CaptureReader(tmp_path / "a")
    ends = [r.end for r in capture.parts[0].requests]
    kept = [bool(e and e.outputs[0] and e.outputs[0].contents) for e in ends]
    assert kept[0] and not kept[-1] and 10 < len(ends) < 300
    assert any("reached its limit" in note for note in capture.notes) and caplog.text.count("reached its limit") == 1
    assert any("records are missing" in note for note in capture.notes)


# ---------------------------------------------------------------------------------------------------------- processes

PROGRAM = """
import os, sys, signal
import numpy as np
import nnhal
from tests.runtime.graphs import sums
X, B = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
compiled = nnhal.compile(sums(), devices="reference")
compiled(X, B)
"""


def test_a_killed_application_leaves_a_file_with_the_request_that_it_died_in(tmp_path: Path) -> None:
    dies = (
        "from tests.runtime.devices import Fake\n"
        "dying = nnhal.compile(sums(), devices=[Fake(on_run=lambda: os.kill(os.getpid(), signal.SIGKILL))])\n"
        "dying(X + 5, B)\n"
    )
    done = run_python(PROGRAM + dies, check=False, env={"NNHAL_CAPTURE": str(tmp_path / "a")})
    assert done.returncode == -signal.SIGKILL
    capture = CaptureReader(tmp_path / "a")
    assert not capture.complete and "killed, crashed or still runs" in capture.notes[-1]
    assert arrays(capture, capture.parts[0], 0)[1][0].tolist() == [1, 2, 3, 4]
    (request,) = capture.parts[1].requests
    assert request.end is None and request.given.inputs[0] is not None
    assert capture.array(request.given.inputs[0]).tolist() == [5, 6, 7, 8]


def test_a_forked_child_and_a_second_process_write_other_files(tmp_path: Path) -> None:
    forks = (
        "import resource\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))\n"
        "    nnhal.compile(sums(2), devices='reference')(X, B)\n"
        "    print(*nnhal.compile(sums(shape=(4096,)), devices='reference')(*np.ones((2, 4096), 'f4'))[:1])\n"
        "    sys.exit()\n"
        "os.waitpid(pid, 0)\n"
        "compiled(X, B)\n"
    )
    (tmp_path / "a.nnhalcap").touch()  # of another process
    done = run_python(PROGRAM + forks, check=False, env={"NNHAL_CAPTURE": str(tmp_path / "a.nnhalcap")})
    assert done.stdout == "2.0\n" and done.stderr.count("could not be written: File too large") == 1
    parent, child = sorted((CaptureReader(path) for path in tmp_path.glob("a.*.nnhalcap")), key=lambda c: c.head.pid)
    assert [each.path.stem for each in (parent, child)] == [f"a.{each.head.pid}" for each in (parent, child)]
    assert parent.complete and [len(p.requests) for p in parent.parts.values()] == [2]
    # the child reached the limit of its files: the file is whole up to there
    assert not child.complete and len(child.models[0].operations) == 2 and len(child.notes) == 1
    assert arrays(child, child.parts[0], 0)[1][0].tolist() == [2, 3, 4, 5] and child.path.stat().st_size <= 9000


def test_a_file_that_cannot_be_written_does_not_fail_the_application(tmp_path: Path, caplog: Any) -> None:
    with Capture(tmp_path / "none" / "a", early=False):
        assert nnhal.compile(sums(), devices="reference")(X, B).tolist() == [1, 2, 3, 4]
    assert "cannot be written" in caplog.text and "nothing is captured" in caplog.text
    with nnhal.capture("/dev/full"):
        assert nnhal.compile(sums(), devices="reference")(X, B).tolist() == [1, 2, 3, 4]
    assert "No space left on device" in caplog.text


# -------------------------------------------------------------------------------------------------------- hostile files


@pytest.fixture(scope="module")
def data(tmp_path_factory: Any) -> bytes:
    path: Path = tmp_path_factory.mktemp("capture") / "a"
    with nnhal.capture(path):
        nnhal.compile(sums(), devices="reference")(X, B)
    return path.read_bytes()


def read(path: Path, data: bytes) -> CaptureReader:
    path.write_bytes(data)
    return CaptureReader(path)


def ends(data: bytes) -> list[int]:
    """Where each frame ends."""
    found, at = [], len(MAGIC)
    while at < len(data):
        at += FRAME.size + FRAME.unpack_from(data, at)[2]
        found.append(at)
    return found


def test_a_file_cut_anywhere_is_read_up_to_its_last_whole_record(data: bytes, tmp_path: Path) -> None:
    first, *_ = whole = ends(data)
    for length in sorted({n for end in whole for n in (end - 40, end - 1, end, end + 1, end + FRAME.size)} | {9}):
        if length >= len(data):
            continue
        if length < first:
            with pytest.raises(BadFile):
                read(tmp_path / "a", data[:length])
            continue
        capture = read(tmp_path / "a", data[:length])
        assert not capture.complete and any("is cut" in note for note in capture.notes) == (length not in whole)
        for part in capture.parts.values():
            for request in part.requests:
                assert [capture.array(x).size for x in request.given.inputs if x is not None] == [4, 4]


def test_a_changed_byte_is_an_error_or_a_note_never_another_result(data: bytes, tmp_path: Path) -> None:
    wanted = read(tmp_path / "a", data).models
    for at in range(0, len(data), 7):
        changed = bytearray(data)
        changed[at] ^= 0x41
        try:
            capture = read(tmp_path / "a", bytes(changed))
            for part in capture.parts.values():
                capture.model(part.given.model)
                for n, request in enumerate(part.requests):
                    if request.end is not None:
                        assert arrays(capture, part, n)[1][0].tolist() == [1, 2, 3, 4]
        except BadFile:
            continue
        assert capture.notes or capture.models == wanted


@pytest.mark.parametrize(
    ("contents", "why"),
    [
        (b"", "has 0 bytes, must have 8"),
        (b"\x00NNHAL\x01\n and a model", "is not a capture"),
        (b"TFL3" * 10, "is not a capture"),
        (MAGIC[:-1] + b"\x09" + b"more", "has format version 9, must be 1"),
        (MAGIC, "has no first record"),
        (MAGIC + FRAME.pack(b"RECD", 0, 1 << 62), "has no first record"),
    ],
)
def test_a_foreign_newer_or_empty_file_is_named(contents: bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=why):
        read(tmp_path / "a", contents)
    with pytest.raises(BadFile, match="cannot be read"):
        CaptureReader(tmp_path / "none")
    with pytest.raises(BadFile, match=r"not an ordinary file|cannot be read"):
        CaptureReader(tmp_path)


def test_a_capture_is_for_its_user_alone_also_over_a_file_that_others_may_read(tmp_path: Path) -> None:
    path = tmp_path / "a.nnhalcap"
    path.write_bytes(b"before")
    path.chmod(0o644)
    with nnhal.capture(path):
        pass
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and not path.read_bytes().startswith(b"before")
