"""A method for every operation; type checkers and editors read operations.pyi, which docs/generate_stubs.py writes."""

from nnhal.frontends.signatures import describe, method_name, records, signature


def _method(record):
    def operation(self, *arguments, **named):
        return self.operation(record.name, *arguments, **named)

    operation.__name__, operation.__doc__ = method_name(record), describe(record)
    operation.__qualname__ = f"Builder.{operation.__name__}"
    operation.__signature__ = signature(record)
    return operation


class Operations:
    """The operations as methods, added to the class by name."""


for _record in records():
    setattr(Operations, method_name(_record), _method(_record))
