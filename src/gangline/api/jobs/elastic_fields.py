"""Fields of an ElasticJob with a syntax of their own: node ranges, priorities, critical ranks."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from gangline.api.jobs.elastic import HIGH, LOW, NODES_ANNOTATION

_RANGE = re.compile(r"(\d{1,9})(?::(\d{1,9}))?", re.ASCII)
_FLAG = re.compile(r"--nnodes(?:=|\s+)[\"']?(\d+(?::\d+)?)(?![\w.])", re.ASCII)
_CRITICAL = re.compile(r"(\d{1,9})(?::(\d{1,9}))?", re.ASCII)
_VARIABLE = "PET_NNODES"


class NodeRange(NamedTuple):
    """The minimum and maximum number of workers."""

    min_nodes: int
    max_nodes: int


def parse_node_range(text: str) -> NodeRange | None:
    """Parse ``"4"`` or ``"2:8"``. Returns None if the text is neither, or the bounds are not 1 <=
    MIN <= MAX.
    """
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        return None
    least, most = int(found[1]), int(found[2] or found[1])
    return NodeRange(least, most) if 1 <= least <= most else None


def nnodes_flag(container: Mapping[str, Any]) -> str:
    """Return the value of ``--nnodes`` in a container's command or environment; empty if there is
    none.
    """
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    found = _FLAG.search(" ".join(str(word) for word in words))
    if found:
        return found[1]
    given = {each.get("name"): each.get("value") for each in container.get("env") or ()}
    return str(given.get(_VARIABLE) or "")


def job_node_range(
    annotations: Mapping[str, str], container: Mapping[str, Any]
) -> NodeRange | None:
    """Return the node range of a job: from its annotation, else from its command."""
    return parse_node_range(annotations.get(NODES_ANNOTATION) or nnodes_flag(container))


def parse_priority_fraction(priority: str) -> float | None:
    """Parse a priority that is a fraction from 0 to 1; None if it is the name of a class."""
    try:
        share = float(priority)
    except ValueError:
        return None
    return share if 0 <= share <= 1 else None


def is_number(priority: str) -> bool:
    try:
        float(priority)
    except ValueError:
        return False
    return True


def priority_class(priority: str, rank: int, replicas: int) -> str:
    """Return the priority class of one replica. With a fraction, the first ranks get ``high``."""
    share = parse_priority_fraction(priority)
    if share is None:
        return priority
    return HIGH if rank < round(share * replicas) else LOW


class CriticalRanks(NamedTuple):
    """The ranks without which a job fails, and how many restarts each may have."""

    all_ranks: bool
    ranks: Mapping[int, int | None]

    def __contains__(self, rank: object) -> bool:
        return self.all_ranks or rank in self.ranks


def parse_critical_ranks(text: str) -> CriticalRanks | None:
    """Parse ``all``, ``none`` or ``0:2,3``; None if the text is none of these."""
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
