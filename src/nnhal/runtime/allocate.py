"""`nnhal.allocate`: memory for inputs and outputs of compiled models, by the roles that it will have."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnhal.base.answers import safe_repr
from nnhal.base.errors import InvalidArgument
from nnhal.runtime.allocation import Allocation, Use, allocate_for
from nnhal.runtime.by_shape import CompiledByShape
from nnhal.runtime.compiled import Compiled

ROLE = "(compiled, 'input' or 'output', number or name)"
Role = tuple[Any, ...]  # (compiled, "input" or "output", number or name), and a frequency if it is known


def allocate(roles: Sequence[Role], shape: Sequence[int] | None = None) -> Allocation:
    """Allocate memory for inputs and outputs of compiled models, on the device that runs them.

    If the roles lie on several devices, or the driver refuses, the memory is a shared pool, and `Allocation.reason` has
    the reason.

    Args:
        roles: The uses of the memory, each `(compiled, "input" or "output", number or name)`. A fourth item is the
            relative frequency of the use, in (0, 1].
        shape: The dimensions that the models leave open; 0 for one that changes from use to use.

    Returns:
        The memory. Pass it in place of an array.

    Raises:
        InvalidArgument: A role is invalid, or the roles contradict each other.
    """
    alone = isinstance(roles, tuple) and len(roles) > 1 and isinstance(roles[0], Compiled) and isinstance(roles[1], str)
    if not isinstance(roles, Sequence) or alone:
        raise InvalidArgument(f"allocate: roles are {safe_repr(roles)}, must be a list of {ROLE}")
    if not roles:
        raise InvalidArgument(f"allocate: no role is given, must be at least one {ROLE}")
    return allocate_for([_role(n, role) for n, role in enumerate(roles)], shape, renewed=True)


def _role(number: int, role: Role) -> Use:
    if not isinstance(role, tuple | list) or len(role) not in (3, 4) or not isinstance(role[0], Compiled):
        raise InvalidArgument(f"allocate: role {number} is {safe_repr(role)}, must be {ROLE}")
    compiled, kind, name = role[:3]
    if isinstance(compiled, CompiledByShape):
        raise InvalidArgument(
            f"allocate: role {number} is of a model for several shapes, must be of compiled.at(shapes)"
        )
    caller = compiled._caller
    caller.check_open()
    if not isinstance(kind, str) or kind not in ("input", "output"):
        raise InvalidArgument(f"allocate: role {number} is for {safe_repr(kind)}, must be 'input' or 'output'")
    specs, places = (compiled.inputs, caller.edge.given) if kind == "input" else (compiled.outputs, caller.edge.kept)
    names = [spec.name for spec in specs]
    at = names.index(name) if isinstance(name, str) and name in names else name
    if isinstance(at, bool) or not isinstance(at, int | np.integer) or not 0 <= at < len(specs):
        there = ", ".join(f"{n} ({name!r})" for n, name in enumerate(names))
        raise InvalidArgument(f"allocate: role {number} is for {kind} {safe_repr(name)}, must be one of {there}")
    return Use(caller.whole, caller.plan, kind == "output", places[at], role[3] if len(role) == 4 else 1.0)
