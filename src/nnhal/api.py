"""The Python API: `load`, `compile`, `devices`. Everything here is an edge: arguments are checked, then passed on."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, get_args

from nnhal.base import trace
from nnhal.base.answers import shown
from nnhal.base.codes import Preference, Priority
from nnhal.base.digests import blake2b
from nnhal.base.errors import InvalidArgument, InvalidModel, UnsupportedModel
from nnhal.base.records import replace
from nnhal.base.sealed import Readable
from nnhal.base.time import is_number, nanoseconds, point_in_time
from nnhal.hal.device import EXACT, MOST_THREADS, Device, can_be_exact, identity_of
from nnhal.hal.utilities import validate_preference, validate_priority
from nnhal.model.graph import Model
from nnhal.model.open import OpenModel
from nnhal.runtime import discovery
from nnhal.runtime import isolation as isolation_of_devices
from nnhal.runtime.cache.wanted import CacheOutcome, Caching, Folder
from nnhal.runtime.compilation import Fallback, Numerics, Tune, Wishes, compile_plan
from nnhal.runtime.compiled import Compiled
from nnhal.runtime.discovery import Found
from nnhal.runtime.isolation import Isolation
from nnhal.runtime.judgement import as_measured
from nnhal.runtime.strategies import Asked, Strategy

Shapes = Mapping[str, Sequence[int]] | Sequence[Sequence[int]]
Source = str | os.PathLike[str] | bytes | bytearray | memoryview | Readable


def load(
    path: Source,
    *,
    signature: str | None = None,
    shapes: Shapes | None = None,
    values: Mapping[str, Any] | None = None,
    progress: Callable[[str], object] | None = None,
    cache_dir: Folder = None,
) -> Model:
    """Read a `.tflite` or `.onnx` file (a path, bytes, or what is read as an open file is, from where it stands) as a model.

    It is copied once: what becomes of it does not matter.

    path: of the file, `bundle.task:member.tflite`, or, where no file is called so, a name of `nnhal models`, which is
    fetched or made when it is first used; `progress` is told of that. An error for a bundle lists what is in it.
    Files beside an `.onnx` file that its weights lie in are found where it was given by its path.
    signature: which of several entry points. shapes: input shapes by name or in order, 0 for a dimension left open. Where
    the operations depend on open sizes, the result is an `OpenModel`.
    values: inputs by name that become constants, of the file's type and shape: `values={"sr": 16000}`.
    cache_dir: as of `compile`; what is imported of a file is kept there, too.
    Raises BadFile for a damaged file and for a name that nothing has, an NnhalError where a model cannot be fetched or made,
    UnsupportedModel listing every operation that NNAPI cannot express.
    """
    return _read(path, Caching.wanted(cache_dir, None), signature, shapes, values, progress)[0]


@trace.spanning("application", "preparation", "load")
def _read(
    source: Source,
    caching: Caching,
    signature: str | None = None,
    shapes: Shapes | None = None,
    values: Mapping[str, Any] | None = None,
    progress: Callable[[str], object] | None = None,
) -> tuple[Model, CacheOutcome | None]:
    """The model of a file, and what became of it in the cache, where there is one."""
    from nnhal.frontends.common.fixed import arrays
    from nnhal.frontends.formats import folder_of
    from nnhal.frontends.source import opened, there

    if not (isinstance(source, str | bytes | bytearray | memoryview | os.PathLike) or hasattr(source, "read")):
        what = "the path of a .tflite or .onnx file, its bytes, or a file that is open for bytes"
        raise InvalidArgument(f"model is {shown(source)}, must be a Model, {what}")
    folder = None
    if isinstance(source, str) and not there(source):
        from nnhal.zoo.by_name import opened as fetched
        from nnhal.zoo.by_name import usual_shapes

        shapes = usual_shapes(source) if shapes is None else shapes
        with fetched(source, progress) as file:
            label, memory = opened(file)
    else:
        label, memory = opened(source)
        folder = folder_of(source)

    def read(shapes: Shapes | None) -> Model:
        from nnhal.frontends.formats import load_opened

        return load_opened(label, memory, folder, signature=signature, shapes=shapes, values=values)

    keeps = caching.folder is not None and memory.origin is not None
    fixed = arrays(values).items() if keeps else ()
    named = {name: (a.dtype.str, list(a.shape), blake2b(a.tobytes()).hexdigest()) for name, a in fixed}

    def imported(shapes: Shapes | None) -> tuple[Model, CacheOutcome | None]:
        if caching.folder is None or not keeps:
            return read(shapes), None
        from nnhal.runtime.cache.steps import imported_in

        asked = signature, shapes, named
        return imported_in(caching.folder, caching.most, label, memory, asked, lambda: read(shapes), folder)

    try:
        return imported(shapes)
    except (UnsupportedModel, InvalidModel) as refused:
        if not shapes:
            raise
        from nnhal.frontends.formats import open_by_shape

        def at(sizes: Shapes) -> Model:
            return imported(sizes)[0]

        return open_by_shape(label, memory, folder, at, refused, signature, shapes, values), None


@trace.spanning("application", "compilation", "compile")
def compile(
    model: Model | Source,
    *,
    devices: Sequence[str | Device] | str | Device | None = None,
    preference: Preference | str = Preference.FAST_SINGLE_ANSWER,
    priority: Priority | str = Priority.MEDIUM,
    fallback: Fallback | None = None,
    threads: int = 0,
    relaxed: bool | None = None,
    deadline: float | None = None,
    driver_options: Mapping[str, Mapping[str, Any]] | None = None,
    isolation: Isolation = "none",
    cache_dir: Folder = None,
    token: bytes | None = None,
    placement: Asked = None,
    tune: bool | float = False,
    variants: int = 8,
    numerics: Numerics = "fast",
) -> Compiled:
    """Compile a model for the devices named (default: all that there are, with fallback to the CPU).

    model: a Model, or what `load` takes for a file. preference, priority: what drivers are told, as members of Preference
    and Priority or by name.
    devices: two of the same name both take part. fallback: "allow", "warn" (a FallbackWarning, the default) or "forbid"
    (the default where devices are named). threads: how many an engine may use, 0 for its own choice; none gets more than
    there are CPUs. relaxed: float32 may be computed as float16; None leaves it as the model says. deadline: seconds that the
    devices may take to say what they support and to prepare it, once they are there. driver_options: a mapping for each
    device name.
    isolation: "process" runs each driver in a process of its own, which may crash or hang without harm to this one. A Device
    object that is given stays where it is: name a driver, or give its path, to have it isolated.
    cache_dir: a folder of this user alone where drivers keep what they compiled, for the next time (NNHAL_CACHE_DIR by
    default; none, or False here, and nothing is kept); `compiled.cache` says what became of it. token: 32 bytes that stand
    for the model with its weights, and never for another; made of them by default.
    placement: "stated" (by what devices state), "measured" (by the profile of `nnhal calibrate`, and what executions took;
    the default where there is a profile), "single" (all on the best one device), `nnhal.Rule`s (by hand), or a function of
    the model and the devices' offers that gives a label for each operation, "" for any.
    variants: how many sets of input shapes are kept compiled, for a model whose operations depend on open dimensions
    (`OpenModel`). It compiles each set when it is first used, and the result is a `CompiledByShape`.
    tune: measure candidate placements of this model now, for so many seconds (True: 2), and take the fastest; what was
    measured is remembered.
    numerics: "fast", or "exact": each operation on 8 bits has one result on every device, bit for bit, that of TensorFlow
    Lite's own kernels where it has them; float32 is not computed as float16. A device that does not declare that it can
    be exact takes nothing.
    Raises InvalidArgument, also where a driver says that of its options; InvalidModel, UnsupportedModel, DeviceUnavailable,
    MissedDeadline, or what a driver raised.
    """
    caching = Caching.wanted(cache_dir, token)
    read = None
    if not isinstance(model, Model):
        model, read = _read(model, caching)
    named = _named(devices)
    if fallback is None:
        fallback = "warn" if named is None else "forbid"
    _one_of("numerics", numerics, get_args(Numerics))
    _one_of("isolation", isolation, get_args(Isolation))
    _one_of("fallback", fallback, get_args(Fallback))
    if not isinstance(threads, int) or isinstance(threads, bool) or not 0 <= threads <= MOST_THREADS:
        raise InvalidArgument(f"threads is {threads!r}, must be an integer of at least 0 and at most {MOST_THREADS}")
    if not isinstance(relaxed, bool | None):
        raise InvalidArgument(f"relaxed is {relaxed!r}, must be true, false, or None for what the model says")
    preference, priority = validate_preference(preference), validate_priority(priority)
    if not isinstance(variants, int) or isinstance(variants, bool) or variants < 1:
        raise InvalidArgument(f"variants is {shown(variants)}, must be an integer of at least 1")
    nanoseconds(deadline, "deadline")
    chosen = isolation_of_devices.select(named, isolation)
    if named is None:
        chosen = as_measured(chosen)
    options = _options(driver_options, chosen)
    if numerics == EXACT:
        if named is not None and not any(can_be_exact(device) for device in chosen):
            names = ", ".join(identity_of(device).name for device in chosen)
            raise InvalidArgument(f"numerics is 'exact', which none of the devices declares ({names}): must be 'fast'")
        if relaxed:
            raise InvalidArgument("numerics is 'exact' and relaxed is true: must be one of the two")
        relaxed = False
    if relaxed is not None and relaxed != model.relaxed:
        model = replace(model, relaxed=relaxed)
    told = preference, priority, threads, point_in_time(deadline), options
    wishes = Wishes(tuple(chosen), fallback, *told, caching, Strategy.asked(placement), _interpreting, numerics)
    tuning = _tuning(tune)
    if not isinstance(model, OpenModel):
        return _compiled(model, wishes, tuning, read)
    from nnhal.runtime.by_shape import CompiledByShape

    def prepare(sized: Model, until: int | None) -> Compiled:
        points = [point for point in (until, point_in_time(deadline)) if point is not None]
        own = replace(wishes, deadline=min(points, default=None), caching=caching.for_shapes(sized))
        return _compiled(sized, own, tuning)

    return CompiledByShape(model, prepare, variants)


def _compiled(model: Model, wishes: Wishes, tuning: Tune | None, read: CacheOutcome | None = None) -> Compiled:
    with ExitStack() as undo:
        compiled = Compiled(compile_plan(model, wishes, undo, tuning), read)
        undo.pop_all()  # from here on it is the compiled model's; an interrupt before this, and both close it, once
        return compiled


def _tuning(tune: Any) -> Tune | None:
    if tune is False:
        return None
    from nnhal.runtime.tuning import SECONDS, tuned_by

    if tune is not True and not (is_number(tune) and 0 < tune < math.inf):
        raise InvalidArgument(f"tune is {shown(tune)}, must be true, false, or a number of seconds")
    return tuned_by(SECONDS if tune is True else float(tune))


def _interpreting(*given: Any) -> list[Any]:
    """As of `Wishes`; most models have no control flow."""
    from nnhal.runtime.flow import interpreting

    return interpreting(*given)


def _named(devices: Any) -> list[str | Device] | None:
    if devices is None:
        return None
    named = list(devices) if isinstance(devices, Sequence) and not isinstance(devices, str) else [devices]
    for device in named:
        if not isinstance(device, str | Device):
            raise InvalidArgument(f"devices: {device!r} is none, must be a name or a Device")
    return named


def _one_of(what: str, value: str, allowed: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise InvalidArgument(f"{what} is {value!r}, must be one of {', '.join(allowed)}")


def _options(given: Mapping[str, Mapping[str, Any]] | None, chosen: Sequence[Device]) -> dict[str, dict[str, Any]]:
    """The options of each device that has some, as they are now; each name must be that of exactly one device."""
    names = [identity_of(device).name for device in chosen]
    if not isinstance(given, Mapping | None):
        raise InvalidArgument(f"driver_options is {given!r}, must be a mapping for each device name")
    for name, options in (given or {}).items():
        if name not in names:
            raise InvalidArgument(f"driver_options: {name!r} is none of the devices, must be one of {', '.join(names)}")
        if names.count(name) > 1:
            raise InvalidArgument(f"driver_options: {names.count(name)} devices are named {name!r}, must be one")
        if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
            raise InvalidArgument(f"driver_options of {name} is {options!r}, must be a mapping with str keys")
    return {name: dict(options) for name, options in (given or {}).items()}


def devices() -> list[Found]:
    """Every device there is, and every driver that does not load, with the reason."""
    return discovery.found()


if os.environ.get("NNHAL_TRACE"):
    from nnhal.runtime.tracing.session import from_environment

    from_environment()
