"""Commands that work with a cluster: their shared options, the connection, and the event loop.

    @click.command("describe")
    @job_argument
    @job_command
    @output_option()
    async def describe_command(job: str, cluster: ClusterSession, output: str) -> None: ...

The body runs to its end while the connection is open; Ctrl-C cancels it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

from gangline.cli.errors import to_command_error
from gangline.cli.params import completers
from gangline.cli.params.options import cluster_options, namespace_options, type_option
from gangline.cli.params.target import ClusterTarget

if TYPE_CHECKING:
    from gangline.api.meta.resource import Resource
    from gangline.kube.client.client import ApiClient
    from gangline.sdk.client import JobClient
    from gangline.sdk.job_editor import JobEditor

AsyncBody = Callable[..., Awaitable[Any]]
Body = Callable[..., Any]


class ClusterSession:
    """The connection of one command to its cluster."""

    def __init__(self, target: ClusterTarget, client: "ApiClient", kind: str = "") -> None:
        self.client = client
        self.target = target
        """The cluster that the options and the settings select."""
        self.namespace = target.namespace_of(client)
        """The selected namespace, else that of the kubeconfig."""
        self.kind = kind
        """The kind of jobs that ``-T`` selects; empty for all kinds."""

    @cached_property
    def jobs(self) -> "JobClient":
        """The jobs of the selected kind.

        Raises:
            UnknownKind: there is no such kind.
        """
        from gangline.sdk.client import JobClient

        return JobClient(self.client, self.kind)

    @cached_property
    def editor(self) -> "JobEditor":
        from gangline.sdk.job_editor import JobEditor

        return JobEditor(self.jobs)

    def namespace_to_list(self, all_namespaces: bool) -> str | None:
        """Return the namespace of a list request; None lists all namespaces."""
        return None if all_namespaces else self.namespace


@asynccontextmanager
async def suggest_names(
    client: "ApiClient", resource: "Resource[Any]", name: str
) -> AsyncIterator[None]:
    """Suggest the nearest name if an object that belongs to no namespace does not exist.

    Raises:
        CommandError: it does not exist.
    """
    from gangline.api.suggestions import did_you_mean
    from gangline.kube.errors import NotFound

    try:
        yield
    except NotFound as error:
        failure = to_command_error(error)
        near = did_you_mean(name, await completers.object_names(client, resource, None))
        failure.message = f"{failure.message}.{near}" if near else failure.message
        raise failure from error


def cluster_command(body: AsyncBody) -> Body:
    """Add ``--kubeconfig`` and ``--context``; the body receives a session as ``cluster``."""
    return cluster_options(_connected(body))


def namespace_command(body: AsyncBody) -> Body:
    """Add ``-n`` to the options of ``cluster_command``."""
    return namespace_options(_connected(body))


def job_command(body: AsyncBody) -> Body:
    """Add ``-n`` and ``-T`` to the options of ``cluster_command``."""
    return namespace_options(type_option(_connected(body)))


def _connected(body: AsyncBody) -> Body:
    @wraps(body)
    def run(*args: Any, target: ClusterTarget, kind: str = "", **options: Any) -> Any:
        async def connected() -> Any:
            async with target.connect() as client:
                return await body(*args, cluster=ClusterSession(target, client, kind), **options)

        return asyncio.run(connected())

    return run
