"""Replicas of our components as separate processes, beside an embedded cluster without them."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Replica:
    """One process of ``gangline operator`` or ``gangline scheduler``."""

    def __init__(
        self,
        component: str,
        kubeconfig: Path,
        log: Path,
        *arguments: str,
    ) -> None:
        self.component, self.log, self.metrics_port = component, log, free_port()
        options = (
            "--log-format=json",
            "--leader-elect",
            f"--metrics-bind-address=127.0.0.1:{self.metrics_port}",
            *arguments,
        )
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gangline", component, *options],
                env={**os.environ, "KUBECONFIG": str(kubeconfig)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        """End it whatever state it is in."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)

    async def metric(self, series: str, /, **labels: str) -> float | None:
        """The value of one of its series; None if there is none, or no answer."""
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(2)) as session,
                session.get(f"http://127.0.0.1:{self.metrics_port}/metrics") as answer,
            ):
                text = await answer.text()
        except (OSError, TimeoutError, aiohttp.ClientError):
            return None
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == series and labels.items() <= sample.labels.items():
                    return sample.value
        return None

    async def leads(self) -> bool:
        name = f"gangline-{self.component}"
        return await self.metric("leader_election_master_status", name=name) == 1


@contextmanager
def replicas(*started: Replica) -> Iterator[None]:
    """End these replicas when the context is left."""
    try:
        yield
    finally:
        for each in started:
            each.end()
