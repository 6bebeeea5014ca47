"""Reads and extends pod templates, which remain the user's JSON.

No function changes its arguments: each returns a new manifest that shares the unchanged parts.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from gangline.operator.model.job import Manifest


def pod_spec(template: Manifest) -> Manifest:
    spec: Manifest = template.get("spec") or {}
    return spec


def service_account(template: Manifest) -> str:
    """Return the account of the pods, also from the deprecated field; empty if none is given."""
    spec = pod_spec(template)
    return str(spec.get("serviceAccountName") or spec.get("serviceAccount") or "")


def list_containers(template: Manifest) -> list[Manifest]:
    containers: list[Manifest] = pod_spec(template).get("containers") or []
    return containers


def main_container(template: Manifest, name: str) -> Manifest:
    """Return the main container: the one with the kind's name, else the first; empty if none."""
    candidates = list_containers(template)
    named = (container for container in candidates if container.get("name") == name)
    return next(chain(named, candidates), {})


def container_ports(template: Manifest, container: str) -> list[Manifest]:
    ports: list[Manifest] = main_container(template, container).get("ports") or []
    return ports


def find_port(template: Manifest, container: str, name: str, otherwise: int) -> int:
    """Return a port of the main container by its name, or ``otherwise``."""
    for entry in container_ports(template, container):
        if entry.get("name") == name and isinstance(number := entry.get("containerPort"), int):
            return number
    return otherwise


def with_port(template: Manifest, container: str, name: str, number: int) -> Manifest:
    """Add a named port to the main container, unless it has one of that name."""
    main = main_container(template, container)
    listed = main.get("ports") or []
    if not main or any(entry.get("name") == name for entry in listed):
        return template
    added = {"name": name, "containerPort": number}
    return _with_container(template, main, {"ports": [*listed, added]})


def with_container(template: Manifest, container: str, **fields: object) -> Manifest:
    return _with_container(template, main_container(template, container), fields)


def with_volume(template: Manifest, container: str, volume: Manifest, mount: Manifest) -> Manifest:
    """Add a volume and mount it in the main container; both replace any of the same name."""
    volumes = _without_name(pod_spec(template).get("volumes"), volume)
    mounts = _without_name(main_container(template, container).get("volumeMounts"), mount)
    return with_container(
        with_spec(template, volumes=[*volumes, volume]), container, volumeMounts=[*mounts, mount]
    )


def with_environment(
    template: Manifest, variables: Sequence[Manifest], only: str | None = None
) -> Manifest:
    """Append variables to all containers, or to the main container ``only``.

    Of two with one name the kubelet takes the last.
    """
    if not variables:
        return template
    chosen = list_containers(template) if only is None else [main_container(template, only)]
    return _with_containers(
        template,
        [
            {**container, "env": [*(container.get("env") or []), *variables]}
            if any(container is candidate for candidate in chosen)
            else container
            for container in list_containers(template)
        ],
    )


def with_metadata(
    manifest: Manifest, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> Manifest:
    meta: Manifest = manifest.get("metadata") or {}
    added = {"labels": {**(meta.get("labels") or {}), **labels}}
    notes = {**(meta.get("annotations") or {}), **annotations}
    return {**manifest, "metadata": {**meta, **added, **({"annotations": notes} if notes else {})}}


def with_spec(manifest: Manifest, **fields: object) -> Manifest:
    return {**manifest, "spec": {**pod_spec(manifest), **fields}}


def with_init_container(manifest: Manifest, container: Manifest) -> Manifest:
    """Add an init container behind the others."""
    others = pod_spec(manifest).get("initContainers") or []
    return with_spec(manifest, initContainers=[*others, container])


def _with_container(
    template: Manifest, changed: Manifest, fields: Mapping[str, object]
) -> Manifest:
    return _with_containers(
        template,
        [
            {**container, **fields} if container is changed else container
            for container in list_containers(template)
        ],
    )


def _with_containers(template: Manifest, replaced: Iterable[Manifest]) -> Manifest:
    return with_spec(template, containers=list(replaced))


def _without_name(listed: Iterable[Manifest] | None, added: Manifest) -> list[Manifest]:
    return [entry for entry in listed or () if entry.get("name") != added["name"]]
