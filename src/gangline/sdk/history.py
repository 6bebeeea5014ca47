"""Jobs of the past: ended jobs, how each of them went, and what they used.

The Brain keeps the history, and records each job; ``gangline up`` runs one that only records. The
data are plain, with the keys of ``gangline history -o json``.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from gangline.kube.client.client import ApiClient
from gangline.sdk.advice import BrainClient, brain_token, find_brain

MAX_PAGE = 500
"""Jobs of one answer."""
Data: TypeAlias = dict[str, Any]
Rows: TypeAlias = list[Data]


class AsyncHistory:
    """The history of one cluster; methods raise ``BrainUnavailable`` if it has none."""

    def __init__(
        self, connect: Callable[[], Awaitable[ApiClient]], namespace: str, url: str = ""
    ) -> None:
        """Read the history of a cluster.

        Args:
            connect: returns the client of the cluster.
            namespace: the namespace of jobs that are named.
            url: the address of the Brain; empty: as it has published it.
        """
        self._connect, self._namespace, self._url = connect, namespace, url

    async def list(self, limit: int = 100, **filters: str | int) -> Rows:
        """Return ended jobs, the latest first, at most ``limit``.

        Args:
            limit: how many.
            filters: ``namespace``, ``name``, ``owner``, ``stem``, ``kind``, ``queue``, ``outcome``,
                ``since`` and ``until`` (milliseconds since 1970, of their end).
        """
        jobs: Rows = []
        async for page in self.pages(limit, **filters):
            jobs += page["jobs"]
        return jobs

    async def pages(self, limit: int, **filters: str | int) -> AsyncIterator[Data]:
        """Yield answers with ``jobs`` and the number of ``hidden`` ones; see ``list``."""
        async with self._brain() as brain:
            following: dict[str, str | int] | None = filters
            while following is not None and limit > 0:
                page = await brain.history(limit=min(limit, MAX_PAGE), **following)
                limit -= len(page["jobs"])
                following = {**filters, **page["next"]} if page["next"] else None
                yield page

    async def page(self, limit: int, **filters: str | int) -> Data:
        """Return one answer: ``jobs``, ``hidden``, and what ``next`` adds to the filters."""
        async with self._brain() as brain:
            return await brain.history(limit=min(limit, MAX_PAGE), **filters)

    async def get(self, name: str, namespace: str = "", *, uid: str = "") -> Data:
        """Return a ``job`` with its ``record``, ``spec``, ``logs``, ``segments`` and ``pods``.

        Args:
            name: the name; without ``uid`` the last job of this name.
            namespace: its namespace; empty: that of the client.
            uid: selects an earlier job.

        Raises:
            NotInHistory: there is no such job, or it may not be seen.
        """
        space = namespace or self._namespace
        async with self._brain() as brain:
            record = await brain.record(space, name, uid)
            run = await brain.run(space, name)
        parts = ("segments", "pods") if run["job"]["uid"] == record["job"]["uid"] else ()
        return {**record, **{part: run[part] for part in parts}}

    async def usage(
        self, by: str = "queue", *, namespaces: Sequence[str] = (), **times: int
    ) -> Rows:
        """Return what jobs used, most first; see ``BrainClient.usage``."""
        async with self._brain() as brain:
            rows: Rows = (await brain.usage(by, namespaces, **times))["rows"]
            return rows

    @asynccontextmanager
    async def _brain(self) -> AsyncIterator[BrainClient]:
        client = await self._connect()
        url = await find_brain(client, self._url)
        async with BrainClient(url, await brain_token(client, url)) as brain:
            yield brain


class History:
    """``AsyncHistory`` without ``await``."""

    def __init__(
        self, history: AsyncHistory, run: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._history, self._run = history, run

    def list(self, limit: int = 100, **filters: str | int) -> Rows:
        """Return ended jobs; see ``AsyncHistory.list``."""
        jobs: Rows = self._run(self._history.list(limit, **filters))
        return jobs

    def get(self, name: str, namespace: str = "", *, uid: str = "") -> Data:
        """Return how a job went; see ``AsyncHistory.get``."""
        job: Data = self._run(self._history.get(name, namespace, uid=uid))
        return job

    def usage(self, by: str = "queue", *, namespaces: Sequence[str] = (), **times: int) -> Rows:
        """Return what jobs used; see ``AsyncHistory.usage``."""
        rows: Rows = self._run(self._history.usage(by, namespaces=namespaces, **times))
        return rows
