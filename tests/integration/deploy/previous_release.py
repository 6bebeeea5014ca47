"""The release before this one: the sources of the first commit that has the chart."""

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CHART = "deploy/chart/Chart.yaml"


def unpack_previous_release(folder: Path) -> Path:
    """Write chart and program of the previous release into a folder; skip the test without git."""
    first = ["log", "--diff-filter=A", "--format=%H", "--", CHART]
    commits = _git(*first).decode().split()
    if not commits:
        pytest.skip("the history of this checkout does not reach to the first chart")
    archive = _git("archive", commits[-1], "deploy", "src/gangline")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else b""
