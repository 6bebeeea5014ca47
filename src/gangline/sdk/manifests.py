"""Manifests for resubmission: stored jobs without what the server has set, copies under another
name.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Manifest = dict[str, Any]

_SERVER_SET_FIELDS = (
    "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds", "managedFields", "ownerReferences", "selfLink", "finalizers",
)  # fmt: skip
_FOREIGN_ANNOTATIONS = (
    "kubectl.kubernetes.io/last-applied-configuration",
    "deployment.kubernetes.io/revision",
)


def to_submittable(stored: Mapping[str, Any]) -> Manifest:
    """Return a stored object without fields that the server has set."""
    found = {key: value for key, value in stored.items() if key != "status"}
    metadata = {key: v for key, v in stored["metadata"].items() if key not in _SERVER_SET_FIELDS}
    annotations = metadata.get("annotations") or {}
    own = {key: v for key, v in annotations.items() if key not in _FOREIGN_ANNOTATIONS}
    metadata.pop("annotations", None)
    if own:
        metadata["annotations"] = own
    found["metadata"] = metadata
    if stored.get("kind") == "Service":
        found["spec"] = _service_spec(stored["spec"])
    return found


def _service_spec(spec: Mapping[str, Any]) -> Manifest:
    """Drop the addresses and ports that the server has allocated."""
    found = {key: value for key, value in spec.items() if key not in {"clusterIP", "clusterIPs"}}
    found["ports"] = [
        {key: value for key, value in port.items() if key != "nodePort"}
        for port in spec.get("ports") or []
    ]
    return found


def rename_objects(objects: Sequence[Manifest], old: str, new: str) -> list[Manifest]:
    """Return a job and the objects that it owns under another name."""
    names = {
        each["metadata"]["name"]: _new_name(each["metadata"]["name"], old, new) for each in objects
    }
    names[old] = new
    return [_replace_names(each, names) for each in objects]


def _new_name(name: str, old: str, new: str) -> str:
    return new + name.removeprefix(old) if name.startswith(old) else f"{new}-{name}"


def _replace_names(node: Any, names: Mapping[str, str]) -> Any:
    """Replace texts that equal an old name, in references, labels and selectors."""
    if isinstance(node, dict):
        return {key: _replace_names(value, names) for key, value in node.items()}
    if isinstance(node, list):
        return [_replace_names(value, names) for value in node]
    return names.get(node, node) if isinstance(node, str) else node


def iterate_roles(job: Mapping[str, Any]) -> Iterator[tuple[list[str], Mapping[str, Any]]]:
    """Yield path and replica spec of each role, for any kind of job."""
    spec = job.get("spec") or {}
    for key, value in spec.items():
        if not isinstance(value, dict):
            continue
        if key.endswith("eplicaSpecs"):
            for role, each in value.items():
                yield ["spec", key, role], each
        elif isinstance(value.get("template"), dict):
            yield ["spec", key], value


def scale_patch(job: Mapping[str, Any], role: str, replicas: int) -> Manifest:
    """Return the merge patch that sets the number of replicas of a role.

    Raises:
        KeyError: the job has no such role; the argument lists its roles.
    """
    for path, _ in iterate_roles(job):
        if path[-1].lower() == role.lower():
            patch: Manifest = {"replicas": replicas}
            for step in reversed(path):
                patch = {step: patch}
            return patch
    raise KeyError(", ".join(path[-1] for path, _ in iterate_roles(job)))


def replica_count(job: Mapping[str, Any], role: str) -> int:
    """Return the requested number of replicas of a role; 0 if the job has no such role."""
    for path, spec in iterate_roles(job):
        if path[-1].lower() == role.lower():
            count = spec.get("replicas")
            return 1 if count is None else int(count)
    return 0
