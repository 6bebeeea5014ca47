"""Entry point of the launcher: flags in, exit code out."""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from gangline.api.failure import NODE_FAULT
from gangline.elastic.agent.agent import Agent
from gangline.elastic.agent.environment import DevicesError
from gangline.elastic.agent.logs import LogFolder, LogFolderError
from gangline.elastic.agent.process import StartError
from gangline.elastic.agent.rendezvous import CutOffError, MeetingError, OneNode, Rendezvous
from gangline.elastic.agent.report import exit_code, report
from gangline.elastic.agent.settings import AgentSettings
from gangline.elastic.agent.world import PortsTakenError
from gangline.elastic.launcher.checks import Checks, UnfitError
from gangline.elastic.launcher.devices import shortage
from gangline.elastic.launcher.lazy_master import LazyMaster
from gangline.elastic.launcher.meeting import Meeting
from gangline.elastic.launcher.parsing import FlagError, parse
from gangline.elastic.launcher.plan import plan

if TYPE_CHECKING:
    from gangline.elastic.agent.place import Place
    from gangline.elastic.nodecheck.interpreters import Interpreters
    from gangline.elastic.protocol.client import Client
    from gangline.elastic.protocol.messages import RunCheck

log = logging.getLogger(__name__)

USAGE_ERROR = 2
_FORMAT = "gangline: %(message)s"


def main(arguments: Sequence[str] | None = None, program: str = "gangline run") -> int:
    """Run a command line; return the exit code. Errors are printed on stderr.

    Raises:
        SystemExit: the command line is wrong or requests help.
    """
    try:
        flags = parse(sys.argv[1:] if arguments is None else arguments, os.environ, program)
        _start_logging(flags.event_log_handler)
        settings, config = plan(flags, os.environ, socket.gethostname())
        if warning := shortage(settings.local_world_size, flags.accelerator, os.environ):
            log.warning("%s", warning)
        base = _base_environment(settings, flags.training_port, flags.accelerator)
        checks = Checks.of(flags, config.max_nodes)
        return asyncio.run(_run(settings, config, base, checks))
    except FlagError as error:
        return _complain(str(error), USAGE_ERROR)
    except StartError as error:
        return _complain(str(error), error.exit_code)
    except (UnfitError, CutOffError) as error:
        return _complain(str(error), NODE_FAULT)
    except (DevicesError, LogFolderError, MeetingError, PortsTakenError) as error:
        return _complain(str(error), 1)


def dlrover_run() -> int:
    """Entry point of ``dlrover-run``."""
    return main(program="dlrover-run")


async def _run(settings: AgentSettings, meet: Meeting, base: dict[str, str], checks: Checks) -> int:
    folder = LogFolder(settings.logs, settings.run_id)
    async with contextlib.AsyncExitStack() as stack:
        early = await _early(stack, settings, checks, base)
        rendezvous = await _rendezvous(stack, settings, meet, folder, checks, base, early)
        first = await early.released() if early else {}
        if first:
            log.info("workers start in interpreters of the node check: %d", len(first))
        outcome = await Agent(settings, rendezvous, base, folder, first).run()
    failure = report(settings, outcome)
    if failure:
        sys.stdout.flush()
        print(failure, file=sys.stderr, flush=True)
    folder.remove_if_temporary()
    return exit_code(outcome)


# The modules of a node check take time to import, so only a launcher that runs one imports them.


async def _early(
    stack: contextlib.AsyncExitStack, settings: AgentSettings, checks: Checks, base: dict[str, str]
) -> "Interpreters | None":
    if not checks.enabled:
        return None
    from gangline.elastic.launcher.early import early_interpreters  # noqa: PLC0415

    return await stack.enter_async_context(early_interpreters(settings, base))


async def _check_again(
    settings: AgentSettings, place: "Place", checks: Checks, client: "Client", order: "RunCheck"
) -> None:
    from gangline.elastic.launcher.check import check_again  # noqa: PLC0415

    await check_again(settings, place, checks, client, order)


async def _rendezvous(
    stack: contextlib.AsyncExitStack,
    settings: AgentSettings,
    meet: Meeting,
    folder: LogFolder,
    checks: Checks,
    base: dict[str, str],
    early: "Interpreters | None",
) -> Rendezvous:
    if meet.address is None:
        if early:
            from gangline.elastic.launcher.check import check_alone  # noqa: PLC0415

            await check_alone(settings, checks, early)
        lazy = await stack.enter_async_context(LazyMaster(settings.run_id, folder.path))
        base |= lazy.environment
        return OneNode(settings.local_world_size, meet.store_host, meet.store_port)
    # These imports take time, and a single node does not need them.
    from gangline.elastic.agent.membership import Membership  # noqa: PLC0415
    from gangline.elastic.launcher.host import MasterHost, is_own_address  # noqa: PLC0415
    from gangline.elastic.launcher.place import place_of  # noqa: PLC0415
    from gangline.elastic.protocol.seal import secret_of  # noqa: PLC0415

    try:
        secret = secret_of(os.environ, settings.run_id)
    except ValueError as error:
        raise FlagError(str(error)) from error
    if not secret.is_private:
        log.warning(
            "GANGLINE_JOB_SECRET is not set: anyone who knows --rdzv-id can join and listen"
        )
    hosts = is_own_address(meet.address) if meet.hosts is None else meet.hosts
    if hosts:
        await stack.enter_async_context(MasterHost(settings.run_id, meet.address, folder.path))
    place = place_of(settings, meet, hosts=hosts)
    # With these variables workers find the data shards, and the master knows the shards of a lost
    # node or worker.
    base |= {"GANGLINE_MASTER_ADDR": place.master, "NODE_ID": str(place.node_id)}
    if early:
        from gangline.elastic.launcher.check import check_together  # noqa: PLC0415

        await check_together(settings, place, secret, checks, early)
    return Membership(place, secret, partial(_check_again, settings, place, checks))


def _start_logging(handler: str) -> None:
    level = os.environ.get("LOGLEVEL", "INFO" if handler == "console" else "WARNING").upper()
    known = level in logging.getLevelNamesMapping()
    logging.basicConfig(level=level if known else "WARNING", format=_FORMAT)


def _base_environment(
    settings: AgentSettings, training_port: int, accelerator: str
) -> dict[str, str]:
    base = dict(os.environ)
    if settings.local_world_size > 1 and "OMP_NUM_THREADS" not in base:
        log.info("OMP_NUM_THREADS=1 for each worker, so that workers do not overload the node")
        base["OMP_NUM_THREADS"] = "1"
    if accelerator == "ascend-npu":
        base.setdefault("HCCL_IF_BASE_PORT", str(training_port))
    return base


def _complain(message: str, code: int) -> int:
    print(f"gangline: {message}", file=sys.stderr)
    return code
