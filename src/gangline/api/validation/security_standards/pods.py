"""What controls read of a pod, and how they name what violates them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Json = Mapping[str, Any]


class Violation(NamedTuple):
    """A control that a pod violates."""

    reason: str
    detail: str

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})" if self.detail else self.reason


@dataclass(frozen=True, slots=True)
class PodUnderCheck:
    """A pod or a pod template as plain data."""

    metadata: Json
    spec: Json

    @property
    def context(self) -> Json:
        """The security context of the pod."""
        return self.spec.get("securityContext") or {}

    @property
    def annotations(self) -> Json:
        return self.metadata.get("annotations") or {}

    @property
    def is_windows(self) -> bool:
        return (self.spec.get("os") or {}).get("name") == "windows"

    def containers(self) -> Iterator[tuple[str, Json, Json]]:
        """Yield name, container and security context of containers of all sorts."""
        for field in ("initContainers", "containers", "ephemeralContainers"):
            for container in self.spec.get(field) or ():
                yield container.get("name", ""), container, container.get("securityContext") or {}

    def volumes(self) -> Sequence[Json]:
        return self.spec.get("volumes") or ()


def quote(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def count(noun: str, names: Sequence[str]) -> str:
    """Return such as ``containers "a", "b"``."""
    return f"{noun if len(names) == 1 else noun + 's'} {quote(names)}"


def setters(pod: bool, containers: Sequence[str]) -> str:
    """Return the pod and the containers that set something; empty for none."""
    found = ["pod"] if pod else []
    return " and ".join([*found, count("container", containers)] if containers else found)
