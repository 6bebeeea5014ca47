"""A release of the chart on a real Kubernetes, with the images that ``make image`` has built."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from e2e.kubernetes_cluster import Kubernetes

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
NAMESPACE = "gangline-system"
RELEASE = "gangline"
TIMEOUT_S = 300
BUILD_S = 900
COMPONENTS = ("operator", "scheduler")


def built_images(folder: Path) -> Path:
    """The folder with the images: GANGLINE_IMAGES, which may still be written, or ``folder``."""
    if given := os.environ.get("GANGLINE_IMAGES"):
        deadline = time.monotonic() + BUILD_S
        while not (Path(given) / "digests.txt").exists():
            assert time.monotonic() < deadline, f"{given} has no digests.txt after {BUILD_S} s"
            time.sleep(0.5)
        return Path(given)
    subprocess.run([sys.executable, ROOT / "tools" / "build_images.py", folder], check=True)
    return folder


def app_version() -> str:
    """The tag of the images that the chart names."""
    version: str = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    return version


@contextmanager
def components_as_pods(cluster: Kubernetes) -> Iterator[None]:
    """Stop the components that run as processes; Kubernetes' scheduler places those of the chart.

    Afterwards the processes get new accounts, because those of a release are deleted with it.
    """
    for name in COMPONENTS:
        cluster.stop_component(name)
    try:
        with cluster.default_scheduler():
            yield
    finally:
        for name in COMPONENTS:
            (cluster.folder / f"{name}.kubeconfig").unlink(missing_ok=True)
