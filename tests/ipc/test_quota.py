"""Quotas: one table whose limits add up to what the process has, and an exact count of what each client claims."""

import gc
import resource
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnhal.base.errors import ResourceExhausted
from nnhal.ipc.service import quota
from nnhal.ipc.service.quota import Capacity, Claim, ClientShare, Quotas, QuotaTable
from tests.execution import run_python
from tests.ipc.support import CAPACITY, a_share
from tests.waiting import NS, Clock, together

TERA = 1 << 40
CAPACITIES = st.builds(
    Capacity,
    descriptors=st.integers(0, 1 << 20),
    threads=st.integers(0, 4096),
    mappings=st.integers(0, 1 << 17),
    addresses=st.integers(0, 1 << 47),
    memory=st.integers(0, 1 << 40),
)

# --------------------------------------------------------------------------------------------------------------- table


@settings(max_examples=200)
@given(CAPACITIES, st.booleans())
def test_what_all_clients_may_hold_together_is_never_more_than_there_is(capacity: Capacity, shared: bool) -> None:
    table = QuotaTable(capacity, shared=shared)
    assert 1 <= table.rows["connections"].most <= table.clients <= (quota.CLIENTS if shared else 1)
    for name, total in table.capacity._asdict().items():
        row = table.rows[name]
        assert table.clients * row.own + row.common <= total and row.most == row.own + row.common
        assert total == capacity._asdict()[name] or table.clients == 1  # else the kernel refuses what there is not


@settings(max_examples=200)
@given(CAPACITIES, st.booleans())
def test_what_is_kept_for_a_client_is_enough_to_connect_and_to_execute(capacity: Capacity, shared: bool) -> None:
    table = QuotaTable(capacity, shared=shared)
    quotas = Quotas(table)
    for n in range(table.clients):
        share = quotas.connect(n)
        share.base = None if share.base is None else share.base.moved_to()
        keep = [share.take(**quota.ENDS), share.take(**table.worker), share.take(lanes=1), share.take(lanes=1)]
        share.kept = keep  # type: ignore[attr-defined]
    for name, total in table.capacity._asdict().items():
        assert sum(used[name] for _, used in quotas.usage()) <= total


@settings(max_examples=200)
@given(CAPACITIES, st.booleans())
def test_each_thing_can_be_had_as_often_as_its_limit_says_by_a_client_alone(capacity: Capacity, shared: bool) -> None:
    table = QuotaTable(capacity, shared=shared)
    for row in table.rows.values():
        if row.name not in (*Capacity._fields, "connections"):
            share = Quotas(table).connect(1)
            claim = share.take(**{row.name: row.most}) if row.most > 1 else None  # one may be more than there is
            assert claim is None or share.used[row.name] == row.most


def test_the_limits_of_this_process_are_where_the_capacity_comes_from() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert hard == resource.RLIM_INFINITY or hard >= 4096, "this test needs 4096 descriptors"
    capacity = Capacity.of_process(4096, 8 << 30)
    assert capacity.descriptors == 4096 - 128 and capacity.memory <= 2 << 30
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    assert capacity.threads * (stack if stack != resource.RLIM_INFINITY else 8 << 20) <= 4 << 30
    assert capacity.mappings <= int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii")) // 2


NONE = resource.RLIM_INFINITY
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({}, Capacity(3872, 1024, 15_000, 1 << 46, 4 * GIB)),
        ({"NOFILE": (50, 1000)}, Capacity(872, 1024, 15_000, 1 << 46, 4 * GIB)),  # the soft one will be raised
        ({"NOFILE": (50, 200)}, Capacity(100, 1024, 15_000, 1 << 46, 4 * GIB)),  # half for the process itself
        ({"NOFILE": (50, 256)}, Capacity(128, 1024, 15_000, 1 << 46, 4 * GIB)),
        ({"NOFILE": (50, 258)}, Capacity(130, 1024, 15_000, 1 << 46, 4 * GIB)),
        ({"DATA": (GIB, NONE)}, Capacity(3872, 64, 15_000, 1 << 46, GIB // 4)),
        ({"AS": (GIB, NONE)}, Capacity(3872, 64, 15_000, GIB // 2, GIB // 4)),
        ({"AS": (GIB, NONE), "DATA": (MIB * 512, NONE)}, Capacity(3872, 32, 15_000, GIB // 2, MIB * 128)),
        ({"STACK": (64 * MIB, NONE)}, Capacity(3872, 128, 15_000, 1 << 46, 4 * GIB)),
        ({"STACK": (1, NONE), "DATA": (64 * MIB, NONE)}, Capacity(3872, 512, 15_000, 1 << 46, 16 * MIB)),  # 64 KiB
        ({"NPROC": (100, 300)}, Capacity(3872, 50, 15_000, 1 << 46, 4 * GIB)),
    ],
    ids=str,
)
def test_the_capacity_of_a_process_is_what_its_limits_leave(
    limits: dict[str, tuple[int, int]], wanted: Capacity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 4,000 descriptors and 16 GiB, stacks of 8 MiB and 30,000 mappings, as docs/contributing/ipc.md has it."""
    held = {getattr(resource, f"RLIMIT_{name}"): pair for name, pair in limits.items()}
    monkeypatch.setattr(resource, "getrlimit", lambda which: held.get(which, (NONE, NONE)))
    monkeypatch.setattr(quota, "_map_count", lambda: 30_000)
    assert Capacity.of_process(4000, 16 * GIB) == wanted


def test_where_the_kernel_does_not_tell_it_allows_65530_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii")
    assert quota._map_count() == int(said)
    for text in (FileNotFoundError, "many"):

        def read(_: Path, encoding: str, text: object = text) -> object:
            if isinstance(text, str):
                return text
            raise FileNotFoundError

        monkeypatch.setattr(Path, "read_text", read)
        assert quota._map_count() == 65_530


def test_three_quarters_are_divided_among_the_clients_and_what_messages_carry_counts_where_there_are_others() -> None:
    shared, own = QuotaTable(CAPACITY, shared=True), QuotaTable(CAPACITY, shared=False)
    for name, total in CAPACITY._asdict().items():
        row = shared.rows[name]
        assert row.own == total * 3 // 4 // 64 and row.common == total - 64 * row.own
        assert (own.rows[name].own, own.rows[name].common) == (total, 0)
    two = next(
        table
        for descriptors in range(200, 4000, 20)
        if (table := QuotaTable(CAPACITY._replace(descriptors=descriptors), shared=True)).clients == 2
    )
    for table, carried, answer in ((two, 64, 3), (shared, 64, 3), (own, 0, 0)):
        assert table.rows["lanes"].costs["descriptors"] == 1 + carried + answer
        assert table.rows["connections"].costs["descriptors"] == 5 + carried + answer
        assert table.worker == {"threads": 1, "descriptors": answer}
    assert quota.ENDS == {"threads": 1} and own.rows["connections"].most == 1
    assert (two.rows["connections"].most, shared.rows["connections"].most) == (1, 32)


UNDER = """
import resource
from nnhal.ipc.service.quota import Capacity, QuotaTable
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 1000))
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
capacity = Capacity.of_process(32768, 16 << 30)
import sys
print(capacity.descriptors, capacity.memory, capacity.threads * (8 << 20) <= 1 << 29, "numpy" in sys.modules)
"""


def test_a_process_of_less_has_quotas_of_less_and_knows_before_numpy_starts_threads() -> None:
    done = run_python(UNDER)
    assert done.stdout == f"{1000 - 128} {1 << 28} True False\n"


def test_limits_that_do_not_add_up_are_found_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    table = QuotaTable(CAPACITY, shared=True)
    table._check()
    table.capacity = table.capacity._replace(threads=table.capacity.threads - 1)
    with pytest.raises(ValueError, match=r"clients may have threads of .*, must add up to 1023"):
        table._check()


def test_a_client_alone_has_much_and_an_own_process_gives_it_all() -> None:
    shared, own = QuotaTable(CAPACITY, shared=True), QuotaTable(CAPACITY, shared=False)
    assert shared.clients == 64 and own.clients == 1
    for name, total in CAPACITY._asdict().items():
        assert own.rows[name].most == total
        assert shared.rows[name].most >= total // 4
    for table in (shared, own):
        assert table.rows["memories"].most >= 1000 and table.rows["lanes"].most == 64


# --------------------------------------------------------------------------------------------------------------- count

THINGS = [name for name in QuotaTable(CAPACITY, shared=True).rows if name not in ("connections", *Capacity._fields)]
SMALL = Capacity(descriptors=3000, threads=90, mappings=1500, addresses=10 * TERA, memory=200 << 20)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("connect"), st.integers(0, 3), st.just({})),
        st.tuples(st.just("end"), st.integers(0, 9), st.just({})),
        st.tuples(st.just("give"), st.integers(0, 99), st.just({})),
        st.tuples(st.just("pass"), st.integers(0, 99), st.just({})),
        st.tuples(st.just("drop"), st.integers(0, 99), st.just({})),
        st.tuples(
            st.just("take"),
            st.integers(0, 9),
            st.dictionaries(
                st.sampled_from([*THINGS, "addresses", "memory", "descriptors"]), st.integers(0, 2000), max_size=3
            ),
        ),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(STEPS)
def test_the_count_is_never_over_a_limit_never_below_zero_and_zero_at_the_end(
    steps: list[tuple[str, int, dict]],
) -> None:
    table = QuotaTable(SMALL, shared=True)
    quotas, shares, claims = Quotas(table), list[ClientShare](), list[tuple[ClientShare, dict[str, int], Claim]]()
    for what, n, units in steps:
        if what == "connect":
            try:
                shares.append(quotas.connect(n))
            except ResourceExhausted:
                there = [pid for pid, _ in quotas.usage()]
                assert len(there) == table.clients or there.count(n) == table.rows["connections"].most
        elif what == "end" and shares:
            shares.pop(n % len(shares)).end()
        elif what == "take" and shares:
            share = shares[n % len(shares)]
            before = quotas.usage()
            try:
                claims.append((share, table.cost(units), share.take(**units)))
            except ResourceExhausted:
                assert quotas.usage() == before  # all or nothing
        elif claims and what in ("give", "pass", "drop"):
            share, cost, claim = claims.pop(n % len(claims))
            if what == "pass":
                claims.append((share, cost, claim.moved_to()))
                claim.give()
            elif what == "give":
                claim.give()
                claim.give()
            del claim
        _sound(quotas, shares, claims)
    for share in shares:
        share.end()
    claims.clear()
    assert quotas.usage() == [] and not any(quotas._common.values())


def _sound(quotas: Quotas, shares: list[ClientShare], claims: list[tuple[ClientShare, dict[str, int], Claim]]) -> None:
    """What is counted is what is held: by hand, and within the limits."""
    table, usage = quotas.table, quotas.usage()
    for share in shares:
        expected = table.cost({"connections": 1})
        for of, cost, _ in claims:
            if of is share:
                expected = {name: expected.get(name, 0) + cost.get(name, 0) for name in {*expected, *cost}}
        assert {name: used for name, used in share.used.items() if used} == {n: u for n, u in expected.items() if u}
    for name, row in table.rows.items():
        used = [each[name] for _, each in usage]
        assert all(0 <= u <= row.most for u in used)
        if name in Capacity._fields:
            assert sum(used) <= table.capacity._asdict()[name]
            assert quotas._common[name] == sum(max(0, u - row.own) for u in used) <= row.common


def test_what_is_kept_for_a_client_is_there_whatever_the_others_take() -> None:
    quotas = Quotas(QuotaTable(CAPACITY, shared=True))
    greedy, keep = quotas.connect(1), []
    with pytest.raises(ResourceExhausted, match=r"threads: .* in common, now 0"):
        for _ in range(quotas.table.clients):  # several connections, as far as the common part lasts
            for thing in ("bursts", "fenced", "lanes"):
                for _ in range(64):
                    try:
                        keep.append(greedy.take(**{thing: 1}))
                    except ResourceExhausted as refused:
                        if "in common" in str(refused):
                            raise
                        break
            greedy = quotas.connect(1)
    modest = quotas.connect(2)
    rows, own = quotas.table.rows, modest.used
    claim = modest.take(threads=rows["threads"].own - own["threads"])
    with pytest.raises(ResourceExhausted, match=r"threads: this client has .* its own .* and what is left of .* now 0"):
        modest.take(threads=1)
    claim.give()
    modest.take(bursts=1)


def test_a_client_that_is_gone_keeps_its_place_until_all_it_had_is_given_back() -> None:
    quotas = Quotas(QuotaTable(CAPACITY, shared=False))
    share = quotas.connect(1)
    hangs = share.take(objects=1)
    share.end()
    with pytest.raises(ResourceExhausted, match="service: has 1 clients, must be at most 1"):
        quotas.connect(2)
    hangs.give()
    quotas.connect(2)


def test_a_refusal_says_who_has_what_the_limit_and_what_to_let_go() -> None:
    share = a_share()
    keep = share.take(bursts=63)
    with pytest.raises(
        ResourceExhausted, match=r"^bursts: this client has 63 and wants 2 more, must be at most 64; close some$"
    ):
        share.take(bursts=2)
    share.take(bursts=1)
    keep.give()


def test_what_is_given_back_by_a_finalizer_in_the_midst_of_a_count_is_counted() -> None:
    """Collections come at any time, also under the lock: a hold in a circle goes back in the middle of a take."""
    share, threshold = a_share(), gc.get_threshold()
    before = dict(share.used)

    class Circle:
        def __init__(self) -> None:
            self.me, self.claim = self, share.take(objects=1)

    gc.set_threshold(1)
    try:
        for _ in range(2000):
            Circle()
            share.take(bindings=1).give()
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert share.quotas.usage()[0][1] == before


def test_takes_and_gives_of_many_threads_leave_nothing() -> None:
    quotas = Quotas(QuotaTable(CAPACITY, shared=True))
    share, other = quotas.connect(1), quotas.connect(2)
    before = quotas.usage()

    def work(mine: ClientShare) -> None:
        for n in range(500):
            with mine.take(bursts=n % 3, memory=n) as claim:
                (claim.moved_to() if n % 2 else claim).give()

    together([partial(work, mine) for mine in (share, other) * 4])
    assert quotas.usage() == before


# ---------------------------------------------------------------------------------------------------------------- docs


def documented() -> str:
    """The table of a machine with so much that no limit is less for want of it."""
    shared = QuotaTable(CAPACITY, shared=True)
    own = QuotaTable(CAPACITY._replace(descriptors=quota.DESCRIPTORS[False] - 128), shared=False)
    head = "quota", "a client alone, at most", "reserved for each", "in a separate process", "a unit takes"
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for name, row in shared.rows.items():
        size = _size if name in ("addresses", "memory") else "{:,}".format
        costs = ", ".join(f"{(_size if n == 'memory' else str)(cost)} {n}" for n, cost in row.costs.items() if cost)
        kept = size(row.own) if row.own else ""
        lines.append(f"| `{name}` | {size(row.most)} | {kept} | {size(own.rows[name].most)} | {costs} |")
    return "\n".join(lines)


def _size(count: int) -> str:
    power, unit = max((p, u) for p, u in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")) if count >= 1 << p)
    return f"{count / (1 << power):.3g} {unit}"


def test_the_documentation_has_the_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "contributing" / "ipc.md").read_text(encoding="utf-8")
    assert documented() in text, f"docs/contributing/ipc.md must have\n{documented()}"


# -------------------------------------------------------------------------------------------------------- long messages


def test_long_messages_have_8_mib_at_once_and_512_kib_a_second() -> None:
    clock = Clock(0)
    long = quota.LongMessages(clock.monotonic)
    assert [long.pause(4 * MIB) for _ in range(4)] == [0, 0, 8, 16]  # whoever comes later waits longer
    clock.ns = 16 * NS
    assert long.pause(MIB) == 2 and not long.has_recovered
    clock.ns = int(33.9 * NS)
    assert not long.has_recovered
    clock.ns = 34 * NS
    assert long.has_recovered and long.pause(20 * MIB) == 0  # one that is larger than that waits for no more
    assert long.pause(1) == pytest.approx(12 * MIB / quota.LONG_A_SECOND, rel=1e-3)


def test_long_messages_are_counted_by_process_whatever_connections_it_closes_and_opens() -> None:
    clock = Clock(0)
    quotas = Quotas(QuotaTable(CAPACITY, shared=True), clock.monotonic)
    first, second, other = quotas.connect(1), quotas.connect(1), quotas.connect(2)
    assert first.long is second.long is not other.long
    first.long.pause(8 * MIB)
    for share in (first, second):
        share.end()
    del first, second, share
    gc.collect()
    again = quotas.connect(1)
    assert again.long.pause(MIB) == 2 and quotas.connect(2).long is other.long
    again.end()
    del again
    clock.ns = 100 * NS
    third = quotas.connect(3)
    assert set(quotas._long) == {3, other.pid} and third.pid == 3  # those that have rested and gone are forgotten
