"""The stack under what a driver raised: its own frames, few enough to be read, holding nothing of what was at work."""

import gc
import sysconfig
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nnhal
from nnhal.base import stacks
from nnhal.base.errors import Cancelled, ContractBroken, LoopTimeout, MissedDeadline, NnhalError, OperationFailed
from nnhal.base.stacks import dumped_frames, is_driver_code, stack_of, store_stack, with_note, without_frames

OWN = str(Path(nnhal.__file__).parent)
MINE, OURS, SHIPPED = "/home/me/driver.py", f"{OWN}/hal/request.py", f"{OWN}/drivers/reference.py"
SOURCES, BOOTSTRAP = f"{OWN}/runtime/sources.py", "<frozen importlib._bootstrap_external>"


def raised(*files: str, error: BaseException | None = None, cause: BaseException | None = None) -> BaseException:
    """An error that went through a function in each of these files, from the first, which called the next."""

    def bottom() -> None:
        raise error or RuntimeError("broken") from cause

    call: Callable[[], None] = bottom
    for number, file in reversed(list(enumerate(files))):
        space: dict[str, Any] = {"call": call}
        exec(compile(f"def f{number}():\n    call()\n", file, "exec"), space)
        call = space[f"f{number}"]
    try:
        call()
    except BaseException as caught:
        found = caught
    frames = found.__traceback__
    assert frames is not None
    found.__traceback__ = cut(frames.tb_next, len(files))
    return found


def cut(traceback: Any, count: int) -> Any:
    """The first frames of a traceback."""
    kept = []
    while traceback is not None and len(kept) < count:
        kept.append(traceback)
        traceback = traceback.tb_next
    made = None
    for each in reversed(kept):
        made = type(each)(made, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return made


def functions(text: str) -> list[str]:
    return [line.rsplit(" in ", 1)[1] for line in text.splitlines() if " in f" in line]


# ----------------------------------------------------------------------------------------------------------- which


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        ((MINE,), "f0"),
        ((OURS, OURS), ""),
        ((OURS, MINE), "f1"),
        ((MINE, OURS), "f0 f1"),  # whom the driver called
        ((OURS, MINE, OURS, MINE), "f1 f2 f3"),
        ((OURS, SHIPPED), "f1"),
        ((SOURCES, MINE), "f1"),
        ((MINE, SOURCES, BOOTSTRAP, MINE), "f0 f3"),
        ((BOOTSTRAP,), ""),
    ],
)
def test_the_frames_from_the_drivers_first_on_are_shown(files, shown):
    assert functions(stack_of(raised(*files))) == shown.split()


def test_each_frame_is_named_with_its_text_and_the_error_comes_last(tmp_path):
    file = tmp_path / "driver.py"
    file.write_text("def run():\n    raise OSError('no engine')\n")
    space: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    with pytest.raises(OSError, match="no engine") as caught:
        space["run"]()
    stack = stack_of(caught.value).splitlines()
    assert stack[-3:] == [f'  File "{file}", line 2, in run', "    raise OSError('no engine')", "OSError: no engine"]
    assert stack_of(raised(MINE)) == f'  File "{MINE}", line 2, in f0\nRuntimeError: broken'  # no such file to read
    assert stack_of(RuntimeError("was never raised")) == ""


@pytest.mark.parametrize(
    ("file", "authors"),
    [
        (MINE, True),
        (OURS, False),
        (SHIPPED, True),
        (OWN + "er/x.py", True),
        (f"{OWN}/drivers.py", False),
        ("<string>", True),
    ],
)
def test_whose_code_it_is_is_told_by_its_file(file, authors):
    assert is_driver_code(file) is authors


def test_causes_come_before_what_they_caused_and_four_are_enough():
    error = None
    for number in range(6):
        error = raised(MINE, error=RuntimeError(f"number {number}"), cause=error)
    said = [line for line in stack_of(error).splitlines() if line.startswith("Runtime")]
    assert said == [f"RuntimeError: number {n}" for n in (2, 3, 4, 5)]
    hidden = raised(MINE, error=NnhalError("device d: broken"), cause=raised(OURS, error=ValueError("ours")))
    assert stack_of(hidden).splitlines()[-1] == "device d: broken" and "ours" not in stack_of(hidden)


@pytest.mark.timeout(20)
def test_an_error_that_is_its_own_cause_has_an_end():
    one, other = raised(MINE), raised(MINE, error=ValueError("other"))
    one.__cause__, other.__cause__ = other, one
    assert stack_of(one).count("File") == 2
    without_frames(one)


# --------------------------------------------------------------------------------------------------------- how long


@pytest.mark.parametrize(("count", "left_out"), [(1, 0), (20, 0), (21, 1), (40, 20)])
def test_the_first_five_and_the_last_fifteen_frames_are_shown(count, left_out):
    stack = stack_of(raised(*[MINE] * count)).splitlines()
    first = [f"f{n}" for n in range(min(count, 5))]
    assert functions("\n".join(stack)) == first + [f"f{n}" for n in range(5 + left_out, count)]
    told = [line for line in stack if "left out" in line]
    assert told == ([f"  ... {left_out} frames left out"] if left_out else [])
    assert not left_out or stack.index(told[0]) == 5


def test_a_line_has_300_characters_and_all_have_8000():
    long = stack_of(raised("/" + "x" * 1000))
    assert len(long.splitlines()[0]) == 300 + len(" ...")
    much = stack_of(raised(*["/" + "x" * 1000] * 20, error=RuntimeError("y" * 10_000)))
    assert len(much) <= 8000 + len(" ...") and len(much) >= 20 * 300
    several = raised(*["/" + "x" * 1000] * 20)
    for _ in range(3):
        several = raised(*["/" + "x" * 1000] * 20, cause=several)
    assert 8000 <= len(stack_of(several)) <= 8004


@pytest.mark.timeout(60)
def test_an_endless_traceback_is_walked_for_a_while(monkeypatch):
    monkeypatch.setattr(stacks, "_WALKED", 3)
    assert functions(stack_of(raised(*[MINE] * 9))) == ["f0", "f1", "f2"]


def test_what_would_move_a_terminal_is_escaped():
    assert "\x1b" not in stack_of(raised("/\x1b[2J.py", error=RuntimeError("\x1b]0;gone\x07\nsecond line")))


# ----------------------------------------------------------------------------------------------------- kept, let go


@pytest.mark.parametrize("error", [Cancelled("c"), MissedDeadline("m"), LoopTimeout("l")])
def test_what_only_says_that_it_is_time_keeps_no_stack(error):
    store_stack(raised(MINE, error=error))  # type: ignore[arg-type]
    assert error.stack == ""


def test_an_error_keeps_the_stack_of_its_driver_and_one_that_has_none_keeps_what_it_had():
    error = raised(MINE, error=OperationFailed("mine"))
    store_stack(error)  # type: ignore[arg-type]
    assert error.stack == f'  File "{MINE}", line 2, in f0\nmine'  # type: ignore[attr-defined]
    own = ContractBroken("ours")
    own.stack = "was told"
    store_stack(own)
    assert own.stack == "was told"


def test_a_stack_from_another_process_is_a_note():
    error = with_note(NnhalError("broken"), "there\x1b")
    assert error.stack == "there\\x1b" and error.__notes__ == ["In the driver's process:\nthere\\x1b"]
    assert not hasattr(with_note(NnhalError("broken"), ""), "__notes__")
    assert len(with_note(NnhalError("broken"), "x" * 9000).stack) == 8000


@pytest.mark.parametrize("how", ["itself", "cause", "context"])
def test_an_error_to_be_kept_holds_nothing_of_what_was_at_work(how):
    class Held:
        pass

    def fail() -> None:
        held = Held()
        seen.append(weakref.ref(held))
        raise ValueError("inner")

    seen: list[Any] = []
    kept: BaseException
    try:
        if how == "itself":
            fail()
        try:
            fail()
        except ValueError as inner:
            if how == "cause":
                raise RuntimeError("outer") from inner
            raise RuntimeError("outer")  # noqa: B904
    except (ValueError, RuntimeError) as error:
        kept = error
    gc.collect()
    assert seen[0]() is not None
    assert without_frames(kept) is kept
    gc.collect()
    assert seen[0]() is None and kept.__traceback__ is not None


# ------------------------------------------------------------------------------------- what a process said at its end


LIBRARY = sysconfig.get_path("stdlib") + "/threading.py"


def frame(file: str, number: int = 7, name: str = "run") -> str:
    return f'  File "{file}", line {number} in {name}'


@pytest.mark.parametrize("between", ["\n", "|"])
def test_of_what_the_kernel_ended_the_drivers_frames_are_told_innermost_first(between):
    threads = [
        ["Thread 0x1 (most recent call first):", frame(LIBRARY), frame(OURS)],
        [
            "Current thread 0x2 (most recent call first):",
            frame(LIBRARY),
            frame(MINE, 3, "inner"),
            frame(OURS),
            frame(MINE, 9),
        ],
        ["Thread 0x3 (most recent call first):", frame("/home/me/other.py")],
    ]
    words = between.join(["Fatal Python error: Segmentation fault", *(line for lines in threads for line in lines)])
    assert dumped_frames(words) == f'File "{MINE}", line 3, in inner < File "{MINE}", line 9, in run'


def test_where_no_frame_is_a_drivers_nothing_is_told():
    assert dumped_frames("killed by SIGKILL") == dumped_frames("") == ""
    frozen = frame("<frozen runpy>") + "\n" + frame("<string>")
    assert dumped_frames("\n".join(["Thread 0x1 (most recent call first):", frozen, frame(LIBRARY), frame(OURS)])) == ""
    assert dumped_frames(frame(MINE)) == ""  # before any thread


def test_six_frames_are_enough():
    lines = [frame(MINE, n, f"f{n}") for n in range(9)]
    assert dumped_frames("\n".join(["Thread 0x1 (most recent call first):", *lines])).count("File") == 6
