"""A job whose restarted rank waits for one that has ended, on a real API server."""

from datetime import UTC, datetime, timedelta
from typing import Any

from gangline.api.meta.conditions import find_condition
from gangline.api.resources import EVENTS, PODS, PYTORCH_JOBS
from gangline.sdk.client import JobClient
from integration.operator.cluster import NAMESPACE, Scene

MINUTES_AGO = datetime.now(UTC) - timedelta(minutes=5)


async def mark(stage: Scene, pod: str, phase: str, restarts: int, **state: Any) -> None:
    container = {"name": "pytorch", "image": "x", "imageID": "", "ready": "running" in state}
    container |= {"restartCount": restarts, "state": state}
    status = {"status": {"phase": phase, "containerStatuses": [container]}}
    await stage.client.patch(PODS, pod, status, NAMESPACE, subresource="status")


async def test_stalled_job_is_reported_and_then_fails_by_its_annotation(stage: Scene) -> None:
    await stage.start_operator()
    await stage.submit(None, 2, restart="OnFailure")
    await stage.until_pods({"worker-0": "Running", "worker-1": "Running"})
    left, back = (
        (MINUTES_AGO + timedelta(seconds=each)).strftime("%Y-%m-%dT%H:%M:%SZ") for each in (0, 9)
    )
    end = {"exitCode": 0, "finishedAt": left}
    await mark(stage, "train-worker-0", "Succeeded", 0, terminated=end)
    await mark(stage, "train-worker-1", "Running", 1, running={"startedAt": back})
    text = f"train-worker-1 waits for train-worker-0, which ended at {left}"

    stored = await stage.until_condition("Stalled")
    found = find_condition(stored.status.conditions, "Stalled")
    assert found is not None
    assert found.message.startswith(text)
    job = await JobClient(stage.client).get("train", NAMESPACE)
    assert (job.state, job.reason) == ("RUNNING", found.message)

    async def has_event() -> bool:
        events = await stage.client.list(EVENTS, NAMESPACE)
        return any(event.reason == "PyTorchJobStalled" for event in events.items)

    await stage.until(has_event, "the event")
    annotate = {"metadata": {"annotations": {"gangline.dev/stalled": "fail"}}}
    await stage.client.patch(PYTORCH_JOBS, "train", annotate, NAMESPACE)
    failed = find_condition((await stage.until_condition("Failed")).status.conditions, "Failed")
    assert failed is not None
    assert text in failed.message
