"""The command itself: verbs, exit codes by error, warnings, interrupts, a pipe that nobody reads."""

import gc
import os
import signal
import sys
import threading
import warnings
from types import SimpleNamespace
from typing import Any

import click
import pytest

import nnhal.cli as entry
from nnhal.base.errors import DeviceUnavailable, DriverFailed, InvalidArgument
from nnhal.cli import main
from nnhal.cli.main import VERBS, cli


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
    """How `main` ends where the command gives or raises this."""

    def called(arguments: list[str], **_: Any) -> Any:
        if isinstance(what, BaseException):
            raise what
        return what

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
        (click.exceptions.Abort(), 130, "nnhal: interrupted\n"),
        (click.UsageError("wrong"), 2, "Error: wrong\n"),
        (click.ClickException("bad"), 1, "Error: bad\n"),
        (InvalidArgument("no"), 3, "nnhal: no\n"),
        (DeviceUnavailable("gone"), 4, "nnhal: gone\n"),
        (BrokenPipeError(), 0, ""),
    ],
)
def test_the_exit_code_says_how_it_went(monkeypatch, capsys, what, code, told):
    assert ends(monkeypatch, what) == code
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", told)


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
    ("words", "as_json", "author"),
    [
        ((), False, False),
        (("--json",), True, False),
        (("--driver", "x"), False, True),
        (("--driver=x",), False, True),
        (("--extension", "x"), False, True),
        (("--device", "x"), False, False),
    ],
)
def test_an_error_is_told_as_json_and_with_its_stack_where_the_words_say_so(monkeypatch, words, as_json, author):
    told: list[Any] = []
    monkeypatch.setattr(main, "report", lambda error, **how: told.append(how) or 4)
    assert ends(monkeypatch, DriverFailed("broken"), *words) == 4
    assert told == [{"as_json": as_json, "author": author}]


def test_warnings_are_a_line_on_stderr_without_control_characters(monkeypatch, capsys):
    ends(monkeypatch, None)
    warnings.showwarning("fell \x1b[31m back", UserWarning, "file", 1)
    assert capsys.readouterr().err == "nnhal: warning: fell \\x1b[31m back\n"


def test_each_verb_is_a_command_of_its_name_with_one_line_of_help():
    context = click.Context(cli)
    assert isinstance(cli, click.Group) and cli.list_commands(context) == list(VERBS)
    for verb in VERBS:
        command = cli.get_command(context, verb)
        assert command is not None and command.name == verb
    assert cli.get_command(context, "nothing") is None
    formatter = click.HelpFormatter()
    cli.format_commands(context, formatter)
    text = " ".join(formatter.getvalue().split())
    assert all(f"{verb} {what}" in text for verb, what in VERBS.items())


def test_a_verb_that_there_is_not_is_asked_about(capsys):
    for word, told in (("rnu", "did you mean run?"), ("zzzzz", ", must be one of run, devices, doctor")):
        with pytest.raises(SystemExit) as ended:
            main.main([word])
        assert ended.value.code == 2 and told in capsys.readouterr().err


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
    assert capsys.readouterr().err == "nnhal: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


@pytest.mark.parametrize("code", [0, 1, 4])
def test_the_end_of_the_command_is_its_own_where_nothing_struck(monkeypatch, capsys, code):
    assert started(monkeypatch, SystemExit(code)) == code and capsys.readouterr().err == ""


def test_who_takes_an_interrupt_for_an_error_of_its_own_is_interrupted_all_the_same(monkeypatch, capsys):
    monkeypatch.setattr(entry, "_struck", [None])
    assert started(monkeypatch, SystemExit(0)) == 130
    assert capsys.readouterr().err == "nnhal: interrupted\n"
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
    assert done == [(2, b"nnhal: interrupted\n"), 130]
