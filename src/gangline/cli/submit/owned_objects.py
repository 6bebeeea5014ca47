"""Objects that a job owns: ConfigMaps of ``--config-file``, and its TensorBoard."""

import hashlib
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gangline.cli.submit.flags import JobFlags, Manifest, Mount, owned_object
from gangline.cli.submit.working_folder import WORKING_VOLUME
from gangline.sdk.event_files import LOGS_VOLUME

DEFAULT_FOLDER = "/etc/gangline-config"
_MAX_BYTES = 1 << 20
_NAME_DIGITS = 15


def add_config_files(flags: JobFlags, items: Sequence[str]) -> tuple[JobFlags, list[Manifest]]:
    """Return the job with the files mounted, and the ConfigMaps that contain them."""
    folders: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for item in items:
        local, _, inside = item.partition(":")
        target = inside or f"{DEFAULT_FOLDER}/{Path(local).name}"
        folder, _, name = target.rpartition("/")
        if not folder.startswith("/") or not name:
            raise _wrong(item, "write FILE or FILE:/FOLDER/NAME")
        folders[folder][name] = _read_text(item, local)
    maps: list[Manifest] = []
    mounts: list[Mount] = []
    for folder, files in folders.items():
        digest = hashlib.md5(folder.encode(), usedforsecurity=False).hexdigest()[:_NAME_DIGITS]
        name = f"{flags.name}-{digest}"
        head = {"apiVersion": "v1", "kind": "ConfigMap"}
        maps.append(owned_object(flags.name, head, name) | {"data": files})
        volume = {"name": f"config-{digest}", "configMap": {"name": name}}
        mounts.append((volume, {"name": f"config-{digest}", "mountPath": folder}))
    pod = replace(flags.pod, mounts=(*flags.pod.mounts, *mounts))
    return replace(flags, pod=pod), maps


def _read_text(item: str, local: str) -> str:
    try:
        path = Path(local)
        if path.stat().st_size > _MAX_BYTES:
            raise _wrong(item, "the file is larger than the 1 MiB that a ConfigMap holds")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise _wrong(item, "the file is not text (UTF-8)") from None
    except OSError as error:
        raise _wrong(item, f"{local}: {error.strerror}") from error


def _wrong(item: str, remedy: str) -> click.BadParameter:
    return click.BadParameter(f"{item!r}: {remedy}", param_hint="--config-file")


IMAGE = "tensorflow/tensorflow:2.18.0"
PORT = 6006
NODE_FOLDER = "/arena_logs"
"""Folder of a node for event files outside of claims, as Arena's."""


def service_name(job: str) -> str:
    """Return the name of the service and of the deployment."""
    return f"{job}-tensorboard"


def add_tensorboard(
    flags: JobFlags, image: str, logdir: str, node_folder: str, *, node_port: bool
) -> tuple[JobFlags, list[Manifest]]:
    """Return the job, and the objects that serve its event files.

    A folder inside a ``--data`` claim or the shared working folder is read there. For any other
    folder, job and TensorBoard share a subfolder of ``node_folder`` on the node, so TensorBoard
    must run on the node of the leading replica.
    """
    pod = flags.pod
    shared = [mount for mount in pod.mounts if "persistentVolumeClaim" in mount[0]]
    if local := [mount for mount in pod.code if mount[0]["name"] == WORKING_VOLUME]:
        shared += local
        if "://" not in logdir:
            logdir = os.path.join(local[0][1]["mountPath"], logdir)
    if not logdir.startswith("/") or any(_is_under(logdir, mount) for mount in shared):
        return flags, tensorboard_objects(
            flags.name, image, logdir, shared, {}, node_port=node_port
        )
    path = f"{node_folder}/training-{flags.name}"
    volume = {"name": LOGS_VOLUME, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
    own: Mount = (volume, {"name": LOGS_VOLUME, "mountPath": logdir})
    job = replace(flags, pod=replace(pod, mounts=(*pod.mounts, own)))
    beside = {
        "labelSelector": {
            "matchLabels": {
                "training.kubeflow.org/job-name": flags.name,
                "training.kubeflow.org/replica-index": "0",
            }
        },
        "topologyKey": "kubernetes.io/hostname",
    }
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [beside]}}
    return job, tensorboard_objects(flags.name, image, logdir, [own], near, node_port=node_port)


def tensorboard_objects(
    job: str,
    image: str,
    logdir: str,
    mounts: list[Mount],
    affinity: Manifest,
    *,
    node_port: bool = False,
) -> list[Manifest]:
    """Return the Service and the Deployment that show the events of ``logdir``."""
    labels = {"release": job, "role": "tensorboard"}
    return [
        _service(job, labels, node_port=node_port),
        _deployment(job, labels, image, logdir, mounts, affinity),
    ]


def _service(job: str, labels: dict[str, str], *, node_port: bool) -> Manifest:
    spec: dict[str, Any] = {
        "type": "NodePort" if node_port else "ClusterIP",
        "selector": labels,
        "ports": [{"name": "tensorboard", "port": PORT, "targetPort": PORT}],
    }
    head = {"apiVersion": "v1", "kind": "Service"}
    return owned_object(job, head, service_name(job), labels) | {"spec": spec}


def _deployment(
    job: str,
    labels: dict[str, str],
    image: str,
    logdir: str,
    mounts: list[Mount],
    affinity: Manifest,
) -> Manifest:
    container = {
        "name": "tensorboard",
        "image": image or IMAGE,
        "command": ["tensorboard", "--logdir", logdir, "--host", "0.0.0.0", "--port", str(PORT)],
        "ports": [{"name": "tensorboard", "containerPort": PORT}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 2},
        "volumeMounts": [mount for _, mount in mounts],
    }
    pod: Manifest = {"containers": [container], "volumes": [volume for volume, _ in mounts]}
    if affinity:
        pod["affinity"] = affinity
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    head = {"apiVersion": "apps/v1", "kind": "Deployment"}
    return owned_object(job, head, service_name(job), labels) | {"spec": spec}


def _is_under(logdir: str, mount: Mount) -> bool:
    folder = str(mount[1]["mountPath"]).rstrip("/")
    return logdir == folder or logdir.startswith(f"{folder}/")
