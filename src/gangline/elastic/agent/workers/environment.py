"""Environment variables of a worker: those of torchrun, from the world and the settings."""

from collections.abc import Mapping
from string import Template

from gangline.elastic.agent.logs import WorkerFiles
from gangline.elastic.agent.settings import AgentSettings
from gangline.elastic.agent.world import WorldSpec
from gangline.elastic.progress import METRICS_VARIABLE, PROGRESS_VARIABLE

_FLIGHT_RECORDS = "2000"


class DevicesError(ValueError):
    """There are fewer devices than workers."""


def worker_environment(
    settings: AgentSettings,
    world: WorldSpec,
    local_rank: int,
    base: Mapping[str, str],
    *,
    has_agent_store: bool = True,
) -> dict[str, str]:
    """Return all variables of a worker, those of the agent (``base``) included.

    Args:
        settings: settings of the agent.
        world: the world of the attempt.
        local_rank: the worker.
        base: variables of the agent.
        has_agent_store: False if rank 0 must open the store itself.

    Raises:
        DevicesError: ``CUDA_VISIBLE_DEVICES`` lists too few devices for virtual local ranks.
    """
    rank = str(world.first_rank + local_rank)
    size = str(world.world_size)
    return {
        **base,
        "RANK": rank,
        "GROUP_RANK": str(world.group_rank),
        "ROLE_RANK": rank,
        "ROLE_NAME": settings.role,
        "LOCAL_WORLD_SIZE": str(settings.local_world_size),
        "WORLD_SIZE": size,
        "GROUP_WORLD_SIZE": str(world.group_world_size),
        "ROLE_WORLD_SIZE": size,
        "MASTER_ADDR": world.store_host,
        "MASTER_PORT": str(world.store_port),
        "TORCHELASTIC_RESTART_COUNT": str(world.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(settings.restart_limit),
        "TORCHELASTIC_RUN_ID": settings.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(has_agent_store),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(number.name for number in settings.signals),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": base.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        **_device_variables(settings, local_rank, base),
    }


def spare_environment(
    settings: AgentSettings, local_rank: int, base: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of a spare interpreter, whose world is not known yet.

    Raises:
        DevicesError: as for a worker.
    """
    alone = WorldSpec(0, 0, 1, 0, settings.local_world_size, "127.0.0.1", 0)
    return worker_environment(settings, alone, local_rank, base)


def report_environment(
    settings: AgentSettings, files: WorkerFiles, base: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that name the files of errors, progress and NCCL's flight recorder."""
    found = {
        "TORCHELASTIC_ERROR_FILE": str(files.error_file),
        PROGRESS_VARIABLE: str(files.progress_file),
        METRICS_VARIABLE: str(files.metrics_file),
    }
    if settings.hang.timeout_s is not None:
        recorder = {
            "TORCH_NCCL_TRACE_BUFFER_SIZE": _FLIGHT_RECORDS,
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(files.flight_dump),
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(files.flight_pipe),
        }
        found |= {name: value for name, value in recorder.items() if name not in base}
    return found


def worker_arguments(settings: AgentSettings, local_rank: int) -> list[str]:
    """Return the command line of a worker with its local rank filled in."""
    return [
        Template(argument).safe_substitute(local_rank=local_rank)
        if "${local_rank}" in argument
        else argument
        for argument in settings.command.arguments
    ]


def _device_variables(
    settings: AgentSettings, local_rank: int, base: Mapping[str, str]
) -> dict[str, str]:
    if not settings.virtual_local_rank:
        return {"LOCAL_RANK": str(local_rank)}
    visible = base.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible is not None else None
    if devices is not None and local_rank >= len(devices):
        raise DevicesError(
            f"local rank {local_rank} has no device: CUDA_VISIBLE_DEVICES={visible} "
            f"names {len(devices)}; lower --nproc-per-node"
        )
    own = devices[local_rank].strip() if devices else str(local_rank)
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": own}
