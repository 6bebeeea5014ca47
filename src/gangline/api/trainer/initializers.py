"""Initializers: the source of a step, and the claim that a ``pvc`` source needs."""

from gangline.api.trainer.merge import Json, merge_list
from gangline.api.trainer.storage_uri import (
    PVC,
    SOURCE_CLAIM_PATH,
    STORAGE_URI,
    StorageUriError,
    parse_storage_uri,
)

_VOLUME = "initializer-source"


def with_source_claim(template: Json, container: Json) -> Json:
    """Mount the claim of a ``pvc`` source in the container of an initializer, read-only.

    Args:
        template: the pod template.
        container: its container with the source, after all merges.
    """
    pod: Json = template.get("spec") or {}
    claim = _source_claim(container)
    if claim:
        source = {"claimName": claim, "readOnly": True}
        volume = {"name": _VOLUME, "persistentVolumeClaim": source}
        mount = {"name": _VOLUME, "mountPath": SOURCE_CLAIM_PATH, "readOnly": True}
        pod = {**pod, "volumes": merge_list(pod.get("volumes") or [], [volume], "name")}
        mounts = merge_list(container.get("volumeMounts") or [], [mount], "mountPath")
        container = {**container, "volumeMounts": mounts}
    containers = [
        container if each.get("name") == container.get("name") else each
        for each in pod.get("containers") or []
    ]
    return {**template, "spec": {**pod, "containers": containers}}


def _source_claim(container: Json) -> str:
    for each in container.get("env") or []:
        if each.get("name") == STORAGE_URI and isinstance(each.get("value"), str):
            try:
                source = parse_storage_uri(each["value"])
            except StorageUriError:
                return ""
            return source.location if source.scheme == PVC else ""
    return ""
