"""Whether the buffers of all ranks of a node fit into its shared memory: known before a save.

The ranks of a node share its memory, so each alone would find room that the others need as well.
What is free there may be more than the container may use: then the kernel would kill a process.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from gangline.elastic.agent.memory import memory
from gangline.elastic.checkpoint.errors import MemoryShortError


class Want(msgspec.Struct, frozen=True):
    """What one rank wants of its node's shared memory."""

    node: str
    folder: str
    """Where the buffers lie."""
    bytes: int
    """Of all its buffers."""
    had_bytes: int
    """How much of them is there already."""
    free_bytes: int
    """What nobody on the node had taken yet."""
    available_bytes: int
    """How much more memory this container, or else the machine, can have."""


def want_of(node: str, folder: Path, size: int, had: int) -> Want:
    """What this rank wants; to be asked while no rank of the node takes anything."""
    return Want(node, str(folder), size, had, free_bytes(folder), memory().available_bytes)


def free_bytes(folder: Path) -> int:
    """What is free where the folder is."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def check_room(wants: Sequence[Want]) -> None:
    """See that what all ranks want is there on each node; the same answer on all ranks.

    Raises:
        MemoryShortError: it is not.
    """
    for ours in _nodes(wants):
        more = _more(ours)
        free = min(want.free_bytes for want in ours)
        if more > free:
            whole = sum(want.bytes for want in ours)
            of = f" ({whole / 1e6:.0f} MB in all for {len(ours)} ranks)" if len(ours) > 1 else ""
            host = ours[0].node.partition("/")[0]
            raise MemoryShortError(shortage(f"{ours[0].folder} of {host}", more, free, of))


def tight(wants: Sequence[Want], node: str) -> str:
    """Say so when the buffers of a node have room, but memory for them is short; else nothing."""
    for ours in _nodes(want for want in wants if want.node == node):
        more, available = _more(ours), min(want.available_bytes for want in ours)
        if more > available:
            return (
                f"checkpoints need {more / 1e6:.0f} MB more memory, and only {available / 1e6:.0f} "
                "MB are available: what lies in /dev/shm counts as memory of the container, which "
                "may be killed for it; give it more, or use fewer buffers"
            )
    return ""


def _nodes(wants: Iterable[Want]) -> list[list[Want]]:
    nodes: dict[str, list[Want]] = {}
    for want in wants:
        nodes.setdefault(want.node, []).append(want)
    return list(nodes.values())


def _more(wants: Sequence[Want]) -> int:
    return sum(max(0, want.bytes - want.had_bytes) for want in wants)


def shortage(where: str, more: int, free: int, of: str = "") -> str:
    """Say what is missing and how to have it. Sizes are in bytes."""
    return (
        f"checkpoints need {more / 1e6:.0f} MB more in {where}{of}, where {free / 1e6:.0f} MB are "
        "free; in a pod, mount an emptyDir with medium: Memory, and a sizeLimit that holds all "
        "buffers, at /dev/shm, or use fewer buffers"
    )
