"""Shared code of the verbs: options, opening models, text and JSON output."""

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from nnhal import api
from nnhal.base.columns import HEIGHT, Section, fitted
from nnhal.base.cores import usable_cores
from nnhal.base.errors import BadFile, InvalidArgument
from nnhal.base.names import printable
from nnhal.hal.device import EXACT, FAST
from nnhal.model.graph import Model
from nnhal.runtime import discovery
from nnhal.runtime.cache.wanted import CacheOutcome, Folder, user_folder
from nnhal.runtime.strategies import KINDS, Rule

WIDE = 160  # columns for pipes and files
DAY = 86_400.0  # seconds
ORDINARY = (
    "there is no entry",
    "the device keeps none",
    "nothing is to be kept",
)  # usual reasons for a cache miss


class PlainConsole(Console):
    """A console that prints no control characters, because names are untrusted data."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints, after making all text printable."""
        shown = [printable(each, keep="\n") if isinstance(each, str) else each for each in objects]
        super().print(*shown, **options)


console = PlainConsole(
    markup=False, emoji=False, highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDE
)
status = PlainConsole(stderr=True, markup=False, emoji=False, highlight=False)

verbose_option = click.option("--verbose", "-v", is_flag=True, help="Print everything, however long.")
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON (docs/reference/json.md has the schema)."
)
device_option = click.option(
    "--device", "-d", "devices", multiple=True, metavar="NAME", help="Use only this device; may be repeated."
)
driver_option = click.option(
    "--driver",
    "drivers",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="Load a driver under development: a file or package.",
)
fallback_option = click.option(
    "--fallback",
    type=click.Choice(["allow", "warn", "forbid"]),
    help="Rerun on the CPU what a device fails at (default: forbid with --device, else warn).",
)
threads_option = click.option(
    "--threads", type=click.IntRange(0), default=0, show_default=True, help="Threads of the engine; 0: its default."
)
seed_option = click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of random inputs."
)


def input_option(of: str = ", as `nnhal run` does") -> Callable[[Any], Any]:
    """Return the option that reads inputs from files. of: the part of its help that names them."""
    what = f"Read an input{of} (default: random)."
    return click.option("--input", "-i", "files", multiple=True, metavar="[NAME=]FILE", help=what)


isolate_option = click.option("--isolate", is_flag=True, help="Run each driver in a sandboxed process.")


def jobs_option(help: str) -> Callable[[Any], Any]:
    """Return the option for the number of processes."""
    return click.option("--jobs", type=click.IntRange(1), default=usable_cores(), show_default=True, help=help)


option_option = click.option(
    "--option",
    "driver_options",
    multiple=True,
    metavar="[DEVICE:]KEY=VALUE",
    help="Set an option of a driver; may be repeated.",
)
numerics_option = click.option(
    "--numerics",
    type=click.Choice([FAST, EXACT]),
    default=FAST,
    show_default=True,
    help="exact: compute 8-bit operations as TensorFlow Lite does, bit for bit.",
)
cache_dir_option = click.option(
    "--cache-dir",
    type=click.Path(),
    metavar="DIR",
    help="Folder of the compilation cache (default: NNHAL_CACHE_DIR, else the user's).",
)
no_cache_option = click.option("--no-cache", is_flag=True, help="Do not use the compilation cache.")
shape_option = click.option(
    "--shape", "shapes", multiple=True, metavar="[NAME=]N,N,..", help="Set the shape of an input, by name or in order."
)
value_option = click.option(
    "--value", "values", multiple=True, metavar="NAME=N[,N..]", help="Make an input a constant; may be repeated."
)
signature_option = click.option("--signature", metavar="NAME", help="Choose one of several entry points of the model.")


_extension_option = partial(
    click.option,
    "--extension",
    "extensions",
    multiple=True,
    type=click.Path(),
    callback=lambda _, __, paths: load_extensions(paths),
    metavar="FILE",
    help="Load an extension: a Python file that defines custom operators.",
)
extension_option = _extension_option(expose_value=False)
extensions_option = _extension_option()  # for a command whose worker processes load them, too


def _traced(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Traces the command until its end."""
    if path is None:
        return
    from nnhal.runtime.tracing.session import Trace

    running = Trace(path).start()

    def end() -> None:
        running.stop()
        print_progress(f"wrote {path}")

    ctx.call_on_close(end)


trace_option = click.option(
    "--trace",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_traced,
    metavar="FILE",
    help="Write a trace of the command for Perfetto.",
)


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds MODEL, --shape, --value, --signature and --extension to a command."""
    return click.argument("model")(shape_option(value_option(signature_option(extension_option(command)))))


strategy_option = click.option(
    "--strategy",
    type=click.Choice(KINDS),
    help="The strategy that places operations (default: measured if calibrated, else stated).",
)
rule_option = click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="WHAT=DEVICE",
    help="Place operations by hand: CONV_2D, #7, name:PATTERN or type:PATTERN; may be repeated.",
)


class FiniteRange(click.FloatRange):
    """The type of a number with a least one: it is below another, and no infinity or NaN."""

    below, told = math.inf, "0 or above, and finite"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parses the value; rejects infinity and NaN too."""
        found: float = super().convert(value, param, ctx)
        if not found < self.below:
            self.fail(f"{value} is not in the range {self.told}.", param, ctx)
        return found


class DurationType(FiniteRange):
    """The type of a duration: seconds, below one day."""

    below, told = DAY, f"of seconds below {DAY:g}"


tune_option = click.option(
    "--tune",
    type=DurationType(0, min_open=True),
    metavar="SECONDS",
    help="Measure candidate placements first, for so long beside compilations.",
)


def strategy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --strategy, --rule and --tune to a command."""
    return strategy_option(rule_option(tune_option(command)))


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options for devices, execution and placement to a command."""
    command = fallback_option(threads_option(isolate_option(numerics_option(strategy_options(command)))))
    return device_option(driver_option(option_option(command)))


def cache_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --cache-dir and --no-cache to a command."""
    return cache_dir_option(no_cache_option(command))


def cache_folder(cache_dir: str | None, no_cache: bool = False) -> Folder:
    """Returns the compilation cache of a command.

    Args:
        cache_dir: The value of --cache-dir.
        no_cache: Whether --no-cache is given.

    Returns:
        `cache_dir`, else NNHAL_CACHE_DIR, else the user's folder; False for no cache.
    """
    if no_cache and cache_dir is not None:
        raise click.UsageError("--no-cache with --cache-dir: must be one of the two")
    if no_cache:
        return False
    return cache_dir if cache_dir is not None else os.environ.get("NNHAL_CACHE_DIR") or user_folder()


def cache_lines(outcomes: Sequence[CacheOutcome]) -> Iterator[str]:
    """Yields a line for each cache outcome, with the devices of the partitions that had it."""
    alike: dict[str, dict[str, None]] = {}
    for outcome in outcomes:
        alike.setdefault(str(outcome), {})[outcome.device] = None
    yield from (f"cache  {', '.join(devices)}: {what}" for what, devices in alike.items())


def model_path(name: str) -> Path:
    """Returns the path of a file or of a model of the zoo, which is downloaded at first use."""
    from nnhal.frontends.source import exists_in_archive
    from nnhal.zoo.by_name import path

    return Path(name) if exists_in_archive(name) else path(name, print_progress)


def contents(name: str) -> Path | bytes:
    """Returns a model as other engines read it: its path, or the bytes of a member of a bundle."""
    from nnhal.frontends.source import open_source

    path = model_path(name)
    return open_source(path)[1].bytes().tobytes() if members_of(name) else path


def members_of(name: str) -> list[str]:
    """Returns the members in a name such as `bundle.task:member.tflite`."""
    from nnhal.frontends.source import split

    return split(name)[1]


def show(sections: Sequence[Section], *, verbose: bool) -> None:
    """Prints sections, in at most 24 lines unless `verbose`."""
    for line in fitted(sections, 0 if verbose else HEIGHT):
        console.print(line)


def is_ordinary(line: str) -> bool:
    """Whether a line of `cache_lines` needs no attention of the user."""
    return line.endswith((": hit", *ORDINARY))


def warn(what: str, hint: str = "") -> None:
    """Prints a warning on stderr, and a hint on what to do about it."""
    status.print(f"warning: {what}", soft_wrap=True)
    if hint:
        status.print(f"hint: {hint}", soft_wrap=True)


def print_progress(text: str) -> None:
    """Prints a line of progress on stderr."""
    status.print(text, style="dim", markup=False)


class Writable(click.Path):
    """The type of an output file; it rejects a file that cannot be written before the command's work begins."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parses the path; InvalidArgument if no file can be written there."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        there = path if path.exists() else path.absolute().parent
        if not os.access(there, os.W_OK | (os.X_OK if there.is_dir() else 0)):
            why = "is not writable" if there.exists() else "does not exist"
            raise InvalidArgument(f"output {path}: {there} {why}, must be a file that can be written")
        return path


def write(path: Path, data: bytes) -> None:
    """Writes a file and reports it; InvalidArgument if it cannot be written."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise InvalidArgument(f"output {path}: {error.strerror}") from None
    print_progress(f"wrote {path}")


RANDOM_WEIGHTS = "this model has random weights: its times are real, its outputs mean nothing"


def open_model(name: str, options: Mapping[str, Any], folder: Folder = False, *, any_shape: bool = False) -> Model:
    """Loads a model and prints its notes on stderr.

    Args:
        name: The path of a file, or the name of a model of the zoo.
        options: The values of `model_options`.
        folder: The cache for the imported model.
        any_shape: Whether operations may depend on open dimensions.

    Raises:
        ShapeNeeded: Operations depend on open dimensions, and `any_shape` is False.
    """
    from nnhal.frontends.source import exists_in_archive
    from nnhal.zoo.by_name import has_random_weights

    model = api.load(name, **load_arguments(name, options), progress=print_progress, cache_dir=folder)
    if not any_shape:
        model.require_sizes()
    untrained = not exists_in_archive(name) and has_random_weights(name)
    remarks = [model.metadata and model.metadata.problem, RANDOM_WEIGHTS if untrained else ""]
    for note in (*model.notes, *filter(None, remarks)):
        status.print(f"note: {note}", markup=False, soft_wrap=True)
    return model


def load_arguments(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `nnhal.load` for `model_options`; a model of the zoo gets its usual shapes."""
    from nnhal.frontends.source import exists_in_archive
    from nnhal.zoo.by_name import usual_shapes

    shapes, values = parse_shapes(options["shapes"]), parse_values(options["values"])
    if shapes is None and not exists_in_archive(name):
        shapes = usual_shapes(name)
    return {"signature": options["signature"], "shapes": shapes, "values": values}


def parse_values(texts: Sequence[str]) -> dict[str, Any] | None:
    """Parses `sr=16000` (a number), `scales=1,2.5` (a list), `true` and `false`."""
    found: dict[str, Any] = {}
    for text in texts:
        name, _, listed = text.rpartition("=")
        try:
            numbers = [_number(n.strip()) for n in listed.split(",")]
        except ValueError:
            name = ""
        if not name:
            raise click.BadParameter(f"{text!r}: must be NAME=N[,N..], numbers or true or false", param_hint="--value")
        found[name] = numbers[0] if len(numbers) == 1 else numbers
    return found or None


def _number(text: str) -> float:
    """Parses an integer, float or boolean; ValueError for any other text."""
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        return float(text)


def parse_shapes(texts: Sequence[str]) -> Mapping[str, Sequence[int]] | Sequence[Sequence[int]] | None:
    """Parses shapes: `1,224,224,3` in order, or `input=1,224,224,3` by name; not both."""
    named: dict[str, list[int]] = {}
    listed: list[list[int]] = []
    for text in texts:
        name, equals, numbers = text.rpartition("=")
        try:
            shape = [int(n) for n in numbers.split(",")]
        except ValueError:
            raise click.BadParameter(f"{text!r}: must be [NAME=]N,N,..", param_hint="--shape") from None
        if equals:
            named[name] = shape
        else:
            listed.append(shape)
    if named and listed:
        raise click.BadParameter("some have names, some not: must be all or none", param_hint="--shape")
    return named or listed or None


def load_extensions(paths: Sequence[str]) -> Sequence[str]:
    """Loads extensions, before the model that needs them, and returns their paths."""
    for path in paths:
        discovery.load_extension(path)
    return paths


def load_drivers(paths: Sequence[str], devices: Sequence[str]) -> list[str] | None:
    """Loads drivers under development.

    Args:
        paths: The files or packages of the drivers.
        devices: The devices that the user named.

    Returns:
        The devices to use: those named, else those of the drivers; None for automatic selection.
    """
    loaded = [discovery.load_driver(path).name for path in paths]
    return list(devices) or loaded or None


def compile_arguments(options: Mapping[str, Any], devices: Sequence[str] | None) -> dict[str, Any]:
    """Returns the arguments of `nnhal.compile` for `place_options`, without the devices.

    Args:
        options: The values of `place_options`.
        devices: The devices to use, or None for all.
    """
    return {
        "fallback": options["fallback"],
        "threads": options["threads"],
        "isolation": "process" if options["isolate"] else "none",
        "numerics": options["numerics"],
        "driver_options": parse_options(options["driver_options"], devices),
        "placement": _by_hand(options["rules"], options["strategy"]),
        "tune": options["tune"] or False,
    }


def _by_hand(texts: Sequence[str], strategy: str | None) -> Any:
    """Returns the placement for `--rule` and `--strategy`."""
    if texts and strategy:
        raise click.UsageError("--rule with --strategy: must be one of the two")
    rules = []
    for text in texts:
        what, equals, device = text.rpartition("=")
        kind, colon, pattern = what.partition(":")
        if not equals or not what or not device or (colon and kind not in ("name", "type")):
            raise click.BadParameter(f"{text!r}: must be OPERATION=DEVICE, name:PATTERN=DEVICE or type:PATTERN=DEVICE")
        rules.append(Rule(device, **{kind: pattern} if colon else {"operation": what}))
    return rules or strategy


Options = dict[str, dict[str, bool | int | float | str]]


def parse_options(texts: Sequence[str], devices: Sequence[str] | None, default: str = "") -> Options:
    """Parses driver options, `[DEVICE:]KEY=VALUE`.

    Args:
        texts: The options.
        devices: The devices that the user named.
        default: The device of an option without DEVICE; by default the only named one.

    Returns:
        The options by device.
    """
    default = default or (devices[0] if devices and len(devices) == 1 else "")
    given: Options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        device, colon, key = name.rpartition(":")
        if not equals or not key or (colon and not device):
            raise click.BadParameter(f"{text!r}: must be [DEVICE:]KEY=VALUE", param_hint="--option")
        device = device or default
        if not device or (devices and device not in devices):
            listed = f"DEVICE one of {', '.join(devices)}" if devices else "as --device names none"
            raise click.BadParameter(f"{text!r}: must be DEVICE:KEY=VALUE, {listed}", param_hint="--option")
        if key in given.setdefault(device, {}):
            raise click.BadParameter(f"{text!r}: {key} of {device} is given twice, must be once", param_hint="--option")
        given[device][key] = _typed(value)
    return given


def _typed(text: str) -> bool | int | float | str:
    """Parses a boolean, integer or float; any other text stays text."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text) if text.isascii() and "_" not in text and any(map(str.isdigit, text)) else text
        except ValueError:
            continue
    return text


def print_json(document: Any) -> None:
    """Prints a document as JSON, after `plain`."""
    click.echo(json.dumps(plain(document), indent=2))


def plain(value: Any) -> Any:
    """Converts a value for JSON: NumPy values to numbers and lists, NaN and infinities to strings."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """Prints a table; columns whose name starts with '>' are aligned to the right."""
    drawn = Table(
        title=Text(title) if title else None, title_justify="left", box=None, pad_edge=False, header_style="bold"
    )
    for column in columns:
        title_of = Text(printable(column.removeprefix(">")))
        drawn.add_column(title_of, justify="right" if column.startswith(">") else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*[Text(printable(str(cell), keep="\n")) for cell in row])
    console.print(drawn)


def read_ordinary_file(file: Path, what: str) -> bytes:
    """Reads an ordinary file.

    Args:
        file: The file.
        what: Its kind, for messages.

    Raises:
        BadFile: It cannot be read, or is a pipe, device or folder: a pipe might never end.
    """
    try:
        if not file.is_file():
            file.stat()
            raise BadFile(f"{what} {file}: is a pipe, device or folder, must be an ordinary file")
        return file.read_bytes()
    except OSError as error:
        raise BadFile(f"{what} {file}: cannot be read: {error.strerror or error}") from None


class EstimateColumn(ProgressColumn):
    """The field `left` of a task: an estimate of the remaining time."""

    def render(self, task: Task) -> Text:
        """The estimate, if there is one."""
        return Text(str(task.fields.get("left", "")))


def progress(quiet: bool) -> Progress:
    """Returns a progress bar on stderr; it is hidden if `quiet`, or if stderr is not a terminal."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, EstimateColumn(), console=status, disable=quiet or not status.is_terminal, transient=True)


def size(count: int) -> str:
    """Formats a number of bytes in the largest unit that gives 10 or more."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 10 << power:
            return f"{count >> power} {unit}"
    return f"{count} B"
