"""Engines called directly, without nnhal, to compare with. Imported by benchmarks only."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnhal.base.errors import DeviceUnavailable, InvalidArgument
from nnhal.base.operands import Array

PEERS = ("litert",)


class LiteRT:
    """LiteRT's interpreter on a file: inputs set, invoked, outputs got, as its users do."""

    def __init__(self, source: Path | bytes, threads: int, *, xnnpack: bool = True) -> None:
        try:
            from ai_edge_litert import interpreter as litert  # noqa: TID251 (a peer is an engine)
        except ImportError:
            raise DeviceUnavailable("the peer litert needs ai-edge-litert: pip install 'nnhal[litert]'") from None
        resolver = litert.OpResolverType.AUTO if xnnpack else litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        where = {"model_content": source} if isinstance(source, bytes) else {"model_path": str(source)}
        self._engine: Any = litert.Interpreter(**where, num_threads=threads, experimental_op_resolver_type=resolver)
        self._engine.allocate_tensors()
        self.inputs: list[dict[str, Any]] = self._engine.get_input_details()
        self.outputs: list[dict[str, Any]] = self._engine.get_output_details()
        self._in = [d["index"] for d in self.inputs]
        self._out = [d["index"] for d in self.outputs]

    def resize(self, shapes: Sequence[Sequence[int]]) -> None:
        """Give the inputs other shapes."""
        for index, shape in zip(self._in, shapes, strict=True):
            self._engine.resize_tensor_input(index, list(shape))
        self._engine.allocate_tensors()

    def reset(self) -> None:
        """Variable tensors and resource variables as at first."""
        self._engine.reset_all_variables()

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """Set, invoke, get."""
        for index, array in zip(self._in, inputs, strict=True):
            self._engine.set_tensor(index, array)
        self._engine.invoke()
        return [self._engine.get_tensor(index) for index in self._out]


def peer(name: str, path: Path | bytes, threads: int) -> LiteRT:
    """A peer engine by name, on a model file or its bytes."""
    if name not in PEERS:
        raise InvalidArgument(f"peer is {name!r}, must be one of {', '.join(PEERS)}")
    return LiteRT(path, threads)
