"""Jobs with mutated manifests, through the webhook, the API server and the operator.

An input is a list of objects; the last is a job, and a TrainJob's runtime precedes it. Whatever is
sent, the webhook responds and the operator plans. If webhook and API server admit the objects, the
API server accepts everything that the operator creates for the job.
"""

import base64
import copy
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Any

import jsonpatch
import msgspec

from gangline.api.crd import crd_manifests
from gangline.api.job_resources import JOB_KINDS
from gangline.api.jobs.kubeflow import JobStatus
from gangline.local.apiserver.core import negotiation, prepare
from gangline.local.apiserver.core.errors import StatusError
from gangline.local.apiserver.core.registry import ServedKind, all_builtin_kinds
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.crds import served_kinds
from gangline.operator.engine import manifests
from gangline.operator.engine.plan import plan_reconcile
from gangline.operator.engine.slots import assign_slots
from gangline.operator.engine.status import encode_status
from gangline.operator.main import all_frameworks
from gangline.operator.model.framework import NeedsRuntime, ParsedJob, RuntimeCopy
from gangline.operator.model.job import RawJob
from gangline.operator.model.plan import EngineSettings, ObservedJob
from gangline.operator.policies.replica_tracker import tracker_of
from gangline.operator.settings import OperatorSettings
from gangline.operator.webhook import review
from gangline.operator.webhook.defaults import JobDefaulter, frameworks_by_kind

Json = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
_RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")
_SETTINGS = EngineSettings(gang_scheduling=True)


@cache
def _kinds() -> dict[tuple[str, str], ServedKind]:
    custom = [kind for manifest in crd_manifests().values() for kind in served_kinds(manifest)]
    return {(kind.api_version, kind.kind): kind for kind in (*all_builtin_kinds(), *custom)}


_FRAMEWORKS = all_frameworks(OperatorSettings())
_BY_KIND = frameworks_by_kind(_FRAMEWORKS)
_DEFAULTER = JobDefaulter(_FRAMEWORKS)


def admit(written: Json) -> Json:
    """Return an object as the API server stores it. Raises StatusError: it is refused."""
    kind = _kinds()[written["apiVersion"], written["kind"]]
    obj = copy.deepcopy(written)
    if isinstance(obj.get("metadata"), dict):
        obj["metadata"].pop("namespace", None)
    request = ApiRequest(kind, "create", "default" if kind.namespaced else None, "", "", {})
    request.params = {"fieldManager": "fuzz", "fieldValidation": "Ignore"}
    meta = prepare.check_identity(request, obj)
    meta.pop("resourceVersion", None)
    prepare.assign_name(request, meta)
    prepare.prune_unknown_fields(request, obj)
    with prepare.report_type_errors(kind, obj):
        prepare.apply_defaults(kind, obj)
    prepare.validate_creation(kind, obj)
    return obj


def run_job(body: bytes) -> None:
    """Submit a job. Raises StatusError: the input is not JSON."""
    listed = negotiation.read_json_document(body)
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        return
    sent = [_submit(item) for item in listed]
    admitted = [item for item in sent if item is not None]
    is_admitted = len(admitted) == len(listed)
    # Also what is refused may be stored: by another definition, or while no webhook responds.
    *others, job = (admitted if is_admitted else listed) or [{}]
    runtime = next((item for item in others if item.get("kind") in _RUNTIMES), None)
    for created in _created(job, runtime):
        if is_admitted:
            _assert_accepted(created)


def _submit(manifest: Json) -> Json | None:
    """Return an object as it is stored; None if the webhook or the API server refuses it."""
    request = review.ReviewRequest(uid="u", operation="CREATE", object=manifest)
    answer = review.mutate(request, _DEFAULTER.patch_operations)
    if answer.patch:
        manifest = jsonpatch.apply_patch(manifest, json.loads(base64.b64decode(answer.patch)))
    verdict = review.validate(msgspec.structs.replace(request, object=manifest))
    review.format_review(verdict)
    key = (manifest.get("apiVersion"), manifest.get("kind"))
    if not all(isinstance(part, str) for part in key) or key not in _kinds():
        return None
    try:
        stored = admit(manifest)
    except StatusError:
        return None
    return stored if verdict.allowed else None


def _created(manifest: Json, runtime: Json | None) -> Iterator[Json]:
    """Yield the objects that the operator creates for a job, first those of its first plan."""
    parsed = _read(manifest, runtime)
    if parsed is None:
        return
    observed = ObservedJob(parsed.job, JobStatus(), spec_errors=parsed.spec_errors)
    plan = plan_reconcile(observed, NOW, _SETTINGS)
    msgspec.json.encode(encode_status(parsed.job.kind, plan.status, plan.kind_status or {}))
    for creation in plan.creations:
        yield creation.manifest
    job = tracker_of(parsed.job).restore_from_status(parsed.job, JobStatus())
    if parsed.spec_errors:
        return
    gang = assign_slots(ObservedJob(job, JobStatus()), JobStatus())
    for role in job.roles:
        if role.replicas:
            yield manifests.build_pod(job, role, role.replicas - 1, _SETTINGS, gang, 0).manifest
            if service := manifests.build_service(job, role, role.replicas - 1):
                yield service.manifest


def _read(manifest: Json, runtime: Json | None) -> ParsedJob | None:
    framework = _BY_KIND.get((str(manifest.get("apiVersion")), str(manifest.get("kind"))))
    try:
        raw = msgspec.json.decode(msgspec.json.encode(manifest), type=RawJob)
    except (msgspec.DecodeError, OverflowError):
        return None  # the API server stores no such object
    if framework is None:
        return None
    meta = msgspec.structs.replace(raw.metadata, uid="job-uid", namespace="default")
    raw = msgspec.structs.replace(raw, metadata=meta)
    if not isinstance(framework, NeedsRuntime):
        return framework.read(raw)
    framework.runtime_of(raw)
    if runtime is None:
        return framework.read_with_runtime(raw, None, is_known=True)
    try:
        written = msgspec.json.encode(runtime)
    except OverflowError:
        return None
    copied = RuntimeCopy(written, "1", is_stored=True)
    return framework.read_with_runtime(raw, copied, is_known=True)


def _assert_accepted(created: Json) -> None:
    try:
        admit(msgspec.json.decode(msgspec.json.encode(created)))
    except StatusError as error:
        raise AssertionError(f"{created['kind']} is refused: {error}") from error


_CONTAINER: Json = {
    "name": "c", "image": "i:1", "command": ["sh"], "args": ["-c", "true"],
    "ports": [{"containerPort": 8080, "name": "web"}, {"containerPort": 9}],
    "env": [{"name": "A", "value": "b"}, {"name": "B", "valueFrom": {
        "fieldRef": {"fieldPath": "metadata.name"}}}],
    "envFrom": [{"configMapRef": {"name": "m"}}],
    "resources": {"limits": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": 1},
                  "requests": {"cpu": "500m"}},
    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
}  # fmt: skip
_POD: Json = {
    "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
    "spec": {
        "initContainers": [{"name": "prep", "image": "i:1", "command": ["true"]}],
        "containers": [_CONTAINER, {"name": "side", "image": "i:2"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "nodeSelector": {"n": "1"}, "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}}, "restartPolicy": "Never",
    },
}  # fmt: skip
_POLICY: Json = {
    "cleanPodPolicy": "Running", "backoffLimit": 3, "ttlSecondsAfterFinished": 10,
    "activeDeadlineSeconds": 60, "suspend": False,
    "schedulingPolicy": {"minAvailable": 1, "queue": "q", "priorityClass": "p",
                         "minResources": {"cpu": "1"}},
}  # fmt: skip


def _template(container: str) -> Json:
    template = copy.deepcopy(_POD)
    template["spec"]["containers"][0]["name"] = container
    return template


def _replicas(container: str, counts: Json, **fields: Any) -> Json:
    return {
        role: {"replicas": count, "template": _template(container), **fields}
        for role, count in counts.items()
    }


def _seed(kind: str, version: str, spec: Json, *others: Json) -> bytes:
    meta = {"name": "train", "annotations": {"gangline.dev/shared-memory": "1Gi"}}
    job = {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}
    return json.dumps([*others, job]).encode()


_CLAIM = {"metadata": {"name": "scratch"}, "spec": {
    "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}}  # fmt: skip


def _runtime(**policy: Any) -> Json:
    pod = _template("node")
    pod["spec"]["containers"][0]["volumeMounts"] += [{"name": "scratch", "mountPath": "/s"}]
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    jobs = [
        {"name": "prepare", "template": {"spec": {"template": _template("prepare")}}},
        {"name": "node", "dependsOn": [{"name": "prepare", "status": "Complete"}],
         "template": {"metadata": {"labels": labels}, "spec": {"template": pod}}},
    ]  # fmt: skip
    spec = {"replicatedJobs": jobs, "volumeClaimPolicies": [{"templates": [_CLAIM]}]}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime",
        "metadata": {"name": "own"},
        "spec": {"mlPolicy": {"numNodes": 1, **policy}, "template": {"spec": spec}},
    }  # fmt: skip


_TRAIN: Json = {
    "runtimeRef": {"kind": "TrainingRuntime", "name": "own"},
    "trainer": {"numNodes": 2, "image": "i:3", "env": [{"name": "E", "value": "f"}],
                "resourcesPerNode": {"requests": {"cpu": "1"}}},
    "runtimePatches": [{"manager": "a.example.com/b", "trainingRuntimeSpec": {"template": {"spec": {
        "replicatedJobs": [{"name": "node", "template": {"spec": {"template": {"spec": {
            "nodeSelector": {"x": "y"}, "containers": [{"name": "node", "volumeMounts": [
                {"name": "v", "mountPath": "/w"}]}]}}}}}]}}}}],
}  # fmt: skip
_KUBEFLOW = "kubeflow.org/v1"
SEEDS = (
    _seed("PyTorchJob", _KUBEFLOW, {
        "runPolicy": _POLICY, "nprocPerNode": "2",
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 3, "rdzvConf": [{"key": "a"}]},
        "pytorchReplicaSpecs": _replicas("pytorch", {"Master": 1, "Worker": 2})}),
    _seed("TFJob", _KUBEFLOW, {"runPolicy": _POLICY, "enableDynamicWorker": True,
        "tfReplicaSpecs": _replicas("tensorflow", {"PS": 1, "Worker": 2}, restartPolicy="Always")}),
    _seed("JAXJob", _KUBEFLOW, {"jaxReplicaSpecs": _replicas("jax", {"Worker": 2})}),
    _seed("XGBoostJob", _KUBEFLOW, {
        "xgbReplicaSpecs": _replicas("xgboost", {"Master": 1, "Worker": 2})}),
    _seed("PaddleJob", _KUBEFLOW, {
        "paddleReplicaSpecs": _replicas("paddle", {"Master": 1, "Worker": 2}),
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 3}}),
    _seed("MPIJob", _KUBEFLOW, {"slotsPerWorker": 2, "runPolicy": _POLICY,
        "mpiReplicaSpecs": _replicas("mpi", {"Launcher": 1, "Worker": 2})}),
    _seed("MPIJob", "kubeflow.org/v2beta1", {"runLauncherAsWorker": True,
        "sshAuthMountPath": "/home/mpi/.ssh", "mpiImplementation": "Intel",
        "mpiReplicaSpecs": _replicas("mpi", {"Launcher": 1, "Worker": 2})}),
    _seed("MSJob", "mindspore.gitee.com/v1", {
        "msReplicaSpecs": _replicas("mindspore", {"Scheduler": 1, "PS": 1, "Worker": 2})}),
    _seed("PaddleJob", "batch.paddlepaddle.org/v1", {"intranet": "Host", "withGloo": 1,
        **_replicas("paddle", {"ps": 1, "worker": 2})}),
    _seed("ElasticJob", "elastic.iml.github.io/v1alpha1", {
        "distributionStrategy": "ParameterServerStrategy", "envs": {"E": {"value": "f"}},
        "replicaSpecs": _replicas("main", {"dlrover-master": 1, "ps": 1, "worker": 2})}),
    _seed("TrainJob", "trainer.kubeflow.org/v1alpha1", _TRAIN, _runtime(torch={})),
    _seed("TrainJob", "trainer.kubeflow.org/v1alpha1", _TRAIN, _runtime(jax={})),
)  # fmt: skip
assert {json.loads(seed)[-1]["kind"] for seed in SEEDS} == {k.resource.kind for k in JOB_KINDS}

TOKENS = tuple(
    word.encode()
    for word in (
        "name", "spec", "metadata", "template", "containers", "initContainers", "ports", "env",
        "volumes", "volumeMounts", "resources", "replicas", "labels", "hostNetwork", "hostPort",
        "protocol", "Worker", "Master", "Launcher", "restartPolicy", "generateName",
    )
)  # fmt: skip
