"""`nnhal reduce` shrinks a failing model while a command fails on it."""

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from nnhal.base.errors import InvalidArgument
from nnhal.cli import common
from nnhal.cli.command import command as nnhal_command
from nnhal.conformance.reduction import Reduction, ReductionCandidate, names_of, without_unused
from nnhal.model.file import write_model
from nnhal.model.graph import Model

PLACE = "{}"  # in a command: the path of the candidate
TIMEOUT = 60.0  # seconds
TIMED_OUT = "timed out"
SHOWN = 12  # operations of the result that are named


class CheckCommand:
    """A command that fails on a model. It may crash, hang or leave processes: each call has a new process group.

    words: the command. seconds: the time after which it has timed out.
    """

    def __init__(self, words: Sequence[str], seconds: float) -> None:
        self._words, self._seconds = list(words), seconds

    def outcome(self, path: Path) -> int | str:
        """Return the exit status for a model file: negative for a signal, `TIMED_OUT` after the time."""
        inside = [word.replace(PLACE, str(path)) for word in self._words]
        words = inside if inside != self._words else [*inside, str(path)]
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise InvalidArgument(f"check {words[0]!r}: {error.strerror}, must be a program that runs") from None
        try:
            return process.wait(self._seconds)
        except subprocess.TimeoutExpired:
            return TIMED_OUT
        finally:
            with suppress(ProcessLookupError, PermissionError):  # the group is gone
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@nnhal_command("reduce")
@common.model_options
@click.option(
    "--check",
    required=True,
    metavar="CMD",
    help="Command that fails on the model; {} is the model's path, else it comes last.",
)
@click.option(
    "--timeout",
    type=common.DurationType(0, min_open=True),
    default=TIMEOUT,
    show_default=True,
    metavar="SECONDS",
    help="Time until a call of CMD counts as hung.",
)
@click.option("--output", type=common.Writable(), metavar="FILE", help="Write here (default: MODEL.reduced).")
@common.json_option
def command(model: str, check: str, timeout: float, output: Path | None, as_json: bool, **options: Any) -> None:
    """Shrink a failing model while CMD fails with the same exit status.

    nnhal removes operations and outputs and shrinks shapes. Each smaller model that fails is written to MODEL.reduced,
    in nnhal's format, so Ctrl-C keeps the best one. CMD may crash or hang.
    """
    try:
        words = shlex.split(check)
    except ValueError as error:
        raise click.UsageError(f"--check is {check!r}, must be a command: {error}") from None
    if not words:
        raise click.UsageError("--check is empty, must be a command")
    loaded = common.open_model(model, options)
    target = output or Path(f"{Path(model).name if not Path(model).exists() else model}.reduced")
    tested = CheckCommand(words, timeout)
    with tempfile.TemporaryDirectory(prefix="nnhal-reduce-") as folder:
        path = Path(folder, "candidate.nnhal")
        status = _first(tested, model, loaded, path, _unchanged(model, options))
        best, tried = _reduced(tested, loaded, status, path, target, as_json)
    names = list(names_of(best))
    if as_json:
        common.print_json(
            {
                "model": model,
                "status": status,
                "operations": len(loaded.main.operations),
                "reduced_operations": names,
                "candidates": tried,
                "file": str(target),
            }
        )
        return
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    common.console.print(
        f"{target}: {len(names)} of {len(loaded.main.operations)} operations, {tried} candidates, {_spoken(status)}\n"
        f"  {', '.join(names[:SHOWN])}{more}"
    )


def _unchanged(name: str, options: Mapping[str, Any]) -> Path | None:
    """Return the file that has the same model as `name`; None if options or a bundle change it."""
    changed = common.members_of(name) or any(common.load_arguments(name, options).values())
    return None if changed else common.model_path(name)


def _first(tested: CheckCommand, name: str, model: Model, path: Path, original: Path | None) -> int | str:
    """Return the status of the unreduced model in nnhal's format, which must be that of the user's file."""
    write_model(model, path)
    status = tested.outcome(path)
    given = status if original is None else tested.outcome(original)
    if given == 0:
        raise InvalidArgument(f"check: CMD exits with 0 on {name}, must fail")
    if status != given:
        raise InvalidArgument(
            f"check: CMD ends with {_spoken(status)} on the model in nnhal's format and with {_spoken(given)} on"
            f" {name}, must be the same: CMD must load the model with nnhal"
        )
    if status == 0:
        raise InvalidArgument(f"check: CMD exits with 0 on {name}, must fail")
    return status


def _spoken(status: int | str) -> str:
    if isinstance(status, str):
        return status
    if status < 0:
        with suppress(ValueError):
            return signal.Signals(-status).name
    return f"exit status {status}"


def _reduced(
    tested: CheckCommand, model: Model, status: int | str, path: Path, target: Path, quiet: bool
) -> tuple[Model, int]:
    """Reduce, writing each better model; Ctrl-C ends with the best one."""
    best = ReductionCandidate(without_unused(model))
    write_model(best.model, target)

    def fails(candidate: ReductionCandidate) -> bool:
        nonlocal best
        write_model(candidate.model, path)
        failed = tested.outcome(path) == status
        if failed:
            best = candidate
            write_model(candidate.model, target)
            if not common.status.is_terminal and not quiet:
                common.print_progress(f"{len(candidate.model.main.operations)} operations, candidate {reduction.tried}")
        return failed

    with common.progress(quiet) as bar:
        task = bar.add_task("reduce", total=None)

        def moved(candidate: ReductionCandidate, tried: int) -> None:
            count = len(candidate.model.main.operations)
            bar.update(task, completed=tried, description=f"{count} operations, candidate")

        reduction = Reduction(fails, progress=moved)
        with suppress(KeyboardInterrupt):
            best = reduction.reduce(best)
    return best.model, reduction.tried
