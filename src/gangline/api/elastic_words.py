"""Small languages inside fields of an ElasticJob: node ranges, priorities, critical ranks. Pure."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from gangline.api.elastic import HIGH, LOW, NODES_ANNOTATION

_RANGE = re.compile(r"(\d+)(?::(\d+))?", re.ASCII)
_FLAG = re.compile(r"--nnodes(?:=|\s+)[\"']?(\d+(?::\d+)?)(?![\w.])", re.ASCII)
_CRITICAL = re.compile(r"(\d+)(?::(\d+))?", re.ASCII)
_VARIABLE = "PET_NNODES"


class NodeRange(NamedTuple):
    """How many workers may train: at least and at most."""

    least: int
    most: int


def node_range(text: str) -> NodeRange | None:
    """Read ``"4"`` or ``"2:8"``; None if it is neither, or the bounds make no sense."""
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        return None
    least, most = int(found[1]), int(found[2] or found[1])
    return NodeRange(least, most) if 1 <= least <= most else None


def flag_of(container: Mapping[str, Any]) -> str:
    """Find what a container's command says of ``--nnodes``; empty if it cannot be read."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    found = _FLAG.search(" ".join(str(word) for word in words))
    if found:
        return found[1]
    given = {each.get("name"): each.get("value") for each in container.get("env") or ()}
    return str(given.get(_VARIABLE) or "")


def range_of(annotations: Mapping[str, str], container: Mapping[str, Any]) -> NodeRange | None:
    """Find how many workers a job may have: its annotation says so, else its command."""
    return node_range(annotations.get(NODES_ANNOTATION) or flag_of(container))


def fraction(priority: str) -> float | None:
    """Read a priority that is a share; None if it is a class."""
    try:
        share = float(priority)
    except ValueError:
        return None
    return share if 0 <= share <= 1 else None


def looks_like_a_number(priority: str) -> bool:
    """Whether a priority was meant to be a share."""
    try:
        float(priority)
    except ValueError:
        return False
    return True


def priority_class(priority: str, rank: int, replicas: int) -> str:
    """Name the priority class of one replica; of a share the first ranks are high."""
    share = fraction(priority)
    if share is None:
        return priority
    return HIGH if rank < round(share * replicas) else LOW


class CriticalRanks(NamedTuple):
    """The ranks without which a job fails, and how often each may be made anew."""

    everyone: bool
    ranks: Mapping[int, int | None]

    def __contains__(self, rank: object) -> bool:
        """Whether the job fails without this rank."""
        return self.everyone or rank in self.ranks


def critical_ranks(text: str) -> CriticalRanks | None:
    """Read ``all``, ``none`` or ``0:2,3``; None if it is nothing of this."""
    words = text.strip().lower()
    if words in ("all", "none", ""):
        return CriticalRanks(words == "all", {})
    ranks: dict[int, int | None] = {}
    for part in words.split(","):
        found = _CRITICAL.fullmatch(part.strip())
        if found is None:
            return None
        ranks[int(found[1])] = int(found[2]) if found[2] else None
    return CriticalRanks(False, ranks)
