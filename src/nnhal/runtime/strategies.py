"""Placement strategies: by declared or measured performance, on one device, by rules, or by a function."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast, get_args

from nnhal.base.answers import safe_repr
from nnhal.base.codes import Preference, operation_name, operation_names, type_name, type_names
from nnhal.base.errors import InvalidArgument, UnsupportedModel
from nnhal.base.log import logger
from nnhal.base.names import suggestion
from nnhal.base.operands import is_tensor
from nnhal.base.records import Record, replace
from nnhal.hal.device import OperationGroup, Verdict
from nnhal.model.graph import Model, Subgraph
from nnhal.model.parts import live_operands, subgraphs_within
from nnhal.runtime.costs import seconds
from nnhal.runtime.partition import BY_HAND, SINGLE, Measured, Offer, Partition, partition

_log = logger("compilation")


class Rule(Record, frozen=True):
    """A rule that assigns operations to one device. It matches operations that fit all its patterns.

    Patterns are those of a shell (`*`, `?`, `[...]`).

    Attributes:
        device: The label of the device, as in `Placement`.
        operation: The operation type, such as `CONV_2D` or `*_POOL_2D`; or `#7` for the operation of that number in the
            main subgraph.
        name: The name of the operation, or of an operand that it writes.
        type: The type of any tensor that it reads or writes, such as `TENSOR_QUANT8_*`.
    """

    device: str
    operation: str = "*"
    name: str = "*"
    type: str = "*"

    @property
    def numbered(self) -> bool:
        """Whether it names one operation by its number."""
        return self.operation.startswith("#")

    def fits(self, graph: Subgraph, index: int) -> bool:
        """Whether it matches this operation.

        Args:
            graph: The subgraph of the operation.
            index: The number of the operation there.
        """
        from fnmatch import fnmatchcase

        operation, operands = graph.operations[index], graph.operands
        code = operation_name(operation.type)
        called = [operation.name, *(operands[i].name for i in operation.outputs)]
        around = (operands[i].type for i in (*operation.inputs, *operation.outputs))
        types = [type_name(type) for type in around if is_tensor(type)]
        return (
            (fnmatchcase(code, self.operation) or self.operation == f"#{index}")
            and any(fnmatchcase(each, self.name) for each in called)
            and (self.type == "*" or any(fnmatchcase(each, self.type) for each in types))
        )


Decide = Callable[[Model, Sequence[Offer]], Sequence[str]]
Named = Literal["stated", "measured", "single", "ordered"]
Asked = Named | Rule | Sequence[Rule] | Decide | None
KINDS: tuple[str, ...] = get_args(Named)
DECIDES: dict[str, Decide] = {}
"""The functions of named strategies that decide for each operation, as an application's function does."""


class Strategy(Record, frozen=True):
    """How to place operations.

    kind: its name if it has one, but for "single". single: on one device. rules, decide: by rules or a function. inside:
    whether for a subgraph of the requested model.
    """

    kind: str = ""
    single: bool = False
    rules: tuple[Rule, ...] = ()
    decide: Decide | None = None
    inside: bool = False

    @classmethod
    def asked(cls, given: Any) -> "Strategy":
        """Return the strategy that `compile` was asked for; InvalidArgument for an invalid one."""
        if given is None:
            return cls()
        if isinstance(given, str):
            if given not in KINDS:
                raise InvalidArgument(
                    f"placement is {given!r}, must be one of {', '.join(KINDS)}, rules, or a function"
                )
            return cls(single=True) if given == "single" else cls(given, decide=DECIDES.get(given))
        if callable(given):
            return cls(decide=given)
        rules = (given,) if isinstance(given, Rule) else tuple(given) if isinstance(given, Sequence) else ()
        if not rules or not all(isinstance(rule, Rule) and _texts(rule) for rule in rules):
            told = f"one of {', '.join(KINDS)}, rules (nnhal.Rule), or a function"
            raise InvalidArgument(f"placement is {safe_repr(given)}, must be {told}")
        return cls(rules=rules)


def _texts(rule: Rule) -> bool:
    return all(isinstance(getattr(rule, name), str) for name in rule.__struct_fields__)


def placed(
    model: Model,
    offers: Sequence[Offer],
    preference: Preference,
    strategy: Strategy,
    measured: Measured | None = None,
) -> Partition:
    """Partition a model by a strategy.

    Args:
        model: The model.
        offers: The offers of the candidate devices. Rules for other devices have no effect.
        preference: The preference, which selects what to minimise.
        strategy: The strategy.
        measured: The measured costs, if there are some.

    Raises:
        UnsupportedModel: No device supports an operation; the message has each device's reason.
        InvalidArgument: A function returned an invalid placement.
    """
    single = strategy.single
    wanted = _single(model, offers, preference, measured) if single else manual_placement(model, offers, strategy)
    if not wanted:
        return partition(model, offers, preference, measured)
    found = partition(model, restrict_offers(offers, wanted), preference, measured)
    choices = [
        choice._replace(reason=wanted[choice.operation][1], kind=SINGLE if single else BY_HAND)
        if choice.operation in wanted and choice.device
        else choice
        for choice in found.choices
    ]
    return replace(found, choices=tuple(choices))


def manual_placement(model: Model, offers: Sequence[Offer], strategy: Strategy) -> dict[int, tuple[str, str]]:
    """Return the operations that rules or a function place, with the device's label and the reason."""
    if strategy.decide is not None:
        who = f"the strategy {strategy.kind!r}" if strategy.kind else "the application"
        return _decided(model, offers, strategy.decide, who)
    there = {offer.device for offer in offers}
    rules = [rule for rule in strategy.rules if rule.device in there and not (strategy.inside and rule.numbered)]
    wanted = {}
    for n in live_operands(model) if rules else ():
        rule = next((rule for rule in rules if rule.fits(model.main, n)), None)
        if rule is not None:
            wanted[n] = rule.device, f"a rule places it on {rule.device}"
    return wanted


def check(strategy: Strategy, model: Model, labels: Sequence[str]) -> None:
    """Raise InvalidArgument for a rule with an unknown device, operation or type. Log a rule that matches nothing.

    In a subgraph every rule is valid: the whole model was checked, and a device may have made no offer for the
    subgraph.
    """
    for rule in () if strategy.inside else strategy.rules:
        if rule.device not in labels:
            told = f"must be one of {', '.join(labels)}{suggestion(rule.device, labels)}"
            raise InvalidArgument(f"placement: a rule is of device {rule.device!r}, {told}")
        inside = () if rule.numbered else (graph for graph in model.subgraphs if graph is not model.main)
        places = [(model.main, n) for n in live_operands(model)] + [
            (g, n) for g in inside for n in range(len(g.operations))
        ]
        if not any(rule.fits(graph, n) for graph, n in places):
            _require_known(rule, len(model.main.operations))
            _log.warning("placement: no operation of the model that runs is what a rule is about: %s", rule)


def log_ignored_rules(strategy: Strategy, model: Model, devices: Mapping[int, str]) -> None:
    """Log rules for operations inside control flow that another device runs whole. devices: by operation."""
    rules = [rule for rule in strategy.rules if not rule.numbered]
    for n, device in devices.items() if rules else ():
        operation = model.main.operations[n]
        places = [(graph, k) for graph in subgraphs_within(model, operation) for k in range(len(graph.operations))]
        first = (next((rule for rule in rules if rule.fits(*place)), None) for place in places)
        rule = next((rule for rule in first if rule is not None and rule.device != device), None)
        if rule is not None:
            whole = f"{operation_name(operation.type)} #{n} runs whole on {device}"
            _log.warning("placement: %s, though a rule is about what is inside: %s", whole, rule)


def _require_known(rule: Rule, count: int) -> None:
    """Raise InvalidArgument for a rule that no model, or not this one, can match. count: of its operations."""
    from fnmatch import filter as fitting

    if rule.numbered and rule.operation not in {f"#{n}" for n in range(count)}:
        told = f"must be #0{f' to #{count - 1}' if count > 1 else ''}" if count else "and the model has none"
        raise InvalidArgument(f"placement: a rule is of operation {rule.operation:.99}, {told}")
    operation = "*" if rule.numbered else rule.operation
    for what, pattern, names in ("operation", operation, operation_names()), ("type", rule.type, type_names()):
        if not fitting(names, pattern):
            told = f"must be the name of one, or a pattern that fits one{suggestion(pattern, names)}"
            raise InvalidArgument(f"placement: a rule is of {what} {safe_repr(pattern)}, {told}")


def restrict_offers(offers: Sequence[Offer], wanted: Mapping[int, tuple[str, str]]) -> list[Offer]:
    """Return the offers, with operations restricted to one device each. wanted: label and reason, by operation."""
    found = []
    for offer in offers:
        lost = {n: Verdict(False, why) for n, (device, why) in wanted.items() if device != offer.device}
        if lost:
            verdicts = [lost.get(n, verdict) for n, verdict in enumerate(offer.verdicts)]
            found.append(replace(offer, verdicts=verdicts, groups=list(_left(offer.groups, lost))))
        else:
            found.append(offer)
    return found


def _left(groups: Sequence[OperationGroup], lost: Mapping[int, Verdict]) -> Iterator[OperationGroup]:
    """Yield the groups without operations that go elsewhere, if enough operations are left."""
    for group in groups:
        rest = [n for n in group.operations if n not in lost]
        if len(rest) == len(group.operations):
            yield group
        elif group.at_least and len(rest) >= group.at_least:
            yield replace(group, operations=rest)


def _single(
    model: Model, offers: Sequence[Offer], preference: Preference, measured: Measured | None
) -> dict[int, tuple[str, str]]:
    """Place everything on the cheapest device that supports all of it."""
    costs: dict[str, float] = {}
    refused, work = [], seconds(model)
    for offer in offers:
        try:
            alone = partition(model, [offer], preference, measured)
        except UnsupportedModel as error:
            refused.append(f"{offer.device}: {error}")
            continue
        known = [forecast.seconds for forecast in alone.forecasts]
        stated = sum(c.costs.get(offer.device, 1.0) * work[c.operation] for c in alone.choices)
        costs[offer.device] = sum(known) if known else stated + offer.step
    if not costs:
        raise UnsupportedModel(
            f"no device supports the whole model, which placement 'single' needs: {'; '.join(refused)}"
        )
    best = min(costs, key=costs.__getitem__)
    return dict.fromkeys(live_operands(model), (best, f"all of the model is placed on {best}"))


def _decided(model: Model, offers: Sequence[Offer], decide: Decide, who: str) -> dict[int, tuple[str, str]]:
    """Call a function, and check the label that it returns for each operation; "" leaves it open. who: whose it is."""
    given = cast("Any", decide(model, offers))
    labels = [offer.device for offer in offers]
    count = len(model.main.operations)
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != count:
        raise InvalidArgument(
            f"placement: the function gave {safe_repr(given)}, must give a label for each of {count} operations"
        )
    for n, label in enumerate(given):
        if not isinstance(label, str) or label not in ("", *labels):
            told = f"must be one of {', '.join(labels)}, or '' for any"
            raise InvalidArgument(f"placement: the function gave {safe_repr(label)} for operation {n}, {told}")
    return {n: (given[n], f"{who} places it on {given[n]}") for n in live_operands(model) if given[n]}


def _ordered(model: Model, offers: Sequence[Offer]) -> list[str]:
    """Place each operation on the first device that supports it, in the order in which the devices are named.

    An operation that no device supports outside a group is left open. So is control flow that the runtime can execute:
    the order holds for the operations inside.
    """
    inside = {n for offer in offers for n in offer.interpreted}
    count = len(model.main.operations)
    found = (next((o.device for o in offers if o.takes(model, n)), "") for n in range(count))
    return ["" if n in inside else label for n, label in enumerate(found)]


DECIDES["ordered"] = _ordered
