"""The command itself: verbs, exit codes by error, warnings, interrupts, a pipe that nobody reads."""

import errno
import gc
import io
import os
import re
import signal
import sys
import threading
import warnings
from types import SimpleNamespace
from typing import Any

import click
import pytest

import nnhal.cli as entry
from nnhal.base.errors import DeviceUnavailable, DriverFailed, InvalidArgument, NnhalError
from nnhal.base.stacks import innermost
from nnhal.cli import main
from nnhal.cli.command import GROUPS, SMALL, Command, group_of
from nnhal.cli.main import NAMES, VERBS, cli
from tests.execution import run_nnhal


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the command changes of the process is put back."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(entry, "_struck", [])
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)
    gc.unfreeze()


def ends(monkeypatch: pytest.MonkeyPatch, what: Any, *words: str) -> int:
    """How `main` ends where the command gives, raises or calls this."""

    def called(arguments: list[str], **_: Any) -> Any:
        if isinstance(what, BaseException):
            raise what
        return what() if callable(what) else what

    monkeypatch.setattr(main.cli, "main", called)
    with pytest.raises(SystemExit) as ended:
        main.main(list(words))
    code = ended.value.code
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize(
    ("what", "code", "told"),
    [
        (None, 0, ""),
        (0, 0, ""),
        (1, 1, ""),
        (4, 4, ""),
        ("text", 0, ""),
        (click.exceptions.Abort(), 130, "error: interrupted\n"),
        (click.UsageError("wrong"), 2, "error: wrong\nhint: nnhal --help\n"),
        (click.ClickException("bad"), 1, "error: bad\n"),
        (InvalidArgument("no"), 3, "error: no\n"),
        (DeviceUnavailable("gone"), 4, "error: gone\n"),
        (BrokenPipeError(), 0, ""),
    ],
)
def test_the_exit_code_says_how_it_went(monkeypatch, capsys, what, code, told):
    assert ends(monkeypatch, what) == code
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", told)


def test_characters_that_the_output_lacks_are_replaced(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "latin-1"))
    assert ends(monkeypatch, lambda: click.echo("12 µs …")) == 0
    assert written.getvalue() == b"12 \xb5s ?\n"


def test_a_closed_output_is_an_error_before_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    assert ends(monkeypatch, lambda: pytest.fail("called")) == 3
    assert capsys.readouterr().err == "error: the output is closed, must be open, such as >/dev/null\n"


@pytest.mark.parametrize("words", [(), ("--json",)])
@pytest.mark.parametrize("what", [lambda: click.echo("text"), InvalidArgument("no")], ids=["printed", "error"])
def test_an_output_that_cannot_be_written_is_an_error(monkeypatch, capsys, what, words):
    error = "error: no\n" if isinstance(what, NnhalError) and not words else ""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert ends(monkeypatch, what, *words) == 3
    error = error or "error: the output cannot be written: No space left on device\n"
    assert capsys.readouterr().err == error


def test_a_working_folder_that_was_deleted_is_an_error(monkeypatch, capsys):
    def gone() -> str:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(os, "getcwd", gone)
    assert ends(monkeypatch, os.getcwd) == 3
    assert capsys.readouterr().err == "error: the working folder does not exist: No such file or directory\n"


def test_another_error_of_the_system_keeps_its_stack(monkeypatch):
    with pytest.raises(OSError, match="of a mistake"):
        ends(monkeypatch, OSError(errno.EBADF, "of a mistake"))


def test_the_words_are_those_of_the_command_line_unless_given(monkeypatch):
    asked: list[Any] = []
    monkeypatch.setattr(main.cli, "main", lambda words, **how: asked.append((words, how)))
    monkeypatch.setattr(sys, "argv", ["nnhal", "a", "b"])
    for given in (None, ["c"], []):
        with pytest.raises(SystemExit):
            main.main(given)
    assert [words for words, _ in asked] == [["a", "b"], ["c"], []]
    assert all(how == {"prog_name": "nnhal", "standalone_mode": False} for _, how in asked)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((), set()),
        (("--json",), {"as_json"}),
        (("--driver", "x"), {"author"}),
        (("--driver=x",), {"author"}),
        (("--extension", "x"), {"author"}),
        (("--device", "x"), set()),
        (("-v",), {"verbose"}),
        (("--verbose", "--json"), {"verbose", "as_json"}),
    ],
)
def test_an_error_is_told_as_json_and_with_its_stack_where_the_words_say_so(monkeypatch, words, wanted):
    told: list[Any] = []
    monkeypatch.setattr(main, "report", lambda error, **how: told.append(how) or 4)
    assert ends(monkeypatch, DriverFailed("broken"), *words) == 4
    assert told == [{name: name in wanted for name in ("as_json", "author", "verbose")}]


def test_warnings_are_a_line_on_stderr_without_control_characters(monkeypatch, capsys):
    ends(monkeypatch, None)
    warnings.showwarning("fell \x1b[31m back", UserWarning, "file", 1)
    assert capsys.readouterr().err == "warning: fell \\x1b[31m back\n"


VERB = re.compile(
    r"(Build|Capture|Replay|Run|Shrink|Show|Measure|Compare|List|Check|Verify|Share|Serve|Summarise|Delete)\b"
)


def commands() -> list[tuple[str, click.Command]]:
    """Every command with its whole name, those of groups among them."""
    context, found = click.Context(cli), list[tuple[str, click.Command]]()
    for name in NAMES:
        command = cli.get_command(context, name)
        assert command is not None and command.name == name
        found.append((name, command))
        if isinstance(command, click.Group):
            found += [(f"{name} {each}", inner) for each, inner in command.commands.items()]
    return found


def test_the_help_lists_each_command_in_a_group_with_a_short_line():
    formatter = click.HelpFormatter()
    cli.format_commands(click.Context(cli), formatter)
    text = formatter.getvalue()
    assert [line.rstrip(":") for line in text.splitlines() if line and line[0] != " "] == list(VERBS)
    lines = {name: what for verbs in VERBS.values() for name, what in verbs.items()}
    for name, what in lines.items():
        assert f"{name} {what}" in " ".join(text.split()) and len(what) <= 45 and VERB.match(what), what
    assert text.count("$ nnhal ") == len(VERBS), "an example for each group"


@pytest.mark.parametrize(("name", "command"), commands())
def test_the_help_of_a_command_begins_with_a_verb_and_every_option_has_help(name, command):
    first = (command.help or "").split("\n")[0]
    assert len(first) <= 70 and VERB.match(first), first
    if " " in name:
        assert len(first) <= 46, "a list of commands has it whole"
    for option in command.params:
        if isinstance(option, click.Option):
            assert (option.help and option.help[0].isupper()) or option.help.startswith("exact:"), option.opts


@pytest.mark.parametrize(("name", "command"), [(n, c) for n, c in commands() if len(c.params) > SMALL])
def test_many_options_are_grouped(name, command):
    for option in command.params:
        assert not isinstance(option, click.Option) or group_of(option) in GROUPS, option.opts
    formatter = click.HelpFormatter()
    command.format_options(click.Context(command), formatter)
    heads = [line.rstrip(":") for line in formatter.getvalue().splitlines() if line and line[0] != " "]
    assert len(heads) > 2 and heads == [group for group in GROUPS if group in heads]


FORMER = [
    (name, old, new)
    for name, command in commands()
    if isinstance(command, Command)
    for old, new in command.formerly.items()
]


@pytest.mark.parametrize(("name", "old", "new"), FORMER)
def test_a_former_name_of_an_option_works_and_is_not_in_the_help(name, old, new, capsys):
    command = dict(commands())[name]
    assert any(new in option.opts for option in command.params)
    assert old not in command.get_help(click.Context(command)).split()
    assert command._renamed([f"{old}=1", old, "--", old]) == [f"{new}=1", new, "--", old]
    assert f"warning: {old} is now {new}" in capsys.readouterr().err


def test_a_former_name_of_a_command_works(capsys):
    command = cli.get_command(click.Context(cli), "prove")
    assert command is not None and command.name == "verify"
    assert capsys.readouterr().err.startswith("warning: nnhal prove is now nnhal verify")
    assert cli.get_command(click.Context(cli), "nothing") is None


def test_a_verb_that_there_is_not_is_asked_about(capsys):
    for word, told in (("rnu", "hint: did you mean run?"), ("zzzzz", ", must be one of run, show, bench")):
        with pytest.raises(SystemExit) as ended:
            main.main([word])
        assert ended.value.code == 2 and told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run"], "error: missing argument 'MODEL'\nhint: nnhal run --help\n"),
        (["run", "x", "--ouput", "y"], "error: no such option --ouput\nhint: did you mean"),
        (["cache", "lst"], "error: no such command 'lst'\nhint: did you mean 'list'?\n"),
        (["run", "tiny_cnov"], "hint: did you mean tiny_conv"),
    ],
)
def test_all_errors_have_one_form(words, told, capsys):
    with pytest.raises(SystemExit):
        main.main(words)
    said = capsys.readouterr().err
    assert said.startswith("error: ") and told in said and "Usage" not in said


CRASH = """\
import ctypes
from nnhal.hal.device import Device, Prepared


def inner():
    ctypes.string_at(0)


class Run(Prepared):
    def run(self, request, control):
        inner()


class Crashing(Device):
    name = "crashing"

    def supports(self, model):
        return [True] * len(model.main.operations)

    def prepare(self, model, hints):
        return Run()


device = Crashing
"""


def test_a_crash_is_told_once_with_the_drivers_own_frames(tmp_path):
    (tmp_path / "crash.py").write_text(CRASH)
    words = "run", "add4", "--driver", str(tmp_path / "crash.py"), "--isolate"
    short, full = (run_nnhal(*words, *more) for more in ([], ["--verbose"]))
    assert short.returncode == full.returncode == 4
    assert short.stderr.splitlines() == [
        "error: device crashing: the driver process was killed by SIGSEGV in inner() at crash.py:6",
        f'  File "{tmp_path}/crash.py", line 11, in run',
        f'  File "{tmp_path}/crash.py", line 6, in inner',
        "hint: --verbose prints the full log",
    ]
    assert "Fatal Python error" in full.stderr and "Extension modules" in full.stderr


def test_a_deep_stack_of_a_driver_is_shown_by_its_innermost_frames():
    deep = "\n".join([*(f'  File "d.py", line {n}, in f\n    f()' for n in range(9)), "ValueError: deep"])
    lines = innermost(deep)
    assert lines[0] == "  ... 4 frames: --verbose" and lines[1] == '  File "d.py", line 4, in f'
    assert lines[-1] == "ValueError: deep" and innermost("\n".join(lines[1:])) == lines[1:]


# ------------------------------------------------------------------------------------------------------------ interrupts


def started(monkeypatch: pytest.MonkeyPatch, what: Any) -> int | str | None:
    """How the console script ends where `main` raises this."""

    def called() -> None:
        if callable(what):
            what()
        raise what

    monkeypatch.setattr(main, "main", called)
    with pytest.raises(SystemExit) as ended:
        entry.start()
    return ended.value.code


def test_a_control_c_ends_the_command_with_130_and_a_line(monkeypatch, capsys):
    assert started(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "error: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


@pytest.mark.parametrize("code", [0, 1, 4])
def test_the_end_of_the_command_is_its_own_where_nothing_struck(monkeypatch, capsys, code):
    assert started(monkeypatch, SystemExit(code)) == code and capsys.readouterr().err == ""


def test_who_takes_an_interrupt_for_an_error_of_its_own_is_interrupted_all_the_same(monkeypatch, capsys):
    monkeypatch.setattr(entry, "_struck", [None])
    assert started(monkeypatch, SystemExit(0)) == 130
    assert capsys.readouterr().err == "error: interrupted\n"
    assert started(monkeypatch, SystemExit(130)) == 130 and capsys.readouterr().err == ""


def test_an_interrupt_strikes_now_and_a_little_later_whatever_takes_it(monkeypatch):
    timers: list[Any] = []

    class Timer:
        daemon = False

        def __init__(self, seconds: float, call: Any) -> None:
            self.seconds, self.call, self.started = seconds, call, False
            timers.append(self)

        def start(self) -> None:
            self.started = self.daemon

    monkeypatch.setattr(threading, "Timer", Timer)
    with pytest.raises(KeyboardInterrupt):
        entry._interrupted()
    (timer,) = timers
    assert timer.call is entry._end and timer.started and 0 < timer.seconds < 1 and entry._struck == [None]


def test_the_command_listens_where_nobody_else_does(monkeypatch):
    hooks: list[Any] = []

    def look() -> None:
        hooks.append((signal.getsignal(signal.SIGINT), sys.unraisablehook))

    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = sys.unraisablehook
    monkeypatch.setattr(main, "main", look)
    entry.start()
    assert hooks[-1] == (entry._interrupted, entry._unraisable)
    sys.unraisablehook = before
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    entry.start()
    assert hooks[-1] == (signal.SIG_IGN, before)


def test_an_interrupt_that_python_loses_ends_the_command_and_other_losses_are_told(monkeypatch):
    ended: list[Any] = []
    monkeypatch.setattr(entry, "_end", lambda: ended.append("end"))
    monkeypatch.setattr(sys, "__unraisablehook__", ended.append)
    other, strike = SimpleNamespace(exc_type=ValueError), SimpleNamespace(exc_type=KeyboardInterrupt)
    entry._unraisable(other)
    assert ended == [other]
    entry._unraisable(strike)
    assert ended == [other, "end", strike]


def test_the_end_says_so_and_exits_with_130(monkeypatch):
    done: list[Any] = []
    monkeypatch.setattr(os, "write", lambda fd, data: done.append((fd, data)))
    monkeypatch.setattr(os, "_exit", done.append)
    entry._end()
    assert done == [(2, b"error: interrupted\n"), 130]
