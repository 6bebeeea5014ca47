"""The defaults that are written into a job, so that ``kubectl get -o yaml`` shows what will happen.

The model: a default is written only where a later change of anything else would not have led to
another one, and only into maps, never into lists. So a job means the same with and without the
webhook, now and after every later change (a test holds the engine's decisions side by side), and a
second ``kubectl apply`` of the same file finds nothing to do. Written are the number of replicas,
the restart policy and the clean-up policy. Not written, though upstream fills them in, in memory:

- the right spelling of a role: the next apply of the user's file would add its own spelling again
  beside ours;
- the default port: it lies in a list, which a client replaces as a whole at the next apply;
- bounds of an elastic job, and processes of each node: they follow from other fields, and a stored
  copy would stay behind when those change.

What the defaults are is asked of the kind's own reading of the job, so there is no second table.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import msgspec

from gangline.api.kubeflow import MANAGED_BY_US, ReplicaSpec, RunPolicy
from gangline.api.meta import Object
from gangline.api.resources import CUSTOM
from gangline.operator.frameworks.base import Framework
from gangline.operator.job import TrainingJob
from gangline.operator.stored import StoredJob

Operation = dict[str, Any]

_STORED = msgspec.json.Decoder(StoredJob)


class Places(NamedTuple):
    """Where a kind keeps what can be defaulted; None: it has no such thing."""

    roles: str | None
    """The field of the specification that maps roles to replica specs."""
    clean_up: tuple[str, ...] | None
    """The way to the clean-up policy."""


class Defaulting:
    """Finds the defaults of jobs of the kinds that are run."""

    def __init__(self, frameworks: Sequence[Framework]) -> None:
        self._frameworks = {(f.kind.api_version, f.kind.kind): f for f in frameworks}

    def operations(self, manifest: Mapping[str, Any]) -> list[Operation]:
        """List the JSON patch operations that write a job's defaults into it.

        None for a job with mistakes, whose reading is not to be relied on; none for one that
        another controller runs, whose defaults may be others.
        """
        version, kind = str(manifest.get("apiVersion")), str(manifest.get("kind"))
        framework = self._frameworks.get((version, kind))
        places = _places(version, kind)
        if framework is None or places is None:
            return []
        reading = framework.read(_STORED.decode(msgspec.json.encode(manifest)))
        if reading.mistakes or reading.job.policy.managed_by not in (None, MANAGED_BY_US):
            return []
        spec = manifest["spec"]
        return [*_clean_up(spec, places, reading.job), *_roles(spec, places, reading.job)]


@cache
def _places(api_version: str, kind: str) -> Places | None:
    """Find out from the kind's own structs."""
    for resource in CUSTOM:
        if (resource.api_version, resource.kind) == (api_version, kind):
            return _places_of(resource.type)
    return None


def _places_of(type_: type[Object]) -> Places | None:
    spec = get_type_hints(type_).get("spec")
    if spec is None:
        return None
    hints = get_type_hints(spec)
    fields = {field.name: field.encode_name for field in msgspec.structs.fields(spec)}
    roles = [fields[name] for name, hint in hints.items() if hint == dict[str, ReplicaSpec]]
    clean_up: tuple[str, ...] | None = None
    if hints.get("run_policy") is RunPolicy:
        # Of two places the one that gives way to the other, should that be set later.
        own = "clean_pod_policy" in fields
        clean_up = ("cleanPodPolicy",) if own else ("runPolicy", "cleanPodPolicy")
    return Places(roles[0] if roles else None, clean_up)


def _clean_up(spec: Mapping[str, Any], places: Places, job: TrainingJob) -> Iterator[Operation]:
    if places.clean_up is None or job.policy.clean_after_failure is not None:
        return
    policy = spec.get("runPolicy") or {}
    if policy.get("cleanPodPolicy") is not None or spec.get("cleanPodPolicy") is not None:
        return
    value: Any = str(job.policy.clean_pods)
    if len(places.clean_up) > 1 and spec.get("runPolicy") is None:
        yield _add(("spec", "runPolicy"), {"cleanPodPolicy": value})
    else:
        yield _add(("spec", *places.clean_up), value)


def _roles(spec: Mapping[str, Any], places: Places, job: TrainingJob) -> Iterator[Operation]:
    if places.roles is None:
        return
    known = {role.name.lower(): role for role in job.roles}
    for key, replica in spec[places.roles].items():
        role = known.get(key.lower())
        if role is None:
            continue
        here = ("spec", places.roles, key)
        if replica.get("replicas") is None:
            yield _add((*here, "replicas"), role.replicas)
        if replica.get("restartPolicy") is None:
            yield _add((*here, "restartPolicy"), str(role.restart))


def _add(way: tuple[str, ...], value: Any) -> Operation:
    escaped = (step.replace("~", "~0").replace("/", "~1") for step in way)
    return {"op": "add", "path": "".join(f"/{step}" for step in escaped), "value": value}
