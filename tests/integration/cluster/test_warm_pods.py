"""Pods of ``gangline up`` that an image map starts warm, compared with pods that start cold."""

import json
from pathlib import Path
from typing import Any

import pytest

from gangline.api.resources import PODS
from gangline.local.kubelet.runtime.isolation import IsolationLevel, detect_isolation
from integration.cluster.embedded import embedded, until
from integration.kubelet.start_probe import PYTHON, was_imported_before, write_probe

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        detect_isolation().level is IsolationLevel.NONE, reason="namespaces are not allowed here"
    ),
]


def a_pod(name: str, folder: Path) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": f"{name}:1",
        "command": ["python3", str(folder / "program" / "probe.py"), "--lr", "$(RATE)"],
        "env": [{"name": "RATE", "value": "0.1"}],
        "resources": {"limits": {"memory": "256Mi", "cpu": "1"}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    volumes = [{"name": "data", "emptyDir": {}}]
    spec = {"containers": [container], "volumes": volumes, "restartPolicy": "Never"}
    return {"metadata": {"name": name}, "spec": spec}


async def test_pods_of_an_image_that_asks_for_it_start_warm(tmp_path: Path) -> None:
    program, libraries = write_probe(tmp_path)
    entry = {
        "env": str(PYTHON.parent.parent),
        "path": f"{program}:{libraries}",
        "variables": {"PYTHONPATH": str(libraries), "PYTHONDONTWRITEBYTECODE": "1"},
    }
    images = tmp_path / "images.json"
    images.write_text(json.dumps({"warm:*": {**entry, "warm": ["library"]}, "cold:*": entry}))
    arguments = ("--nodes", "1", "--image-map", str(images))
    seen = {}
    async with embedded(tmp_path / "home", *arguments) as cluster, cluster.client() as client:
        for name in ("cold", "warm"):
            await client.create(PODS, a_pod(name, tmp_path), "default")

            async def has_ended(name: str = name) -> bool:
                pod = await client.get(PODS, name, "default")
                return pod.status.phase == "Succeeded"

            await until(has_ended, explain=cluster.said)
            seen[name] = json.loads(await anext(client.logs(name, "default")))
    assert {name: was_imported_before(shown) for name, shown in seen.items()} == {
        "cold": False,
        "warm": True,
    }
    assert seen["warm"]["argv"][1:] == seen["cold"]["argv"][1:] == ["--lr", "0.1"]
