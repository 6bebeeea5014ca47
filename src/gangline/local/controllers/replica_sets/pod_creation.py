"""Creation of pods in growing batches, for controllers that keep a number of pods."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gangline.api.core.pod import Pod
from gangline.api.resources import PODS
from gangline.kube.client.client import ApiClient


async def create_pods(
    client: ApiClient,
    namespace: str,
    manifests: Sequence[Mapping[str, Any]],
    on_created: Callable[[Pod], None],
) -> None:
    """Create pods in growing batches, as kube-controller-manager does (slow start).

    If the server refuses a pod, it is refused once and not a hundred times. Raises the first error
    of a batch, after all creations of that batch were reported to ``on_created``.
    """
    missing, batch = manifests, 1
    while missing:
        creations = [client.create(PODS, body, namespace) for body in missing[:batch]]
        errors: list[BaseException] = []
        for made in await asyncio.gather(*creations, return_exceptions=True):
            if isinstance(made, BaseException):
                errors.append(made)
            else:
                on_created(made)
        if errors:
            raise errors[0]
        missing, batch = missing[batch:], batch * 2
