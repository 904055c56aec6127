"""A model whose operations depend on sizes that are known only at execution."""

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from nnhal.base.answers import safe_repr
from nnhal.base.errors import BadState, InvalidArgument, ShapeNeeded
from nnhal.base.names import short
from nnhal.base.records import replace
from nnhal.base.values import dimensions, shapes_by_name
from nnhal.model.graph import Model

Shapes = Mapping[str, Sequence[int]] | Sequence[Sequence[int]]
Importer = Callable[[Mapping[str, tuple[int, ...]]], Model]


class OpenModel(Model, frozen=True, dict=True):
    """A model whose operations depend on the sizes of its open dimensions. `at` returns the model for given sizes.

    `nnhal.load` returns one if NNAPI cannot express the file before the sizes are known. `main` has the inputs and
    outputs, and no operations. `nnhal.compile` accepts it and compiles each set of input shapes on demand.

    Attributes:
        importer: Creates the model for input shapes by name.
    """

    importer: Importer | None = None

    _not_compared = Model._not_compared | {"importer"}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs by name; 0 for an open dimension."""
        carried = {state.input for state in self.states}
        operands = [self.main.operands[i] for n, i in enumerate(self.main.inputs) if n not in carried]
        scalars = {self.main.operands[index].name for index, form in self.edge.items() if form.scalar}
        return {o.name: () if o.name in scalars else o.dimensions for o in operands}

    def at(self, shapes: Shapes) -> Model:
        """Return the model for these input shapes.

        Args:
            shapes: As in `sized`.

        Raises:
            InvalidArgument: A shape does not fit.
            InvalidModel: The file is not a valid model with these sizes.
            UnsupportedModel: NNAPI cannot express the operations with these sizes.
        """
        assert self.importer is not None
        model = self.importer(self.sized(shapes))
        return model if model.relaxed == self.relaxed else replace(model, relaxed=self.relaxed)

    def sized(self, shapes: Shapes) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all inputs, in order, with sizes for the open dimensions.

        Args:
            shapes: By name or in order. A mapping may leave out inputs without open dimensions.

        Raises:
            InvalidArgument: A name is unknown, or a shape is missing or does not fit.
        """
        declared = self.shapes
        names = ", ".join(map(short, declared))
        if not isinstance(shapes, Mapping) and not (isinstance(shapes, Sequence) and len(shapes) == len(declared)):
            raise InvalidArgument(f"shapes is {safe_repr(shapes)}, must be one shape for each of {names}")
        wanted = dict(declared)
        for name, shape in shapes_by_name(shapes, list(declared)).items():
            sizes, dims = dimensions(shape, f"shapes: {name}", 1), declared[name]
            if len(sizes) != len(dims) or any(dim not in (0, size) for size, dim in zip(sizes, dims, strict=True)):
                must = ", ".join(str(dim or "?") for dim in dims)
                raise InvalidArgument(f"shapes: {name} is {list(sizes)}, must be [{must}]")
            wanted[name] = sizes
        missing = [short(name) for name, dims in wanted.items() if 0 in dims]
        if missing:
            raise InvalidArgument(f"shapes: {', '.join(missing)} is missing, must be given")
        return wanted

    def outline(self) -> Model:
        """Return a model with the inputs and outputs, and no operations."""
        given = {name: getattr(self, name) for name in Model.__struct_fields__}
        return Model(**given)

    def require_sizes(self) -> NoReturn:
        """Raise ShapeNeeded."""
        open_inputs = [
            f"{short(name)} [{', '.join(str(d or '?') for d in dims)}]" for name, dims in self.shapes.items()
        ]
        raise ShapeNeeded(
            f"{self.name or 'model'}: the sizes of {', '.join(open_inputs)} decide its operations, must be given: "
            "--shape NAME=N,N, or model.at({NAME: (N, N)})"
        )

    def __reduce__(self) -> NoReturn:
        raise BadState("OpenModel: cannot be pickled; another process loads the file")
