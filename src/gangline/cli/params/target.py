"""The cluster that a command works with, and its namespace.

A flag comes before the environment, the environment before the profile of the user's settings, and
all of them before the kubeconfig.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from gangline.kube.client.client import ApiClient
    from gangline.kube.config.config import ClusterConfig
    from gangline.kube.config.embedded import RunningCluster
    from gangline.kube.rate_limit import TokenBucket


class ClusterTarget(NamedTuple):
    """The cluster and the namespace that a command works with."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    """The given namespace; None selects that of the kubeconfig."""
    profile: str = ""
    """The active profile of the user's settings; empty for none."""

    def config(self) -> "ClusterConfig":
        """Load the configuration of the cluster.

        Raises:
            ConfigError: there is none, or it is broken.
        """
        from gangline.kube.config.config import load_config

        return load_config(self.kubeconfig, self.context)

    def embedded_cluster(self) -> "RunningCluster | None":
        """Return the embedded cluster of this machine with this configuration; None for others.

        A cluster elsewhere may have the same address, through a tunnel: it has no record here.
        """
        from pathlib import Path  # late: completion of a word must not load it

        from gangline.kube.config.embedded import embedded_home, running_clusters
        from gangline.kube.errors import ConfigError

        try:
            config = self.config()
        except ConfigError:
            return None  # without a cluster, commands such as --dry-run need none
        # Either file of a cluster leads to its directory: HOME/kubeconfig, clusters/NAME/kubeconfig
        files = [Path(name).absolute() for name in config.origin.split(", ")]
        homes = [embedded_home(os.environ), *(up for file in files for up in [*file.parents][:3])]
        clusters = (cluster for home in homes for cluster in running_clusters(home))
        return next((cluster for cluster in clusters if cluster.url == config.server), None)

    def namespace_of(self, client: "ApiClient") -> str:
        return self.namespace or client.config.namespace

    @asynccontextmanager
    async def connect(
        self, component: str = "", *, rate_limit: "TokenBucket | None" = None
    ) -> "AsyncIterator[ApiClient]":
        """Open a client of the cluster; requests are counted for components only."""
        from gangline.kube.client.client import ApiClient

        client = ApiClient(
            self.config(),
            component or "gangline",
            rate_limit=rate_limit,
            count_requests=bool(component),
        )
        async with client:
            yield client

    def serve(
        self,
        component: str,
        run: "Callable[[ApiClient, asyncio.Event], Awaitable[None]]",
        *,
        rate_limit: "TokenBucket | None" = None,
    ) -> None:
        """Run a component with a client of the cluster until SIGTERM or Ctrl-C."""
        from gangline.cli.event_loop import serve_component

        async def connected(stop: "asyncio.Event") -> None:
            async with self.connect(component, rate_limit=rate_limit) as client:
                await run(client, stop)

        serve_component(connected)


def resolve_target(given: Mapping[str, Any]) -> ClusterTarget:
    """Return the target for option values and the user's settings.

    Args:
        given: option values by parameter name: ``kubeconfig``, ``context``, ``namespace``,
            ``profile``.

    Raises:
        CommandError: the settings have mistakes, or the requested profile does not exist.
    """
    # Late, so that completion of a word that needs no cluster does not load the settings.
    from gangline.cli.params.profiles import VARIABLES, read_user_settings, resolve_cluster_settings

    profiles = read_user_settings()
    settings = resolve_cluster_settings(given, profiles, os.environ)
    # KUBECONFIG may list several files, which the kubeconfig reader splits itself.
    values = {
        key: setting.value
        for key, setting in settings.items()
        if setting.origin != f"environment {VARIABLES['kubeconfig']}"
    }
    return ClusterTarget(
        values.get("kubeconfig"),
        values.get("context"),
        values.get("namespace"),
        profiles.active_profile(given.get("profile"), os.environ).value,
    )
