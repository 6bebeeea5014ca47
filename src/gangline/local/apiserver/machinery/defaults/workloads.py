"""Defaults of StatefulSets, DaemonSets and CronJobs, as Kubernetes sets them.

No controller of this cluster acts on these kinds. Controllers that do, such as those of
kube-controller-manager, read the defaulted fields without a check for their absence.
"""

from collections.abc import Callable, Mapping

from gangline.api.meta.json_objects import fill_absent, objects_in, subobject
from gangline.local.apiserver.machinery.defaults.pods import default_template
from gangline.local.apiserver.machinery.schema.nodes import Json


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
    ("batch", "CronJob"): _cron_job,
}
"""Default functions by group and kind."""
