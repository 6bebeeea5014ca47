"""Viewers, and what they may read and do: access reviews with the viewer's own credentials.

A viewer is known by credentials, so all sessions and streams of one user share one client and one
memory of rights. Clients that nobody has used for a while are closed.

Objects are observed once, with the rights of the server, and shown by the rights of each viewer.
``Rights`` asks the API server as the viewer (``SelfSubjectAccessReview``), never more than
``MAX_PARALLEL`` questions at a time, and remembers each answer for ``REMEMBER_S``, also negative
ones. ``Scope`` is the result for one page: which kinds are visible in which namespaces.

For each kind the first question is whether it may be listed in all namespaces. Only if not, each
namespace that has such objects is asked for.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from gangline.api.resources import CONFIG_MAPS, EVENTS, HYPERNODES, NODES, POD_GROUPS, PODS, QUEUES
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import ClusterConfig
from gangline.kube.config.credentials import Credential, StaticCredential
from gangline.kube.errors import Forbidden, NotFound
from gangline.sdk.kinds import JobKind

REMEMBER_S = 30.0
"""How long an answer is remembered, and a stream continues before it is checked again."""
MAX_PARALLEL = 16
MAX_REMEMBERED = 20_000
"""Answers per viewer; the oldest are forgotten first."""


def put_last(table: dict[Any, Any], key: object, value: object, most: int) -> None:
    """Store a value as the newest of at most ``most``; the oldest are forgotten."""
    table.pop(key, None)
    table[key] = value
    while len(table) > most:
        del table[next(iter(table))]


class Question(NamedTuple):
    """What is asked: may the viewer do this?"""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def list_question(kind: "Readable", namespace: str = "") -> Question:
    return Question("list", *kind, namespace)


Readable = tuple[str, str]
"""Group and plural name of a kind."""


def readable(resource: object) -> Readable:
    return str(getattr(resource, "group", "")), str(getattr(resource, "plural", ""))


POD_KIND, GROUP_KIND, EVENT_KIND = readable(PODS), readable(POD_GROUPS), readable(EVENTS)
NODE_KIND, QUEUE_KIND, HYPERNODE_KIND = readable(NODES), readable(QUEUES), readable(HYPERNODES)
OWNED_KINDS = (POD_KIND, GROUP_KIND, EVENT_KIND, readable(CONFIG_MAPS))
CLUSTER_KINDS = (NODE_KIND, QUEUE_KIND, HYPERNODE_KIND)


@dataclass(slots=True)
class Rights:
    client: ApiClient
    """Sends requests as the viewer."""
    clock: Callable[[], float] = time.monotonic
    _answers: dict[Question, tuple[float, "asyncio.Task[bool]"]] = field(default_factory=dict)
    """Answers, and when they were asked for."""
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_PARALLEL))

    async def may(self, question: Question) -> bool:
        """Return whether the viewer may do it.

        Raises:
            Unauthorized: the credentials of the viewer are no longer valid.
            ApiError: the API server does not answer.
        """
        asked_at, task = self._answers.get(question, (-REMEMBER_S, None))
        is_old = self.clock() - asked_at >= REMEMBER_S
        if task is None or (task.done() and (is_old or task.cancelled() or task.exception())):
            task = asyncio.create_task(self._ask(question))
            put_last(self._answers, question, (self.clock(), task), MAX_REMEMBERED)
        return await asyncio.shield(task)

    async def may_all(self, questions: Iterable[Question]) -> dict[Question, bool]:
        """Return the answers to several questions, which are asked concurrently."""
        asked = list(dict.fromkeys(questions))
        return dict(zip(asked, await asyncio.gather(*map(self.may, asked)), strict=True))

    async def _ask(self, question: Question) -> bool:
        attributes = {
            name: value
            for name, value in question._asdict().items()
            if value or name in {"group", "resource"}
        }
        async with self._slots:
            return await self.client.is_allowed(**attributes)


NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Scope:
    """Which kinds a viewer sees in which namespaces; None stands for all namespaces."""

    kinds: Mapping[Readable, frozenset[str] | None] = field(default_factory=dict, hash=False)

    def sees(self, kind: Readable, namespace: str = "") -> bool:
        namespaces = self.kinds.get(kind, NOTHING)
        return namespaces is None or namespace in namespaces

    def sees_all(self, kind: Readable) -> bool:
        return self.kinds.get(kind, NOTHING) is None

    def sees_job(self, kind: JobKind, namespace: str) -> bool:
        return self.sees(readable(kind.resource), namespace)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for viewers who see the same, so that they can share a rendered page."""
        namespaces = {kind: ns and tuple(sorted(ns)) for kind, ns in self.kinds.items()}
        return tuple(sorted(namespaces.items(), key=lambda item: item[0]))


async def read_scope(
    rights: Rights, kinds: Iterable[Readable], namespaces: Mapping[Readable, frozenset[str]]
) -> Scope:
    """Ask what a viewer sees of these kinds of jobs, which are in ``namespaces``, and of others."""
    asked = (*kinds, *OWNED_KINDS, *CLUSTER_KINDS)
    everywhere = await rights.may_all(map(list_question, asked))
    visible: dict[Readable, frozenset[str] | None] = {
        kind: None if everywhere[list_question(kind)] else NOTHING for kind in asked
    }
    await _add_namespaces(rights, visible, namespaces)
    # What belongs to jobs is shown with them only.
    with_jobs: set[str] = set()
    for kind, names in namespaces.items():
        shown = visible.get(kind, NOTHING)
        with_jobs |= names if shown is None else shown
    await _add_namespaces(rights, visible, dict.fromkeys(OWNED_KINDS, frozenset(with_jobs)))
    return Scope(visible)


async def _add_namespaces(
    rights: Rights,
    visible: dict[Readable, frozenset[str] | None],
    namespaces: Mapping[Readable, frozenset[str]],
) -> None:
    """Ask for single namespaces where a kind is not visible in all of them."""
    partly = {
        kind: names for kind, names in namespaces.items() if visible.get(kind, NOTHING) is not None
    }
    answers = await rights.may_all(
        list_question(kind, name) for kind, names in partly.items() for name in names
    )
    for kind, names in partly.items():
        visible[kind] = frozenset(name for name in names if answers[list_question(kind, name)])


IDLE_S = 900.0
"""A client that was not used for this time is closed."""


@dataclass(frozen=True, slots=True)
class Identity:
    """As whom requests are sent; all empty: as the server itself."""

    token: str = field(default="", repr=False)
    """A bearer token."""
    user: str = ""
    """The user whom the server impersonates."""
    groups: tuple[str, ...] = ()

    def config(self, server: ClusterConfig) -> ClusterConfig:
        """Return the configuration of a client with these credentials."""
        if self.token:
            credential = StaticCredential(Credential(f"Bearer {self.token}"))
            return replace(server, credentials=credential, headers=())
        if self.user:
            groups = (("Impersonate-Group", group) for group in self.groups)
            return replace(server, headers=(("Impersonate-User", self.user), *groups))
        return server


@dataclass(slots=True)
class Viewer:
    identity: Identity
    name: str
    """The name that pages and the audit log show; owners of jobs are compared with it."""
    client: ApiClient
    rights: Rights
    used_at: float = 0.0
    scope: Scope | None = None
    """What the viewer saw last."""
    scope_read_at: float = 0.0
    scope_lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Viewers:
    def __init__(self, server: ApiClient) -> None:
        self.server = server
        self._viewers: dict[Identity, Viewer] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._close_idle(0.0)

    async def viewer(self, identity: Identity, name: str) -> Viewer:
        viewer = self._viewers.get(identity)
        if viewer is None:
            await self._close_idle(IDLE_S)
            client = self.server
            if identity != Identity():
                config = identity.config(self.server.config)
                client = ApiClient(config, "gangline-dashboard", count_requests=False)
                await client.__aenter__()
            viewer = self._viewers[identity] = Viewer(identity, name, client, Rights(client))
        viewer.used_at = time.monotonic()
        return viewer

    async def _close_idle(self, idle_s: float) -> None:
        now = time.monotonic()
        for viewer in [one for one in self._viewers.values() if now - one.used_at >= idle_s]:
            del self._viewers[viewer.identity]
            if viewer.client is not self.server:
                await asyncio.shield(viewer.client.__aexit__(None, None, None))


async def read_user_name(client: ApiClient) -> str:
    """Return the name by which the API server knows a client; empty before Kubernetes 1.28.

    Raises:
        Unauthorized: it does not accept the credentials.
    """
    try:
        return await client.user_name()
    except (NotFound, Forbidden):
        # Older servers: any request that everybody may send shows whether the token is accepted.
        await client.is_allowed(verb="get", group="", resource="namespaces")
        return ""
