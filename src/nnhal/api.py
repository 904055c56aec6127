"""The Python API: `load`, `compile` and `devices`. They check the arguments; the runtime does the work."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_args

from nnhal.base import trace
from nnhal.base.answers import safe_repr
from nnhal.base.codes import Preference, Priority
from nnhal.base.digests import blake2b
from nnhal.base.errors import InvalidArgument, InvalidModel, UnsupportedModel
from nnhal.base.records import replace
from nnhal.base.sealed import Readable
from nnhal.base.time import is_number, nanoseconds, point_in_time
from nnhal.hal.answers import can_be_exact
from nnhal.hal.device import EXACT, MOST_THREADS, Device, identity_of
from nnhal.hal.utilities import validate_preference, validate_priority
from nnhal.model.graph import Model
from nnhal.model.open import OpenModel
from nnhal.runtime import discovery
from nnhal.runtime import isolation as isolation_of_devices
from nnhal.runtime.cache.wanted import CacheOutcome, CacheSettings, Folder
from nnhal.runtime.compilation import Candidate, Compilation, CompileOptions, Fallback, Numerics, Tune
from nnhal.runtime.compiled import Compiled
from nnhal.runtime.discovery import DiscoveredDriver
from nnhal.runtime.isolation import Isolation
from nnhal.runtime.placer import default_candidates
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
    """Read a model from a `.tflite` or `.onnx` file.

    nnhal detects the format from the content. It copies the file, so later changes to the file have no effect.

    Args:
        path: The model: a path, the name of a model that `nnhal models` lists, the file's bytes, or an open binary
            file, which is read from its current position. nnhal downloads or builds a named model on first use.
            `bundle.task:member.tflite` names a member of a bundle. External weights of an `.onnx` file are found beside
            it if you pass its path.
        signature: The entry point, if the file has several.
        shapes: The input shapes, by input name or in order; 0 leaves a dimension open. If operations depend on open
            dimensions, the result is an `OpenModel`.
        values: Inputs by name that become constants, with the file's type and shape: `values={"sr": 16000}`.
        progress: Called with a line of text when a named model is downloaded or built.
        cache_dir: The folder in which nnhal caches the imported model; as in `compile`.

    Returns:
        The model.

    Raises:
        BadFile: The file is damaged or does not exist, or no model has this name. For a bundle, the message lists its
            members.
        ShapeNeeded: The file leaves dimensions open that `shapes` has to give.
        UnsupportedModel: NNAPI cannot express some operators; the message lists all of them.
        NnhalError: A named model cannot be downloaded or built.
    """
    return _read(path, CacheSettings.wanted(cache_dir, None), signature, shapes, values, progress)[0]


@trace.traced_function("application", "preparation", "load")
def _read(
    source: Source,
    caching: CacheSettings,
    signature: str | None = None,
    shapes: Shapes | None = None,
    values: Mapping[str, Any] | None = None,
    progress: Callable[[str], object] | None = None,
) -> tuple[Model, CacheOutcome | None]:
    """Read a model, and return it with the outcome of the cache lookup, if there is a cache."""
    from nnhal.frontends.common.inputs import arrays
    from nnhal.frontends.formats import folder_of
    from nnhal.frontends.source import exists_in_archive, open_source

    if not (isinstance(source, str | bytes | bytearray | memoryview | os.PathLike) or hasattr(source, "read")):
        what = "the path of a .tflite or .onnx file, its bytes, or a file that is open for bytes"
        raise InvalidArgument(f"model is {safe_repr(source)}, must be a Model, {what}")
    folder = None
    if isinstance(source, str) and not exists_in_archive(source):
        from nnhal.zoo.by_name import opened as fetched
        from nnhal.zoo.by_name import usual_shapes

        shapes = usual_shapes(source) if shapes is None else shapes
        with fetched(source, progress) as file:
            label, memory = open_source(file)
    else:
        label, memory = open_source(source)
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
        from nnhal.runtime.cache.partitions import import_with_cache

        asked = signature, shapes, named
        return import_with_cache(caching.folder, caching.most, label, memory, asked, lambda: read(shapes), folder)

    try:
        return imported(shapes)
    except (UnsupportedModel, InvalidModel) as refused:
        if not shapes:
            raise
        from nnhal.frontends.formats import open_by_shape

        def at(sizes: Shapes) -> Model:
            return imported(sizes)[0]

        return open_by_shape(label, memory, folder, at, refused, signature, shapes, values), None


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
    """Compile a model for the available devices.

    Args:
        model: A `Model`, or a source that `load` reads.
        devices: The devices to use: a name, the path of a driver, a `Device`, or a sequence of these. By default, nnhal
            considers all devices, and the CPU reference as the fallback. Two devices may have the same name.
        preference: The execution preference that drivers receive: a `Preference` or its name.
        priority: The priority of the executions: a `Priority` or its name.
        fallback: Whether operations that a device rejects or fails may run on the CPU: "allow", "warn" (a
            `FallbackWarning`; the default) or "forbid" (the default if you name devices).
        threads: The most threads that an engine may use; 0 leaves the choice to the engine. No engine uses more threads
            than there are CPUs.
        relaxed: Whether float32 may be computed as float16; None keeps the model's own setting.
        deadline: Seconds that the devices have to report what they support and to prepare the model. Starting a
            driver's process does not count.
        driver_options: A mapping of options for each device name.
        isolation: "none", or "process" to run each named driver in an isolated, sandboxed process. A crash or hang
            there does not affect your process. A `Device` object stays in your process: pass its name or path to
            isolate it.
        cache_dir: The folder of the compilation cache, accessible to your user only. The default is `NNHAL_CACHE_DIR`;
            without either, and with False, there is no cache. `Compiled.cache` has the outcome.
        token: 32 bytes that identify the model and its weights in the cache. By default, nnhal hashes the model.
        placement: How nnhal places operations: "measured" (predicted time from measurements on this machine; the
            default once a profile exists), "stated" (the performance that drivers declare; the default without a
            profile), "single" (the one device where the model costs least), "ordered" (each operation on the first
            named device that supports it), one `nnhal.Rule` or several, or a function. The function receives the model
            and an offer for each device. It returns a device label for each operation, "" for the default strategy.
        tune: True, or a number of seconds: compile the most promising placements, measure them for this long (True: 2
            s) and use the fastest. nnhal remembers the measured times. `placement.events` has each placement that was
            not measured, and why. The preference must be FAST_SINGLE_ANSWER.
        variants: How many sets of input shapes stay compiled for an `OpenModel`. Each set is compiled on first use.
        numerics: "fast" or "exact". With "exact", each 8-bit operation has one result, bit for bit, on every device.
            That is the result of TensorFlow Lite's kernel, if it has one. float32 is not computed as float16. A device
            that does not declare exact numerics rejects all operations.

    Returns:
        The compiled model; a `CompiledByShape` for an `OpenModel`.

    Raises:
        InvalidArgument: An argument breaks its rule, or a driver rejects its options.
        InvalidModel: The model breaks a rule of its definition.
        UnsupportedModel: No permitted device supports an operation; the message lists each with the reason.
        DeviceUnavailable: A device does not start, is offline, or is quarantined.
        Closed: A device was closed meanwhile, and no other one supports an operation.
        MissedDeadline: The devices needed longer than `deadline`.
        NnhalError: A driver failed; the message names the device.
    """
    with trace.span("application", "compilation", "compile"):
        caching = CacheSettings.wanted(cache_dir, token)
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
            raise InvalidArgument(
                f"threads is {threads!r}, must be an integer of at least 0 and at most {MOST_THREADS}"
            )
        if not isinstance(relaxed, bool | None):
            raise InvalidArgument(f"relaxed is {relaxed!r}, must be true, false, or None to keep the model's setting")
        preference, priority = validate_preference(preference), validate_priority(priority)
        if not isinstance(variants, int) or isinstance(variants, bool) or variants < 1:
            raise InvalidArgument(f"variants is {safe_repr(variants)}, must be an integer of at least 1")
        nanoseconds(deadline, "deadline")
        chosen = isolation_of_devices.select(named, isolation)
        left_out: list[str] = []
        if named is None:
            chosen, left_out = default_candidates(chosen)
        options = _options(driver_options, chosen)
        if numerics == EXACT:
            if named is not None and not any(can_be_exact(device) for device in chosen):
                names = ", ".join(identity_of(device).name for device in chosen)
                raise InvalidArgument(
                    f"numerics is 'exact', which none of the devices declares ({names}): must be 'fast'"
                )
            if relaxed:
                raise InvalidArgument("numerics is 'exact' and relaxed is true: must be one of the two")
            relaxed = False
        if relaxed is not None and relaxed != model.relaxed:
            model = replace(model, relaxed=relaxed)
        told = preference, priority, threads, point_in_time(deadline), options
        settings = CompileOptions(
            tuple(chosen),
            fallback,
            *told,
            caching,
            Strategy.asked(placement),
            _interpreting,
            numerics,
            named=named is not None,
            left_out=tuple(left_out),
        )
        tuning = _tuning(tune, settings)
        if not isinstance(model, OpenModel):
            return Compilation(model, settings).compile(partial(Compiled, read=read), tuning)
        from nnhal.runtime.by_shape import CompiledByShape

        def prepare(sized: Model, until: int | None) -> Compiled:
            points = [point for point in (until, point_in_time(deadline)) if point is not None]
            own = replace(settings, deadline=min(points, default=None), caching=caching.for_shapes(sized))
            return Compilation(sized, own).compile(Compiled, tuning)

        return CompiledByShape(model, prepare, variants)


def _tuning(tune: Any, settings: CompileOptions) -> Tune | None:
    if tune is False:
        return None
    from nnhal.runtime.tuning import SECONDS, tune_for

    if tune is not True and not (is_number(tune) and 0 < tune < math.inf):
        raise InvalidArgument(f"tune is {safe_repr(tune)}, must be true, false, or a number of seconds")
    if settings.preference != Preference.FAST_SINGLE_ANSWER:
        what = f"tune measures latency, and preference is {settings.preference.name}"
        raise InvalidArgument(f"{what}: must be FAST_SINGLE_ANSWER, or tune must be false")
    if settings.strategy.kind == "stated":
        raise InvalidArgument("tune measures, and placement is 'stated': must be another, or tune must be false")
    return tune_for(SECONDS if tune is True else float(tune))


def _interpreting(compilation: Compilation) -> list[Candidate]:
    from nnhal.runtime.flow import with_interpreter

    return with_interpreter(compilation)


def _named(devices: Any) -> list[str | Device] | None:
    if devices is None:
        return None
    named = list(devices) if isinstance(devices, Sequence) and not isinstance(devices, str) else [devices]
    for device in named:
        if not isinstance(device, str | Device):
            raise InvalidArgument(f"devices: is {device!r}, must be a name or a Device")
    return named


def _one_of(what: str, value: str, allowed: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise InvalidArgument(f"{what} is {value!r}, must be one of {', '.join(allowed)}")


def _options(given: Mapping[str, Mapping[str, Any]] | None, chosen: Sequence[Device]) -> dict[str, dict[str, Any]]:
    """Return a copy of the options of each device; each name must belong to exactly one device."""
    names = [identity_of(device).name for device in chosen]
    if not isinstance(given, Mapping | None):
        raise InvalidArgument(f"driver_options is {given!r}, must be a mapping for each device name")
    for name, options in (given or {}).items():
        if name not in names:
            raise InvalidArgument(
                f"driver_options: is {name!r}, must be the name of one of the devices: {', '.join(names)}"
            )
        if names.count(name) > 1:
            raise InvalidArgument(f"driver_options: {names.count(name)} devices are named {name!r}, must be one")
        if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
            raise InvalidArgument(f"driver_options of {name} is {options!r}, must be a mapping with str keys")
    return {name: dict(options) for name, options in (given or {}).items()}


def devices() -> list[DiscoveredDriver]:
    """List every device, and every driver that does not load, with the reason.

    Returns:
        One `Found` for each driver, in the order of their names. A driver that failed to load has an error.
    """
    return discovery.load_candidates()


if os.environ.get("NNHAL_TRACE"):
    from nnhal.runtime.tracing.session import from_environment

    from_environment()

if os.environ.get("NNHAL_CAPTURE"):
    from nnhal.runtime.capturing.session import from_environment as capture_from_environment

    capture_from_environment()
