"""The command `nnhal`: each verb has a module, which is imported when the verb is called.

Exit codes: 0 success; 1 a check failed (a difference, a failed vector); 2 wrong usage; 3 a model, file or input is not valid
or not supported; 4 a device or an execution failed; 130 interrupted.
"""

import gc
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper

import click

from nnhal.base.errors import InvalidArgument, NnhalError
from nnhal.base.names import printable, suggestion
from nnhal.base.stacks import without_process_log
from nnhal.cli import INTERRUPTED
from nnhal.cli.command import show_error
from nnhal.serve import report

VERBS = {
    "Models": {
        "run": "Run a model and show its outputs.",
        "show": "Show a model and where it would run.",
        "bench": "Measure latency and throughput.",
        "diff": "Compare two devices operation by operation.",
        "models": "List and fetch models.",
    },
    "Devices": {
        "devices": "List devices and their speed.",
        "doctor": "Check engines, CPU and kernel.",
        "calibrate": "Measure devices for placement.",
        "tune": "Measure placements of one model.",
        "verify": "Verify fast kernels on this CPU.",
    },
    "Drivers": {
        "test": "Run test suites on a device.",
        "vectors": "Build test vectors from AOSP's specs.",
        "reduce": "Shrink a failing model.",
        "capture": "Capture the HAL session of a command.",
        "replay": "Replay a captured session on a device.",
        "serve": "Share a driver between processes.",
    },
    "Data": {
        "cache": "List and delete cached compilations.",
        "trace": "Show where time went in a trace.",
    },
}
EXAMPLES = {
    "Models": "nnhal run mobilenet_v1 --input photo.jpg",
    "Devices": "nnhal devices",
    "Drivers": "nnhal test contract --driver my_driver.py",
    "Data": "nnhal cache list",
}
NAMES = [name for verbs in VERBS.values() for name in verbs]
FORMERLY = {"prove": "verify", "conformance": "test vectors", "validate": "test contract"}
ANSWER_NO = 1
DRIVER = "nnhal.driver."  # prefix of the loggers of isolated drivers
FATAL = "Fatal Python error"  # the first line of a crash's stack


class CommandGroup(click.Group):
    """Finds a verb's command in the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns all verbs."""
        return list(NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command of a verb; None if there is no such verb."""
        if cmd_name in FORMERLY:
            now = FORMERLY[cmd_name]
            click.echo(f"warning: nnhal {cmd_name} is now nnhal {now}; the next release has no {cmd_name}", err=True)
            if " " in now:
                former: click.Command = import_module("nnhal.cli.former").COMMANDS[cmd_name]
                return former
            cmd_name = now
        if cmd_name not in NAMES:
            return None
        module = import_module(f"nnhal.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the verb; the error of an unknown one names similar verbs."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            like = suggestion(args[0], NAMES) or f", must be one of {', '.join(NAMES)}"
            raise click.UsageError(error.message.rstrip(".") + like, ctx) from None

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes how to call a command."""
        formatter.write_usage(ctx.command_path, "<command> [options]")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the verbs in groups, with their help and an example, without importing their modules."""
        width = max(map(len, NAMES))
        for group, verbs in VERBS.items():
            with formatter.section(group):
                rows = [(name.ljust(width), what) for name, what in verbs.items()]
                formatter.write_dl([*rows, ("", f"$ {EXAMPLES[group]}")])


@click.command(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="nnhal")
def cli() -> None:
    """Run neural networks on Linux through the NNAPI.

    Exit codes: 0 success, 1 check failed, 2 wrong usage, 3 invalid or unsupported input, 4 device or execution failed,
    130 interrupted. `nnhal <command> --help` lists the options of a command.
    """


class Warnings(logging.Handler):
    """Prints warnings of nnhal and its drivers, without the stack of a crash, which its error has."""

    def __init__(self, *, verbose: bool) -> None:
        super().__init__(logging.WARNING)
        self._verbose, self._dumping = verbose, set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        """Prints a line, unless it belongs to the stack of a crash."""
        text, driver = record.getMessage(), record.name.startswith(DRIVER)
        if driver and not self._verbose:
            if text.startswith(FATAL):
                self._dumping.add(record.name)
            if record.name in self._dumping:
                return
        name = f"{record.name.removeprefix(DRIVER)}: " if driver else ""
        click.echo(f"warning: {name}{printable(text)}", err=True)


@contextmanager
def _warnings(*, verbose: bool) -> Iterator[None]:
    """Prints warnings on stderr, unless the log has another handler."""
    log, handler = logging.getLogger("nnhal"), Warnings(verbose=verbose)
    handled = log.hasHandlers()
    if not handled:
        log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def main(arguments: list[str] | None = None) -> None:
    """Runs a command and exits with its status.

    Args:
        arguments: The command line without the program's name; that of this process by default.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    warnings.showwarning = lambda message, *_: click.echo(
        f"warning: {printable(without_process_log(str(message))[0])}", err=True
    )
    verbose = any(word in ("--verbose", "-v") for word in arguments)
    _require_output()
    try:
        with _warnings(verbose=verbose):
            _run(arguments, verbose=verbose)
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:
        lost = _lost()
        if not lost:
            raise
        sys.exit(report(InvalidArgument(f"{lost}: {error.strerror or error}"), as_json=False))


def _require_output() -> None:
    """Ends the command if its output is closed; prints characters that the output's encoding lacks as "?"."""
    if sys.stdout is None:
        sys.exit(report(InvalidArgument("the output is closed, must be open, such as >/dev/null"), as_json=False))
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _lost() -> str:
    """Returns whether the output cannot be written or the working folder was deleted; "" if neither."""
    try:
        print(flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes the rest at its end
        return "the output cannot be written"
    try:
        os.getcwd()
    except OSError:
        return "the working folder does not exist"
    return ""


def _run(arguments: list[str], *, verbose: bool) -> None:
    try:
        code = cli.main(arguments, prog_name="nnhal", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("error: interrupted", err=True)
        gc.freeze()  # a collection would delay the exit
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        show_error(error)
        sys.exit(error.exit_code)
    except NnhalError as error:
        sys.exit(
            report(
                error,
                as_json="--json" in arguments,
                author=any(a.startswith(("--driver", "--extension")) for a in arguments),
                verbose=verbose,
            )
        )
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
