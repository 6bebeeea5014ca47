"""Archive of the logs of deleted pods, for the jobs that owned them.

    kept-logs/POD_UID/pod.json                 metadata of the pod, its containers and their ends
    kept-logs/POD_UID/CONTAINER/NUMBER.log     the logs, as before the deletion

Kubernetes deletes logs with their pod. Here the logs of a job stay readable after its pods were
cleaned up, suspended or replaced: a client names the pods' owner. The oldest pods are removed
first.
"""

import contextlib
import json
import shutil
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from gangline.api.core.pod import Pod
from gangline.local.kubelet.volumes.pod_volumes import PodFolders

MOST_PODS = 500
"""The maximum number of pods on a node; the pods that were deleted first are removed first."""
MOST_BYTES = 256 << 20
_RECORD_FILE = "pod.json"


@dataclass(frozen=True, slots=True)
class ArchivedLogs:
    """The logs of one deleted pod."""

    folder: Path
    pod_record: dict[str, Any]
    """Its metadata, the names of its node and containers, and its status, as in the object."""
    deleted_ns: int
    """The time of its deletion."""

    @property
    def name(self) -> str:
        return str(self.pod_record["metadata"]["name"])

    def runs(self, container: str) -> list[Path]:
        """The logs of a container's runs in order; of the first container if ``container`` is
        empty.
        """
        spec = self.pod_record["spec"]
        names = [each["name"] for each in (*spec["containers"], *spec["initContainers"])]
        if container not in {"", *names}:
            return []
        folder = self.folder / (container or names[0])
        found = [path for path in folder.glob("*.log") if path.stem.isdecimal()]
        return sorted(found, key=lambda path: int(path.stem))


def archived_run_log(
    found: Iterable[ArchivedLogs], pod: str, container: str, *, previous: bool = False
) -> Path | None:
    """The log of the last run of a container of the pods with this name, or of the run before it.

    Args:
        found: the archived pods, oldest first. Earlier pods with the same name count too:
            before a pod's first run comes the last run of the pod that it replaced.
    """
    runs = [path for each in found if each.name == pod for path in each.runs(container)]
    back = 2 if previous else 1
    return runs[-back] if len(runs) >= back else None


def archive_logs(data: Path, folders: PodFolders, pod: Pod) -> None:
    """Archive the logs of a deleted pod if it had a controller; else remove them."""
    if pod.metadata.controller is None or not folders.logs.is_dir():
        shutil.rmtree(folders.logs, ignore_errors=True)
        return
    top = data / "kept-logs"
    with contextlib.suppress(OSError):
        top.mkdir(parents=True, exist_ok=True)
        index = _open_index(top)
        index.prune()
        (folders.logs / _RECORD_FILE).write_text(json.dumps(_pod_record(pod)))
        archived = folders.logs.rename(top / pod.metadata.uid)
        index.add(archived)
    shutil.rmtree(folders.logs, ignore_errors=True)


def _pod_record(pod: Pod) -> dict[str, Any]:
    """The record of a pod, without its environment, which may contain secrets."""
    meta = pod.metadata
    return {
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "labels": dict(meta.labels),
            "ownerReferences": msgspec.to_builtins(meta.owner_references),
        },
        "spec": {
            "initContainers": [{"name": each.name} for each in pod.spec.init_containers],
            "containers": [{"name": each.name} for each in pod.spec.containers],
            "nodeName": pod.spec.node_name,
        },
        "status": msgspec.to_builtins(pod.status),
    }


def list_archived_logs(data: Path, namespace: str, owner: str) -> Iterator[ArchivedLogs]:
    """Yield the archived pods of an owner (by its uid), oldest first."""
    for gone_ns, folder in _by_age(data / "kept-logs"):
        with contextlib.suppress(OSError, ValueError):
            note = json.loads((folder / _RECORD_FILE).read_text())
            meta = note["metadata"]
            owners = {each["uid"] for each in meta["ownerReferences"] if each.get("controller")}
            if meta["namespace"] == namespace and owner in owners:
                yield ArchivedLogs(folder, note, gone_ns)


def _by_age(top: Path) -> list[tuple[int, Path]]:
    """The folders of pods with the time of their deletion, oldest first."""
    ages = []
    for folder in top.iterdir() if top.is_dir() else ():
        with contextlib.suppress(OSError):
            ages.append(((folder / _RECORD_FILE).stat().st_mtime_ns, folder))
    return sorted(ages)


class _ArchiveIndex:
    """The archived pods of one folder with their sizes, oldest first.

    The folder is scanned once. A scan for each deleted pod would take longer with every archived
    one, and delay all pods of the cluster.
    """

    def __init__(self, top: Path) -> None:
        found = (folder for _, folder in _by_age(top))
        self._pods = deque((folder, _size(folder.rglob("*"))) for folder in found)
        self._bytes = sum(size for _, size in self._pods)

    def add(self, folder: Path) -> None:
        size = _size(folder.rglob("*"))
        self._pods.append((folder, size))
        self._bytes += size

    def prune(self) -> None:
        """Remove the oldest pods until one more fits."""
        while self._pods and (len(self._pods) >= MOST_PODS or self._bytes > MOST_BYTES):
            folder, size = self._pods.popleft()
            self._bytes -= size
            shutil.rmtree(folder, ignore_errors=True)


_open_index = lru_cache(maxsize=64)(_ArchiveIndex)
"""One index per folder: each node has its own, and only its kubelet writes there."""


def _size(files: Iterable[Path]) -> int:
    total = 0
    for file in files:
        with contextlib.suppress(OSError):
            total += file.stat().st_size
    return total
