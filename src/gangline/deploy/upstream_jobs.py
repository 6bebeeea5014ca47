"""Jobs that an upstream operator has begun and Gangline leaves to it."""

from typing import Any

import msgspec

from gangline.api.jobs.train import has_upstream_status
from gangline.api.resources import TRAIN_JOBS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import Forbidden, NotFound

SHOWN = 5
_PAGE = 500


async def jobs_with_job_sets(client: ApiClient) -> list[str]:
    """Return the unfinished TrainJobs whose pods belong to a JobSet, as ``namespace/name``."""
    path = f"/apis/{TRAIN_JOBS.group}/{TRAIN_JOBS.version}/{TRAIN_JOBS.plural}"
    names: list[str] = []
    page: dict[str, str] = {"limit": str(_PAGE)}
    while True:
        try:
            listing = await client.request_json("GET", path, params=page)
        except (NotFound, Forbidden):
            return names
        names += [
            f"{item['metadata']['namespace']}/{item['metadata']['name']}"
            for item in listing["items"]
            if _keeps_job_set(item.get("status") or {})
        ]
        following = listing["metadata"].get("continue")
        if not following:
            return names
        page = {"limit": str(_PAGE), "continue": following}


def job_set_note(jobs: list[str]) -> str:
    """Return what users of these jobs have to know; empty without jobs."""
    if not jobs:
        return ""
    more = f" and {len(jobs) - SHOWN} more" if len(jobs) > SHOWN else ""
    return (
        f"Gangline runs no pods for {len(jobs)} TrainJob{'s' if len(jobs) > 1 else ''} of Kubeflow "
        f"Trainer, whose pods belong to a JobSet until the end: "
        f"{', '.join(sorted(jobs)[:SHOWN])}{more}"
    )


def _keeps_job_set(status: dict[str, Any]) -> bool:
    ended = any(
        condition.get("type") in {"Complete", "Failed"} and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )
    return not ended and has_upstream_status(msgspec.json.encode(status))
