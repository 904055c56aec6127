"""The extensions of `base` in C, or `plain` in their place where they were not built, each by itself."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnhal.base._gate import Gate
    from nnhal.base._mapping import Mapping
    from nnhal.base._owner import Owner
else:
    try:
        from nnhal.base._gate import Gate
    except ImportError:
        from nnhal.base.plain import Gate
    try:
        from nnhal.base._mapping import Mapping
    except ImportError:
        from nnhal.base.plain import Mapping
    try:
        from nnhal.base._owner import Owner
    except ImportError:
        from nnhal.base.plain import Owner

__all__ = ["Gate", "Mapping", "Owner"]
