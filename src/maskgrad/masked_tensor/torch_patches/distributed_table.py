"""The part of the table that is about several processes; a PyTorch may be built without them."""

from __future__ import annotations

from maskgrad.masked_tensor.torch_patches import data_parallel, sharded_modules
from maskgrad.masked_tensor.torch_patches.patch import Patch

__all__ = ["DISTRIBUTED_PATCHES"]

_DISTRIBUTED = "tests/unit/distributed"
_FSDP = "torch.distributed.fsdp._fully_shard._fsdp_state"
_SHARDED = (
    "layers of fully_shard do not train behind MaskedTensors; give them and take from them x.filled(0.)"
)
_DDP = "torch.nn.parallel.distributed"

DISTRIBUTED_PATCHES: tuple[Patch, ...] = (
    Patch(
        target="torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState",
        reason="looks for tensors by type: behind masked inputs and outputs sharded parameters get no gradient",
        without=_SHARDED,
        test=f"{_DISTRIBUTED}/test_masked_fully_shard.py::test_as_one_process",
        needs={
            f"{_FSDP}.FSDPState._pre_forward": "self module args kwargs",
            f"{_FSDP}.FSDPState._post_forward": "self module input output",
            f"{_FSDP}.FSDPState._cast_output_dtype": "self output",
        },
        install=sharded_modules.install_fully_shard,
        after=_FSDP,
    ),
    Patch(
        target="torch.distributed.utils._apply_to_tensors",
        reason="looks for tensors by type, for FullyShardedDataParallel",
        without=_SHARDED,
        test=f"{_DISTRIBUTED}/test_masked_fully_shard.py::test_fully_sharded_data_parallel",
        needs={"torch.distributed.utils._apply_to_tensors": "fn container"},
        install=sharded_modules.install_traversal,
        after="torch.distributed.utils",
    ),
    Patch(
        target="torch.nn.parallel.distributed._find_tensors",
        reason="finds no tensor in masked outputs: with find_unused_parameters=True all parameters count as unused",
        without="with find_unused_parameters=True, return x.filled(0.) and x.mask from the module",
        test=f"{_DISTRIBUTED}/test_masked_data_parallel.py::test_unused_parameters",
        needs={f"{_DDP}._find_tensors": "obj"},
        install=data_parallel.install_outputs,
        after=_DDP,
    ),
    Patch(
        target="torch.distributed.utils._sync_params_and_buffers",
        reason="cannot send a buffer that is a MaskedTensor",
        without="DistributedDataParallel refuses buffers that are MaskedTensors; register values and mask",
        test=f"{_DISTRIBUTED}/test_masked_data_parallel.py::test_buffers",
        needs={
            "torch.distributed.utils._sync_params_and_buffers": "process_group module_states broadcast_bucket_size src",
            f"{_DDP}.DistributedDataParallel._assign_modules_buffers": "self",
        },
        install=data_parallel.install_buffers,
        after=_DDP,
    ),
)
