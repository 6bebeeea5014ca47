"""Defaults of batch/v1 Jobs, with the selector that the server generates."""

from gangline.api.core.workloads import JOB_UID_LABEL
from gangline.api.meta.json_objects import fill_absent, subobject
from gangline.local.apiserver.machinery.defaults.pods import default_template
from gangline.local.apiserver.machinery.schema.nodes import Json

BATCH = "batch.kubernetes.io"


def default_job(obj: Json) -> None:
    """Set the defaults of a Job. Without a number of pods, one has to succeed."""
    spec = subobject(obj, "spec")
    if "parallelism" not in spec and "completions" not in spec:
        spec["completions"] = 1
    fill_absent(
        spec,
        {
            "parallelism": 1,
            "backoffLimit": 6,
            "completionMode": "NonIndexed",
            "suspend": False,
            "podReplacementPolicy": (
                "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
            ),
            "manualSelector": False,
        },
    )
    default_template(subobject(spec, "template"))
    if not spec["manualSelector"]:
        _generate_selector(obj, spec)


def _generate_selector(obj: Json, spec: Json) -> None:
    """Select the pods by the uid of the Job, which no other pod has."""
    metadata, template = subobject(obj, "metadata"), spec.get("template")
    uid, name = metadata.get("uid"), metadata.get("name")
    if not uid or not name or not isinstance(template, dict):
        return
    fill_absent(spec, {"selector": {"matchLabels": {JOB_UID_LABEL: uid}}})
    fill_absent(template, {"metadata": {}})
    fill_absent(subobject(template, "metadata"), {"labels": {}})
    labels = subobject(template, "metadata", "labels")
    for key, value in (("controller-uid", uid), ("job-name", name)):
        fill_absent(labels, {key: value, f"{BATCH}/{key}": value})
