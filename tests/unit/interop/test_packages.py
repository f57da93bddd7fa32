"""Without the optional packages: a light import, and an error that names the extra."""

from __future__ import annotations

import sys

import pytest
import torch

import maskgrad as mg


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("pandas", lambda: mg.from_pandas(None)),
        ("pandas", lambda: mg.interop.to_pandas(mg.masked(torch.ones(1)))),
        ("pyarrow", lambda: mg.from_arrow(None)),
        ("pyarrow", lambda: mg.interop.to_arrow(mg.masked(torch.ones(1)))),
        ("scipy", lambda: mg.from_scipy(None)),
        ("scipy", lambda: mg.interop.to_scipy(mg.masked(torch.ones(1)))),
    ],
    ids=["from pandas", "to pandas", "from arrow", "to arrow", "from scipy", "to scipy"],
)
def test_a_package_that_is_absent(package: str, call: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(mg.MissingDependencyError, match=rf"'{package}'.*pip install 'maskgrad\[interop\]'"):
        call()
