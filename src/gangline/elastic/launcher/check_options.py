"""Options of the node check, from flags."""

import argparse
from dataclasses import dataclass
from typing import Self

from gangline.elastic.launcher.flags import FlagError
from gangline.elastic.nodecheck.worker_messages import CheckWorkload

_AUTO_CHECK_NODES = 4
"""Number of nodes from which on --auto-config enables the node check."""


class NodeUnhealthyError(Exception):
    """The node check found this node unfit for training."""


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


@dataclass(frozen=True, slots=True)
class NodeCheckOptions:
    """Whether nodes are checked, and how."""

    enabled: bool
    reports_speed: bool
    """True to report the speed of communication."""
    excludes_stragglers: bool
    """True if a slow node ends."""
    workload: CheckWorkload
    straggler_ratio: float
    straggler_s: float

    @classmethod
    def from_flags(cls, flags: argparse.Namespace, max_nodes: int) -> Self:
        """Read the flags, DLRover's older ones included.

        Raises:
            FlagError: a number is out of range.
        """
        for name, least, most in _BOUNDS:
            if not least <= (value := getattr(flags, name)) <= most:
                bound = f"at least {least:g}" if value < least else f"at most {most:g}"
                raise FlagError(f"--{name.replace('_', '-')} {value:g}: must be {bound}")
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
