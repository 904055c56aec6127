"""`nnhal vectors`: builds test vectors from AOSP's test specifications."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from nnhal.cli import common
from nnhal.cli.command import command as nnhal_command
from nnhal.cli.judged import ProgressLines
from nnhal.cli.main import ANSWER_NO
from nnhal.conformance.specs.archive import UNTESTED, BuiltVectors, build
from nnhal.conformance.specs.comparison import Comparison, compare

SHOWN = 20

specs_type = click.Path(exists=True, path_type=Path)
folder_type = click.Path(file_okay=False, path_type=Path)


@nnhal_command("vectors")
@click.argument("specs", type=specs_type)
@click.argument("folder", type=folder_type)
@click.option("--compare", "other", type=folder_type, help="Compare with the vectors in this folder.")
@common.jobs_option("Read so many specifications at a time.")
@common.json_option
def command(specs: Path, folder: Path, other: Path | None, jobs: int, as_json: bool) -> int:
    """Build test vectors from AOSP's specs.

    SPECS is a folder of .mod.py files, such as runtime/test/specs, or one such file. FOLDER gets the vectors. The exit
    code is 1 if a specification cannot be read, if no specification has an Example, or if a vector differs from that in the
    folder of --compare.
    """
    built = build_with_progress(specs, folder, jobs, as_json)
    compared = compare(folder, other) if other is not None else None
    if as_json:
        common.print_json(
            {
                "folder": str(folder),
                "specifications": built.specifications,
                "tests": built.tests,
                "errors": built.errors,
                "untested": [str(file) for file in built.untested],
                "compared": compared and {"equal": compared.equal, **compared._asdict()},
            }
        )
    else:
        common.console.print(f"{folder}: {built.tests:,} vectors from {built.specifications:,} specifications")
        if compared is not None:
            _print(compared, other)
    different = compared is not None and compared.equal < compared.tests
    return ANSWER_NO if built.errors or not built.tests or different else 0


def _print(compared: Comparison, other: Path | None) -> None:
    common.console.print(f"{compared.equal:,} of the {compared.tests:,} vectors in {other} are equal")
    for what, ids in ("different", compared.different), ("missing", compared.missing):
        for id in ids[:SHOWN]:
            common.console.print(f"{what}: {id}", markup=False)
        if len(ids) > SHOWN:
            common.console.print(f"{what}: and {len(ids) - SHOWN:,} more: --json")


def build_with_progress(specs: Path, folder: Path, jobs: int, quiet: bool) -> BuiltVectors:
    """Builds vectors, with progress, errors and specifications without a test on stderr.

    Args:
        specs: The specifications.
        folder: The folder of the vectors.
        jobs: The number of specifications to read at once.
        quiet: Whether no progress is printed.
    """
    built = BuiltVectors(0, 0, (), ())
    lines = ProgressLines(common.status.print)
    with common.progress(quiet) as bar:
        task = bar.add_task("specifications", total=None)
        for step in build(specs, folder, jobs):
            if isinstance(step, BuiltVectors):
                built = step
            else:
                done, total = step
                bar.update(task, completed=done, total=total)
                if not (quiet or common.status.is_terminal):
                    lines.at(f"specifications: {done:,} of {total:,}")
    for error in built.errors:
        common.status.print(f"error: {error}", markup=False)
    for file in built.untested:
        common.status.print(f"{file}: not tested: {UNTESTED}", markup=False)
    return built


@contextmanager
def temporary(specs: Path, jobs: int, quiet: bool) -> Iterator[tuple[Path, BuiltVectors]]:
    """Builds vectors in a temporary folder, which is deleted at the end.

    Args:
        specs: The specifications.
        jobs: The number of specifications to read at once.
        quiet: Whether no progress is printed.
    """
    with tempfile.TemporaryDirectory(prefix="nnhal-vectors-") as folder:
        yield Path(folder), build_with_progress(specs, Path(folder), jobs, quiet)
