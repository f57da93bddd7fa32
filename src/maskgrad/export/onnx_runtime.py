"""Running a file with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maskgrad.errors import NotExportableError

__all__ = ["Session"]


class Session:
    """A file, loaded by ONNX Runtime; on the CPU, whatever the device of the tensors.

    Raises:
        NotExportableError: ONNX Runtime does not load it.
    """

    def __init__(self, path: str | Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised
        options.intra_op_num_threads = torch.get_num_threads()
        try:
            self._session: Any = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise NotExportableError(
                "the model",
                f"ONNX Runtime cannot load it: {first_line(error)}",
                "Use another dtype or other operations, or pass verify=False if it is made for another runtime",
            ) from error

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What the file gives for these inputs, in order."""
        import onnxruntime

        given = {}
        for port, tensor in zip(self._session.get_inputs(), tensors, strict=True):
            plain = tensor.detach().cpu().contiguous()
            if plain.dtype == torch.bfloat16:  # numpy has no such numbers
                given[port.name] = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
                    plain.view(torch.uint16).numpy(), BFLOAT16
                )
            else:
                given[port.name] = onnxruntime.OrtValue.ortvalue_from_numpy(plain.resolve_neg().numpy())
        results = self._session.run_with_ort_values(None, given)
        return [_tensor(value) for value in results]


#: ``onnx.TensorProto.BFLOAT16``
BFLOAT16 = 16


def _tensor(value: Any) -> Tensor:
    if value.element_type() == BFLOAT16:
        return torch.from_dlpack(value._get_c_value().to_dlpack())  # type: ignore[attr-defined]
    return torch.from_numpy(value.numpy().copy())


def first_line(error: BaseException) -> str:
    """The beginning of a long message."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:297]}…"
