"""Keeps fork servers running: one for each environment of the image map that asks for one.

A container whose command differs in what an interpreter reads at its start (an option, a variable
such as PYTHONUNBUFFERED) starts cold once, and gets a server for the next ones.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from gangline.forkserver import ContainerSpec, EnterProgram
from gangline.local.kubelet.runtime import enter_container
from gangline.local.kubelet.runtime.child_process import MINIMAL_ENVIRONMENT
from gangline.local.kubelet.runtime.interface import ContainerPlan, WarmEnvironment
from gangline.local.kubelet.runtime.isolation import ContainerEntry, Isolation, IsolationLevel
from gangline.local.kubelet.runtime.warm_start.command import ServerKey, default_key, server_key
from gangline.local.kubelet.runtime.warm_start.server import (
    ContainerForkServer,
    DependentModulesError,
    ServerFailedError,
)

log = logging.getLogger(__name__)


def describe_container(
    plan: ContainerPlan,
    isolation: Isolation,
    entry: ContainerEntry,
    script: str,
    procs_files: Sequence[str],
) -> ContainerSpec:
    as_root = isolation.level is IsolationLevel.ROOT
    enter: EnterProgram | None = None
    if not entry.identity.changes_nothing:
        enter = {"source": _enter_source(), "options": entry.enter_options()}
    return {
        "argv": list(plan.argv),
        "env": dict(plan.env),
        "groups": list(procs_files),
        "network": (plan.netns or "") if as_root else "",
        "own_users": not as_root,
        "setup": {"script": script, "env": dict(MINIMAL_ENVIRONMENT)},
        "root": entry.root,
        "workdir": entry.workdir,
        "enter": enter,
    }


@lru_cache(maxsize=1)
def _enter_source() -> str:
    return Path(enter_container.__file__).read_text()


_MAX_SERVERS = 4
"""Servers beside those of the environments: each uses some hundred megabytes."""

_LONGEST_WAIT_S = 30.0
"""Seconds that a container waits at most for the first start of its server."""

_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 1.0, 300.0
_STABLE_S = 60.0
"""Seconds after which a server that ends is restarted without a longer pause."""


class ForkServerPool:
    """The fork servers of one machine; all of its nodes share them."""

    def __init__(self) -> None:
        self._keepers: dict[ServerKey, asyncio.Task[None]] = {}
        self._servers: dict[ServerKey, ContainerForkServer] = {}
        self._first_tries: dict[ServerKey, asyncio.Future[None]] = {}
        """Done when the first start of a server has succeeded or failed."""
        self._reserved = 0

    def start(self, environments: Iterable[WarmEnvironment]) -> None:
        for environment in environments:
            key = default_key(environment)
            if key is None:
                log.warning("no warm starts: there is no python on PATH of the environment")
            else:
                self._keep(key)
        self._reserved = len(self._keepers)

    async def stop(self) -> None:
        keepers = list(self._keepers.values())
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        self._keepers.clear()

    async def find(self, plan: ContainerPlan) -> ContainerForkServer | None:
        """Return the server from which a container can be forked; None if it must start cold.

        Waits for a server that does its imports: the container would do the same ones, and later.
        Without any server, it starts one for the next containers of this kind.
        """
        key = server_key(plan)
        if key is None:
            return None
        if (first_try := self._first_tries.get(key)) is not None:
            await asyncio.wait({first_try}, timeout=_LONGEST_WAIT_S)
        elif len(self._keepers) < self._reserved + _MAX_SERVERS:
            self._keep(key)
        server = self._servers.get(key)
        if server is not None and server.has_changed_files():
            log.info("modules of %s have changed: restart", " ".join(key.modules))
            server.disconnect()
            return None
        return server

    def _keep(self, key: ServerKey) -> None:
        self._first_tries[key] = asyncio.get_running_loop().create_future()
        self._keepers[key] = asyncio.create_task(self._keep_running(key))

    async def _keep_running(self, key: ServerKey) -> None:
        try:
            await self._restart(key)
        finally:
            self._end_first_try(key)

    def _end_first_try(self, key: ServerKey) -> None:
        if not self._first_tries[key].done():
            self._first_tries[key].set_result(None)

    async def _restart(self, key: ServerKey) -> None:
        backoff, excluded = _FIRST_BACKOFF_S, frozenset[str]()
        while True:
            began = time.monotonic()
            try:
                await self._run(key, excluded)
            except DependentModulesError as error:
                log.warning("modules are imported by each container: %s", error)
                if error.packages <= excluded:
                    return
                excluded |= error.packages
                if {name.partition(".")[0] for name in key.modules} <= excluded:
                    return
                continue
            except ServerFailedError as error:
                log.warning("no warm starts with %s: %s", " ".join(key.interpreter), error)
            else:
                log.info("the fork server of %s has ended", " ".join(key.modules))
            self._end_first_try(key)
            if time.monotonic() - began > _STABLE_S:
                backoff = _FIRST_BACKOFF_S
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, _LONGEST_BACKOFF_S)

    async def _run(self, key: ServerKey, excluded: frozenset[str]) -> None:
        server = await ContainerForkServer.start(key, excluded)
        try:
            self._servers[key] = server
            self._end_first_try(key)
            log.info("containers start warm: %s are imported", " ".join(key.modules))
            await asyncio.shield(server.client.closed)
        finally:
            self._servers.pop(key, None)
            await server.end()
