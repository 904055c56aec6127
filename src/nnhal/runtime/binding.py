"""Arguments bound to a compiled model once, for many executions."""

from typing import Any

from nnhal.base import trace
from nnhal.base.brief import short_repr
from nnhal.base.errors import BadState
from nnhal.base.uncopied import NotCopyable
from nnhal.hal.host import ExclusiveUse
from nnhal.runtime.caller import Caller
from nnhal.runtime.job import Job


class Binding(NotCopyable, instead="another process gets the model and compiles it there"):
    """A reusable execution: arguments bound to a compiled model. Call it to run.

    Attributes:
        outputs: The results of the last run.
    """

    def __init__(self, owner: object, caller: Caller, job: Job) -> None:
        """owner: kept alive as long as this object."""
        self._owner, self._caller, self._given, self._rooms = owner, caller, job.given, job.rooms
        self._taken, self._left = job.taken, job.left
        self._turn = ExclusiveUse()
        self.outputs: Any = None

    def __repr__(self) -> str:
        return short_repr(f"Binding of {self._caller.label}")

    @trace.traced_method("application", "execution", "run binding", detail=lambda self: self._caller.plan.model.name)
    def __call__(self) -> Any:
        """Run once.

        Returns:
            The outputs, as a call of the model returns them.

        Raises:
            BadState: Another run of this binding is in flight.
            NnhalError: The execution failed.
        """
        job = Job(self._given, self._rooms)
        job.taken, job.left = self._taken, self._left
        try:
            if not self._turn.take(job):
                raise BadState("binding: a run is in flight, must be one at a time; bind once for each thread")
            self.outputs = self._caller.execute(job)
        finally:
            self._turn.give_back(job)
        return self.outputs
