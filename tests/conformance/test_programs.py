"""Every record has a program or a reason for having none."""

from __future__ import annotations

from maskgrad.semantics.registry import OPERATIONS
from tests.conformance.programs import DATA_DEPENDENT, EXCLUDED, RECORDS
from tests.conformance.written_calls import WRITTEN


def test_every_record_has_a_program_or_a_reason() -> None:
    names = [operation.name for operation in OPERATIONS]
    assert {*RECORDS, *EXCLUDED} == {*names}
    assert not {*RECORDS} & {*EXCLUDED}
    assert {*names} >= {*DATA_DEPENDENT, *WRITTEN}
