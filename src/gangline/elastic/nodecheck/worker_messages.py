"""Messages between a node check and its worker processes, as lines of JSON."""

from typing import TypeAlias

import msgspec

from gangline.elastic.nodecheck.result import NodeResult


class CheckWorkload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is tested. Zero means a default for the device."""

    backend: str = ""
    """``gloo`` or ``nccl``; empty for nccl if there is a GPU for each process, else gloo."""
    matrix_size: int = 0
    """Rows and columns of the matrices that are multiplied."""
    matrix_repeats: int = 0
    collective_bytes: int = 0
    """Size of one all-reduce in each process."""
    collective_repeats: int = 0
    timeout_s: float = 30.0
    """Time limit for partners, and for one test."""
    memory_limit: float = 0.3
    """Maximum share of a GPU's memory in use before the test; more means leftover processes."""


class WorkerStart(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a process."""

    workload: CheckWorkload
    local_rank: int
    local_world_size: int


class PortReport(msgspec.Struct, frozen=True, tag="listening"):
    """The first process of a node holds this port for the store of the next round."""

    port: int


class MeasureOrder(msgspec.Struct, frozen=True, kw_only=True, tag="test"):
    """Run the tests in this group."""

    rank: int
    """Rank of this process in the group."""
    world_size: int
    store_host: str
    store_port: int


WorkerMessage: TypeAlias = PortReport | NodeResult
