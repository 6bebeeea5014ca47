"""An elastic training with checkpoints in memory loses at most one step when it is evicted.

Takes 40 s: PyTorch starts before and after the eviction.
"""

from pathlib import Path

import pytest

from e2e.elastic_training import PATIENCE_S, Training
from e2e.jobs import job, replica, until
from e2e.scenario import Scenario
from e2e.waiting import eventually
from gangline.api.quantity import parse_quantity
from gangline.api.resources import ELASTIC_JOBS, NODES, PRIORITY_CLASSES
from gangline.api.volcano.eviction_saves import SAVES_ANNOTATION

SCRIPT = Path(__file__).parent / "elastic_checkpoints.py"
STEPS_AHEAD = 20
"""Steps after the first save: without a further one they would be lost."""


def runs(history: Path) -> list[list[int]]:
    """The steps of each run of the training, in order."""
    found: dict[str, list[int]] = {}
    for line in history.read_text().splitlines() if history.exists() else []:
        step, started = line.split()
        found.setdefault(started, []).append(int(step))
    return list(found.values())


@pytest.mark.embedded_only("its pods need Gangline and torch in their image")
async def test_an_evicted_training_continues_at_the_step_after_its_last_one(
    scenario: Scenario,
) -> None:
    elastic = scenario.of(ELASTIC_JOBS)
    training = Training(elastic, "saved", script=SCRIPT)
    history = training.folder / "history"
    nodes = (await scenario.client.list(NODES)).items
    cpu = f"{min(parse_quantity(n.status.allocatable['cpu']).milli for n in nodes) * 6 // 10}m"
    urgent = f"urgent-{scenario.namespace}"
    await scenario.client.create(PRIORITY_CLASSES, {"metadata": {"name": urgent}, "value": 1000})
    try:
        await elastic.submit(training.manifest(2, "2", cpu=cpu))

        async def is_ahead_of_its_checkpoint() -> bool:
            steps = runs(history)
            return bool(steps) and steps[-1][-1] > STEPS_AHEAD

        async def can_save() -> bool:
            group = await elastic.pod_group("saved")
            return SAVES_ANNOTATION in group.metadata.annotations

        await eventually(is_ahead_of_its_checkpoint, "it trains", PATIENCE_S)
        await eventually(can_save, "the scheduler knows that it can save", PATIENCE_S)
        high = job(
            "high",
            worker=replica(until("high"), len(nodes), shared=str(scenario.shared), cpu=cpu),
            schedulingPolicy={"priorityClass": urgent},
        )
        await scenario.submit(high)
        await scenario.running("high", len(nodes))
        (before,) = runs(history)
        saved = training.folder / "checkpoints" / f"step-{before[-1]:012}"
        assert (saved / "gangline.json").exists(), "the last step was in storage in time"
        scenario.let("high")
        assert await scenario.outcome("high") == "Succeeded"

        async def continues() -> bool:
            return len(runs(history)) > 1

        await eventually(continues, "it continues", PATIENCE_S)
        (training.folder / "end").touch()
        assert await elastic.outcome("saved", PATIENCE_S) == "Succeeded"
        before, after = runs(history)[:2]
        assert after[0] in {before[-1], before[-1] + 1}, "at most one step is repeated"
    finally:
        await scenario.client.delete(PRIORITY_CLASSES, urgent)
