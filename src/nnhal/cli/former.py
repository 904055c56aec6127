"""The former commands `conformance` and `validate`: the suites `vectors` and `contract` of `nnhal test`."""

import re
from pathlib import Path
from typing import Any

import click

from nnhal.base.names import is_path
from nnhal.cli.command import Command
from nnhal.cli.test import command as test
from nnhal.conformance.suites.run import CONTRACT, VECTORS
from nnhal.conformance.validate.run import DRAWS


def conformance(path: Path | None, repro: Path | None, all_failures: bool, **options: Any) -> Any:
    """Run `nnhal test vectors`. PATH is the folder of the vectors."""
    given = {"vectors": path} if path is not None else {}
    given |= {"report": repro} if repro is not None else {}
    options["verbose"] |= all_failures
    return _run(VECTORS, options | given)


def validate(driver: str, only: tuple[str, ...], samples: int, **options: Any) -> Any:
    """Run `nnhal test contract`. DRIVER is a file, a package or the name of an installed driver."""
    if not (driver or options["device"] or options["drivers"] or options["as_list"]):
        raise click.UsageError("DRIVER is missing, must be a file, a package, or the name of an installed device")
    if is_path(driver) or Path(driver).exists():
        options["drivers"] = (*options["drivers"], *[driver] * bool(driver))
    else:
        options["device"] = options["device"] or driver
    checks = "|".join(f"^{_pattern(each)}$" for each in only)
    return _run(CONTRACT, options | {"scale": samples / DRAWS} | ({"pattern": checks} if checks else {}))


def _pattern(only: str) -> str:
    """The names of CHECK, CHECK/OPERATION, /OPERATION or the family `cache`."""
    check, _, operation = only.partition("/")
    named = r"cache-[^/]*" if check == "cache" else re.escape(check) or "[^/]*"
    return named + (f"/{re.escape(operation.upper())}" if operation else "(/.*)?")


def _run(suite: str, options: dict[str, Any]) -> Any:
    return click.get_current_context().invoke(test, suites=(suite,), **options)


def _command(run: Any, formerly: dict[str, str], *parameters: click.Parameter) -> Command:
    shared = [each for each in test.params if isinstance(each, click.Option)]
    return Command(run.__name__, callback=run, help=run.__doc__, params=[*parameters, *shared], formerly=formerly)


COMMANDS = {
    "conformance": _command(
        conformance,
        {"--way": "--execution-path", "--share": "--sample"},
        click.Argument(["path"], type=click.Path(exists=True, file_okay=False, path_type=Path), required=False),
        click.Option(["--repro"], type=click.Path(file_okay=False, path_type=Path), hidden=True),
        click.Option(["--all-failures"], is_flag=True, hidden=True),
    ),
    "validate": _command(
        validate,
        {"--draws": "--samples"},
        click.Argument(["driver"], default=""),
        click.Option(["--only"], multiple=True, hidden=True),
        click.Option(["--samples"], type=click.IntRange(1), default=DRAWS, hidden=True),
    ),
}
