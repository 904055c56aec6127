"""What a driver raises, in whatever method: its author sees file, line and stack of their own code, here and isolated."""

import json
import logging
import subprocess
import sys
import traceback
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import nnhal
from nnhal.base.errors import NnhalError
from nnhal.base.stacks import LONGEST, stack_of
from nnhal.hal.answers import fenced_by
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints
from nnhal.hal.request import Control
from nnhal.runtime import discovery, isolation
from tests.models import adding

DRIVER = Path(__file__).parent / "drivers" / "raising.py"
X = np.float32([1, 2, 3, 4])
LINES = DRIVER.read_text().splitlines()


def line(text: str) -> int:
    return next(number for number, each in enumerate(LINES, 1) if text in each)


@pytest.fixture(params=["none", "process"])
def way(request, monkeypatch):
    monkeypatch.setattr(discovery, "_registered", {})
    yield request.param
    isolation.close_all()


def compiled(way: str, at: str = "") -> nnhal.Compiled:
    nnhal.load_driver(DRIVER)
    options = {"raising": {"at": at}} if at else None
    return nnhal.compile(adding(), devices=["raising"], isolation=way, driver_options=options)


def raised(call) -> NnhalError:
    with pytest.raises(NnhalError) as caught:
        call()
    return caught.value


def by_burst(run: nnhal.Compiled) -> None:
    with run.burst() as burst:
        burst(X, X)


def launched(way: str, at: str) -> None:
    """By hand: where a launch fails the runtime runs it in the background instead."""
    device = isolation.select([nnhal.load_driver(DRIVER).name], way)[0]
    prepared = checked_prepared(device, adding(), Hints(options={"at": at}))
    fenced_by(prepared, "device raising", prepared.request([X, X], [X.copy()]), Control(), ())


USES = {
    "prepare": lambda way, how: compiled(way, f"prepare:{how}"),
    "run": lambda way, how: compiled(way, f"run:{how}")(X, X),
    "run of a submitted one": lambda way, how: compiled(way, f"run:{how}").submit(X, X).result(),
    "run in a burst": lambda way, how: by_burst(compiled(way, f"run:{how}")),
    "run behind fences": lambda way, how: compiled(way, f"run:{how}").execute_fenced(X, X).result(),
    "execute_fenced": lambda way, how: launched(way, f"execute_fenced:{how}"),
    "burst_opened": lambda way, how: by_burst(compiled(way, f"burst_opened:{how}")),
}
ISOLATED = {
    "burst_executor": lambda way, how: by_burst(compiled(way, f"burst_executor:{how}")),
    "add": lambda way, how: by_burst(compiled(way, f"add:{how}")),
    "execute": lambda way, how: by_burst(compiled(way, f"execute:{how}")),
}


def has_stack(error: NnhalError, *lines: str) -> None:
    for each in lines:
        assert f'File "{DRIVER}", line {line(each)}, in ' in error.stack
    assert "nnhal/hal/" not in error.stack and "\x1b" not in error.stack and len(error.stack) < LONGEST + 10
    assert "\n" not in str(error)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("use", USES)
def test_the_stack_of_what_is_raised_is_the_drivers_own(way, use):
    error = raised(lambda: USES[use](way, "key"))
    assert "KeyError: 'conv_weights'" in str(error)
    has_stack(error, 'return {}["conv_weights"]')
    assert error.stack.endswith("KeyError: 'conv_weights'")
    told = "".join(traceback.format_exception(error))
    assert f"{DRIVER}" in told and 'return {}["conv_weights"]' in told


@pytest.mark.parametrize("use", ISOLATED)
def test_the_stack_of_what_a_burst_executor_raises_is_told(use, monkeypatch):
    monkeypatch.setattr(discovery, "_registered", {})
    has_stack(raised(lambda: ISOLATED[use]("process", "key")), 'return {}["conv_weights"]')
    isolation.close_all()


def test_the_exception_itself_is_the_cause_in_process(monkeypatch):
    monkeypatch.setattr(discovery, "_registered", {})
    for use in USES.values():
        assert isinstance(raised(lambda use=use: use("none", "key")).__cause__, KeyError)


@pytest.mark.parametrize("method", ["device", "capabilities", "supports", "allocate"])
def test_what_is_asked_without_options_has_a_stack_too(way, method, monkeypatch):
    nnhal.load_driver(DRIVER)
    monkeypatch.setenv("RAISING", f"{method}:key")
    monkeypatch.setenv("NNHAL_ENVIRONMENT", "RAISING")
    if method in {"device", "capabilities"}:
        error = raised(lambda: isolation.isolated("raising") if way == "process" else nnhal.load_driver(DRIVER))
    elif method == "supports":
        error = raised(lambda: nnhal.compile(adding(), devices=["raising"], isolation=way))
        assert isinstance(error.__cause__, NnhalError)
    else:
        device = isolation.select(["raising"], way)[0]
        run = nnhal.compile(adding(), devices=[device])
        memory = nnhal.allocate([(run, "input", 0)])
        assert "KeyError: 'conv_weights'" in memory.reason
        return
    has_stack(error, 'return {}["conv_weights"]')


def test_what_it_was_raised_from_comes_first(way):
    error = raised(lambda: compiled(way, "prepare:caused"))
    has_stack(error, '        {}["conv_weights"]', 'raise ValueError("cannot pack")')
    assert error.stack.index("KeyError: 'conv_weights'") < error.stack.index("ValueError: cannot pack")


def test_an_error_of_nnhals_that_a_driver_raises_has_its_stack(way):
    has_stack(raised(lambda: compiled(way, "prepare:unsupported")), "raise error")


HOSTILE = {
    "circular": "ValueError: one",
    "deep": "KeyError: 'bottom of it'",
    "endless": "RecursionError",
    "huge": "ValueError: xxxx",
    "huge control": r"\x1b\x1b",
    "control": r"\x1b[2J\u202egnp.exe\ud800",
    "code": "ValueError: within",
    "untold": "without a readable message",
    "quitting": "without a readable message",
    "hidden": "Hidden: well",
    "named": "named",
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", HOSTILE)
@pytest.mark.parametrize("method", ["prepare", "run", "execute_fenced"])
def test_what_an_exception_holds_harms_nothing(way, method, how):
    error = raised(lambda: USES[method](way, how))
    assert HOSTILE[how] in str(error) + error.stack and len(str(error)) < 20_000
    assert str(error).isprintable() or (how == "named" and "\x1b" not in str(error))
    assert all(each.isprintable() for each in error.stack.splitlines())
    has_stack(error, "            raising(how)")
    assert compiled(way)(X, X).tolist() == [2, 4, 6, 8]


def test_a_long_stack_has_its_ends(way):
    stack = raised(lambda: compiled(way, "prepare:deep")).stack
    assert "frames left out" in stack and "in prepare" in stack and stack.endswith("KeyError: 'bottom of it'")
    assert stack.count("File") == 20


def test_what_ends_a_program_is_told_as_well():
    nnhal.load_driver(DRIVER)
    error = raised(lambda: compiled("process", "prepare:exit"))
    assert "SystemExit: no accelerator" in str(error)
    has_stack(error, 'sys.exit("no accelerator")')
    isolation.close_all()


def test_a_stack_of_nnhals_own_is_none():
    error = raised(lambda: nnhal.compile(adding(), devices=["absent"]))
    assert error.stack == ""
    assert stack_of(ValueError("never raised")) == ""


def test_verbose_logging_shows_it_also_where_something_else_takes_over(way, monkeypatch, caplog):
    nnhal.load_driver(DRIVER)
    monkeypatch.setenv("NNHAL_VLOG", "driver")
    caplog.set_level(logging.DEBUG, "nnhal.driver")
    options = {"raising": {"at": "prepare:key"}}
    nnhal.compile(adding(), devices=["raising"], isolation=way, driver_options=options, fallback="allow").close()
    isolation.close_all()
    assert f'File "{DRIVER}", line {line("return {}[")}' in caplog.text


@pytest.mark.sampled(2)
@pytest.mark.parametrize("isolate", [[], ["--isolate"]])
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_the_command_line_shows_it_below_the_message(isolate, as_json, monkeypatch):
    monkeypatch.setenv("RAISING", "run:key")
    monkeypatch.setenv("NNHAL_ENVIRONMENT", "RAISING")
    command = [sys.executable, "-m", "nnhal.cli.main", "run", "add4", "--driver", str(DRIVER), *isolate, *as_json]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = done.stdout if as_json else done.stderr
    if as_json:
        schema = json.loads((Path(__file__).parents[2] / "docs" / "schemas.json").read_text())["$defs"]["error"]
        jsonschema.validate(json.loads(told), schema)
    assert done.returncode == 4 and "KeyError: 'conv_weights'" in told
    assert f"line {line('return {}[')}, in unpacked" in told and "nnhal/hal" not in told
