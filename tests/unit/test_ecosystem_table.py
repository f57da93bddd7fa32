"""The page "With other libraries" says what the tests in tests/ecosystem declare; none of the packages is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ecosystem.table import FILES, PAGE, VERDICTS, declared, table


def test_the_committed_table_is_up_to_date() -> None:
    assert PAGE.read() == table(), "write it anew with: python -m tests.ecosystem.table"


@pytest.mark.every
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_declares_rows_of_the_table(path: Path) -> None:
    rows = declared(path)
    assert rows
    for row in rows:
        assert row.library
        assert row.what
        assert bool(row.way) == (row.verdict != "works")
        assert "|" not in "".join(row)


def test_declarations_are_read_without_importing_what_they_test(tmp_path: Path) -> None:
    file = tmp_path / "test_something.py"
    file.write_text(
        'import not_there\n\n@works("a", "b")\n@refused("a", "c", "d " "e")\n@other("f")\ndef test_it(): ...\n'
    )
    assert [tuple(row) for row in declared(file)] == [("a", "works", "b", ""), ("a", "refused", "c", "d e")]
    assert set(VERDICTS) == {"works", "one_line", "refused", "beware"}
