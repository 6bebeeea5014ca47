"""The past: what the record of jobs has, read from the Brain and shared by all viewers.

A cluster without a Brain, or one whose database is away, has no past: pages say so, with the
problem as the Brain or the search for it words it. Rights are those of the viewer: the server asks
for everything, and pages show what the viewer may list.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gangline.kube.client.client import ApiClient
from gangline.kube.errors import KubeError
from gangline.sdk.advice import BrainUnavailable, NotInHistory
from gangline.sdk.history import AsyncHistory

REFRESH_S = 2.0
MAX_RECORDS = 200
Data = dict[str, Any]


class NoPast(Exception):
    """There is no record, or it cannot be read; the message says why."""


@dataclass(slots=True)
class _Remembered:
    value: Any
    until: float


@dataclass(slots=True)
class Past:
    """The record of one cluster."""

    client: ApiClient
    url: str = ""
    """Address of the Brain; empty: as it has published it."""
    _remembered: OrderedDict[tuple[object, ...], _Remembered] = field(default_factory=OrderedDict)

    @property
    def _history(self) -> AsyncHistory:
        async def connect() -> ApiClient:
            return self.client

        return AsyncHistory(connect, "", self.url)

    async def jobs(self, limit: int, filters: Mapping[str, str | int]) -> Data:
        """Return the first answer with ``jobs``, and the parameters of the ``next`` one.

        Raises:
            NoPast: there is no record, or it cannot be read.
        """
        key = ("jobs", limit, *sorted(filters.items()))
        return await self._read(key, lambda: self._history.page(limit, **filters)) or {}

    async def record(self, namespace: str, name: str, uid: str = "") -> Data | None:
        """Return how a job went; None if the record does not have the job.

        Raises:
            NoPast: there is no record, or it cannot be read.
        """
        key = ("record", namespace, name, uid)
        read = self._history.get
        stored: Data | None = await self._read(key, lambda: read(name, namespace, uid=uid))
        return stored

    async def usage(self, by: str, since_ms: int, until_ms: int, *namespaces: str) -> list[Data]:
        """Return what jobs used, of some namespaces, or of all.

        Raises:
            NoPast: there is no record, or it cannot be read.
        """
        key = ("usage", by, since_ms, until_ms, *namespaces)
        rows: list[Data] | None = await self._read(
            key,
            lambda: self._history.usage(by, since=since_ms, until=until_ms, namespaces=namespaces),
        )
        return rows or []

    async def _read(self, key: tuple[object, ...], read: Callable[[], Awaitable[Any]]) -> Any:
        now = time.monotonic()
        remembered = self._remembered.get(key)
        if remembered is not None and now < remembered.until:
            return remembered.value
        try:
            value = await read()
        except NotInHistory:
            value = None
        except (BrainUnavailable, KubeError) as error:
            raise NoPast(str(error)) from error
        self._remembered[key] = _Remembered(value, now + REFRESH_S)
        self._remembered.move_to_end(key)
        while len(self._remembered) > MAX_RECORDS:
            self._remembered.popitem(last=False)
        return value
