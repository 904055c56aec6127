"""What a compiled model holds in memory, step by step."""

from collections.abc import Iterator, Mapping
from typing import Any

from nnhal.base.brief import brief, counted
from nnhal.base.records import Record
from nnhal.hal.device import identity_of, memory_by
from nnhal.hal.memory_use import MemoryUse, together
from nnhal.runtime.caller import Caller
from nnhal.runtime.placement import WHOLE


class StepMemory(Record, frozen=True):
    """What one step holds on its device; of a step, or the `WHOLE` model, that fell back, also what the CPU holds for it."""

    step: int
    device: str
    use: MemoryUse

    def __str__(self) -> str:
        what = "the whole model" if self.step == WHOLE else f"step {self.step}"
        return f"{what} on {self.device}: {told(self.use)}"


class ModelMemory(Record, frozen=True):
    """What a compiled model holds, in bytes. steps: one after the other, then what fell back. between: of intermediates
    between steps, kept by the runtime.
    """

    steps: tuple[StepMemory, ...]
    between: int

    @property
    def total(self) -> MemoryUse:
        """Of all steps; None for what some driver does not know. Of an execution, which is in one at a time, the most."""
        return together(step.use for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON form."""
        steps = [{"step": s.step, "device": s.device, **s.use._asdict()} for s in self.steps]
        return {"steps": steps, "total": self.total._asdict(), "between": self.between}

    def __repr__(self) -> str:
        return brief(f"ModelMemory of {counted(len(self.steps), 'step')}", [told(self.total)])

    def __str__(self) -> str:
        return "\n".join([*map(str, self.steps), f"between steps: {self.between} bytes"])


def told(use: MemoryUse) -> str:
    """Figures for people: `weights_in_place 16, working not known`."""
    return ", ".join(f"{name} {'not known' if size is None else size}" for name, size in use._asdict().items())


def memory_of(caller: Caller) -> ModelMemory:
    """What all that executions of a plan use holds by now."""
    return ModelMemory(tuple(_steps(caller)), caller.kept())


def _steps(caller: Caller) -> Iterator[StepMemory]:
    for number, line in enumerate(caller.lines):
        yield StepMemory(number, line.label, memory_by(line.prepared, line.signature.where))
    spares: Mapping[int, Any] = caller.spares.made()
    for number, spare in sorted(spares.items()):
        name = identity_of(spare.device).name
        yield StepMemory(number, name, memory_by(spare.prepared, f"device {name}"))
