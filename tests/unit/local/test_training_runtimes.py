"""The shipped runtimes on the embedded cluster."""

from types import SimpleNamespace
from typing import Any

from gangline.api.trainer.builtin_runtimes import builtin_runtimes
from gangline.kube.errors import Unreachable
from gangline.local.custom_resources import install_runtimes

NAMES = [manifest["metadata"]["name"] for manifest in builtin_runtimes()]


class FakeClient:
    """A cluster with some runtimes, which refuses others."""

    def __init__(self, present: list[str], refused: str = "") -> None:
        self.names = present
        self.refused = refused

    async def list(self, _: Any) -> Any:
        return SimpleNamespace(items=[{"metadata": {"name": name}} for name in self.names])

    async def create(self, _: Any, manifest: dict[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        if name == self.refused:
            raise Unreachable("no webhook responds")
        assert name not in self.names
        self.names.append(name)


async def install(client: Any) -> None:
    await install_runtimes(client)


async def test_missing_runtimes_are_created_and_others_stay() -> None:
    client = FakeClient([NAMES[0], "own"])
    await install(client)
    assert sorted(client.names) == sorted([*NAMES, "own"])


async def test_a_refused_runtime_does_not_end_the_start_of_the_cluster() -> None:
    client = FakeClient([], refused=NAMES[1])
    await install(client)
    assert sorted(client.names) == sorted(set(NAMES) - {NAMES[1]})
