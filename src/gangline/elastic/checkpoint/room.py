"""Checks before a save whether the buffers of all ranks of a node fit into its shared memory.

The ranks of a node share its memory, so each alone would count capacity that the others need too.
Free shared memory may exceed the memory limit of the container: the kernel would then kill a
process.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from gangline.elastic.agent.memory import memory
from gangline.elastic.checkpoint.errors import MemoryShortError


class Want(msgspec.Struct, frozen=True):
    """The shared memory that one rank needs."""

    node: str
    folder: str
    """Folder of the buffers."""
    bytes: int
    """Bytes of all its buffers."""
    had_bytes: int
    """Bytes that are allocated already."""
    free_bytes: int
    """Bytes that were free before any rank of the node allocated."""
    available_bytes: int
    """Bytes that this container, or else the machine, can still allocate."""


def want_of(node: str, folder: Path, size: int, allocated: int) -> Want:
    """Describe what this rank needs; call it while no rank of the node allocates."""
    return Want(node, str(folder), size, allocated, free_bytes(folder), memory().available_bytes)


def free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def check_room(requests: Sequence[Want]) -> None:
    """Check that each node has the memory that its ranks need; all ranks get the same result.

    Raises:
        MemoryShortError: some node does not.
    """
    for ours in _nodes(requests):
        more = _more(ours)
        free = min(request.free_bytes for request in ours)
        if more > free:
            total = sum(request.bytes for request in ours)
            of = f" ({total / 1e6:.0f} MB in all for {len(ours)} ranks)" if len(ours) > 1 else ""
            host = ours[0].node.partition("/")[0]
            raise MemoryShortError(shortage(f"{ours[0].folder} of {host}", more, free, of))


def tight(requests: Sequence[Want], node: str) -> str:
    """Return a warning if the buffers fit, but memory for them is short; else an empty string."""
    for ours in _nodes(request for request in requests if request.node == node):
        more, available = _more(ours), min(request.available_bytes for request in ours)
        if more > available:
            return (
                f"checkpoints need {more / 1e6:.0f} MB more memory, and only {available / 1e6:.0f} "
                "MB are available: files in /dev/shm count as memory of the container, which may "
                "be killed for it; raise its memory limit, or use fewer buffers"
            )
    return ""


def _nodes(requests: Iterable[Want]) -> list[list[Want]]:
    nodes: dict[str, list[Want]] = {}
    for request in requests:
        nodes.setdefault(request.node, []).append(request)
    return list(nodes.values())


def _more(requests: Sequence[Want]) -> int:
    return sum(max(0, request.bytes - request.had_bytes) for request in requests)


def shortage(where: str, more: int, free: int, of: str = "") -> str:
    return (
        f"checkpoints need {more / 1e6:.0f} MB more in {where}{of}, where {free / 1e6:.0f} MB are "
        "free; in a pod, mount an emptyDir with medium: Memory, and a sizeLimit that holds all "
        "buffers, at /dev/shm, or use fewer buffers"
    )
