"""What the doctor does not do yet: the tests hold it to these lists."""

from __future__ import annotations

__all__ = ["COMMAND", "FORMS", "KNOWN"]

#: by program of the corpus "scripts", how it is misjudged
KNOWN: dict[str, tuple[str, ...]] = {
    # the line before: NumPy's data are compared run by run, in which a copy that moved differs already
    "losses.ids_of_numpy_see_the_next_token": ("examine wrong", "watch wrong"),
    "packed.positions_counted_on": ("examine wrong",),
}

#: programs of ``forms.py`` that are missed, alarms, or found at another line
FORMS: tuple[str, ...] = ()

#: programs that the command misjudges
COMMAND: tuple[str, ...] = ("losses.ids_of_numpy_see_the_next_token",)
