"""The faults, each a small change of the healthy driver: what it does, who has to see it, whether a process survives it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nnhal.conformance.suites.run import CONTRACT, VECTORS
from nnhal.hal.device import Device
from nnhal.hal.hidl.adapters import adapt
from nnhal.model.graph import Model

from .healthy import Arithmetic, Engine, Healthy

VTS, CTS, RANDOM, STRESS, CRASH, MLTS = "vts", "cts", "random", "stress", "crash", "mlts"
BOTH = VECTORS, CONTRACT
BY_MODEL = "by-model"


@dataclass(frozen=True)
class Fault:
    """What is wrong with a driver.

    seen_by: the suites of `nnhal test` that have to catch it. check: that of the suite contract that has to name it. way:
    how it has to be executed for it to show. numbers: what it gives may be right for all that a runtime can see. survives:
    a process that has it inside goes on, where calls have a deadline. alone: it shows before there is a model, or its
    process serves nothing else afterwards. operation: of which it shows; "" for what is no operation's. hangs: what is asked
    does not come back.
    """

    name: str
    what: str
    make: Callable[[], Any]
    seen_by: tuple[str, ...]
    check: str
    way: str
    numbers: bool
    survives: bool
    alone: bool
    operation: str
    hangs: bool
    module: str = ""


FAULTS: dict[str, Fault] = {}


def fault(
    name: str,
    what: str,
    check: str,
    seen_by: tuple[str, ...] = BOTH,
    *,
    way: str = "plain",
    numbers: bool = False,
    survives: bool = True,
    alone: bool = False,
    operation: str = "ADD",
    hangs: bool = False,
) -> Callable[[type], type]:
    """A class that changes the arithmetic, the engine or the device, or is a driver of the HAL, is a fault of this name."""

    def note(changed: type) -> type:
        part = "arithmetic" if issubclass(changed, Arithmetic) else "engine" if issubclass(changed, Engine) else ""
        parts = {} if not part else {part: changed() if part == "arithmetic" else changed}
        device = type(changed.__name__, (Healthy,), parts) if part else changed
        assert name not in FAULTS
        FAULTS[name] = Fault(
            name,
            what,
            device,
            seen_by,
            check,
            way,
            numbers or part == "arithmetic",
            survives,
            alone or not survives,
            operation,
            hangs,
            changed.__module__,
        )
        return changed

    return note


class ByModel(Healthy):
    """A device that has the fault that its model is named after: one process for many."""

    def __init__(self) -> None:
        self._devices: dict[str, Any] = {}

    def of(self, model: Model) -> Any:
        """The device for a model."""
        name = model.name.partition(" ")[0]
        if name not in self._devices:
            device = made(name)
            self._devices[name] = device if isinstance(device, Device) else adapt(device, device.name)
        return self._devices[name]

    def supports(self, model: Model) -> Any:
        return self.of(model).supports(model)

    def prepare(self, model: Model, hints: Any) -> Any:
        return self.of(model).prepare(model, hints)

    def allocate(self, desc: Any, roles: Any) -> Any:
        return self.of(roles[0].prepared.model).allocate(desc, roles)


def made(name: str) -> Any:
    """The device, or driver of the HAL, with a fault; one of `HEALTHY` too."""
    table()
    makers = {**{each.name: each.make for each in (*FAULTS.values(), *healthy())}, "": Healthy, BY_MODEL: ByModel}
    device = makers[name]()
    device.name = f"faulty-{name}" if name in FAULTS else name or "healthy"
    return device


def table() -> Mapping[str, Fault]:
    """All of them, by module, in whatever order those were imported."""
    from . import (
        clients,
        ends,
        flow,
        graphs,
        hal,
        kept,
        memory,
        models,
        numbers,
        operations,
        optimised,
        queries,
        runs,
        values,
    )

    parts = (
        ends,
        hal,
        kept,
        memory,
        numbers,
        queries,
        runs,
        graphs,
        operations,
        flow,
        optimised,
        values,
        clients,
        models,
    )
    modules = [module.__name__ for module in parts]
    return dict(sorted(FAULTS.items(), key=lambda item: modules.index(item[1].module)))


def healthy() -> tuple[Fault, ...]:
    """Drivers without a fault: what each is a change of."""
    table()  # the modules in their order
    from .hal import HalDriver
    from .models import Models, Unsaved
    from .operations import Whole

    nothing: tuple[Any, ...] = (), "", "plain", False, True, False, "ADD", False
    of_models: tuple[Any, ...] = (), "", "plain", False, True, False, "SOFTMAX", False
    return (
        Fault("healthy", "nothing: the driver that the others are changes of", Healthy, *nothing),
        Fault("hal-healthy", "HAL 1.0: nothing", HalDriver, *nothing),
        Fault("whole-healthy", "nothing: the driver of 16 operations", Whole, *nothing),
        Fault("models-healthy", "nothing: the driver of all operations, which keeps models", Models, *of_models),
        Fault("models-unsaved", "nothing: it could keep models, and keeps none", Unsaved, *of_models),
    )
