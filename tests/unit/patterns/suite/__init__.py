"""The suite of all layouts: one that is declared for it inherits these tests.

    class TestOurs(LayoutSuite):
        layout = torch.sparse_csr
        masks = {"some": torch.tensor([[1, 0], [0, 1]]).bool(), "nothing": torch.zeros(2, 2).bool()}
        damages = {"pointers that fall": (lambda v, f, t: (v, f, [t[0].flip(0), t[1]]), "ascend")}

What may be declared stands in ``declaration.py``. A test asks for an ``example``, one of the masks that the layout can
hold; for a ``damage`` to its parts, or a ``refusal``; or for an ``operation``.
"""

from __future__ import annotations

import pytest

from tests.unit.patterns.suite.copies import Copies
from tests.unit.patterns.suite.operations import OPERATIONS, Operations
from tests.unit.patterns.suite.reading import Reading
from tests.unit.patterns.suite.tensors_of_torch import TensorsOfTorch
from tests.unit.patterns.suite.writing import Writing

__all__ = ["LayoutSuite"]


class LayoutSuite(Operations, Copies, Reading, Writing, TensorsOfTorch):
    def __init_subclass__(cls) -> None:
        """Leave out the tests of what a layout has not."""
        gone = [name for name in vars(TensorsOfTorch) if name.startswith("test_") and not cls.is_torchs]
        gone += [] if cls.damages else ["test_parts_that_contradict_each_other_are_refused"]
        gone += [] if cls.refused else ["test_what_it_cannot_hold_is_refused"]
        for name in gone:
            setattr(cls, name, None)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        choices = {
            "example": self.masks,
            "damage": self.damages,
            "refusal": self.refused,
            "operation": OPERATIONS,
        }
        for name, chosen in choices.items():
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, list(chosen))
