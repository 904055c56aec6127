"""Commands with grouped options in their help, and with former option names for one release."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from nnhal.base.names import printable

GROUPS = "Model", "Profile", "Input", "Output", "Placement", "Execution", "Cache", "Selection", "Service", "Diagnostics"
_MEMBERS = {
    "Model": "--shape --value --signature --extension",
    "Profile": "--show --export --import --forget",
    "Input": "--input --seed --range --raw --mean --std --letterbox --fill --rate --samples",
    "Output": "--output --part --labels --top --export-json --profile --histogram --operations --dot --svg --png --list "
    "--report",
    "Placement": "--device --against --driver --option --fallback --strategy --rule --tune --placement --why --numerics",
    "Execution": "--threads --isolate --deadline --vs --iterations --warmup --duration --streams --rtol --atol --lsb "
    "--level --timeout --jobs --execution-path --no-isolation --quick --busy --scale",
    "Cache": "--cache-dir --no-cache --size",
    "Selection": "--check --vectors --specs --model --data --expected --operation --filter --published-only --sample "
    "--flag --all-operations --only-new",
    "Service": "--name --read --allow --metrics --unconfined --systemd",
    "Diagnostics": "--trace --verbose --json --help --version",
}
_GROUP = {name: group for group, names in _MEMBERS.items() for name in names.split()}
SMALL = 8  # a command with more options has groups


class Command(click.Command):
    """A command of `nnhal`; `formerly` maps former option names to the present ones."""

    def __init__(self, *args: Any, formerly: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.formerly = dict(formerly or {})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments, after replacing former option names."""
        return super().parse_args(ctx, list(self._renamed(args)))

    def _renamed(self, args: Sequence[str]) -> list[str]:
        found, options = [], True
        for word in args:
            name, equals, value = word.partition("=")
            options = options and word != "--"
            now = self.formerly.get(name) if options else None
            if now is not None:
                click.echo(f"warning: {name} is now {now}; the next release has no {name}", err=True)
            found.append(word if now is None else f"{now}{equals}{value}")
        return found

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options, in groups if there are more than `SMALL`."""
        groups: dict[str, list[tuple[str, str]]] = {}
        records = [
            (group_of(p), record)
            for p in self.get_params(ctx)
            if isinstance(p, click.Option) and (record := p.get_help_record(ctx)) is not None
        ]
        for name, record in records:
            groups.setdefault(name if len(records) > SMALL else "Options", []).append(record)
        for name in ("Options", *GROUPS):
            if name in groups:
                with formatter.section(name):
                    formatter.write_dl(groups[name])


def group_of(parameter: click.Parameter) -> str:
    """Returns the group of an option; "" if it has none."""
    return next((_GROUP[name] for name in parameter.opts if name in _GROUP), "")


def command(name: str, *, formerly: Mapping[str, str] | None = None) -> Callable[[Callable[..., Any]], Command]:
    """Decorates the function of a command.

    Args:
        name: The command's name.
        formerly: The present option names by former names.
    """
    return click.command(name, cls=Command, formerly=formerly)


def usage_hint(error: click.UsageError) -> str:
    """Returns the command whose help explains a usage error."""
    return f"{error.ctx.command_path} --help" if error.ctx is not None else "nnhal --help"


def show_error(error: click.ClickException) -> None:
    """Prints an error of the command line as `error:` and `hint:`."""
    text, *question = re.split(r"[;.] [Dd]id you mean ", printable(error.format_message(), keep="\n"), maxsplit=1)
    if isinstance(error, click.NoSuchOption):
        text = f"no such option {error.option_name}"
        question = [f"{' or '.join(error.possibilities)}?"] if error.possibilities else []
    elif isinstance(error, click.UsageError):
        text = (text[:1].lower() if text[1:2].islower() else text[:1]) + text[1:].removesuffix(".")
    click.echo(f"error: {text}", err=True)
    if question:
        click.echo(f"hint: did you mean {question[0]}", err=True)
    elif isinstance(error, click.UsageError):
        click.echo(f"hint: {usage_hint(error)}", err=True)
