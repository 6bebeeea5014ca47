"""Reads and extends pod templates, which remain the user's JSON.

No function changes its arguments: each returns a new manifest that shares the unchanged parts.

One rule for all kinds: what a template has stays. A port that it declares is used under any name, a
path at which it mounts something is left to it, and an added volume or init container whose name is
taken gets another one. Only the variables that the operator must set replace the template's; the
validation warns of these by name.
"""

import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

from gangline.api.names import free_name
from gangline.api.trainer.merge import upsert_env
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
    """Add a named port to the main container, unless it has one of that name, or the pod declares
    the number under any name: containers of a pod share its ports.
    """
    main = main_container(template, container)
    listed = main.get("ports") or []
    if not main or declares_port(template, number):
        return template
    if any(entry.get("name") == name for entry in listed):
        return template
    added = {"name": name, "containerPort": number}
    return _with_container(template, main, {"ports": [*listed, added]})


def declares_port(template: Manifest, number: int) -> bool:
    return any(
        entry.get("containerPort") == number and entry.get("protocol") in (None, "", "TCP")
        for container in list_containers(template)
        for entry in container.get("ports") or []
    )


def mounts_path(container: Manifest, path: str) -> bool:
    mounts = container.get("volumeMounts") or []
    paths = (posixpath.normpath(str(mount.get("mountPath"))) for mount in mounts)
    return posixpath.normpath(path) in paths


def with_container(template: Manifest, container: str, **fields: object) -> Manifest:
    return _with_container(template, main_container(template, container), fields)


def with_volume(template: Manifest, container: str, volume: Manifest, mount: Manifest) -> Manifest:
    """Add a volume and mount it in the main container, unless this mounts something there."""
    main = main_container(template, container)
    if mounts_path(main, mount["mountPath"]):
        return template
    volumes = pod_spec(template).get("volumes") or []
    name = {"name": free_name(volume["name"], {given.get("name") for given in volumes})}
    return with_container(
        with_spec(template, volumes=[*volumes, volume | name]),
        container,
        volumeMounts=[*(main.get("volumeMounts") or []), mount | name],
    )


def with_environment(
    template: Manifest,
    variables: Sequence[Manifest],
    replaced: Collection[str],
    only: str | None = None,
) -> Manifest:
    """Add variables to all containers, or to the main container ``only``.

    They replace those of a container whose names are in ``replaced``; others stay. They come first,
    so that the container's own variables may refer to them.
    """
    if not variables:
        return template
    chosen = list_containers(template) if only is None else [main_container(template, only)]
    return _with_containers(
        template,
        [
            _with_variables(container, variables, replaced)
            if any(container is candidate for candidate in chosen)
            else container
            for container in list_containers(template)
        ],
    )


def _with_variables(
    container: Manifest, variables: Sequence[Manifest], replaced: Collection[str]
) -> Manifest:
    given = container.get("env") or []
    names = {variable.get("name") for variable in given} - set(replaced)
    added = upsert_env({}, [v for v in variables if v["name"] not in names]).get("env", [])
    ours = {variable["name"] for variable in added}
    return {**container, "env": [*added, *(v for v in given if v.get("name") not in ours)]}


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
    taken = {other.get("name") for other in [*others, *list_containers(manifest)]}
    added = {**container, "name": free_name(container["name"], taken)}
    return with_spec(manifest, initContainers=[*others, added])


def with_cluster_dns(manifest: Manifest) -> Manifest:
    """Let a pod on the host network resolve names of the cluster, unless it has another policy."""
    if pod_spec(manifest).get("dnsPolicy") not in (None, "", "ClusterFirst"):
        return manifest
    return with_spec(manifest, dnsPolicy="ClusterFirstWithHostNet")


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
