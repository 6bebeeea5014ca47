"""Errors in a pod template that no schema expresses: names, duplicates, references, quantities."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gangline.api import names
from gangline.api.core.container import Container, EnvVar, ResourceRequirements
from gangline.api.core.pod import PodSpec, PodTemplateSpec
from gangline.api.core.probe import Probe
from gangline.api.core.volumes import Volume
from gangline.api.meta.objects import ObjectMeta, Wire
from gangline.api.quantity import Quantity, QuantityError, parse_quantity
from gangline.api.schema.field_error import FieldError, child_path, name_errors

MAX_ANNOTATION_BYTES = 256 * 1024
"""Limit for all keys and values together; an API server refuses more."""

_INTEGER_RESOURCES = ("nvidia.com/", "amd.com/", "pods")
_PROBES = ("liveness", "readiness", "startup")


def validate_pod_template(template: PodTemplateSpec, path: str) -> Iterator[FieldError]:
    """Yield every error in a pod template; ``path`` is the template's."""
    yield from validate_metadata(template.metadata, f"{path}.metadata")
    yield from validate_pod_spec(template.spec, f"{path}.spec")


def validate_pod_spec(spec: PodSpec, path: str) -> Iterator[FieldError]:
    """Yield every error in a pod specification; ``path`` is the specification's."""
    if not spec.containers:
        yield FieldError(f"{path}.containers", None, "is missing", "give at least one container")
    volumes = {volume.name for volume in spec.volumes}
    sets = (("initContainers", spec.init_containers), ("containers", spec.containers))
    for field, containers in sets:
        for index, container in enumerate(containers):
            yield from _container_errors(container, f"{path}.{field}[{index}]", volumes)
    everyone = [
        (f"{path}.{field}[{index}].name", container.name)
        for field, containers in (sets[1], sets[0])
        for index, container in enumerate(containers)
    ]
    yield from _duplicate_errors(
        everyone, "is the name of another container too", "give each its own name"
    )
    for index, volume in enumerate(spec.volumes):
        yield from _volume_errors(volume, f"{path}.volumes[{index}]")
    yield from _duplicate_errors(
        [(f"{path}.volumes[{i}].name", volume.name) for i, volume in enumerate(spec.volumes)],
        "is the name of another volume too",
        "give each its own name",
    )
    yield from _quantity_errors(spec.overhead, f"{path}.overhead")
    if spec.resources:
        yield from _resource_errors(spec.resources, f"{path}.resources")
    yield from _label_errors(spec.node_selector, f"{path}.nodeSelector")


def validate_metadata(meta: ObjectMeta, path: str) -> Iterator[FieldError]:
    """Yield every error in the labels and annotations of an object or template."""
    yield from _label_errors(meta.labels, f"{path}.labels")
    size = sum(len(key.encode()) + len(text.encode()) for key, text in meta.annotations.items())
    if size > MAX_ANNOTATION_BYTES:
        problem = f"have {size} bytes in total"
        remedy = f"the limit is {MAX_ANNOTATION_BYTES}; put the rest into a ConfigMap"
        yield FieldError(f"{path}.annotations", None, problem, remedy)
    for key in meta.annotations:
        yield from name_errors(
            child_path(f"{path}.annotations", key), key, names.validate_label_key(key)
        )


def _label_errors(labels: Mapping[str, str], path: str) -> Iterator[FieldError]:
    for key, value in labels.items():
        yield from name_errors(child_path(path, key), key, names.validate_label_key(key))
        yield from name_errors(child_path(path, key), value, names.validate_label_value(value))


def _container_errors(container: Container, path: str, volumes: set[str]) -> Iterator[FieldError]:
    if container.name:  # a missing name is reported by the schema
        yield from name_errors(
            f"{path}.name", container.name, names.validate_dns_label(container.name)
        )
    if not container.image.strip():
        yield FieldError(f"{path}.image", None, "is missing", "name the image to run")
    elif container.image != container.image.strip():
        yield FieldError(f"{path}.image", container.image, "has spaces around it", "remove them")
    yield from _environment_errors(container.env, f"{path}.env")
    yield from _port_errors(container, f"{path}.ports")
    yield from _resource_errors(container.resources, f"{path}.resources")
    yield from _mount_errors(container, path, volumes)
    for kind in _PROBES:
        probe: Probe | None = getattr(container, f"{kind}_probe")
        if probe:
            yield from _probe_errors(probe, f"{path}.{kind}Probe")


def _environment_errors(variables: Sequence[EnvVar], path: str) -> Iterator[FieldError]:
    for index, variable in enumerate(variables):
        where = f"{path}[{index}]"
        if variable.name or not variable.value_from:
            yield from name_errors(
                f"{where}.name", variable.name, names.validate_env_name(variable.name)
            )
        if variable.value_from is None:
            continue
        if variable.value:
            problem = "is given together with valueFrom"
            yield FieldError(f"{where}.value", variable.value, problem, "give one of the two")
        yield from _one_of_errors(variable.value_from, f"{where}.valueFrom", "source")


def _port_errors(container: Container, path: str) -> Iterator[FieldError]:
    for index, port in enumerate(container.ports):
        if port.name:
            where = f"{path}[{index}].name"
            yield from name_errors(where, port.name, names.validate_port_name(port.name))
    yield from _duplicate_errors(
        [(f"{path}[{i}].name", port.name) for i, port in enumerate(container.ports) if port.name],
        "is the name of another port too",
        "give each its own name",
    )
    yield from _duplicate_errors(
        [
            (f"{path}[{i}].containerPort", f"{port.container_port}/{port.protocol or 'TCP'}")
            for i, port in enumerate(container.ports)
        ],
        "is listed twice",
        "list each port once",
    )


def _mount_errors(container: Container, path: str, volumes: set[str]) -> Iterator[FieldError]:
    for index, mount in enumerate(container.volume_mounts):
        where = f"{path}.volumeMounts[{index}]"
        if mount.name and mount.name not in volumes:
            known = f"one of {', '.join(sorted(volumes))}" if volumes else "it there first"
            remedy = f"add a volume of that name, or name {known}"
            yield FieldError(f"{where}.name", mount.name, "is not a volume of the pod", remedy)
        if mount.sub_path and mount.sub_path_expr:
            problem = "is given together with subPathExpr"
            yield FieldError(f"{where}.subPath", mount.sub_path, problem, "give one of the two")
        if ":" in mount.mount_path:
            yield FieldError(f"{where}.mountPath", mount.mount_path, "has a colon", "remove it")
    yield from _duplicate_errors(
        [
            (f"{path}.volumeMounts[{i}].mountPath", mount.mount_path)
            for i, mount in enumerate(container.volume_mounts)
            if mount.mount_path
        ],
        "has another mount too",
        "mount one volume at each path",
    )


def _probe_errors(probe: Probe, path: str) -> Iterator[FieldError]:
    actions = (probe.exec, probe.http_get, probe.tcp_socket, probe.grpc)
    given = sum(action is not None for action in actions)
    if given != 1:
        problem = "has no action" if not given else f"has {given} actions"
        yield FieldError(path, None, problem, "give one of exec, httpGet, tcpSocket, grpc")


def _volume_errors(volume: Volume, path: str) -> Iterator[FieldError]:
    if volume.name:
        yield from name_errors(f"{path}.name", volume.name, names.validate_dns_label(volume.name))
    sources = [field for field in volume.__struct_fields__ if field != "name"]
    given = [field for field in sources if getattr(volume, field) is not None]
    if len(given) > 1:
        yield FieldError(path, volume.name, f"has {len(given)} sources", "give exactly one")
    if volume.empty_dir and volume.empty_dir.size_limit is not None:
        limit = {"sizeLimit": volume.empty_dir.size_limit}
        yield from _quantity_errors(limit, f"{path}.emptyDir")


def _one_of_errors(choice: Wire, path: str, what: str) -> Iterator[FieldError]:
    given = [field for field in choice.__struct_fields__ if getattr(choice, field) is not None]
    if len(given) != 1:
        problem = f"has no {what}" if not given else f"has {len(given)} {what}s"
        fields = ", ".join(sorted(type(choice).__struct_encode_fields__))
        yield FieldError(path, None, problem, f"give one of {fields}")


def _resource_errors(resources: ResourceRequirements, path: str) -> Iterator[FieldError]:
    yield from _quantity_errors(resources.limits, f"{path}.limits")
    yield from _quantity_errors(resources.requests, f"{path}.requests")
    for name in resources.requests.keys() & resources.limits.keys():
        request = _parse_or_none(resources.requests[name])
        limit = _parse_or_none(resources.limits[name])
        if request is None or limit is None:
            continue
        where = child_path(f"{path}.requests", name)
        if request > limit:
            remedy = f"request at most {limit}, or raise the limit"
            yield FieldError(where, str(request), f"is more than the limit of {limit}", remedy)
        elif request < limit and "/" in name:
            remedy = f"request {limit}, or omit the request: the limit is the default"
            yield FieldError(where, str(request), f"differs from the limit of {limit}", remedy)
    for name in sorted(resources.requests.keys() - resources.limits.keys()):
        if "/" in name:
            where = child_path(f"{path}.limits", name)
            yield FieldError(where, None, "is missing", "give the same amount as in requests")


def _quantity_errors(amounts: Mapping[str, str | int | float], path: str) -> Iterator[FieldError]:
    for name, written in amounts.items():
        where = child_path(path, name)
        try:
            quantity = parse_quantity(written)
        except QuantityError as error:
            yield FieldError(where, written, error.problem, error.remedy)
            continue
        if quantity.nano < 0:
            yield FieldError(where, written, "is negative", "give 0 or more")
        if name.startswith(_INTEGER_RESOURCES) and quantity.nano % 10**9:
            yield FieldError(where, written, "is not a whole number", "devices cannot be divided")


def _parse_or_none(written: str | int | float) -> Quantity | None:
    try:
        return parse_quantity(written)
    except QuantityError:
        return None


def _duplicate_errors(
    values: Sequence[tuple[str, str]], problem: str, remedy: str
) -> Iterator[FieldError]:
    """Yield an error for each value that occurred before, at its later paths."""
    seen: Counter[str] = Counter()
    for path, value in values:
        if value and seen[value]:
            yield FieldError(path, value, problem, remedy)
        seen[value] += 1
