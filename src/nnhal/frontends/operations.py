"""A method for every operation; type checkers and editors read operations.pyi, which docs/generate_stubs.py writes."""

from nnhal.base.codes import OperationType
from nnhal.frontends.signatures import describe, method_name, signature
from nnhal.ops import OPS


class _Method:
    """A method that is made from its operation's record when it is first looked up: a program loads the records it uses."""

    def __init__(self, operation):
        self._operation = operation

    def __get__(self, instance, owner=None):
        record = OPS[self._operation]

        def operation(self, *arguments, **named):
            return self.operation(record.name, *arguments, **named)

        operation.__name__, operation.__doc__ = method_name(record.name), describe(record)
        operation.__qualname__ = f"Builder.{operation.__name__}"
        operation.__signature__ = signature(record)
        setattr(Operations, operation.__name__, operation)
        return operation.__get__(instance, owner)


class Operations:
    """The operations as methods, added to the class by name."""


for _name in OperationType.__members__:
    if _name in OPS:
        setattr(Operations, method_name(_name), _Method(_name))
