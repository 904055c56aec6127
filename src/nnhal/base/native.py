"""The C extensions of `base`; `plain` replaces each one that is not built."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnhal.base import _gate, _mapping, _owner
else:
    try:
        from nnhal.base import _gate
    except ImportError:
        from nnhal.base import plain as _gate
    try:
        from nnhal.base import _mapping
    except ImportError:
        from nnhal.base import plain as _mapping
    try:
        from nnhal.base import _owner
    except ImportError:
        from nnhal.base import plain as _owner

Gate = _gate.Gate
Mapping = _mapping.Mapping
Owner = _owner.Owner
