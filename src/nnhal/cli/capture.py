"""`nnhal capture`: runs a command, and captures the HAL session of each process that uses nnhal."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from nnhal.base.brief import with_count
from nnhal.base.errors import BadFile, InvalidArgument
from nnhal.cli import common
from nnhal.cli.command import command as nnhal_command
from nnhal.cli.main import ANSWER_NO
from nnhal.runtime.capturing.reader import CaptureReader
from nnhal.runtime.capturing.session import BYTES, DATA, LEAST, MOST, VARIABLE

SIGNALLED = 128  # the exit status of a command that a signal ended, without the signal


@nnhal_command("capture")
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND [ARGS]...", type=click.UNPROCESSED)
@click.option("--output", "-o", type=common.Writable(), required=True, metavar="FILE", help="Write the capture here.")
@click.option(
    "--max-bytes",
    type=click.IntRange(LEAST),
    default=MOST,
    show_default=True,
    metavar="N",
    help="Size limit of a file; data beyond it are left out.",
)
@click.option("--no-data", is_flag=True, help="Leave the contents of inputs and outputs out.")
@common.json_option
def command(words: Sequence[str], output: Path, max_bytes: int, no_data: bool, as_json: bool) -> int:
    """Capture the HAL session of an application that uses nnhal.

    The file has each compiled model, whole and as each device prepares it, the placement, and each request with its
    outcome. A second process of COMMAND writes FILE with its process ID in the name. The exit code is that of COMMAND;
    it is 1 if COMMAND succeeds and compiles no model. `nnhal replay` executes the session again.
    """
    before = _files(output) - {output}
    output.unlink(missing_ok=True)
    told = {VARIABLE: str(output.absolute()), BYTES: str(max_bytes), DATA: "0" if no_data else "1"}
    status = _run(words, {**os.environ, **told})
    made = sorted(_files(output) - before, key=lambda path: (path != output, path))
    if as_json:
        common.print_json({"status": status, "files": [_facts(path) for path in made]})
    else:
        for path in made:
            common.print_progress(_line(path))
    if not made:
        common.warn("nothing was captured", "COMMAND compiled no model with nnhal")
    return status or (0 if made else ANSWER_NO)


def _files(output: Path) -> set[Path]:
    return {path for path in output.parent.glob(f"{_literal(output.stem)}*{_literal(output.suffix)}") if path.is_file()}


def _literal(text: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


def _run(words: Sequence[str], environment: dict[str, str]) -> int:
    """Run a command to its end; return its exit status. Ctrl-C ends the command alone."""
    try:
        process = subprocess.Popen(list(words), env=environment)
    except OSError as error:
        raise InvalidArgument(f"command {words[0]!r}: {error.strerror}, must be a program that runs") from None
    handled = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the command, too
    try:
        status = process.wait()
    finally:
        signal.signal(signal.SIGINT, handled)
    return SIGNALLED - status if status < 0 else status


def _facts(path: Path) -> dict[str, Any]:
    capture = _opened(path)
    facts: dict[str, Any] = {"file": str(path), "bytes": path.stat().st_size}
    if isinstance(capture, str):
        return {**facts, "models": 0, "preparations": 0, "requests": 0, "notes": [capture]}
    counts = {"models": len(capture.models), "preparations": len(capture.parts)}
    requests = sum(len(part.requests) for part in capture.parts.values())
    return {**facts, **counts, "requests": requests, "notes": capture.notes}


def _opened(path: Path) -> CaptureReader | str:
    try:
        return CaptureReader(path)
    except BadFile as error:
        return str(error)


def _line(path: Path) -> str:
    facts = _facts(path)
    many = f"{with_count(facts['preparations'], 'prepared model')}, {with_count(facts['requests'], 'request')}"
    return "; ".join([f"wrote {path}: {many}, {common.size(facts['bytes'])}", *facts["notes"]])
