"""Defaults of StatefulSets, DaemonSets, Jobs and CronJobs, as Kubernetes sets them.

No controller of this cluster acts on these kinds. Controllers that do, such as those of
kube-controller-manager, read the defaulted fields without a check for their absence.
"""

from collections.abc import Callable, Mapping

from gangline.api.meta.json_objects import fill_absent, objects_in, subobject
from gangline.local.apiserver.machinery.defaults.pods import default_template
from gangline.local.apiserver.machinery.schema.nodes import Json

CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
JOB_NAME = "batch.kubernetes.io/job-name"
MAX_BACKOFF_LIMIT = 2**31 - 1


def complete_job(job: Json) -> None:
    """Set selector and pod labels of a new Job in place, unless it selects its pods itself."""
    spec, meta = subobject(job, "spec"), subobject(job, "metadata")
    template = spec.get("template")
    if spec.get("manualSelector") or not isinstance(template, dict):
        return
    fill_absent(template, {"metadata": {}})
    fill_absent(subobject(template, "metadata"), {"labels": {}})
    labels = subobject(template, "metadata", "labels")
    uid, name = meta.get("uid"), meta.get("name")
    labels |= {CONTROLLER_UID: uid, "controller-uid": uid, JOB_NAME: name, "job-name": name}
    fill_absent(spec, {"selector": {}})
    selector = subobject(spec, "selector")
    selector["matchLabels"] = {**subobject(selector, "matchLabels"), CONTROLLER_UID: uid}


def _stateful_set(obj: Json) -> None:
    spec = subobject(obj, "spec")
    fill_absent(
        spec,
        {
            "replicas": 1,
            "podManagementPolicy": "OrderedReady",
            "updateStrategy": {},
            "revisionHistoryLimit": 10,
            "persistentVolumeClaimRetentionPolicy": {},
        },
    )
    _rolling(spec, {"partition": 0})
    retention = subobject(spec, "persistentVolumeClaimRetentionPolicy")
    fill_absent(retention, {"whenDeleted": "Retain", "whenScaled": "Retain"})
    for claim in objects_in(spec.get("volumeClaimTemplates")):
        fill_absent(subobject(claim, "spec"), {"volumeMode": "Filesystem"})
        fill_absent(claim, {"status": {"phase": "Pending"}})
    default_template(subobject(spec, "template"))


def _daemon_set(obj: Json) -> None:
    spec = subobject(obj, "spec")
    fill_absent(spec, {"updateStrategy": {}, "revisionHistoryLimit": 10})
    _rolling(spec, {"maxUnavailable": 1, "maxSurge": 0})
    default_template(subobject(spec, "template"))


def _rolling(spec: Json, defaults: Mapping[str, object]) -> None:
    strategy = subobject(spec, "updateStrategy")
    fill_absent(strategy, {"type": "RollingUpdate"})
    if strategy["type"] == "RollingUpdate":
        fill_absent(strategy, {"rollingUpdate": {}})
        fill_absent(subobject(strategy, "rollingUpdate"), defaults)


def _job(obj: Json) -> None:
    spec = subobject(obj, "spec")
    template = subobject(spec, "template")
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    limit = MAX_BACKOFF_LIMIT if spec.get("backoffLimitPerIndex") is not None else 6
    failures = isinstance(spec.get("podFailurePolicy"), dict)
    fill_absent(
        spec,
        {
            "parallelism": 1,
            "backoffLimit": limit,
            "completionMode": "NonIndexed",
            "suspend": False,
            "manualSelector": False,
            "podReplacementPolicy": "Failed" if failures else "TerminatingOrFailed",
        },
    )
    if labels := subobject(template, "metadata", "labels"):
        fill_absent(subobject(obj, "metadata"), {"labels": dict(labels)})
    for rule in objects_in(subobject(spec, "podFailurePolicy").get("rules")):
        for pattern in objects_in(rule.get("onPodConditions")):
            fill_absent(pattern, {"status": "True"})
    default_template(template)


def _cron_job(obj: Json) -> None:
    spec = subobject(obj, "spec")
    fill_absent(
        spec,
        {
            "concurrencyPolicy": "Allow",
            "suspend": False,
            "successfulJobsHistoryLimit": 3,
            "failedJobsHistoryLimit": 1,
        },
    )
    default_template(subobject(spec, "jobTemplate", "spec", "template"))


DEFAULTERS: Mapping[tuple[str, str], Callable[[Json], None]] = {
    ("apps", "StatefulSet"): _stateful_set,
    ("apps", "DaemonSet"): _daemon_set,
    ("batch", "Job"): _job,
    ("batch", "CronJob"): _cron_job,
}
"""Default functions by group and kind."""
