"""Objects that a job owns: named after it, created after it, deleted with it."""

from gangline.cli.jobs.flags import Manifest

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
