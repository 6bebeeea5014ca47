"""What the node check and its worker processes say to each other: JSON lines."""

from typing import TypeAlias

import msgspec


class Workload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is tested. Zero means: what suits the device."""

    backend: str = ""
    """``gloo`` or ``nccl``; empty: nccl where there is a GPU for each process."""
    matrix_size: int = 0
    """Rows and columns of the matrices that are multiplied."""
    matrix_repeats: int = 0
    collective_bytes: int = 0
    """What one all-reduce sums up, for each process."""
    collective_repeats: int = 0
    timeout_s: float = 30.0
    """How long partners and one test may take."""
    memory_limit: float = 0.3
    """Part of a GPU's memory that may be in use before the test; more means leftovers."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is told first."""

    workload: Workload
    local_rank: int
    local_world_size: int


class Listening(msgspec.Struct, frozen=True, tag="listening"):
    """The first process of a node holds this port for the store of the next round."""

    port: int


class Order(msgspec.Struct, frozen=True, kw_only=True, tag="test"):
    """Test with these."""

    rank: int
    """Of this process among all of the group."""
    world_size: int
    store_host: str
    store_port: int


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag="measured", omit_defaults=True):
    """What one process found."""

    passed: bool
    local: bool = False
    compute_s: float = 0.0
    collective_s: float = 0.0
    bandwidth: float = 0.0
    device: str = ""
    test: str = ""
    message: str = ""


FromWorker: TypeAlias = Listening | Measured
