"""What the controllers of the embedded cluster retain of each object."""

from typing import cast

import msgspec

from gangline.api.core.pod import Pod
from gangline.api.resources import PODS
from gangline.kube.client.client import ApiClient
from gangline.local.controllers.context import shared_informers

PROGRAM = {"env": [{"name": "A", "value": "1"}], "command": ["python"], "image": "i:1"}
READ = {
    "name": "c",
    "ports": [{"containerPort": 80, "name": "web"}],
    "resources": {"requests": {"cpu": "1"}},
}
CLAIMED = [
    {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
    {"name": "scratch", "ephemeral": {}},
]


def test_copies_of_pods_are_without_programs_and_volumes_without_claims() -> None:
    transform = shared_informers(cast(ApiClient, None)).informer(PODS).transform
    assert transform is not None
    pod = {
        "metadata": {"name": "p"},
        "spec": {
            "containers": [READ | PROGRAM],
            "initContainers": [READ | PROGRAM],
            "volumes": [{"name": "token", "projected": {"sources": []}}, *CLAIMED],
            "nodeName": "n",
        },
        "status": {"containerStatuses": [{"name": "c", "restartCount": 1}]},
    }
    spec = {"containers": [READ], "initContainers": [READ], "volumes": CLAIMED, "nodeName": "n"}
    reduced = msgspec.convert(pod | {"spec": spec}, Pod)
    assert transform(msgspec.convert(pod, Pod)) == reduced
