"""What a viewer may read and do: access reviews with the viewer's own credentials.

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
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gangline.api.resources import (
    CONFIG_MAPS,
    EVENTS,
    HYPERNODES,
    NODES,
    POD_GROUPS,
    PODS,
    QUEUES,
)
from gangline.kube.client.client import ApiClient
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
CONFIG_KIND = readable(CONFIG_MAPS)
OWNED_KINDS = (POD_KIND, GROUP_KIND, EVENT_KIND, CONFIG_KIND)
CLUSTER_KINDS = (NODE_KIND, QUEUE_KIND, HYPERNODE_KIND)


@dataclass(slots=True)
class Rights:
    client: ApiClient
    """Sends requests as the viewer."""
    clock: Callable[[], float] = time.monotonic
    _answers: dict[Question, tuple[float, bool]] = field(default_factory=dict)
    _asked: dict[Question, "asyncio.Task[bool]"] = field(default_factory=dict)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_PARALLEL))

    async def may(self, question: Question) -> bool:
        """Return whether the viewer may do it.

        Raises:
            Unauthorized: the credentials of the viewer are no longer valid.
            ApiError: the API server does not answer.
        """
        answer = self._answers.get(question)
        if answer is not None and self.clock() - answer[0] < REMEMBER_S:
            return answer[1]
        task = self._asked.get(question)
        if task is None:
            task = self._asked[question] = asyncio.create_task(self._ask(question))
            task.add_done_callback(lambda done: self._forget_task(question, done))
        return await asyncio.shield(task)

    async def may_all(self, questions: Iterable[Question]) -> dict[Question, bool]:
        """Return the answers to several questions, which are asked concurrently."""
        asked = list(dict.fromkeys(questions))
        return dict(zip(asked, await asyncio.gather(*map(self.may, asked)), strict=True))

    def _forget_task(self, question: Question, done: "asyncio.Task[bool]") -> None:
        self._asked.pop(question, None)
        if not done.cancelled():
            done.exception()  # it is the waiters' to handle; without any it is not logged

    async def _ask(self, question: Question) -> bool:
        attributes = {
            name: value
            for name, value in question._asdict().items()
            if value or name in {"group", "resource"}
        }
        async with self._slots:
            allowed = await self.client.is_allowed(**attributes)
        put_last(self._answers, question, (self.clock(), allowed), MAX_REMEMBERED)
        return allowed


ALL_NAMESPACES: frozenset[str] | None = None
"""In a scope: the kind is visible everywhere."""
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
        return tuple(
            sorted(
                (kind, None if ns is None else tuple(sorted(ns))) for kind, ns in self.kinds.items()
            )
            if self.kinds
            else ()
        )


async def read_scope(
    rights: Rights, kinds: Iterable[Readable], namespaces: Mapping[Readable, frozenset[str]]
) -> Scope:
    """Ask what a viewer sees.

    Args:
        rights: the rights of the viewer.
        kinds: the kinds of jobs.
        namespaces: the namespaces that have jobs, by kind.

    Raises:
        Unauthorized, ApiError: as ``Rights.may``.
    """
    asked = (*kinds, *OWNED_KINDS, *CLUSTER_KINDS)
    everywhere = await rights.may_all(map(list_question, asked))
    visible: dict[Readable, frozenset[str] | None] = {
        kind: ALL_NAMESPACES if everywhere[list_question(kind)] else NOTHING for kind in asked
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
