"""`nnhal serve`: what is started, what is written for systemd, what is told of who holds what; nothing is started here."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from nnhal.base.errors import DeviceUnavailable
from nnhal.cli import serve
from nnhal.ipc.protocol.wire import Quota, Usage, Usages
from tests.cli.test_run import called
from tests.execution import run_nnhal

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_driver.py"


class Started(Exception):
    """In place of another program."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    def execv(program: str, words: list[str]) -> None:
        raise Started(program, words)

    monkeypatch.setattr(os, "execv", execv)

    def start(*words: Any) -> list[str]:
        with pytest.raises(Started) as found:
            serve.command.main([str(word) for word in words], standalone_mode=False)
        program, arguments = found.value.args
        assert program == sys.executable and arguments[:4] == [sys.executable, "-P", "-m", "nnhal.serve"]
        return list(arguments[4:])

    return start


def test_a_driver_is_served_by_a_fresh_interpreter_with_what_was_asked_for(started, tmp_path, monkeypatch):
    assert started("reference") == ["reference", "--name", "reference-service"]
    assert started("reference", "--name", "n", "--level", "1.2") == ["reference", "--name", "n", "--level", "1.2"]
    assert started("reference", "--json", "--unconfined")[3:] == ["--unconfined", "--json"]
    assert started("reference", "--allow", "a,b", "--allow", "c")[3:] == ["--allow", "a,b", "--allow", "c"]
    (tmp_path / "weights").write_text("")
    monkeypatch.chdir(tmp_path)
    found = started("reference", "--read", "weights", "--device", "/dev/null")[3:]
    assert found == ["--read", str(tmp_path / "weights"), "--device", "/dev/null"]
    monkeypatch.chdir(EXAMPLE.parent)
    assert started("my_driver.py")[0] == str(EXAMPLE)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["abacus"], 3, "driver 'abacus' is not known, must be one of"),
        (["reference", "--level", "9.9"], 3, "9.9"),
        *(
            (option.split(), 2, "DRIVER is missing")
            for option in ("--level 1.0", "--read /", "--unconfined", "--device /dev/null", "--allow x", "--systemd x")
        ),
    ],
)
def test_what_cannot_be_served_is_said(capsys, words, code, told):
    assert told in " ".join(called(capsys, "serve", *words, code=code)[1].split())


@pytest.mark.parametrize(
    ("words", "told"),
    [(("--name", "../x"), "must be up to 64 letters"), (("--metrics", ""), "must be HOST:PORT, PORT or unix:PATH")],
)
def test_what_the_service_itself_refuses_is_said(words, told):
    """Its program replaces the one of the command."""
    ended = run_nnhal("serve", "reference", *words)
    assert ended.returncode == 3 and told in " ".join(ended.stderr.split())


def test_units_start_the_service_when_its_first_client_comes(capsys, tmp_path):
    words = "serve", "reference", "--name", "n", "--level", "1.2", "--allow", "100%", "--systemd", tmp_path / "units"
    lines = called(capsys, *words)[0].splitlines()
    socket, service = (tmp_path / "units" / f"nnhal-n.{kind}" for kind in ("socket", "service"))
    assert lines == [
        f"wrote {socket} and {service}; start with",
        "  systemctl --user daemon-reload && systemctl --user enable --now nnhal-n.socket",
    ]
    (line,) = [line for line in service.read_text().splitlines() if line.startswith("ExecStart=")]
    started = shlex.split(line.removeprefix("ExecStart=").replace("%%", "%"))
    assert (
        started[1:] == ["-P", "-m", "nnhal.serve", "reference", "--name", "n", "--level", "1.2", "--allow", "100%"]
        and "100%%" in line
    )
    assert (
        "ListenSequentialPacket=%t/nnhal/n" in socket.read_text() and "Requires=nnhal-n.socket" in service.read_text()
    )
    assert "SocketMode=0600" in socket.read_text()
    found = json.loads(called(capsys, *words, "--json")[0])
    assert found == {"name": "n", "units": [str(socket), str(service)]}
    (tmp_path / "file").write_text("")
    assert (
        "must be a directory that can be written" in called(capsys, *words[:-1], tmp_path / "file" / "units", code=3)[1]
    )


USAGE = Usage(
    3,
    (Quota("buffers", 8), Quota("memory", 20 << 30, 10 << 20, 40 << 30)),
    (Usages(11, (1, 10 << 10)), Usages(os.getpid(), (9, 9)), Usages(12, (0, 0))),
)


class Session:
    def __init__(self, answer: Any) -> None:
        self.answer, self.closed = answer, 0

    def call(self, *_: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return [self.answer]

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Services that run, by name: what they answer, and that of one that cannot be reached."""
    there: dict[str, Any] = {}

    def connect(name: str, patience: float) -> Session:
        found = there[name]
        if isinstance(found, Exception):
            raise found
        return Session(found) if not isinstance(found, Session) else found

    monkeypatch.setattr(serve.names, "running", lambda: list(there))
    monkeypatch.setattr(serve.names, "connect", connect)
    return there


def test_who_holds_what_is_told_without_the_one_who_asks(capsys, services):
    services["s"] = session = Session(USAGE)
    found = json.loads(called(capsys, "serve", "--json")[0])
    quotas = {
        "buffers": {"most": 8, "own": 0, "common": 0},
        "memory": {"most": 20 << 30, "own": 10 << 20, "common": 40 << 30},
    }
    used = [{"buffers": 1, "memory": 10 << 10}, {"buffers": 0, "memory": 0}]
    clients = [{"pid": pid, "used": each} for pid, each in zip((11, 12), used, strict=True)]
    assert found == [{"name": "s", "most_clients": 3, "quotas": quotas, "clients": clients}] and session.closed == 1
    lines = [line.rstrip() for line in called(capsys, "serve")[0].splitlines()]
    assert lines == [
        "s: 2 clients, at most 3",
        "quota    at most  reserved for each  process 11  process 12",
        "buffers        8                              1           0",
        "memory    20 GiB             10 MiB      10 KiB         0 B",
    ]


def test_a_service_that_does_not_tell_is_exit_code_4_and_named(capsys, services):
    services["s"], services["t"] = Session(DeviceUnavailable("broken")), DeviceUnavailable("gone")
    found = json.loads(called(capsys, "serve", "--json", code=4)[0])
    assert found == [{"name": "s", "problem": "broken"}, {"name": "t", "problem": "gone"}]
    assert services["s"].closed == 1
    assert called(capsys, "serve", code=4)[0].splitlines() == ["s: broken", "t: gone"]
    services["u"] = USAGE
    assert json.loads(called(capsys, "serve", "--json", "--name", "u")[0])[0]["name"] == "u"


def test_where_no_service_runs_it_is_said(capsys, services, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    out, err = called(capsys, "serve")
    assert (out, err.strip()) == ("", "no service is running")
    assert json.loads(called(capsys, "serve", "--json")[0]) == []
