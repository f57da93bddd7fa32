"""How the inventory describes a tensor: its role, how that was recognised, and its axes."""

from __future__ import annotations

from maskgrad.doctor.batches import Key, tensor_of
from maskgrad.doctor.packed import is_structure
from maskgrad.doctor.roles import Roles
from maskgrad.doctor.signs import LABELS, LENGTHS, PADS, PAIRS, is_selection

__all__ = ["axes_of", "role_of"]


def role_of(roles: Roles, key: Key) -> tuple[str, str]:
    """The role of a tensor, and how that was recognised."""
    held, name = roles.inside[key], str(key)
    of = next((padding for padding in roles.paddings if key in padding.said_by), None)
    if key in roles.masks:
        if of is not None:
            return (
                "padding mask",
                f"what it covers in {of.key!r} is alike"
                if key in roles.proven
                else f"the padding of {of.key!r}",
            )
        core = roles.masks[key].core
        pairs = core.ndim > 1 and core.shape[-1] == core.shape[-2]
        if pairs or (PAIRS.search(name) and core.ndim > 2):
            return "attention mask", "its shape"
        if PADS.search(name) and not is_selection(key, "") and (bool(core.all()) or not bool(core.any())):
            return "padding mask", "its name; it covers nothing"
        return "selection mask", "two values"
    if key in roles.lengths and (of is not None or LENGTHS.search(name)):
        return "lengths", f"the ends of {of.key!r}" if of is not None else "its name"
    own = next((padding for padding in roles.paddings if padding.key == key), None)
    source = "" if own is None else own.source
    tensor = tensor_of(held)
    if is_structure(key) and "mask" not in name:
        return ("positions" if "pos" in name else "documents"), source or "its name"
    if LABELS.search(name) or source.startswith("labels"):
        return "labels", source or "its name"
    if tensor.ndim < 2:
        return ("labels" if not tensor.is_floating_point() else "data"), source or "its shape"
    if tensor.is_floating_point() or tensor.is_complex():
        return "data", source
    return "ids", source


def axes_of(roles: Roles, key: Key) -> tuple[int | None, int | None]:
    """The axes of samples and positions of a tensor that has them."""
    shape = tensor_of(roles.inside[key]).shape
    if key in roles.positions:
        positions = roles.positions[key]
        return roles.samples[key], positions[0] if positions else None
    if not shape:
        return None, None
    lengths = {tensor_of(roles.inside[k]).shape[p] for k, ps in roles.positions.items() for p in ps}
    along = next((axis for axis, size in enumerate(shape) if axis and size in lengths), None)
    return 0, along if along is not None else 1 if len(shape) > 1 and key not in roles.masks else None
