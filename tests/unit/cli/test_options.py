from __future__ import annotations

import pytest
import torch
import typer

from maskgrad.cli.options import usable_device, writable_directory


def test_the_cpu_is_usable() -> None:
    assert usable_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["abacus", "meta", "cuda:99", ""])
def test_an_unusable_device_is_refused(name: str) -> None:
    with pytest.raises(typer.BadParameter, match="cannot be used here"):
        usable_device(name)


def test_a_folder_is_made_and_left_empty(tmp_path) -> None:
    writable_directory(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize("below", ["", "folder"])
def test_a_file_in_the_way_is_refused_and_kept(tmp_path, below: str) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(typer.BadParameter, match="cannot write to"):
        writable_directory(file / below)
    assert file.read_text() == "precious"
