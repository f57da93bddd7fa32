"""A file is complete or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from maskgrad.export.onnx import replaced_when_complete


def test_what_lies_beside_the_file_moves_with_it(tmp_path: Path) -> None:
    target = tmp_path / "model.onnx"
    target.write_text("old")
    with replaced_when_complete(target) as draft:
        draft.write_text("new")
        draft.with_name("model.onnx.data").write_text("weights")
        assert target.read_text() == "old"
    assert {part.name: part.read_text() for part in tmp_path.iterdir()} == {
        "model.onnx": "new",
        "model.onnx.data": "weights",
    }


def test_nothing_is_left_of_a_failure(tmp_path: Path) -> None:
    target = tmp_path / "model.onnx"
    target.write_text("old")
    with pytest.raises(KeyError), replaced_when_complete(target) as draft:  # noqa: PT012
        draft.write_text("half")
        raise KeyError
    assert [(part.name, part.read_text()) for part in tmp_path.iterdir()] == [("model.onnx", "old")]
