"""Completion indexes as Kubernetes writes them: ``1,3-5,7``."""

from collections.abc import Iterable, Iterator

from gangline.api.core.pod import Pod
from gangline.local.controllers.jobs.types import INDEX


def parse_indexes(text: str, completions: int) -> set[int]:
    """Return the indexes below ``completions``; parts that are not numbers are ignored."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            found.update(range(int(first), min(int(last or first), completions - 1) + 1))
    return found


def format_indexes(indexes: Iterable[int]) -> str:
    return ",".join(_ranges(sorted(set(indexes))))


def _ranges(indexes: list[int]) -> Iterator[str]:
    start = 0
    for end in range(1, len(indexes) + 1):
        if end < len(indexes) and indexes[end] == indexes[end - 1] + 1:
            continue
        first, last = indexes[start], indexes[end - 1]
        # Two neighbours are listed, as in Kubernetes; three are a range.
        if last - first >= 2:
            yield f"{first}-{last}"
        else:
            yield from map(str, indexes[start:end])
        start = end


def index_of(pod: Pod) -> int | None:
    """Return the completion index of a pod."""
    text = pod.metadata.annotations.get(INDEX, "")
    return int(text) if text.isdigit() else None
