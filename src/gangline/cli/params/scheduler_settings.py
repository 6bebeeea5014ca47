"""The settings of the scheduler that a command repeats: from a file, or from the cluster."""

from pathlib import Path
from typing import TYPE_CHECKING

from gangline.cli.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from gangline.kube.client.client import ApiClient
    from gangline.scheduler.settings import SchedulerSettings


async def scheduler_settings(client: "ApiClient", path: Path | None) -> "SchedulerSettings":
    """Return the scheduler's settings, from a file or from its ConfigMap if there is one."""
    from gangline.scheduler.config.volcano import ConfigurationError, read_file
    from gangline.scheduler.reporting.replay import read_deployed_settings
    from gangline.scheduler.settings import SchedulerSettings

    try:
        if path is None:
            return await read_deployed_settings(client)
        return read_file(path).apply_to(SchedulerSettings())
    except ConfigurationError as error:
        where = "the scheduler's ConfigMap" if path is None else "--scheduler-config"
        raise CommandError(f"{where}: {error}", code=ExitCode.USAGE) from error
