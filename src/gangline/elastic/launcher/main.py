"""Entry point of the launcher: flags in, exit code out.

1. Flags and environment become a ``LaunchPlan``, or are refused. Nothing is started before.
2. Interpreters for the node check are started: their imports take most of the check's time.
3. The rendezvous is created: for one node here, for several at the master, after the node check. It
   comes with the variables by which workers find the master.
4. The agent runs until its end, which becomes the exit code and the report.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gangline.api.agent_report import (
    format_decision,
    format_failure,
    format_head,
    format_worker,
)
from gangline.api.failure import NODE_FAULT_EXIT_CODE
from gangline.elastic.agent.agent import AgentResult, ElasticAgent
from gangline.elastic.agent.failures import AgentAction, root_cause
from gangline.elastic.agent.logs import LogFolder, LogFolderError
from gangline.elastic.agent.process import Cleaner, StartError
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
from gangline.elastic.launcher.local_master import (
    HostedMaster,
    OnDemandMaster,
    is_own_address,
    master_options,
    node_identity,
    single_node_identity,
)
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
_SIGNAL_BASE = 128


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What a run does, as far as it is decided before anything is started."""

    settings: AgentSettings
    config: RendezvousConfig
    checks: NodeCheckOptions
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Connection:
    """The rendezvous of this node."""

    rendezvous: RendezvousHandler
    variables: Mapping[str, str]
    """Variables by which workers find the master and its files."""


def main(arguments: Sequence[str] | None = None, program: str = "gangline run") -> int:
    """Run a command line; return the exit code. Errors are printed on stderr.

    Raises SystemExit: the command line is wrong or requests help.
    """
    try:
        flags = parse_flags(sys.argv[1:] if arguments is None else arguments, os.environ, program)
        _start_logging(flags.event_log_handler)
        return asyncio.run(_run(_plan(flags)))
    except FlagError as error:
        return _print_error(str(error), USAGE_ERROR)
    except StartError as error:
        return _print_error(str(error), error.exit_code)
    except (NodeUnhealthyError, PartitionedError) as error:
        return _print_error(str(error), NODE_FAULT_EXIT_CODE)
    except (DevicesError, LogFolderError, RendezvousError, PortsTakenError) as error:
        return _print_error(str(error), 1)


def dlrover_run() -> int:
    return main(program="dlrover-run")


def _plan(flags: argparse.Namespace) -> LaunchPlan:
    settings, config = build_settings(flags, os.environ, socket.gethostname())
    if warning := device_shortage(settings.local_world_size, flags.accelerator, os.environ):
        log.warning("%s", warning)
    environment = dict(os.environ)
    if settings.local_world_size > 1 and "OMP_NUM_THREADS" not in environment:
        log.info("OMP_NUM_THREADS=1 for each worker, so that workers do not overload the node")
        environment["OMP_NUM_THREADS"] = "1"
    if flags.accelerator == "ascend-npu":
        environment.setdefault("HCCL_IF_BASE_PORT", str(flags.training_port))
    checks = NodeCheckOptions.from_flags(flags, config.max_nodes)
    return LaunchPlan(settings, config, checks, environment)


async def _run(plan: LaunchPlan) -> int:
    folder = LogFolder(plan.settings.logs, plan.settings.run_id)
    cleaner = Cleaner(folder.name, folder.temporary_folders())
    try:
        return await _run_agent(plan, folder)
    finally:
        folder.remove_if_temporary()
        cleaner.dismiss()


async def _run_agent(plan: LaunchPlan, folder: LogFolder) -> int:
    async with contextlib.AsyncExitStack() as stack:
        interpreters = await _prewarm_interpreters(stack, plan)
        connect = _connect_nodes if plan.config.master_address else _connect_single_node
        connection = await connect(stack, plan, folder, interpreters)
        first = await interpreters.release() if interpreters else {}
        if first:
            log.info("workers start in interpreters of the node check: %d", len(first))
        environment = {**plan.environment, **connection.variables}
        agent = ElasticAgent(plan.settings, connection.rendezvous, environment, folder, first)
        result = await agent.run()
    failure = failure_report(plan.settings, result)
    if failure:
        sys.stdout.flush()
        print(failure, file=sys.stderr, flush=True)
        write_termination_message(failure)
    return launcher_exit_code(result)


# The modules of a node check, of the master's protocol and of facts take time to import and memory,
# so they are imported only where they are used.


async def _prewarm_interpreters(
    stack: contextlib.AsyncExitStack, plan: LaunchPlan
) -> "CheckInterpreters | None":
    if not plan.checks.enabled:
        return None
    from gangline.elastic.nodecheck.interpreters import prewarmed_interpreters

    return await stack.enter_async_context(prewarmed_interpreters(plan.settings, plan.environment))


async def _connect_single_node(
    stack: contextlib.AsyncExitStack,
    plan: LaunchPlan,
    folder: LogFolder,
    interpreters: "CheckInterpreters | None",
) -> _Connection:
    settings, config = plan.settings, plan.config
    if interpreters:
        from gangline.elastic.launcher.check import check_single_node

        await check_single_node(settings, plan.checks, interpreters)
    master = await stack.enter_async_context(OnDemandMaster(settings.run_id, folder.path))
    rendezvous = SingleNodeRendezvous(
        settings.local_world_size, config.store_host, config.store_port
    )
    if settings.brain_url is not None:
        from gangline.elastic.launcher.brain import send_single_node_facts

        identity = single_node_identity(settings)
        await stack.enter_async_context(
            send_single_node_facts(settings.brain_url, settings.run_id, identity, rendezvous)
        )
    return _Connection(rendezvous, master.environment)


async def _connect_nodes(
    stack: contextlib.AsyncExitStack,
    plan: LaunchPlan,
    folder: LogFolder,
    interpreters: "CheckInterpreters | None",
) -> _Connection:
    from gangline.elastic.agent.membership.membership import Membership
    from gangline.elastic.agent.tuning_file import prepare_tuning_file
    from gangline.elastic.protocol.channel import read_job_secret

    settings, config, checks = plan.settings, plan.config, plan.checks
    assert config.master_address is not None
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
    if interpreters:
        from gangline.elastic.launcher.check import check_with_others

        await check_with_others(settings, identity, secret, checks, interpreters)
    tuning, tuning_variables = prepare_tuning_file(
        folder.path, plan.environment, tunes_batch=settings.tunes_batch
    )
    membership = Membership(identity, secret, partial(_recheck, settings, identity, checks), tuning)
    # With the first two workers find the data shards, and the master knows the shards of a lost
    # node or worker.
    return _Connection(
        membership,
        {
            "GANGLINE_MASTER_ADDR": identity.master_address,
            NODE_VARIABLE: str(identity.node_id),
            **tuning_variables,
        },
    )


async def _recheck(
    settings: AgentSettings,
    identity: "NodeIdentity",
    checks: NodeCheckOptions,
    client: "MasterClient",
    order: "RunCheck",
) -> None:
    from gangline.elastic.launcher.check import recheck

    await recheck(settings, identity, checks, client, order)


def launcher_exit_code(result: AgentResult) -> int:
    """Return the exit code of the launcher: that of the failed worker, 128 and more for signals.

    The operator looks it up in the same table of failures that the agent uses.
    """
    if result.received_signal:
        return _SIGNAL_BASE + result.received_signal
    if result.notice and result.notice.stops:
        return 1
    if result.failure is None:
        return 0 if result.is_success else 1
    if result.decision and result.decision.action is AgentAction.MOVE:
        return NODE_FAULT_EXIT_CODE
    code = result.failure.exit_code
    if not code:
        code = _SIGNAL_BASE + signal.SIGABRT  # a hang: as when collectives give up
    return code


def failure_report(settings: AgentSettings, result: AgentResult) -> str:
    """Return the text to print; empty for success."""
    if result.received_signal:
        return f"{settings.command.name}: ended by {result.received_signal.name}"
    if result.notice:
        return f"{settings.command.name}: stopped: {result.notice.reason}"
    if result.failure is None:
        return ""
    lines = [format_head(settings.command.name, settings.node_name, result.failure.cause)]
    first = root_cause(result.failures) if result.failures else None
    if first is None or first.failure is not result.failure:
        lines.append(format_failure(result.failure))
    workers = sorted(result.failures, key=lambda failure: failure is not first)
    lines += [
        format_worker(
            worker.failure, worker.rank, worker.local_rank, worker.pid, is_first=worker is first
        )
        for worker in workers
    ]
    if result.decision:
        lines.append(format_decision(result.decision.reason))
    if first and first.error and first.error.traceback:
        lines += [f"Traceback of rank {first.rank} on {settings.node_name}:"]
        lines.append(first.error.traceback.rstrip())
    return "\n".join(lines)


def _start_logging(handler: str) -> None:
    level = os.environ.get("LOGLEVEL", "INFO" if handler == "console" else "WARNING").upper()
    is_valid = level in logging.getLevelNamesMapping()
    logging.basicConfig(level=level if is_valid else "WARNING", format=_FORMAT)


def _print_error(message: str, code: int) -> int:
    print(f"gangline: {message}", file=sys.stderr)
    write_termination_message(message)
    return code
