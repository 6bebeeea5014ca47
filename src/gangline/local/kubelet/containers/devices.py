"""Assignment of GPUs to containers: by index, for the lifetime of the pod."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gangline.api.core.container import Container
from gangline.api.quantity import parse_whole
from gangline.api.resource_list import GPU


@dataclass(slots=True)
class DeviceManager:
    """The GPUs of one node and the containers that they are assigned to."""

    indices: Sequence[int]
    _assigned: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)

    def assign(self, pod_uid: str, container: Container) -> tuple[int, ...] | None:
        """The GPUs of a container, the same at every call; None if not enough are free."""
        held = self._assigned.get((pod_uid, container.name))
        if held is not None:
            return held
        if not self.indices:
            return ()  # The node has no devices to assign: it only counts the resource, if at all.
        desired = requested_gpus(container)
        taken = {index for indices in self._assigned.values() for index in indices}
        free = [index for index in self.indices if index not in taken]
        if desired > len(free):
            return None
        self._assigned[pod_uid, container.name] = tuple(free[:desired])
        return self._assigned[pod_uid, container.name]

    def release(self, pod_uid: str) -> None:
        for key in [key for key in self._assigned if key[0] == pod_uid]:
            del self._assigned[key]


def requested_gpus(container: Container) -> int:
    resources = container.resources
    return parse_whole(resources.limits.get(GPU, resources.requests.get(GPU, 0)))


def gpu_variables(assigned: Sequence[int], node_has_gpus: bool) -> dict[str, str]:
    """The environment variables that make only the assigned GPUs visible to a process."""
    if not node_has_gpus:
        return {}
    listed = ",".join(map(str, assigned))
    return {"CUDA_VISIBLE_DEVICES": listed, "NVIDIA_VISIBLE_DEVICES": listed or "void"}
