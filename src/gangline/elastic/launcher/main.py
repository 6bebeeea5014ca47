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

from gangline.api.failure import NODE_FAULT_EXIT_CODE
from gangline.elastic.agent.agent import ElasticAgent
from gangline.elastic.agent.failure_report import failure_report, launcher_exit_code
from gangline.elastic.agent.leftovers import Cleaner
from gangline.elastic.agent.logs import LogFolder, LogFolderError
from gangline.elastic.agent.process import StartError
from gangline.elastic.agent.rendezvous import (
    PartitionedError,
    PortsTakenError,
    RendezvousError,
    RendezvousHandler,
    SingleNodeRendezvous,
)
from gangline.elastic.agent.settings import AgentSettings
from gangline.elastic.agent.termination_message import write_termination_message
from gangline.elastic.agent.worker_group import DevicesError
from gangline.elastic.launcher.flags import FlagError, parse_flags
from gangline.elastic.launcher.local_master import OnDemandMaster
from gangline.elastic.launcher.machine import device_shortage
from gangline.elastic.launcher.rendezvous_config import RendezvousConfig
from gangline.elastic.launcher.settings import NodeCheckOptions, NodeUnhealthyError, build_settings
from gangline.elastic.variables import NODE_VARIABLE

if TYPE_CHECKING:
    from gangline.elastic.agent.settings import NodeIdentity
    from gangline.elastic.nodecheck.interpreters import CheckInterpreters
    from gangline.elastic.protocol.client import MasterClient
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
        flags = parse_flags(sys.argv[1:] if arguments is None else arguments, os.environ, program)
        _start_logging(flags.event_log_handler)
        settings, config = build_settings(flags, os.environ, socket.gethostname())
        if warning := device_shortage(settings.local_world_size, flags.accelerator, os.environ):
            log.warning("%s", warning)
        base = _base_environment(settings, flags.training_port, flags.accelerator)
        checks = NodeCheckOptions.from_flags(flags, config.max_nodes)
        return asyncio.run(_run(settings, config, base, checks))
    except FlagError as error:
        return _print_error(str(error), USAGE_ERROR)
    except StartError as error:
        return _print_error(str(error), error.exit_code)
    except (NodeUnhealthyError, PartitionedError) as error:
        return _print_error(str(error), NODE_FAULT_EXIT_CODE)
    except (DevicesError, LogFolderError, RendezvousError, PortsTakenError) as error:
        return _print_error(str(error), 1)


def dlrover_run() -> int:
    """Entry point of ``dlrover-run``."""
    return main(program="dlrover-run")


async def _run(
    settings: AgentSettings,
    config: RendezvousConfig,
    base: dict[str, str],
    checks: NodeCheckOptions,
) -> int:
    folder = LogFolder(settings.logs, settings.run_id)
    cleaner = Cleaner(folder.name, folder.temporary_folders())
    try:
        return await _run_agent(settings, config, base, checks, folder)
    finally:
        folder.remove_if_temporary()
        cleaner.dismiss()


async def _run_agent(
    settings: AgentSettings,
    config: RendezvousConfig,
    base: dict[str, str],
    checks: NodeCheckOptions,
    folder: LogFolder,
) -> int:
    async with contextlib.AsyncExitStack() as stack:
        interpreters = await _prewarm_interpreters(stack, settings, checks, base)
        rendezvous = await _create_rendezvous(
            stack, settings, config, folder, checks, base, interpreters
        )
        first = await interpreters.release() if interpreters else {}
        if first:
            log.info("workers start in interpreters of the node check: %d", len(first))
        result = await ElasticAgent(settings, rendezvous, base, folder, first).run()
    failure = failure_report(settings, result)
    if failure:
        sys.stdout.flush()
        print(failure, file=sys.stderr, flush=True)
        write_termination_message(failure)
    return launcher_exit_code(result)


# The modules of a node check take time to import, so only a launcher that runs one imports them.


async def _prewarm_interpreters(
    stack: contextlib.AsyncExitStack,
    settings: AgentSettings,
    checks: NodeCheckOptions,
    base: dict[str, str],
) -> "CheckInterpreters | None":
    if not checks.enabled:
        return None
    from gangline.elastic.launcher.prewarmed_interpreters import prewarmed_interpreters

    return await stack.enter_async_context(prewarmed_interpreters(settings, base))


async def _recheck(
    settings: AgentSettings,
    identity: "NodeIdentity",
    checks: NodeCheckOptions,
    client: "MasterClient",
    order: "RunCheck",
) -> None:
    from gangline.elastic.launcher.check import recheck

    await recheck(settings, identity, checks, client, order)


async def _create_rendezvous(
    stack: contextlib.AsyncExitStack,
    settings: AgentSettings,
    config: RendezvousConfig,
    folder: LogFolder,
    checks: NodeCheckOptions,
    base: dict[str, str],
    interpreters: "CheckInterpreters | None",
) -> RendezvousHandler:
    if config.master_address is None:
        if interpreters:
            from gangline.elastic.launcher.check import check_single_node

            await check_single_node(settings, checks, interpreters)
        master = await stack.enter_async_context(OnDemandMaster(settings.run_id, folder.path))
        base |= master.environment
        if settings.brain_url:
            return await _report_to_brain(stack, settings, config, settings.brain_url)
        return SingleNodeRendezvous(settings.local_world_size, config.store_host, config.store_port)
    # These imports take time, and a single node does not need them.
    from gangline.elastic.agent.membership.membership import Membership
    from gangline.elastic.agent.tuning_file import prepare_tuning_file
    from gangline.elastic.launcher.local_master import (
        HostedMaster,
        is_own_address,
        master_options,
        node_identity,
    )
    from gangline.elastic.protocol.channel import read_job_secret

    try:
        secret = read_job_secret(os.environ, settings.run_id)
    except ValueError as error:
        raise FlagError(str(error)) from error
    if not secret.is_private:
        log.warning(
            "GANGLINE_JOB_SECRET is not set: anyone who knows --rdzv-id can join and listen"
        )
    hosts_master = config.hosts_master
    if hosts_master is None:
        hosts_master = is_own_address(config.master_address)
    if hosts_master:
        options = master_options(settings.brain_url)
        hosted = HostedMaster(settings.run_id, config.master_address, folder.path, options)
        await (await stack.enter_async_context(hosted)).wait_until_listening()
    identity = node_identity(settings, config, pod=os.environ.get("POD_NAME", ""))
    # With these variables workers find the data shards, and the master knows the shards of a lost
    # node or worker.
    base |= {"GANGLINE_MASTER_ADDR": identity.master_address, NODE_VARIABLE: str(identity.node_id)}
    if interpreters:
        from gangline.elastic.launcher.check import check_with_others

        await check_with_others(settings, identity, secret, checks, interpreters)
    tuning = prepare_tuning_file(folder.path, base, tunes_batch=settings.tunes_batch)
    return Membership(identity, secret, partial(_recheck, settings, identity, checks), tuning)


async def _report_to_brain(
    stack: contextlib.AsyncExitStack, settings: AgentSettings, config: RendezvousConfig, url: str
) -> RendezvousHandler:
    from gangline.elastic.launcher import brain
    from gangline.elastic.launcher.local_master import single_node_identity

    rendezvous = brain.ReportingRendezvous(
        settings.local_world_size, config.store_host, config.store_port
    )
    identity = single_node_identity(settings)
    await stack.enter_async_context(
        brain.send_single_node_facts(url, settings.run_id, identity, rendezvous)
    )
    return rendezvous


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


def _print_error(message: str, code: int) -> int:
    print(f"gangline: {message}", file=sys.stderr)
    write_termination_message(message)
    return code
