"""Third-party programs: the Kubeflow SDK, and TensorBoard."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from playwright.async_api import expect

from frameworks.browser import chromium, opened_page
from frameworks.training import EXAMPLES, Training, training_cluster
from gangline.api.resources import DEPLOYMENTS
from integration.cluster.embedded import until

HERE = Path(__file__).parent
IMAGE = "gangline/examples-clients"

pytestmark = pytest.mark.timeout(600)

RUN = "first-try"
EVENTS = f"""
from tensorboard.summary import Writer
writer = Writer('/logs/{RUN}')
for step in range(10):
    writer.add_scalar('loss', 1 / (1 + step), step)
writer.close()
print('written', flush=True)
import time
time.sleep(600)
"""


@pytest.fixture
def python(image_map: Path) -> str:
    """The interpreter of the environment with the Kubeflow SDK."""
    return str(Path(json.loads(image_map.read_text())[f"{IMAGE}:*"]["env"], "bin", "python"))


def environment(training: Training) -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": str(training.cluster.home.default_kubeconfig)}


@contextmanager
def opened(command: Sequence[str], training: Training) -> Iterator["subprocess.Popen[str]"]:
    """A program that runs until it is stopped."""
    process = subprocess.Popen(
        command, env=environment(training), stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


async def run(training: Training, command: Sequence[str]) -> str:
    """The output of a program that succeeds."""
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        env=environment(training),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


async def test_the_kubeflow_sdk_works_unchanged(training: Training, python: str) -> None:
    await run(training, [python, str(HERE / "kubeflow_client.py")])
    script = EXAMPLES / "clients" / "kubeflow_sdk.py"
    output = await run(training, [python, str(script), "--image", "any"])
    assert "function-master-0: rank 0 of 2 learns at 0.1" in output
    assert "function-worker-0: rank 1 of 2 learns at 0.1" in output


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def board(image_map: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The address of the TensorBoard of a job that writes a curve."""
    folder = tmp_path_factory.mktemp("board")
    async with training_cluster(image_map, folder / "home") as training:
        gangline = [sys.executable, "-m", "gangline"]
        submit = [*gangline, "submit", "pytorch", "--name", "curves", "--image", f"{IMAGE}:1"]
        submit += ["--cpu", "500m", "--share-memory", "0", "--tensorboard", "--logdir", "/logs"]
        submit += ["--tensorboard-image", f"{IMAGE}:1", f'exec python -c "{EVENTS}"']
        await run(training, submit)

        async def ready() -> bool:
            board = await training.client.get(DEPLOYMENTS, "curves-tensorboard", "default")
            return board.status.ready_replicas == 1

        await until(ready, 300.0)
        with opened([*gangline, "tensorboard", "curves", "--no-open"], training) as forwarding:
            assert forwarding.stdout is not None
            line = await asyncio.to_thread(forwarding.stdout.readline)
            address = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert address is not None, line
            yield address[0]
        await run(training, [*gangline, "delete", "curves"])


async def test_tensorboard_shows_what_a_job_writes(board: str) -> None:
    async with aiohttp.ClientSession(board, raise_for_status=True) as session:

        async def answer(path: str) -> object:
            async with session.get(path) as found:
                return await found.json(content_type=None)

        async with session.get("/") as page:
            assert "<title>TensorBoard</title>" in await page.text()

        async def read_in() -> bool:
            runs = await answer("/data/runs")
            return isinstance(runs, list) and RUN in runs  # earlier clusters have runs too

        await until(read_in, 120.0)

        async def curve() -> list[list[float]]:
            tags = await answer("/data/plugin/scalars/tags")
            if not (isinstance(tags, dict) and "loss" in tags.get(RUN, {})):
                return []
            found = await answer(f"/data/plugin/scalars/scalars?run={RUN}&tag=loss")
            assert isinstance(found, list)
            return found if len(found) == 10 else []

        points = await until(curve, 120.0)
    assert [point[1] for point in points] == list(range(10))
    assert [round(point[2], 4) for point in points] == [round(1 / (1 + n), 4) for n in range(10)]


@pytest.mark.skipif(chromium() is None, reason="no chromium on this machine")
async def test_a_browser_shows_the_run_of_a_job(board: str, tmp_path: Path) -> None:
    browser = chromium()
    assert browser is not None
    async with opened_page(browser, board) as page:
        assert await page.title() == "TensorBoard"
        await expect(page.get_by_text(RUN, exact=True).first).to_be_visible(timeout=120_000)
        # The table below a curve, which exists once the curve is drawn.
        await expect(page.get_by_text("Smoothed").first).to_be_visible(timeout=120_000)
        picture = await page.screenshot(path=tmp_path / "tensorboard.png")
        await page.goto("about:blank")
        blank = await page.screenshot()
    assert len(picture) > 4 * len(blank), "the page is blank"
