"""The components that run in the process of the embedded cluster: operator, scheduler, Brain.

Without ``--brain`` the Brain only records jobs. Its packages are then imported in a thread, so that
the start of the cluster does not wait for them.

`gangline up` and `gangline demo` start them. The command line may import every component; the
components may not import each other.
"""

import asyncio
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gangline.api.job_names import SCHEDULER_NAMES

if TYPE_CHECKING:
    from gangline.local.cluster import Component

EMBEDDED_SCHEDULER_NAMES = frozenset(SCHEDULER_NAMES)
"""The embedded cluster has no other scheduler, so ours serves the default name too."""


def embedded_components(
    without: frozenset[str],
    *,
    webhook: bool = True,
    queue_access: bool = False,
    pod_groups: str = "volcano",
    brain_database: str = "",
    brain_advises: bool = True,
    dashboard_folder: Path | None = None,
) -> "list[Component]":
    """Return the components of the cluster; their imports are late, after the API server has
    started.

    Args:
        without: names of components to leave out.
        webhook: run the operator's admission webhook.
        queue_access: let it require the right to use a queue.
        pod_groups: whose PodGroups jobs get, ``volcano`` or ``kubernetes``.
        brain_database: URL of the Brain's history; empty: no Brain runs.
        brain_advises: let it advise, beside recording what jobs did.
        dashboard_folder: folder for the address of the dashboard; None: it does not run.
    """
    from gangline.local.cluster import Component

    async def operate(client: Any, stop: asyncio.Event) -> None:
        from gangline.operator.main import run
        from gangline.operator.settings import OperatorSettings, PodGroupKind
        from gangline.operator.webhook.component import remove_webhook
        from gangline.operator.webhook.settings import WebhookSettings

        asked = WebhookSettings.for_embedded_cluster(queue_access=queue_access)
        if not webhook:
            await remove_webhook(client, asked)
        settings = OperatorSettings(
            pod_groups=PodGroupKind(pod_groups), webhook=asked if webhook else None
        )
        await run(client, settings, stop)

    async def schedule(client: Any, stop: asyncio.Event) -> None:
        from gangline.scheduler.loop import run
        from gangline.scheduler.settings import SchedulerSettings

        await run(client, SchedulerSettings(scheduler_names=EMBEDDED_SCHEDULER_NAMES), stop)

    async def think(client: Any, stop: asyncio.Event) -> None:
        await asyncio.to_thread(import_module, "gangline.brain.main")
        from gangline.brain.main import run
        from gangline.brain.settings import BrainSettings
        from gangline.cli.growth_check import growth_check
        from gangline.kube.probes import Address

        settings = BrainSettings(
            database=brain_database,
            api_address=Address("127.0.0.1", 0),
            advises=brain_advises,
            reads_folders=True,
            growth_check=growth_check(EMBEDDED_SCHEDULER_NAMES),
        )
        await run(client, settings, stop)

    async def show(client: Any, stop: asyncio.Event) -> None:
        from gangline.dashboard.address_file import remove_address, write_address
        from gangline.dashboard.run import run
        from gangline.dashboard.settings import DashboardSettings

        assert dashboard_folder is not None
        announce = partial(write_address, dashboard_folder)
        try:
            await run(client, DashboardSettings(), stop, announce)
        finally:
            remove_address(dashboard_folder)

    components = [Component("operator", operate), Component("scheduler", schedule)]
    if brain_database:
        components.append(Component("brain", think))
    if dashboard_folder is not None:
        components.append(Component("dashboard", show))
    return [component for component in components if component.name not in without]
