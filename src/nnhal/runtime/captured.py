"""The running capture of this process, as compilations and executions see it: None if nothing is captured."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from nnhal.hal.chain import PreparedChain
from nnhal.hal.device import Device, Hints
from nnhal.hal.fence import Fence
from nnhal.hal.request import Control, Request, Signature
from nnhal.model.graph import Model


class PreparationCapture(Protocol):
    """Captures a model that a device prepares, and its executions. number: of the record."""

    number: int

    def failed(self, error: BaseException, nanoseconds: int) -> None:
        """Record that the device did not prepare it."""

    def prepared(self, prepared: PreparedChain, nanoseconds: int, cached: str) -> None:
        """Record that the device has prepared it. cached: the outcome of its cache entry."""

    def signature(self, plain: Signature, way: str) -> Signature:
        """Return a signature whose requests are captured. way: how they execute."""

    def fenced(self, request: Request, control: Control, wait_for: Sequence[Fence]) -> Sequence[Fence]:
        """Note that a request is launched behind fences; return the fences to wait for instead."""


class CompilationCapture(Protocol):
    """Captures one compilation."""

    def handed(self, device: Device, model: Model, hints: Hints, where: Mapping[str, str]) -> PreparationCapture | None:
        """Record a model before a device prepares it. where: the device's label, origin and isolation."""

    def placed(self, placement: Mapping[str, Any], parts: Sequence[PreparationCapture | None]) -> None:
        """Record the placement. parts: of its partitions, in order."""


class CaptureSession(Protocol):
    """A running capture."""

    def compiling(self, model: Model, token: bytes | None) -> CompilationCapture | None:
        """Record a model before it is compiled. token: of the application, for the compilation cache."""


class _Running:
    session: CaptureSession | None = None


running = _Running()
