"""Configuration of containers: environment variables, and the API objects that they come from.

`build_environment` gets all objects passed in. As in Kubernetes, later definitions win, and
``$(NAME)`` in a value refers to a variable that was defined before it. `ConfigSource` reads
ConfigMaps, Secrets and claims from the API server, and caches them for two seconds.
"""

import base64
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from gangline.api.core.container import Container, EnvVarSource, ResourceFieldSelector
from gangline.api.core.devices import RESOURCE_CLAIMS
from gangline.api.core.pod import Pod
from gangline.api.core.service import Service
from gangline.api.core.storage import PersistentVolumeSpec
from gangline.api.core.volumes import ServiceAccountTokenProjection, VolumeProjection
from gangline.api.quantity import Quantity, parse_quantity
from gangline.api.resource_list import CPU
from gangline.api.resources import (
    CONFIG_MAPS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    SECRETS,
)
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import NotFound

_REFERENCE = re.compile(r"\$(\$|\([-._a-zA-Z0-9]+\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class ContainerConfigError(Exception):
    """A container cannot be configured; the message names what is missing."""


class DeviceClaimError(ContainerConfigError):
    """The devices of a pod are not allocated; the message names the claim."""


ObjectName = tuple[str, str]
"""``configmap`` or ``secret``, and the name of the object."""
ObjectContent = Mapping[str, bytes]
_KINDS = {"configmap": "ConfigMap", "secret": "Secret"}
_M = TypeVar("_M")
_S = TypeVar("_S")


class TokenSpec(NamedTuple):
    """A token that a volume contains."""

    audience: str = ""
    """Empty for the API server."""
    lifetime_s: int = 3600


@dataclass(frozen=True, slots=True)
class ValueSources:
    """The values for environments and volumes."""

    objects: Mapping[ObjectName, ObjectContent] = field(default_factory=dict)
    """Content of ConfigMaps and Secrets of the pod's namespace."""

    allocatable: Mapping[str, int] = field(default_factory=dict)
    """The node's resources: they replace limits that a container does not set."""

    node_name: str = ""
    host_ip: str = ""
    pod_ip: str = ""
    service_account_tokens: Mapping[TokenSpec, str] = field(default_factory=dict)
    """The tokens of the pod's account; none if the account does not exist."""


def build_environment(
    pod: Pod,
    container: Container,
    sources: ValueSources,
    base: Mapping[str, str],
    services: Sequence[Service] = (),
) -> dict[str, str]:
    """Return the variables of a container, added to ``base``. Raises ContainerConfigError: an
    object or key that it refers to is missing.
    """
    defined = {**service_variables(pod, services)}
    for source in container.env_from:
        for kind, ref in references(source.config_map_ref, source.secret_ref):
            content = object_content(sources, (kind, ref.name), ref.optional)
            defined |= {source.prefix + key: _text(value) for key, value in content.items()}
    for variable in container.env:
        if variable.value_from is None:
            defined[variable.name] = expand_references(variable.value, defined)
        elif (value := _from_source(pod, container, variable.value_from, sources)) is not None:
            defined[variable.name] = value
    return {**base, **defined}


def expand_references(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` by the variable's value; ``$$`` becomes ``$``, unknown names stay."""

    def replacement(match: re.Match[str]) -> str:
        reference = match[1]
        if reference == "$":
            return "$"
        return variables.get(reference[1:-1], match[0])

    return _REFERENCE.sub(replacement, text)


def field_value(pod: Pod, path: str, sources: ValueSources) -> str:
    """A field of the pod for environment variables and the downward API. Raises
    ContainerConfigError: the field is not available.
    """
    if match := _SUBSCRIPT.fullmatch(path):
        values = pod.metadata.labels if match[1] == "labels" else pod.metadata.annotations
        return values.get(match[2], "")
    simple = {
        "metadata.name": pod.metadata.name,
        "metadata.namespace": pod.metadata.namespace,
        "metadata.uid": pod.metadata.uid,
        "spec.nodeName": pod.spec.node_name or sources.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name or "default",
        "status.hostIP": sources.host_ip,
        "status.hostIPs": sources.host_ip,
        "status.podIP": sources.pod_ip,
        "status.podIPs": sources.pod_ip,
        "metadata.labels": _listing(pod.metadata.labels),
        "metadata.annotations": _listing(pod.metadata.annotations),
    }
    if path not in simple:
        raise ContainerConfigError(
            f"fieldPath {path!r} is not a field that containers can refer to"
        )
    return simple[path]


def resource_value(
    container: Container, ref: ResourceFieldSelector, allocatable: Mapping[str, int]
) -> str:
    """A request or limit of a container in units of the divisor, rounded up. Raises
    ContainerConfigError: there is no such resource.
    """
    side, _, name = ref.resource.partition(".")
    if side not in ("limits", "requests") or not name:
        raise ContainerConfigError(
            f"resource {ref.resource!r} is neither limits.NAME nor requests.NAME"
        )
    resources = container.resources
    written = {**resources.limits, **resources.requests} if side == "requests" else resources.limits
    if name in written:
        quantity = parse_quantity(written[name])
    elif side == "limits":
        scale = 10**6 if name == CPU else 10**9
        quantity = Quantity(allocatable.get(name, 0) * scale)
    else:
        quantity = Quantity(0)
    divisor = parse_quantity(ref.divisor) if ref.divisor else Quantity(0)
    unit = divisor.nano or 10**9
    return str(-(-quantity.nano // unit))


def service_variables(pod: Pod, services: Sequence[Service]) -> dict[str, str]:
    """The variables of services: all of the pod's namespace, and the API server's."""
    variables: dict[str, str] = {}
    links = pod.spec.enable_service_links is not False
    for service in sorted(services, key=lambda item: item.metadata.name):
        meta = service.metadata
        api_server = (meta.namespace, meta.name) == ("default", "kubernetes")
        if api_server or (links and meta.namespace == pod.metadata.namespace):
            variables |= _variables_of(service)
    return variables


def _variables_of(service: Service) -> dict[str, str]:
    address = service.spec.cluster_ip
    if not address or address == "None" or not service.spec.ports:
        return {}
    prefix = service.metadata.name.upper().replace("-", "_")
    first = service.spec.ports[0]
    variables = {f"{prefix}_SERVICE_HOST": address, f"{prefix}_SERVICE_PORT": str(first.port)}
    for port in service.spec.ports:
        protocol = (port.protocol or "TCP").lower()
        url = f"{protocol}://{address}:{port.port}"
        if port.name:
            name = port.name.upper().replace("-", "_")
            variables[f"{prefix}_SERVICE_PORT_{name}"] = str(port.port)
        if port is first:
            variables[f"{prefix}_PORT"] = url
        link = f"{prefix}_PORT_{port.port}_{protocol.upper()}"
        variables |= {
            link: url,
            f"{link}_PROTO": protocol,
            f"{link}_PORT": str(port.port),
            f"{link}_ADDR": address,
        }
    return variables


def _from_source(
    pod: Pod, container: Container, source: EnvVarSource, sources: ValueSources
) -> str | None:
    if source.field_ref is not None:
        return field_value(pod, source.field_ref.field_path, sources)
    if (resource := source.resource_field_ref) is not None:
        of = find_container(pod, resource.container_name) or container
        return resource_value(of, resource, sources.allocatable)
    for kind, key in references(source.config_map_key_ref, source.secret_key_ref):
        content = object_content(sources, (kind, key.name), key.optional)
        if key.key in content or key.optional:
            return _text(content[key.key]) if key.key in content else None
        object_ = f"{_KINDS[kind]} {pod.metadata.namespace}/{key.name}"
        raise ContainerConfigError(f"couldn't find key {key.key} in {object_}")
    raise ContainerConfigError("valueFrom names a source that this cluster does not have")


def references(config_map: _M | None, secret: _S | None) -> Iterator[tuple[str, _M | _S]]:
    """Yield the references that are given, each with the kind of its object."""
    if config_map is not None:
        yield "configmap", config_map
    if secret is not None:
        yield "secret", secret


def object_content(
    sources: ValueSources, named: ObjectName, optional: bool | None
) -> ObjectContent:
    """The content of one object; empty if it does not exist and is optional."""
    if named not in sources.objects and not optional:
        kind, name = named
        raise ContainerConfigError(f'{kind} "{name}" not found')
    return sources.objects.get(named, {})


def _text(value: bytes) -> str:
    # An environment cannot contain zero bytes; invalid UTF-8 is passed through unchanged.
    return value.decode("utf-8", "surrogateescape").replace("\0", "")


def _listing(pairs: Mapping[str, str]) -> str:
    return "\n".join(f'{key}="{_quoted(value)}"' for key, value in sorted(pairs.items()))


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def find_container(pod: Pod, name: str) -> Container | None:
    every = [*pod.spec.containers, *pod.spec.init_containers]
    return next((container for container in every if container.name == name), None)


_FRESH_S = 2.0
"""Content of at most this age is reused: pods of one job start together and read the same objects.
"""


class ConfigSource:
    """Reads configuration objects, with a cache of two seconds."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._cache: dict[tuple[str, str, str], tuple[float, ObjectContent | None]] = {}

    async def collect(
        self, namespace: str, names: Iterable[ObjectName]
    ) -> dict[ObjectName, ObjectContent]:
        """The content of ConfigMaps and Secrets; objects that do not exist are left out. Raises
        ApiError: the API server does not answer.
        """
        self._forget_old()
        found = {(kind, name): await self._read(kind, namespace, name) for kind, name in names}
        return {named: content for named, content in found.items() if content is not None}

    async def claim_folder(self, namespace: str, name: str, owner_uid: str = "") -> Path:
        """The folder of a claim's volume. Raises ContainerConfigError: the claim does not exist, is
        not bound yet, or has another owner than ``owner_uid`` (if given); ApiError.
        """
        try:
            claim = await self._client.get(PERSISTENT_VOLUME_CLAIMS, name, namespace)
        except NotFound as error:
            raise ContainerConfigError(f'persistentvolumeclaim "{name}" not found') from error
        owner = claim.metadata.controller
        if owner_uid and (owner is None or owner.uid != owner_uid):
            raise ContainerConfigError(f'PVC "{namespace}/{name}" was not created for the pod')
        if not claim.spec.volume_name or claim.status.phase != "Bound":
            raise ContainerConfigError(f'persistentvolumeclaim "{name}" is not bound yet')
        spec = (await self._client.get(PERSISTENT_VOLUMES, claim.spec.volume_name)).spec
        return _folder(claim.spec.volume_name, spec)

    async def check_device_claims(self, pod: Pod) -> None:
        """Check that the claims of devices are reserved for a pod. Raises DeviceClaimError: one is
        not; ApiError.
        """
        created = {
            status["name"]: status.get("resourceClaimName")
            for status in pod.status.resource_claim_statuses
        }
        for entry in pod.spec.resource_claims:
            name = entry.resource_claim_name or created.get(entry.name, "")
            if name is None:
                continue  # The controller found that the pod needs none.
            if not name:
                raise DeviceClaimError(f'the resourceclaim of "{entry.name}" was not created yet')
            try:
                claim = await self._client.get(RESOURCE_CLAIMS, name, pod.metadata.namespace)
            except NotFound as error:
                raise DeviceClaimError(f'resourceclaim "{name}" not found') from error
            if pod.metadata.uid not in [user.uid for user in claim.status.reserved_for]:
                raise DeviceClaimError(f'resourceclaim "{name}" is not reserved for the pod')

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


def names_in_environment(container: Container) -> set[ObjectName]:
    names = {
        (kind, ref.name)
        for source in container.env_from
        for kind, ref in references(source.config_map_ref, source.secret_ref)
    }
    origins = [variable.value_from for variable in container.env if variable.value_from]
    return names | {
        (kind, key.name)
        for origin in origins
        for kind, key in references(origin.config_map_key_ref, origin.secret_key_ref)
    }


def names_in_volumes(pod: Pod) -> set[ObjectName]:
    volumes = pod.spec.volumes
    names = {("configmap", volume.config_map.name) for volume in volumes if volume.config_map}
    names |= {("secret", volume.secret.secret_name) for volume in volumes if volume.secret}
    return names | {
        (kind, ref.name)
        for part in _projected_parts(pod)
        for kind, ref in references(part.config_map, part.secret)
    }


def _projected_parts(pod: Pod) -> list[VolumeProjection]:
    projected = [volume.projected for volume in pod.spec.volumes if volume.projected]
    return [part for volume in projected for part in volume.sources]


def token_specs(pod: Pod) -> set[TokenSpec]:
    tokens = [part.service_account_token for part in _projected_parts(pod)]
    return {token_spec(token) for token in tokens if token is not None}


def token_spec(projection: ServiceAccountTokenProjection) -> TokenSpec:
    seconds = projection.expiration_seconds
    return TokenSpec(projection.audience, 3600 if seconds is None else seconds)


def refreshed_volumes(pod: Pod) -> list[str]:
    return [
        volume.name
        for volume in pod.spec.volumes
        if volume.config_map or volume.secret or volume.projected or volume.downward_api
    ]


def _folder(volume: str, spec: PersistentVolumeSpec) -> Path:
    path = (spec.host_path and spec.host_path.path) or (spec.local and spec.local.path)
    if not path:
        raise ContainerConfigError(f'persistentvolume "{volume}" is not a folder of this machine')
    if not os.path.isdir(path):
        raise ContainerConfigError(f"{path}, the folder of the claim, does not exist")
    return Path(path)


def _decoded(data: Mapping[str, str]) -> ObjectContent:
    return {key: base64.b64decode(value) for key, value in data.items()}
