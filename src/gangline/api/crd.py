"""The CustomResourceDefinitions of our kinds, generated from the structs.

``deploy/crds`` contains them as files (written by ``tools/generate_deploy.py``), and the embedded
cluster installs them when it starts.

PodGroup and Queue have the names and fields of Volcano's. If Volcano is installed, keep its own
definitions: Volcano's PodGroup has no status subresource, ours has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gangline.api.cluster.apiextensions import (
    CustomResourceColumnDefinition,
    CustomResourceSubresourceScale,
)
from gangline.api.job_resources import JOB_KINDS
from gangline.api.jobs import mpi
from gangline.api.jobs.kind import JobKind
from gangline.api.jobs.training_runtime import JobSet
from gangline.api.meta.resource import Resource
from gangline.api.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    HYPERNODES,
    JOB_ADVICE,
    POD_GROUPS,
    QUEUES,
    SCALE_PLANS,
    TRAINING_RUNTIMES,
)
from gangline.api.schema.openapi import Json, structural_schema, without_descriptions

_AGE = CustomResourceColumnDefinition(
    name="Age", type="date", json_path=".metadata.creationTimestamp"
)


def _column(
    name: str, json_path: str, type_: str = "string", *, wide: bool = False, description: str = ""
) -> CustomResourceColumnDefinition:
    return CustomResourceColumnDefinition(
        name=name,
        type=type_,
        json_path=json_path,
        priority=1 if wide else 0,
        description=description,
    )


@dataclass(frozen=True, slots=True)
class _Definition:
    """The parts of a CRD other than names and schema."""

    resource: Resource[Any]
    short_names: list[str]
    columns: list[CustomResourceColumnDefinition]
    categories: list[str] = field(default_factory=list)
    scale: CustomResourceSubresourceScale | None = None
    other_versions: tuple[str, ...] = ()
    has_status: bool = True


_LAST_CONDITION = (
    _column("Restarts", ".status.restarts.total", "integer", wide=True),
    _column("Reason", ".status.conditions[-1:].reason", wide=True),
    _column("Message", ".status.conditions[-1:].message", wide=True),
)


def _training_columns(roles_path: str) -> list[CustomResourceColumnDefinition]:
    """The two columns of upstream first, then those of the wide table."""
    state, meaning = ".status.conditions[-1:].type", "The condition that changed last."
    return [
        _column("State", state, description=meaning),
        _AGE,
        _column("Workers", f"{roles_path}.Worker.replicas", "integer", wide=True),
        _column("Active", ".status.replicaStatuses.Worker.active", "integer", wide=True),
        *_LAST_CONDITION,
    ]


_OTHER_COLUMNS = {
    "PaddleJob": [
        _column("Status", ".status.phase"),
        _column("Mode", ".status.mode"),
        _AGE,
        _column("Workers", ".spec.worker.replicas", "integer", wide=True),
        *_LAST_CONDITION,
    ],
    "ElasticJob": [
        _column("Phase", ".status.phase"),
        _AGE,
        _column("Workers", ".spec.replicaSpecs.worker.replicas", "integer", wide=True),
        _column("Active", ".status.replicaStatuses.worker.active", "integer", wide=True),
        *_LAST_CONDITION,
    ],
    "TrainJob": [
        _column("State", ".status.gangline.phase"),
        _AGE,
        _column("Runtime", ".spec.runtimeRef.name", wide=True),
        _column("Ready", ".status.gangline.nodesReady", "integer", wide=True),
        _column("Progress", ".status.trainerStatus.progressPercentage", "integer", wide=True),
        _column("Restarts", ".status.gangline.restarts.total", "integer", wide=True),
        _column("Message", ".status.gangline.message", wide=True),
    ],
}
"""Columns of the kinds whose upstream has others than Kubeflow."""

_VERSION_DEFAULTS: Mapping[tuple[str, str], Mapping[str, object]] = {
    ("MPIJob", "v2beta1"): mpi.V2BETA1_DEFAULTS
}
"""Defaults of a specification that only one version of its kind has."""


def _job_definition(kind: JobKind) -> _Definition:
    roles_path = f".{'.'.join(kind.roles_path)}"
    return _Definition(
        kind.resource,
        short_names=[kind.short_name],
        categories=["training"],
        columns=_OTHER_COLUMNS.get(kind.identity) or _training_columns(roles_path),
        scale=_scale(kind) if kind.is_scalable else None,
        other_versions=kind.other_versions,
    )


def _scale(kind: JobKind) -> CustomResourceSubresourceScale:
    status = f".status.replicaStatuses.{kind.scale_path[-2]}"
    return CustomResourceSubresourceScale(
        spec_replicas_path=f".{'.'.join(kind.scale_path)}",
        status_replicas_path=f"{status}.active",
        label_selector_path=f"{status}.selector",
    )


_DEFINITIONS = (
    *map(_job_definition, JOB_KINDS),
    *(
        _Definition(
            resource,
            short_names=[short_name],
            columns=[
                _column("Framework", r".metadata.labels.trainer\.kubeflow\.org/framework"),
                _column("Nodes", ".spec.mlPolicy.numNodes", "integer"),
                _AGE,
            ],
            has_status=False,
        )
        for resource, short_name in (
            (TRAINING_RUNTIMES, "trt"),
            (CLUSTER_TRAINING_RUNTIMES, "ctrt"),
        )
    ),
    _Definition(
        SCALE_PLANS,
        short_names=[],
        columns=[
            _column("Phase", ".status.phase"),
            _AGE,
            _column("Job", ".spec.ownerJob"),
            _column("Message", ".status.message", wide=True),
        ],
    ),
    _Definition(
        JOB_ADVICE,
        short_names=["ja"],
        columns=[
            _column("What", ".status.what"),
            _column("Now", ".status.now"),
            _column("Advised", ".status.advised"),
            _column("Why", ".status.why"),
            _column("Mode", ".status.mode", wide=True),
            CustomResourceColumnDefinition(
                name="Updated", type="date", json_path=".status.updated", priority=1
            ),
        ],
    ),
    _Definition(
        POD_GROUPS,
        short_names=["pg", "podgroup-v1beta1"],
        columns=[
            _column("STATUS", ".status.phase"),
            _column("minMember", ".spec.minMember", "integer"),
            _column("RUNNINGS", ".status.running", "integer"),
            CustomResourceColumnDefinition(name="AGE", type="date", json_path=_AGE.json_path),
            _column("QUEUE", ".spec.queue", wide=True),
            _column("REASON", ".status.conditions[-1:].message", wide=True),
        ],
    ),
    _Definition(
        QUEUES,
        short_names=["q", "queue-v1beta1"],
        columns=[
            _column("PARENT", ".spec.parent"),
            _column("STATE", ".status.state"),
            _column("RUNNING", ".status.running", "integer"),
            _column("PENDING", ".status.pending", "integer"),
        ],
    ),
    _Definition(
        HYPERNODES,
        short_names=["hn"],
        columns=[
            _column("Tier", ".spec.tier", "integer"),
            _column("TierName", ".spec.tierName"),
            _column("NodeCount", ".status.nodeCount", "integer"),
            _AGE,
        ],
    ),
)


JOB_SET_FILE = "jobset.x-k8s.io_jobsets"


def job_set_manifest() -> Json:
    """Return a definition of JobSet, for clusters that have none.

    Kueue's integration of TrainJobs watches JobSets, and Kueue ends where the kind does not exist.
    The definition of the JobSet project replaces this one, which keeps every field.
    """
    resource = Resource(JobSet, "jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
    return _manifest(_Definition(resource, short_names=[], columns=[_AGE]))


def crd_manifests() -> dict[str, Json]:
    """Return the definitions as plain data, by file name without extension.

    Equal parts are one dict in memory, also of different definitions: copy what is to be changed.
    """
    return {
        f"{definition.resource.group}_{definition.resource.plural}": _manifest(definition)
        for definition in _DEFINITIONS
    }


def _manifest(definition: _Definition) -> Json:
    resource = definition.resource
    names: Json = {
        "plural": resource.plural,
        "singular": resource.kind.lower(),
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
    }
    lists = {"shortNames": definition.short_names, "categories": definition.categories}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{resource.plural}.{resource.group}",
            "labels": {"app.kubernetes.io/part-of": "gangline"},
        },
        "spec": {
            "group": resource.group,
            "names": names | {name: words for name, words in lists.items() if words},
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [
                _version(definition, name, stored=name == resource.version)
                for name in (resource.version, *definition.other_versions)
            ],
        },
    }


def _version(definition: _Definition, name: str, *, stored: bool) -> Json:
    """Return one version. All have the same fields: without conversion none may be dropped.

    Only the stored version explains its fields, so that a client can apply the definition.
    """
    schema = structural_schema(definition.resource.type)
    if not stored:
        schema = without_descriptions(schema)
    defaults = _VERSION_DEFAULTS.get((definition.resource.kind, name), {})
    for property_name, default in defaults.items():
        schema["properties"]["spec"]["properties"][property_name]["default"] = default
    scale = {"scale": msgspec.to_builtins(definition.scale)} if definition.scale else {}
    return {
        "name": name,
        "served": True,
        "storage": stored,
        "additionalPrinterColumns": msgspec.to_builtins(definition.columns),
        **({"subresources": {"status": {}, **scale}} if definition.has_status else {}),
        "schema": {"openAPIV3Schema": schema},
    }
