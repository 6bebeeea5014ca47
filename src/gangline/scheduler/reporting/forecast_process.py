"""The process that forecasts the starts of pending gangs for the scheduler.

It has the lowest priority, reads the cluster once, writes the forecasts to its standard output and
ends. The request comes by standard input, so that credentials are in no list of processes. The
kernel kills it with the scheduler (prctl(2)), and an alarm ends it if the scheduler does not.
"""

import asyncio
import ctypes
import os
import signal
import sys
import time
from typing import Self

import msgspec

from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import ClusterConfig
from gangline.kube.config.credentials import Credential, StaticCredential
from gangline.scheduler.plugins.scores import ScoreWeights
from gangline.scheduler.preemption.preempt import EvictionPolicy
from gangline.scheduler.reporting.replay import read_cluster_state
from gangline.scheduler.reporting.start_condition import StatedStart, stated_starts
from gangline.scheduler.settings import SchedulerSettings

TIME_LIMIT_S = 120
LOWEST_PRIORITY = 19
_PR_SET_PDEATHSIG = 1


class ForecastRequest(msgspec.Struct, frozen=True):
    """Which gangs to forecast, on which cluster."""

    groups: list[str]
    server: str
    credential: Credential
    certificate_authority: bytes | None
    verify: bool
    tls_server_name: str
    proxy_url: str
    headers: tuple[tuple[str, str], ...]
    scheduler_names: frozenset[str]
    weights: ScoreWeights
    hierarchical: bool
    policy: EvictionPolicy

    @classmethod
    async def create(
        cls, groups: list[str], config: ClusterConfig, settings: SchedulerSettings
    ) -> Self:
        """Return the request of a scheduler with its current credential.

        Raises:
            ConfigError: no credential is available.
        """
        return cls(
            groups=groups,
            server=config.server,
            credential=await config.credentials.current(),
            certificate_authority=config.certificate_authority,
            verify=config.verify,
            tls_server_name=config.tls_server_name,
            proxy_url=config.proxy_url,
            headers=config.headers,
            scheduler_names=settings.scheduler_names,
            weights=settings.weights,
            hierarchical=settings.hierarchical,
            policy=settings.policy,
        )

    def cluster(self) -> ClusterConfig:
        """Return the address and the credentials of the cluster."""
        return ClusterConfig(
            server=self.server,
            credentials=StaticCredential(self.credential),
            certificate_authority=self.certificate_authority,
            verify=self.verify,
            tls_server_name=self.tls_server_name,
            proxy_url=self.proxy_url,
            headers=self.headers,
        )


Forecasts = dict[str, StatedStart]
"""The answer: forecasts by the name of the gang."""


async def forecast(request: ForecastRequest) -> Forecasts:
    """Read the cluster and forecast the starts.

    Raises:
        ApiError: nodes or pods cannot be read.
    """
    async with ApiClient(request.cluster(), "gangline-forecast") as client:
        state = await read_cluster_state(
            client, request.scheduler_names, request.weights, request.hierarchical
        )
    return stated_starts(state, request.groups, time.time(), request.policy)


def main() -> None:
    """Answer the request on standard input."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(LOWEST_PRIORITY)
    signal.alarm(TIME_LIMIT_S)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=ForecastRequest)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(forecast(request))))


if __name__ == "__main__":
    main()
