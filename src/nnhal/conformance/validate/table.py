"""All checks: importing this module imports each family, which adds its checks to `CHECKS`."""

from nnhal.conformance.validate import cache_checks, limits, numbers, other_ways, outputs, queries, state
from nnhal.conformance.validate.check import CHECKS, ContractCheck

FAMILIES = queries, outputs, numbers, state, limits, other_ways, cache_checks

for _family in FAMILIES:  # in this order, not in that of their imports
    for _name in [name for name, each in CHECKS.items() if each.look.__module__ == _family.__name__]:
        CHECKS[_name] = CHECKS.pop(_name)


def of_operation(name: str) -> list[ContractCheck]:
    """Return the checks of an operation."""
    return [each for each in CHECKS.values() if not each.whole and (not each.only or name in each.only)]


def of_the_driver() -> list[ContractCheck]:
    """Return the checks of the driver as a whole."""
    return [each for each in CHECKS.values() if each.whole]
