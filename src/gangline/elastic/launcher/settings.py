"""Settings of agent and node check from flags. A flag that cannot be honoured is refused.

PyTorch is not imported: that takes seconds, and workers may have another interpreter. Its release
is read from the metadata of its installation.
"""

import argparse
import math
import os
import re
import signal
import sys
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gangline.api.figures import plain_number
from gangline.elastic.agent.settings import (
    DEFAULT_RESTART_GRACE_S,
    DEFAULT_SHUTDOWN_S,
    AgentSettings,
    HangSettings,
    LogSettings,
    SpareSettings,
    WorkerCommand,
)
from gangline.elastic.launcher.flags import FlagError
from gangline.elastic.launcher.machine import (
    NumaError,
    cpu_count,
    device_count,
    processors_near_devices,
    tightest_worker_limit,
    xpu_count,
)
from gangline.elastic.launcher.rendezvous_config import RendezvousConfig, build_rendezvous_config
from gangline.elastic.master.settings import BrainUrlError, check_brain_url
from gangline.elastic.nodecheck.result import CheckWorkload

_METADATA = re.compile(r"torch-(?P<major>\d+)\.(?P<minor>\d+)\S*\.(dist|egg)-info")
FIRST_WITH_VALIDATION = 2, 2
"""First release whose ``TCPStore`` begins a connection with a magic number (pytorch#107607).

Earlier ones number the requests differently, so they need a store of their own release.
"""
_AUTO_CHECK_NODES = 4
"""Number of nodes from which on --auto-config enables the node check."""
_MIB = 1 << 20
_MAX_VALUE = 1 << 20
_BOUNDS = (
    ("check_matrix_size", 0, _MAX_VALUE),
    ("check_matrix_repeats", 0, _MAX_VALUE),
    ("check_collective_mib", 0, _MAX_VALUE),
    ("check_collective_repeats", 0, _MAX_VALUE),
    ("check_timeout", 1, _MAX_VALUE),
    ("check_memory_limit", 0, 1),
    ("straggler_ratio", 1, _MAX_VALUE),
    ("straggler_seconds", 0, _MAX_VALUE),
)
_STREAMS = re.compile(r"[0-3]|(\d+:[0-3],)*\d+:[0-3]")
_UNSUPPORTED = {
    "logs_specs": "plug-ins for logs belong to torch, which the launcher does not import; "
    "use --log-dir, --redirects and --tee",
    "ucp_device_type": "checkpoints are not converted between parallel layouts; leave it out",
}
_BUDGET = re.compile(r"(?P<count>\d{1,9})(/(?P<time>\d{1,9}(\.\d+)?)?(?P<unit>[smhd]))?")
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_HANG_PHASES = ("start", "first_step", "evaluation", "checkpoint")
_LEARNED = "auto"
_LONGEST_STEP_S = 1800.0
"""Time-out of a step while step times are not known."""
_MAX_DIGITS = 18
"""Numbers with more digits are too large in any case."""
_FLUSH_COMMAND = (sys.executable, "-m", "gangline.elastic.launcher.flush")


def build_settings(
    flags: argparse.Namespace, environment: Mapping[str, str], node_name: str
) -> tuple[AgentSettings, RendezvousConfig]:
    """Return the agent's settings, and how the nodes find each other.

    Raises FlagError: a flag is wrong, contradicts another, or cannot be honoured.
    """
    _refuse_unsupported(flags)
    config = build_rendezvous_config(flags, environment)
    workers = _workers(flags, environment)
    max_restarts, window_s = _restart_budget(flags.max_restarts)
    command = _command(flags, environment)
    settings = AgentSettings(
        command=command,
        serves_store=not command.is_python or speaks_agent_store(command.arguments[0]),
        local_world_size=workers,
        role=flags.role,
        run_id=_run_id(flags, environment, config),
        max_restarts=max_restarts,
        restart_window_s=window_s,
        restart_grace_s=_restart_grace_s(flags.restart_grace),
        shutdown_s=_shutdown_s(flags, environment),
        signals=_signals(flags.signals_to_handle),
        virtual_local_rank=flags.virtual_local_rank,
        has_other_nodes=config.is_managed_by_cluster,
        node_name=node_name,
        saves_on_failure=flags.save_at_breakpoint,
        tunes_batch=flags.auto_tunning,
        brain_url=_brain_url(flags.brain),
        save_command=_FLUSH_COMMAND,
        min_workers=_min_workers(flags, config, workers),
        min_nodes=config.min_nodes,
        successors=_successors(flags, environment),
        affinity=_affinity(flags, workers),
        logs=_log_settings(flags, environment),
        spares=SpareSettings(
            enabled=not flags.no_standby,
            preload=tuple(flags.preload),
            reserve_bytes=flags.standby_reserve * _MIB,
        ),
        hang=_hang_settings(flags.hang_timeout),
    )
    return settings, config


def _refuse_unsupported(flags: argparse.Namespace) -> None:
    for name, reason in _UNSUPPORTED.items():
        if getattr(flags, name):
            raise FlagError(f"--{name.replace('_', '-')}: {reason}")
    if flags.start_method != "spawn":
        raise FlagError(
            f"--start-method {flags.start_method}: workers are programs of their own, which are "
            "neither forked nor served; leave it out"
        )
    if flags.event_log_handler not in ("null", "console"):
        raise FlagError(f"--event-log-handler {flags.event_log_handler}: must be null or console")
    if flags.module and flags.no_python:
        raise FlagError("--module and --no-python exclude each other: a module needs Python")
    if flags.membind_policy == "bind" and not flags.numa_affinity:
        raise FlagError("--membind-policy bind needs --numa-affinity")
    if flags.membind_policy == "bind":
        raise FlagError("--membind-policy bind: start the job under numactl --membind instead")


def _at_least(name: str, value: int | None, least: int) -> int | None:
    if value is not None and value < least:
        raise FlagError(f"--{name.replace('_', '-')} {value}: must be at least {least}")
    return value


def _min_workers(flags: argparse.Namespace, config: RendezvousConfig, workers: int) -> int:
    """Return how many workers continue without a lost one; 0 for all."""
    of_nodes = config.min_nodes * workers if config.min_nodes < config.max_nodes else 0
    return _at_least("min_workers", flags.min_workers, 1) or of_nodes


def _successors(flags: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Return how many successors wait on each node: none where each rank has a device of its own.

    One that is started for a lost rank gets the device of that rank.
    """
    if flags.successors is not None:
        return _at_least("successors", flags.successors, 0) or 0
    return 0 if device_count(flags.accelerator, environment) else 1


def _command(flags: argparse.Namespace, environment: Mapping[str, str]) -> WorkerCommand:
    script = flags.training_script
    if flags.no_python and not flags.run_path:
        return WorkerCommand((script, *flags.training_script_args), False, Path(script).name)
    if flags.run_path and not Path(script).is_absolute():
        raise FlagError(f"--run-path {script}: must be an absolute path")
    if not flags.module and not Path(script).exists():
        raise FlagError(f"there is no script {script} in {Path.cwd()}")
    interpreter = environment.get("PYTHON_EXEC", sys.executable)
    module = ("-m",) if flags.module and not flags.run_path else ()
    arguments = (interpreter, "-u", *module, script, *flags.training_script_args)
    return WorkerCommand(arguments, True, script if module else Path(script).name)


def _workers(flags: argparse.Namespace, environment: Mapping[str, str]) -> int:
    text, accelerator = flags.nproc_per_node, flags.accelerator
    devices = device_count(accelerator, environment)
    if flags.auto_config and devices and "nproc_per_node" not in flags.given:
        return devices
    if re.fullmatch(r"[+-]?\d+", text):
        return _parse_workers(text, is_python=not flags.no_python)
    match text:
        case "cpu":
            return cpu_count()
        case "auto":
            return devices or xpu_count() or cpu_count()
        case "gpu" | "npu" | "xpu":
            count = xpu_count() if text == "xpu" else devices
            if not count:
                raise FlagError(f"--nproc-per-node {text}: this node has no such device")
            return count
    raise FlagError(f"--nproc-per-node {text}: must be a number, auto, cpu, gpu, xpu or npu")


def _parse_workers(text: str, *, is_python: bool) -> int:
    workers = int(text[:_MAX_DIGITS])
    if workers < 1:
        raise FlagError(f"--nproc-per-node {text}: must be at least 1")
    limit = tightest_worker_limit(is_python=is_python)
    if workers > limit.max_workers:
        raise FlagError(
            f"--nproc-per-node {text}: this machine cannot hold more than {limit.max_workers} "
            f"workers: {limit.reason}"
        )
    return workers


def _run_id(
    flags: argparse.Namespace, environment: Mapping[str, str], config: RendezvousConfig
) -> str:
    if config.is_managed_by_cluster and (job := environment.get("ELASTIC_JOB_NAME")):
        return job
    if config.master_address is None and "rdzv_id" not in flags.given:
        return str(uuid.uuid4())
    return str(flags.rdzv_id)


def _brain_url(url: str | None) -> str | None:
    try:
        return check_brain_url(url) if url else None
    except BrainUrlError as error:
        raise FlagError(f"--brain {error}") from error


def _hang_settings(text: str | None) -> HangSettings:
    if not text:
        return HangSettings()
    pairs = dict(
        (part.partition("=")[::2] if "=" in part else ("step", part)) for part in text.split(",")
    )
    step = pairs.pop("step", _LEARNED)
    limits = {}
    for phase, limit in pairs.items():
        if phase not in _HANG_PHASES:
            raise FlagError(
                f"--hang-timeout {phase}={limit}: must be one of step, {', '.join(_HANG_PHASES)}"
            )
        limits[f"{phase}_s"] = _hang_timeout_s(limit) or math.inf
    is_learned = step == _LEARNED
    step_s = _LONGEST_STEP_S if is_learned else _hang_timeout_s(step)
    return HangSettings(timeout_s=step_s or None, is_learned=is_learned, **limits)


def _hang_timeout_s(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise FlagError(f"--hang-timeout {text}: must be seconds, 0 for never, or auto for steps")
    return seconds


def _shutdown_s(flags: argparse.Namespace, environment: Mapping[str, str]) -> float:
    if flags.shutdown_timeout is not None:
        return float(_at_least("shutdown_timeout", flags.shutdown_timeout, 0) or 0)
    text = environment.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
    try:
        return float(text) if text else DEFAULT_SHUTDOWN_S
    except ValueError:
        raise FlagError(f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT={text}: must be a number") from None


def _restart_budget(text: str | None) -> tuple[int | None, float | None]:
    """Parse N or N/TIME: return the number of restarts, and the seconds for which each counts."""
    if text is None:
        return None, None
    budget = _BUDGET.fullmatch(text)
    window_s = None
    if budget and budget["unit"] is not None:
        window_s = float(budget["time"] or 1) * _UNITS_S[budget["unit"]]
    if budget is None or window_s == 0:
        raise FlagError(
            f"--max-restarts {text}: must be a number of at least 0, or with a time such as 10/1h "
            "(units s, m, h, d)"
        )
    return int(budget["count"]), window_s


def _restart_grace_s(seconds: float | None) -> float:
    if seconds is None:
        return DEFAULT_RESTART_GRACE_S
    if not 0 <= seconds < math.inf:
        raise FlagError(f"--restart-grace {plain_number(seconds)}: must be seconds")
    return seconds


def _signals(text: str) -> tuple[signal.Signals, ...]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in names if name not in signal.Signals.__members__]
    if unknown or {"SIGKILL", "SIGSTOP"} & set(names):
        raise FlagError(f"--signals-to-handle {text}: names a signal that cannot be handled")
    return tuple(signal.Signals[name] for name in names)


def _affinity(flags: argparse.Namespace, workers: int) -> tuple[frozenset[int], ...]:
    if flags.numa_binding not in (None, "node"):
        raise FlagError(f"--numa-binding {flags.numa_binding}: only node is offered")
    if not (flags.numa_binding or flags.numa_affinity):
        return ()
    try:
        return processors_near_devices(workers)
    except NumaError as error:
        name = "numa-binding" if flags.numa_binding else "numa-affinity"
        raise FlagError(f"--{name}: {error}") from error


def _log_settings(flags: argparse.Namespace, environment: Mapping[str, str]) -> LogSettings:
    folder = flags.log_dir or environment.get("DLROVER_LOG_AGENT_DIR")
    redirects, tee = _streams("redirects", flags.redirects), _streams("tee", flags.tee)
    return LogSettings(
        folder=folder,
        redirects=redirects,
        tee=tee,
        shown_ranks=_ranks(flags.local_ranks_filter),
        prefix=environment.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
        stdout_filters=tuple(flags.duplicate_stdout_filters),
        stderr_filters=tuple(flags.duplicate_stderr_filters),
        poll_interval_s=flags.monitor_interval,
    )


def _streams(name: str, text: str) -> int | dict[int, int]:
    if not _STREAMS.fullmatch(text):
        raise FlagError(f"--{name} {text}: must be 0, 1, 2, 3 or RANK:N,RANK:N…")
    if ":" not in text:
        return int(text)
    pairs = (part.split(":") for part in text.split(","))
    return {int(rank): int(streams) for rank, streams in pairs}


def _ranks(text: str) -> frozenset[int] | None:
    if not text:
        return None
    try:
        return frozenset(int(part) for part in text.split(","))
    except ValueError:
        raise FlagError(f"--local-ranks-filter {text}: must be numbers with commas") from None


def speaks_agent_store(interpreter: str) -> bool:
    """Return whether the workers' PyTorch is known to speak the agent's store, or is unknown."""
    paths = sys.path if interpreter == sys.executable else installation_paths(interpreter)
    release = torch_release(paths)
    return release is None or release >= FIRST_WITH_VALIDATION


def torch_release(paths: Iterable[str]) -> tuple[int, int] | None:
    """Return the first two numbers of the release that is found first; None without one."""
    for path in paths:
        try:
            names = os.listdir(path or ".")
        except OSError:
            continue  # no such folder, or an archive
        for name in names:
            if release := _METADATA.fullmatch(name):
                return int(release["major"]), int(release["minor"])
    return None


def installation_paths(interpreter: str) -> list[str]:
    """Return the folders of packages beside an interpreter, as in a virtual environment."""
    folder = Path(interpreter).parent.parent
    return [str(path) for path in sorted(folder.glob("lib/python3*/site-packages"))]


class NodeUnhealthyError(Exception):
    """The node check found this node unfit for training."""


@dataclass(frozen=True, slots=True)
class NodeCheckOptions:
    """Whether nodes are checked, and how."""

    enabled: bool
    reports_speed: bool
    excludes_stragglers: bool
    workload: CheckWorkload
    straggler_ratio: float
    straggler_s: float

    @classmethod
    def from_flags(cls, flags: argparse.Namespace, max_nodes: int) -> Self:
        """Read the flags, DLRover's older ones included.

        Raises FlagError: a number is out of range.
        """
        for name, least, most in _BOUNDS:
            if not least <= (value := getattr(flags, name)) <= most:
                bound = (
                    f"at least {plain_number(least)}"
                    if value < least
                    else f"at most {plain_number(most)}"
                )
                raise FlagError(
                    f"--{name.replace('_', '-')} {plain_number(value)}: must be {bound}"
                )
        reports_speed = flags.precheck >= 2 or flags.comm_perf_test
        many = flags.auto_config and max_nodes >= _AUTO_CHECK_NODES
        return cls(
            flags.precheck >= 1 or flags.network_check or reports_speed or many,
            reports_speed,
            flags.exclude_straggler,
            CheckWorkload(
                matrix_size=flags.check_matrix_size,
                matrix_repeats=flags.check_matrix_repeats,
                collective_bytes=int(flags.check_collective_mib * _MIB),
                collective_repeats=flags.check_collective_repeats,
                timeout_s=flags.check_timeout,
                memory_limit=flags.check_memory_limit,
            ),
            flags.straggler_ratio,
            flags.straggler_seconds,
        )
