"""Reading and extending pod templates, which stay the user's own JSON.

Nothing is changed in place: each function returns a new manifest that shares what it left alone.
"""

from collections.abc import Iterable, Mapping, Sequence

from gangline.operator.job import Manifest


def pod_spec(template: Manifest) -> Manifest:
    """Return the pod specification in a template."""
    spec: Manifest = template.get("spec") or {}
    return spec


def containers(template: Manifest) -> list[Manifest]:
    """List the template's containers."""
    found: list[Manifest] = pod_spec(template).get("containers") or []
    return found


def main_container(template: Manifest, name: str) -> Manifest:
    """Find the container that trains: the one with the kind's name, else the first."""
    candidates = containers(template)
    named = (container for container in candidates if container.get("name") == name)
    return next(named, candidates[0] if candidates else {})


def ports(template: Manifest, container: str) -> list[Manifest]:
    """List the ports of the container that trains."""
    found: list[Manifest] = main_container(template, container).get("ports") or []
    return found


def port(template: Manifest, container: str, name: str, otherwise: int) -> int:
    """Look up a port of the container that trains by the port's name."""
    named = (p.get("containerPort") for p in ports(template, container) if p.get("name") == name)
    return next((number for number in named if isinstance(number, int)), otherwise)


def with_port(template: Manifest, container: str, name: str, number: int) -> Manifest:
    """Add a named port to the container that trains, unless it has one of that name."""
    trains = main_container(template, container)
    listed = ports(template, container)
    if not trains or any(entry.get("name") == name for entry in listed):
        return template
    return with_container(
        template, container, ports=[*listed, {"name": name, "containerPort": number}]
    )


def with_container(template: Manifest, container: str, **fields: object) -> Manifest:
    """Set fields of the container that trains."""
    trains = main_container(template, container)
    changed = {**trains, **fields}
    return _with_containers(
        template, [changed if entry is trains else entry for entry in containers(template)]
    )


def with_volume(template: Manifest, container: str, volume: Manifest, mount: Manifest) -> Manifest:
    """Add a volume that the container that trains sees; one of the same name makes place for it."""
    volumes = _others(pod_spec(template).get("volumes"), volume)
    mounts = _others(main_container(template, container).get("volumeMounts"), mount)
    return with_container(
        with_spec(template, volumes=[*volumes, volume]), container, volumeMounts=[*mounts, mount]
    )


def with_environment(
    template: Manifest, variables: Sequence[Manifest], only: str | None = None
) -> Manifest:
    """Append variables to every container. Of two with one name the kubelet takes the last.

    Args:
        template: the template.
        variables: what to append.
        only: the name of the container that trains, if no other shall get them.
    """
    if not variables:
        return template
    chosen = containers(template) if only is None else [main_container(template, only)]
    return _with_containers(
        template,
        [
            {**container, "env": [*(container.get("env") or []), *variables]}
            if any(container is each for each in chosen)
            else container
            for container in containers(template)
        ],
    )


def with_metadata(
    manifest: Manifest, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> Manifest:
    """Add labels and annotations, over those that are there."""
    meta: Manifest = manifest.get("metadata") or {}
    added = {"labels": {**(meta.get("labels") or {}), **labels}}
    notes = {**(meta.get("annotations") or {}), **annotations}
    return {**manifest, "metadata": {**meta, **added, **({"annotations": notes} if notes else {})}}


def with_spec(manifest: Manifest, **fields: object) -> Manifest:
    """Set fields of the pod specification."""
    return {**manifest, "spec": {**pod_spec(manifest), **fields}}


def _with_containers(template: Manifest, replaced: Iterable[Manifest]) -> Manifest:
    return with_spec(template, containers=list(replaced))


def _others(listed: Iterable[Manifest] | None, added: Manifest) -> list[Manifest]:
    return [entry for entry in listed or () if entry.get("name") != added["name"]]
