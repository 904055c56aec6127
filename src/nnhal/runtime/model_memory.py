"""The memory of a compiled model, by partition."""

from collections.abc import Iterator, Mapping
from typing import Any

from nnhal.base.brief import short_repr, with_count
from nnhal.base.records import Record
from nnhal.hal.answers import checked_memory_use
from nnhal.hal.device import identity_of
from nnhal.hal.memory import MemoryUse, combined_use
from nnhal.runtime.caller import Caller
from nnhal.runtime.placement import WHOLE


class StepMemory(Record, frozen=True):
    """The memory of one partition on its device, and after a fallback also on the CPU."""

    step: int
    device: str
    use: MemoryUse

    def __str__(self) -> str:
        what = "the whole model" if self.step == WHOLE else f"step {self.step}"
        return f"{what} on {self.device}: {memory_text(self.use)}"


class ModelMemory(Record, frozen=True):
    """The memory of a compiled model, in bytes.

    steps: by partition, then after fallbacks. between: intermediates between partitions, kept by the runtime.
    """

    steps: tuple[StepMemory, ...]
    between: int

    @property
    def total(self) -> MemoryUse:
        """The sum over all partitions; None for figures that a driver does not know. Of executions, the largest."""
        return combined_use(step.use for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data, in the documented schema."""
        steps = [{"step": s.step, "device": s.device, **s.use._asdict()} for s in self.steps]
        return {"steps": steps, "total": self.total._asdict(), "between": self.between}

    def __repr__(self) -> str:
        return short_repr(f"ModelMemory of {with_count(len(self.steps), 'step')}", [memory_text(self.total)])

    def __str__(self) -> str:
        return "\n".join([*map(str, self.steps), f"between partitions: {self.between} bytes"])


def memory_text(use: MemoryUse) -> str:
    """Return figures as text: `weights_in_place 16, working not known`."""
    return ", ".join(f"{name} {'not known' if size is None else size}" for name, size in use._asdict().items())


def memory_of(caller: Caller) -> ModelMemory:
    """Return the current memory of a plan."""
    return ModelMemory(tuple(_steps(caller)), caller.kept())


def _steps(caller: Caller) -> Iterator[StepMemory]:
    for number, line in enumerate(caller.lines):
        yield StepMemory(number, line.label, checked_memory_use(line.prepared, line.signature.where))
    fallbacks: Mapping[int, Any] = caller.fallbacks.made()
    for number, spare in sorted(fallbacks.items()):
        name = identity_of(spare.device).name
        yield StepMemory(number, name, checked_memory_use(spare.prepared, f"device {name}"))
