"""Parsers of the flags of ``submit``, such as ``KEY=VALUE``, and their values: the builders' input.

Errors have the flag, the value, and the expected form.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import click

from gangline.api.go_duration import parse_go_duration
from gangline.api.resource_list import GPU

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_SECONDS = (86_400, 3_600, 60, 1)
_LAUNCHER = re.compile(r"\b(?:torchrun|dlrover-run|gangline run|torch\.distributed\.run)\b")
_NODES = re.compile(r"--nnodes(?:=|\s+)[\"']?([\w:.+-]+)(?![\w:.$`{])", re.ASCII)
"""A number of nodes in a command, if no variable gives a part of it."""


def parse_pairs(flag: str, items: Sequence[str]) -> dict[str, str]:
    """Parse ``KEY=VALUE`` items; a value may contain ``=``."""
    pairs: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise _wrong(flag, item, "write KEY=VALUE")
        pairs[key] = value
    return pairs


def parse_environment(items: Sequence[str]) -> list[dict[str, Any]]:
    """Parse ``--env`` items into the environment of a container."""
    from gangline.api.names import validate_env_name

    variables = parse_pairs("--env", items)
    for name in variables:
        if complaint := validate_env_name(name):
            raise _wrong("--env", name, f"{complaint.problem}: {complaint.remedy}")
    return [{"name": name, "value": value} for name, value in variables.items()]


def parse_secrets(items: Sequence[str]) -> list[dict[str, Any]]:
    """Parse ``--secret VARIABLE=SECRET/KEY`` items into the environment of a container."""
    variables = []
    for name, place in parse_pairs("--secret", items).items():
        secret, slash, key = place.partition("/")
        if not slash or not secret or not key:
            raise _wrong("--secret", f"{name}={place}", "write VARIABLE=SECRET/KEY")
        reference = {"secretKeyRef": {"name": secret, "key": key}}
        variables.append({"name": name, "valueFrom": reference})
    return variables


def parse_claims(items: Sequence[str]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Parse ``--data PVC:/mount`` items into volumes and volume mounts."""
    mounts = []
    taken: set[str] = set()
    for item in items:
        claim, colon, path = item.partition(":")
        if not colon or not claim:
            raise _wrong("--data", item, "write PVC:/folder, such as training-data:/data")
        if claim in taken:
            raise _wrong("--data", item, f"the claim {claim!r} is already mounted")
        taken.add(claim)
        _check_folder("--data", item, path)
        volume = {"name": claim, "persistentVolumeClaim": {"claimName": claim}}
        mounts.append((volume, {"name": claim, "mountPath": path}))
    return mounts


def parse_host_folders(items: Sequence[str]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Parse ``--data-dir /folder`` or ``/host:/container`` items into volumes and volume mounts."""
    mounts = []
    for index, item in enumerate(items):
        host, _, inside = item.partition(":")
        _check_folder("--data-dir", item, host)
        _check_folder("--data-dir", item, inside or host)
        name = f"training-data-{index}"
        volume = {"name": name, "hostPath": {"path": host}}
        mounts.append((volume, {"name": name, "mountPath": inside or host}))
    return mounts


def _check_folder(flag: str, item: str, path: str) -> None:
    if not path.startswith("/") or path == "/":
        raise _wrong(flag, item, "the folder must be an absolute path other than /")


def parse_tolerations(items: Sequence[str]) -> list[dict[str, Any]]:
    """Parse ``--toleration``: ``all``, ``KEY`` or ``KEY=VALUE``, optionally with ``:EFFECT``."""
    tolerations: list[dict[str, Any]] = []
    for item in items:
        rest, _, operator = item.partition(",")
        rest, _, effect = rest.partition(":")
        key, equals, value = rest.partition("=")
        if item == "all":
            tolerations.append({"operator": "Exists"})
            continue
        if not key or operator not in {"", "Equal", "Exists"}:
            raise _wrong("--toleration", item, "write all, KEY or KEY=VALUE, optionally :EFFECT")
        if effect not in {"", "NoSchedule", "PreferNoSchedule", "NoExecute"}:
            effects = "NoSchedule, PreferNoSchedule or NoExecute"
            raise _wrong("--toleration", item, f"the effect must be {effects}")
        exists = operator == "Exists" or not equals
        toleration = {"key": key, "operator": "Exists" if exists else "Equal"}
        toleration |= {} if exists else {"value": value}
        tolerations.append(toleration | ({"effect": effect} if effect else {}))
    return tolerations


def parse_devices(items: Sequence[str]) -> dict[str, str]:
    """Parse ``--device vendor/resource=N`` items."""
    devices = parse_pairs("--device", items)
    for name, count in devices.items():
        if name == "nvidia.com/gpu":
            raise _wrong("--device", name, "use --gpus for this resource")
        if "/" not in name or not count.isdecimal():
            raise _wrong("--device", f"{name}={count}", "write VENDOR/RESOURCE=N")
    return devices


def check_quantity(flag: str, value: str) -> str:
    """Check that a value is a Kubernetes quantity such as ``500m`` or ``4Gi``, and return it."""
    from gangline.api.quantity import QuantityError, parse_quantity

    try:
        parse_quantity(value)
    except QuantityError as error:
        raise click.BadParameter(str(error), param_hint=flag) from error
    return value


def parse_seconds(flag: str, value: str) -> int:
    """Parse a duration such as ``90s``, ``10m``, ``1.5h`` or a number of seconds; round up."""
    if value.isascii() and value.isdecimal():
        return int(value)
    match = _DURATION.fullmatch(value)
    if match is None and (seconds := parse_go_duration(value)):
        return math.ceil(seconds)
    if not value or match is None:
        raise _wrong(flag, value, "write a duration such as 90s, 10m or 1h30m")
    return sum(int(part or 0) * size for part, size in zip(match.groups(), _SECONDS, strict=True))


def check_time(flag: str, value: str) -> str:
    """Check that a text is a time, or empty, and return it."""
    try:
        if value:
            datetime.fromisoformat(value)
    except ValueError as error:
        raise _wrong(flag, value, f"write a time such as 2026-01-31T12:00:00Z ({error})") from error
    return value


def check_launcher(command: str) -> str:
    """Check the number of nodes that a command gives to its launcher, and return the command."""
    from gangline.elastic.launcher.flags import FlagError
    from gangline.elastic.launcher.rendezvous_config import parse_node_range

    try:
        for nodes in _NODES.findall(command) if _LAUNCHER.search(command) else ():
            parse_node_range(nodes)
    except FlagError as error:
        raise click.UsageError(f"the command: {error}") from error
    return command


def _wrong(flag: str, value: str, remedy: str) -> click.BadParameter:
    return click.BadParameter(f"{value!r}: {remedy}", param_hint=flag)


Manifest = dict[str, Any]
Mount = tuple[Manifest, Manifest]
"""A volume of the pod, and the volume mount of its container."""


@dataclass(frozen=True, slots=True)
class PodFlags:
    """The pods of one role. Roles of a job differ in few of these fields."""

    image: str
    command: tuple[str, ...] = ()
    """Empty: the image's own command."""
    gpus: int = 0
    devices: dict[str, str] = field(default_factory=dict)
    cpu: str = ""
    memory: str = ""
    cpu_limit: str = ""
    """Empty: as requested."""
    memory_limit: str = ""
    share_memory: str = ""
    working_dir: str = ""
    environment: tuple[Manifest, ...] = ()
    mounts: tuple[Mount, ...] = ()
    code: tuple[Mount, ...] = ()
    """Volumes with code that init containers fetch."""
    init_containers: tuple[Manifest, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[Manifest, ...] = ()
    affinity: Manifest = field(default_factory=dict)
    port: int = 0
    pull_secrets: tuple[str, ...] = ()
    pull_policy: str = ""
    scheduler: str = ""
    priority: str = ""
    rdma: bool = False
    host_network: bool = False
    host_ipc: bool = False
    host_pid: bool = False

    @property
    def amounts(self) -> dict[str, Any]:
        """Resource limits of one pod."""
        amounts: dict[str, Any] = {
            "cpu": self.cpu_limit or self.cpu,
            "memory": self.memory_limit or self.memory,
            GPU: self.gpus,
            **self.devices,
            **({"rdma/hca": 1} if self.rdma else {}),
        }
        return non_empty(amounts)


@dataclass(frozen=True, slots=True)
class JobFlags:
    """A job with the flags of its pods."""

    name: str
    pod: PodFlags
    workers: int = 1
    """Of a TrainJob also 0: its runtime's number."""
    queue: str = ""
    retry: int = 0
    clean_task_policy: str = "Running"
    running_timeout_s: int = 0
    ttl_after_finished_s: int = 0
    gang: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    """All flags by parameter name, for flags that only one kind has."""


def non_empty(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields without empty values."""
    return {name: value for name, value in fields.items() if value}


OWNER_ANNOTATION = "gangline.dev/belongs-to"
"""Annotation of an object in a submission: the name of the job that owns it."""


def owned_object(
    job: str, head: Manifest, name: str, labels: dict[str, str] | None = None
) -> Manifest:
    """Return kind and metadata of an object that the job owns."""
    return head | {
        "metadata": {
            "name": name,
            "labels": {"release": job, **(labels or {})},
            "annotations": {OWNER_ANNOTATION: job},
        }
    }
