"""When a restarted rank may be forked: never before the store of its next world listens."""

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gangline.local.kubelet.runtime.interface import ContainerPlan
from gangline.local.kubelet.runtime.static_worlds import (
    StartRule,
    StaticWorlds,
    listens_at,
)
from unit.local.kubelet.builders import a_plan

PORT = 23456


def a_rank(pod: str, instance: int = 0, **env: str) -> ContainerPlan:
    variables = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": str(PORT), **env}
    return a_plan(Path("/"), "python", pod=pod, instance=instance, env=variables)


MASTER, WORKER = "job-master-0", "job-worker-0"


class Job:
    """A master and its workers; the test says when the store listens."""

    def __init__(self) -> None:
        self.listening: set[int] = set()
        self.worlds = StaticWorlds(lambda pid, port, _: port == PORT and pid in self.listening)
        self.ends: dict[str, Callable[[], None]] = {}
        self.pid = 0

    def start(self, pod: str, *, listens: bool = True, **env: str) -> None:
        self.pid += 1
        if listens:
            self.listening.add(self.pid)
        self.ends[pod] = self.worlds.begin_run(a_rank(pod, **env), self.pid)

    def end(self, pod: str) -> None:
        self.ends.pop(pod)()

    async def may_start(self, pod: str, **env: str) -> bool:
        return await self.worlds.wait_for_store(a_rank(pod, 1, **env), 0)


@pytest.mark.parametrize(
    ("story", "may_start"),
    [
        pytest.param("+m +w -w", False, id="rank 0 of its old world still runs"),
        pytest.param("+m +w -w -m", False, id="there is no store"),
        pytest.param("+m +w -w -m ~m", False, id="the store does not listen yet"),
        pytest.param("+m +w -w -m +m", True, id="the store of the next world listens"),
        pytest.param("+w +m -m +m -w", True, id="it has ended after rank 0 has returned"),
        pytest.param("+w -w", False, id="it never had a store"),
        pytest.param("+w -w +m", True, id="the first store listens"),
        pytest.param("+m +w -w +w -w", False, id="it has failed twice in one world"),
        pytest.param("+m +w -w +w -w -m +m", True, id="that world has ended"),
    ],
)
async def test_restarted_rank_waits_for_the_next_store(story: str, may_start: bool) -> None:
    job, pods = Job(), {"m": MASTER, "w": WORKER}
    for kind, pod in story.split():
        if kind == "-":
            job.end(pods[pod])
        else:
            job.start(pods[pod], listens=kind == "+")
    assert await job.may_start(WORKER) is may_start


async def test_recreated_pod_waits_as_a_restarted_container_does() -> None:
    job = Job()
    job.start(MASTER)
    job.start(WORKER)
    job.end(WORKER)
    assert job.worlds.start_rule(a_rank(WORKER, 0)) is StartRule.AFTER_STORE


def test_first_starts_and_restarts_of_rank_0_do_not_wait() -> None:
    job = Job()
    assert job.worlds.start_rule(a_rank(WORKER)) is StartRule.NOW
    assert job.worlds.start_rule(a_rank("p", MASTER_ADDR="")) is StartRule.NOW
    job.start(MASTER)
    assert job.worlds.start_rule(a_rank(MASTER, 1)) is StartRule.NOW
    job.start("alone", MASTER_ADDR="localhost")
    assert job.worlds.start_rule(a_rank("alone", 1, MASTER_ADDR="localhost")) is StartRule.NOW


@pytest.mark.parametrize("env", [{"MASTER_ADDR": ""}, {"MASTER_PORT": ""}, {"MASTER_PORT": "x"}])
def test_restart_without_a_known_world_is_cold(env: dict[str, Any]) -> None:
    job = Job()
    job.start(WORKER, **env)
    assert job.worlds.start_rule(a_rank(WORKER, 1, **env)) is StartRule.COLD
    # A kubelet that was restarted has not seen the previous run.
    assert StaticWorlds().start_rule(a_rank(WORKER, 1)) is StartRule.COLD


def test_ended_containers_are_forgotten_in_order() -> None:
    job = Job()
    job.start(MASTER)
    for number in range(1100):
        job.start(f"w-{number}")
        job.end(f"w-{number}")
    assert job.worlds.start_rule(a_rank("w-0", 1)) is StartRule.COLD
    assert job.worlds.start_rule(a_rank("w-1099", 1)) is StartRule.AFTER_STORE
    assert job.worlds.start_rule(a_rank(MASTER, 1)) is StartRule.NOW


@pytest.mark.parametrize(
    "address", [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")], ids=["v4", "v6"]
)
def test_listening_socket_of_a_process_is_found(address: tuple[Any, str]) -> None:
    family, host = address
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        port = listener.getsockname()[1]
        assert not listens_at(os.getpid(), port, True), "it is only bound"
        listener.listen()
        assert listens_at(os.getpid(), port, True)
        with subprocess.Popen(["sleep", "60"]) as other:
            assert not listens_at(other.pid, port, True), "another process has the socket"
            assert listens_at(other.pid, port, False), "its network has only this container"
            other.kill()
    assert not listens_at(os.getpid(), port, True)
