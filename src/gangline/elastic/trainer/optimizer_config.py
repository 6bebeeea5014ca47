"""Settings of the optimizer from the job's tuning, equal on all ranks."""

import logging
import os
from pathlib import Path

import msgspec
import torch.distributed as dist

from gangline.elastic.variables import LOADER_FILE_VARIABLES

log = logging.getLogger(__name__)


class OptimizerConfig(msgspec.Struct, frozen=True):
    """Settings of the optimizer; None keeps the present value."""

    version: int = 0
    learning_rate: float | None = None
    weight_decay: float | None = None


class _File(msgspec.Struct):
    optimizer: OptimizerConfig = OptimizerConfig()


def agree_on_optimizer_config() -> OptimizerConfig:
    """Return what rank 0 reads; all ranks call this together.

    Agents write the file at slightly different times, and ranks with different learning rates would
    train different models.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return _read()
    shared: list[OptimizerConfig | None] = [_read() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(shared, src=0)
    return shared[0] or OptimizerConfig()


def _read() -> OptimizerConfig:
    named = [os.environ[each] for each in LOADER_FILE_VARIABLES if os.environ.get(each)]
    if not named:
        return OptimizerConfig()
    try:
        return msgspec.json.decode(Path(named[0]).read_bytes(), type=_File).optimizer
    except FileNotFoundError:
        return OptimizerConfig()
    except (OSError, msgspec.DecodeError) as error:
        log.warning(f"cannot read the optimizer's settings: {error}", extra={"error": str(error)})
        return OptimizerConfig()
