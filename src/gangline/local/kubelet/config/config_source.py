"""Reads the ConfigMaps, Secrets and claims that pods of a node refer to."""

import base64
import os
import time
from collections.abc import Mapping
from pathlib import Path

from gangline.api.core.container import Container
from gangline.api.core.pod import Pod
from gangline.api.core.storage import PersistentVolumeSpec
from gangline.api.resources import (
    CONFIG_MAPS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    SECRETS,
)
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import NotFound
from gangline.local.kubelet.config.environment import ContainerConfigError, TokenSpec

ObjectContent = Mapping[str, bytes]
ConfigNames = tuple[set[str], set[str]]
"""Names of ConfigMaps and of Secrets."""

_FRESH_S = 2.0
"""Content of at most this age is reused: pods of one job start together and read the same objects.
"""


class ConfigSource:
    """Reads configuration objects, with a cache of two seconds."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._cache: dict[tuple[str, str, str], tuple[float, ObjectContent | None]] = {}

    async def collect(
        self, namespace: str, names: ConfigNames
    ) -> tuple[dict[str, ObjectContent], dict[str, ObjectContent]]:
        """The content of ConfigMaps and Secrets by name; objects that do not exist are left out.
        Raises ApiError: the API server does not answer.
        """
        self._forget_old()
        maps = {name: await self._read("configmap", namespace, name) for name in sorted(names[0])}
        secrets = {name: await self._read("secret", namespace, name) for name in sorted(names[1])}
        return _present(maps), _present(secrets)

    async def claim_folder(self, namespace: str, name: str) -> Path:
        """The folder of a claim's volume.

        Raises:
            ContainerConfigError: the claim does not exist, or is not bound yet.
            ApiError: the API server does not answer.
        """
        try:
            claim = await self._client.get(PERSISTENT_VOLUME_CLAIMS, name, namespace)
        except NotFound as error:
            raise ContainerConfigError(f'persistentvolumeclaim "{name}" not found') from error
        if not claim.spec.volume_name or claim.status.phase != "Bound":
            raise ContainerConfigError(f'persistentvolumeclaim "{name}" is not bound yet')
        spec = (await self._client.get(PERSISTENT_VOLUMES, claim.spec.volume_name)).spec
        return _folder(claim.spec.volume_name, spec)

    async def _read(self, kind: str, namespace: str, name: str) -> ObjectContent | None:
        key = (kind, namespace, name)
        if key not in self._cache:
            self._cache[key] = (time.monotonic(), await self._fetch(*key))
        return self._cache[key][1]

    async def _fetch(self, kind: str, namespace: str, name: str) -> ObjectContent | None:
        try:
            if kind == "configmap":
                config_map = await self._client.get(CONFIG_MAPS, name, namespace)
                text = {key: value.encode() for key, value in config_map.data.items()}
                return {**text, **_decoded(config_map.binary_data)}
            return _decoded((await self._client.get(SECRETS, name, namespace)).data)
        except NotFound:
            return None

    def _forget_old(self) -> None:
        limit = time.monotonic() - _FRESH_S
        self._cache = {key: entry for key, entry in self._cache.items() if entry[0] > limit}


def names_in_environment(container: Container) -> ConfigNames:
    """The ConfigMaps and Secrets that a container's environment refers to."""
    maps: set[str] = set()
    secrets: set[str] = set()
    for source in container.env_from:
        if source.config_map_ref is not None:
            maps.add(source.config_map_ref.name)
        if source.secret_ref is not None:
            secrets.add(source.secret_ref.name)
    for variable in container.env:
        if (origin := variable.value_from) is None:
            continue
        if origin.config_map_key_ref is not None:
            maps.add(origin.config_map_key_ref.name)
        if origin.secret_key_ref is not None:
            secrets.add(origin.secret_key_ref.name)
    return maps, secrets


def names_in_volumes(pod: Pod) -> ConfigNames:
    """The ConfigMaps and Secrets that a pod's volumes are made of."""
    maps = {volume.config_map.name for volume in pod.spec.volumes if volume.config_map}
    secrets = {volume.secret.secret_name for volume in pod.spec.volumes if volume.secret}
    for volume in pod.spec.volumes:
        for part in volume.projected.sources if volume.projected else ():
            if part.config_map is not None:
                maps.add(part.config_map.name)
            if part.secret is not None:
                secrets.add(part.secret.name)
    return maps, secrets


def token_specs(pod: Pod) -> set[TokenSpec]:
    """The tokens of its account that the volumes of a pod contain."""
    parts = (
        part.service_account_token
        for volume in pod.spec.volumes
        for part in (volume.projected.sources if volume.projected else ())
    )
    return {TokenSpec(part.audience, part.expiration_seconds) for part in parts if part is not None}


def has_refreshed_volumes(pod: Pod) -> bool:
    """True if the pod has volumes that follow changes of API objects."""
    return any(
        volume.config_map or volume.secret or volume.projected or volume.downward_api
        for volume in pod.spec.volumes
    )


def _folder(volume: str, spec: PersistentVolumeSpec) -> Path:
    path = (spec.host_path and spec.host_path.path) or (spec.local and spec.local.path)
    if not path:
        raise ContainerConfigError(f'persistentvolume "{volume}" is not a folder of this machine')
    if not os.path.isdir(path):
        raise ContainerConfigError(f"{path}, the folder of the claim, does not exist")
    return Path(path)


def _decoded(data: Mapping[str, str]) -> ObjectContent:
    return {key: base64.b64decode(value) for key, value in data.items()}


def _present(contents: Mapping[str, ObjectContent | None]) -> dict[str, ObjectContent]:
    return {name: content for name, content in contents.items() if content is not None}
