"""Objects that belong to a job: named after it, created behind it, and gone with it."""

from gangline.cli.jobs.flags import Manifest

OWNER_ANNOTATION = "gangline.dev/belongs-to"
"""On an object in a manifest: the name of the job in the same submission that owns it."""


def owned(job: str, head: Manifest, name: str, labels: dict[str, str] | None = None) -> Manifest:
    """Return the beginning of an object that belongs to the job."""
    return head | {
        "metadata": {
            "name": name,
            "labels": {"release": job, **(labels or {})},
            "annotations": {OWNER_ANNOTATION: job},
        }
    }
