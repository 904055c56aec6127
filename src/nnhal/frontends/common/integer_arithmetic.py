"""int32 arithmetic without an NNAPI operation, composed from ADD, SUB, MUL and DIV, which rounds down."""

from nnhal.base.operands import Value
from nnhal.frontends.common.terms import Term
from nnhal.frontends.common.writing import OperationWriter
from nnhal.ops.schema import B8

EXPONENT_BITS = 5  # powers above 31 overflow, except those of -1, 0 and 1
TOP = 30  # the greatest power of 2 within int32


def plain(t: OperationWriter, name: str, x: Term, y: Term) -> Term:
    """Write arithmetic without activation; either input may be a constant."""
    return t.make(name, x, y, activation=0)


def truncated_quotient(t: OperationWriter, x: Term, y: Term) -> Term:
    """Return x / y rounded towards 0: add one to a negative quotient that was rounded down and is not exact."""
    down = plain(t, "DIV", x, y)
    return towards_zero(t, down, plain(t, "SUB", x, plain(t, "MUL", down, y)))


def towards_zero(t: OperationWriter, down: Term, rest: Term) -> Term:
    """Round a quotient, which was rounded down and left a rest, towards 0."""
    negative = t.make("LESS", down, t.scalar(0, down), like=Value(B8))
    inexact = t.make("NOT_EQUAL", rest, t.scalar(0, rest), like=Value(B8))
    up = plain(t, "ADD", down, t.scalar(1, down))
    return t.make("SELECT", t.make("LOGICAL_AND", negative, inexact), up, down, like=down)


def power(t: OperationWriter, x: Term, y: Term) -> Term:
    """Return x to the power of y >= 0, by squaring.

    Exponents are clamped to 30 or 31, whichever has the same parity.
    """
    odd = parity(t, y)
    limit = plain(t, "ADD", odd, t.scalar(TOP, y))
    left = t.make("MINIMUM", y, limit)
    result, square = t.scalar(1, x), x
    for bit in range(EXPONENT_BITS):
        half = plain(t, "DIV", left, t.scalar(2, left))
        taken = parity(t, left)
        factor = plain(t, "ADD", plain(t, "MUL", taken, plain(t, "SUB", square, t.scalar(1, x))), t.scalar(1, x))
        result = plain(t, "MUL", result, factor)
        left = half
        if bit < EXPONENT_BITS - 1:
            square = plain(t, "MUL", square, square)
    return result


def modulo(t: OperationWriter, x: Term, size: int) -> Term:
    """Return x modulo a number above 0, as a number from 0 on."""
    whole = t.scalar(size, x)
    return plain(t, "SUB", x, plain(t, "MUL", plain(t, "DIV", x, whole), whole))


def parity(t: OperationWriter, x: Term) -> Term:
    """Return x modulo 2."""
    return modulo(t, x, 2)
