"""The table of operations loads a family when one of its records is asked for, and shows no difference."""

from importlib import import_module
from pkgutil import iter_modules

import pytest

import nnhal.ops
from nnhal.ops import OPS
from nnhal.ops.families import FAMILIES
from tests.execution import run_python


def printed(code: str) -> str:
    return run_python(code).stdout


def test_each_record_lies_in_the_family_that_the_table_names() -> None:
    for module in iter_modules(nnhal.ops.__path__):
        import_module(f"nnhal.ops.{module.name}")
    named = {name for names in FAMILIES.values() for name in names.split()}
    assert {name for name in dict.__iter__(OPS) if not OPS[name].code >> 16} == named
    assert len(named) == sum(len(names.split()) for names in FAMILIES.values())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_brings_all_its_records_and_need_not_bring_others(family: str) -> None:
    code = f"from nnhal.ops import OPS; import nnhal.ops.{family}; print(*dict.__iter__(OPS))"
    assert set(FAMILIES[family].split()) <= set(printed(code).split())


def test_only_the_family_that_is_asked_for_is_loaded() -> None:
    code = "from nnhal.ops import OPS; assert 'SVDF' in OPS; OPS['RELU']; print(*dict.__iter__(OPS))"
    assert printed(code).split() == FAMILIES["activation"].split()


def test_the_order_is_the_same_whichever_was_loaded_first() -> None:
    code = "from nnhal.ops import OPS; OPS['SVDF']; OPS.get('ADD'); print(*OPS); print(*[r.name for r in OPS.values()])"
    assert printed(code).splitlines() == [" ".join(name for names in FAMILIES.values() for name in names.split())] * 2


def test_what_no_family_has_is_not_there() -> None:
    assert "NONE_SUCH" not in OPS and OPS.get("NONE_SUCH") is None
    with pytest.raises(KeyError):
        OPS["NONE_SUCH"]
    assert len(OPS) == len(list(OPS)) == len(OPS.items())
