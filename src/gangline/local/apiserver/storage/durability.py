"""What an acknowledged write survives."""

from enum import StrEnum


class Durability(StrEnum):
    """The event that no acknowledged write is lost by."""

    DISK = "disk"
    """A power failure: a write is acknowledged after fsync, as etcd does."""

    PROCESS = "process"
    """The death of the process at any instant. A power failure may lose the last moments."""
