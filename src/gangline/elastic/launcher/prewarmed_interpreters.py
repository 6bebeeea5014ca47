"""Prewarmed interpreters: the node is checked in them, then they become the first workers.

One import of PyTorch serves both. The script must not notice: an interpreter becomes a worker only
if the first thing that the script does is to import PyTorch.
"""

import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from gangline.elastic.agent.process import bind_to_processors
from gangline.elastic.agent.settings import AgentSettings, WorkerCommand
from gangline.elastic.agent.spare_interpreter import SpareInterpreter, imports_torch_first
from gangline.elastic.agent.spare_pool import has_memory_for_spares
from gangline.elastic.agent.worker_group import spare_environment, worker_arguments
from gangline.elastic.nodecheck.interpreters import CheckInterpreters, idle_interpreters

_TORCH = "torch"


def prewarmed_interpreters(settings: AgentSettings, base: Mapping[str, str]) -> CheckInterpreters:
    """Return the interpreters in which this node is checked first."""
    size = settings.local_world_size
    if not _can_become_workers(settings):
        return idle_interpreters(size)
    return CheckInterpreters(
        partial(_start_interpreter, settings, dict(base)), size, may_train=True
    )


async def _start_interpreter(
    settings: AgentSettings, base: Mapping[str, str], local_rank: int
) -> SpareInterpreter:
    near = settings.affinity[local_rank] if settings.affinity else frozenset()
    return await SpareInterpreter.start(
        worker_arguments(settings, local_rank),
        spare_environment(settings, local_rank, base),
        partial(_prepare_process, near, settings.signals),
    )


def _prepare_process(near: frozenset[int], handled: tuple[signal.Signals, ...]) -> None:
    """Reset signals as a new program has them. The agent handles these signals later.

    A signal that was ignored when the launcher started would stay ignored in the worker.
    """
    for number in handled:
        signal.signal(number, signal.SIG_DFL)
    bind_to_processors(near)


def _can_become_workers(settings: AgentSettings) -> bool:
    command, standby = settings.command, settings.spares
    if not standby.enabled or not command.is_python or command.arguments[0] != sys.executable:
        return False
    if not has_memory_for_spares(settings.local_world_size, standby.reserve_bytes):
        return False
    return _TORCH in standby.preload or _imports_torch_first(command)


def _imports_torch_first(command: WorkerCommand) -> bool:
    """Read the script. A module is not searched: that might import its parent packages."""
    _, _, script, *_ = command.arguments
    if script == "-m":
        return False
    try:
        return imports_torch_first(Path(script).read_bytes())
    except OSError:
        return False
