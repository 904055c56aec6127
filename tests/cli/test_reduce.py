"""`nnhal reduce`: the smallest model on which a command fails in the same way."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import nnhal
from nnhal.base.errors import BadFile
from nnhal.cli.main import cli
from nnhal.conformance.reduction import names_of
from nnhal.model.builder import ModelBuilder
from nnhal.model.file import MAGIC, write_model
from nnhal.model.graph import Model
from nnhal.ops.schema import F32

NAMES = "ABS", "NEG", "TANH", "EXP"


def chain(*names: str) -> Model:
    b = ModelBuilder("chain")
    first = at = b.operand(F32, (4,))
    for name in names:
        made = b.operand(F32, (4,))
        b.operation(name, [at], [made])
        at = made
    return b.finish([first], [at])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_model(chain(*NAMES), tmp_path / "m.nnhal")
    return tmp_path / "m.nnhal"


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    write_model(chain("ABS", "EXP"), tmp_path / "p.nnhal")
    return tmp_path / "p.nnhal"


def checking(folder: Path, body: str) -> str:
    """A command that runs a program, which sees the names of the candidate's operations."""
    program = folder / "check.py"
    program.write_text(
        "import os, sys\nimport nnhal\nfrom nnhal.conformance.reduction import names_of\n"
        f"names = list(names_of(nnhal.load(sys.argv[1])))\n{body}\n"
    )
    return f"{sys.executable} {program}"


def reduced(model: Path, check: str, *more: str) -> list[str]:
    done = CliRunner().invoke(cli, ["reduce", str(model), "--check", check, *more])
    assert done.exit_code == 0, done.output
    return list(names_of(nnhal.load(f"{model}.reduced")))


def test_the_smallest_model_with_the_same_exit_status_is_written(model: Path) -> None:
    # NEG alone ends with another status: it must not count
    body = "sys.exit(3 if {'NEG', 'TANH'} <= set(names) else 4 if 'NEG' in names else 0)"
    assert reduced(model, checking(model.parent, body)) == ["NEG", "TANH"]


def test_a_command_may_crash(pair: Path) -> None:
    assert reduced(pair, checking(pair.parent, "os.abort() if 'EXP' in names else None")) == ["EXP"]


def test_a_command_may_hang_and_its_processes_are_ended(model: Path) -> None:
    program, pids = model.parent / "hang.sh", model.parent / "pids"
    program.write_text(f"sleep 1000 &\necho $! $$ >> {pids}\nwait\n")
    assert len(reduced(model, f"sh {program}", "--timeout", "0.3")) == 1
    found = [int(pid) for pid in pids.read_text().split()]
    assert len(found) >= 4
    assert not [pid for pid in found if ended(pid) is False]


def ended(pid: int) -> bool:
    """Whether a process is gone, or waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_json_names_the_file_and_the_operations(pair: Path) -> None:
    check = checking(pair.parent, "sys.exit('EXP' in names)")
    done = CliRunner().invoke(cli, ["reduce", str(pair), "--check", f"{check} {{}}", "--json"])
    found = json.loads(done.stdout)
    assert found["reduced_operations"] == ["EXP"] and found["operations"] == 2 and found["status"] == 1
    assert found["file"] == f"{pair}.reduced"


def test_a_command_that_does_not_fail_on_a_model_of_the_zoo_is_refused(tmp_path: Path) -> None:
    """The command has to fail on the model itself, not only on the same in nnhal's format."""
    program = tmp_path / "check.py"
    program.write_text("import sys\nsys.exit(sys.argv[1].endswith('.nnhal'))\n")
    words = ["reduce", "tiny_conv", "--check", f"{sys.executable} {program}", "--output", str(tmp_path / "out")]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert done.exit_code and "exits with 0 on tiny_conv" in str(done.exception)


def test_a_command_that_does_not_fail_is_refused(model: Path) -> None:
    done = CliRunner().invoke(cli, ["reduce", str(model), "--check", f"{sys.executable} -c 0"], standalone_mode=False)
    assert done.exit_code and "exits with 0" in str(done.exception)
    assert not Path(f"{model}.reduced").exists()


def test_a_damaged_model_file_is_refused(tmp_path: Path, model: Path) -> None:
    data = model.read_bytes()
    assert data.startswith(MAGIC)
    for at in (len(MAGIC), len(MAGIC) + 4, len(data) // 2, len(data) - 1):
        (tmp_path / "cut.nnhal").write_bytes(data[:at])
        with pytest.raises(BadFile):
            nnhal.load(tmp_path / "cut.nnhal")
