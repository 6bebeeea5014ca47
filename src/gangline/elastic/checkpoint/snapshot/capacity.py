"""Checks before a save whether the buffers of all ranks of a node fit into its shared memory.

The ranks of a node share its memory, so each alone would count capacity that the others need too.
Free shared memory may exceed the memory limit of the container: the kernel would then kill a
process.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from gangline.elastic.checkpoint.errors import MemoryShortError
from gangline.elastic.memory import memory_status


class MemoryRequest(msgspec.Struct, frozen=True):
    """The shared memory that one rank needs."""

    node: str
    folder: str
    """Folder of the buffers."""
    bytes: int
    """Bytes of all its buffers."""
    allocated_bytes: int
    """Bytes that are allocated already."""
    free_bytes: int
    """Bytes that were free before any rank of the node allocated."""
    available_bytes: int
    """Bytes that this container, or else the machine, can still allocate."""


def memory_request(node: str, folder: Path, size: int, allocated: int) -> MemoryRequest:
    """Describe what this rank needs; call it while no rank of the node allocates."""
    return MemoryRequest(
        node, str(folder), size, allocated, free_bytes(folder), memory_status().available_bytes
    )


def free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def check_capacity(requests: Sequence[MemoryRequest]) -> None:
    """Check that each node has the memory that its ranks need; all ranks get the same result.

    Raises:
        MemoryShortError: some node does not.
    """
    for on_node in _nodes(requests):
        more = _more(on_node)
        free = min(request.free_bytes for request in on_node)
        if more > free:
            total = sum(request.bytes for request in on_node)
            of = (
                f" ({total / 1e6:.0f} MB in all for {len(on_node)} ranks)"
                if len(on_node) > 1
                else ""
            )
            host = on_node[0].node.partition("/")[0]
            raise MemoryShortError(
                shortage_message(f"{on_node[0].folder} of {host}", more, free, of)
            )


def memory_warning(requests: Sequence[MemoryRequest], node: str) -> str:
    """Return a warning if the buffers fit, but memory for them is short; else an empty string."""
    for on_node in _nodes(request for request in requests if request.node == node):
        more, available = _more(on_node), min(request.available_bytes for request in on_node)
        if more > available:
            return (
                f"checkpoints need {more / 1e6:.0f} MB more memory, and only {available / 1e6:.0f} "
                "MB are available: files in /dev/shm count as memory of the container, which may "
                "be killed for it; raise its memory limit, or use fewer buffers"
            )
    return ""


def _nodes(requests: Iterable[MemoryRequest]) -> list[list[MemoryRequest]]:
    nodes: dict[str, list[MemoryRequest]] = {}
    for request in requests:
        nodes.setdefault(request.node, []).append(request)
    return list(nodes.values())


def _more(requests: Sequence[MemoryRequest]) -> int:
    return sum(max(0, request.bytes - request.allocated_bytes) for request in requests)


def shortage_message(where: str, more: int, free: int, of: str = "") -> str:
    return (
        f"checkpoints need {more / 1e6:.0f} MB more in {where}{of}, where {free / 1e6:.0f} MB are "
        "free; in a pod, mount an emptyDir with medium: Memory, and a sizeLimit that holds all "
        "buffers, at /dev/shm, or use fewer buffers"
    )
