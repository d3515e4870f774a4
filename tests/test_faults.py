"""The list of `python -m tests.faults` is about the code as it is."""

import ast

import pytest

from tests.faults import FAULTS, ROOT, Fault, planted


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{i} {one.path}" for i, one in enumerate(FAULTS)])
def test_each_fault_can_be_planted(fault: Fault, tmp_path):
    target = tmp_path / fault.path
    target.parent.mkdir(parents=True)
    before = (ROOT / fault.path).read_text(encoding="utf-8")
    target.write_text(before, encoding="utf-8")
    with planted(tmp_path, fault):
        assert target.read_text(encoding="utf-8") != before
        ast.parse(target.read_text(encoding="utf-8"))
    assert target.read_text(encoding="utf-8") == before
    assert all((ROOT / room).exists() for room in fault.tests.split())
