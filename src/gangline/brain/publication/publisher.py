"""Writes JobAdvice objects and the events of their changes.

An object is written only if its content changed, so that a cycle without news costs no request.
Events follow from the difference to the stored object and come after its write. So a Brain that is
restarted repeats none of them.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime, timedelta

import msgspec

from gangline.api.brain.job_advice import AdviceItem, JobAdvice, JobAdviceStatus
from gangline.api.job_resources import find_job_kind
from gangline.api.meta.objects import Object, ObjectMeta, OwnerReference
from gangline.api.resources import JOB_ADVICE
from gangline.brain.publication.items import changes, ordered, settled, with_summary
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.errors import AlreadyExists, NotFound
from gangline.kube.informers.informer import Informer, object_key

log = logging.getLogger(__name__)

EXPIRES = timedelta(hours=1)
"""Advice without a newer confirmation is outdated after this time."""
REFRESH = timedelta(minutes=30)
"""An unchanged object is written again after this time, which moves its expiry."""


class Publisher:
    """Keeps one JobAdvice for each job with advice. Start ``run``; wait for ``synced``."""

    def __init__(
        self,
        client: ApiClient,
        events: EventRecorder,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client, self._events, self._now = client, events, now
        self._written: dict[str, JobAdvice] = {}
        """Writes by uid of the job, until the informer shows them."""
        self._stored: Informer[JobAdvice] = Informer(client, JOB_ADVICE, indexes={"job": _job_uids})
        self._stored.add_listener(self._on_stored)

    async def run(self) -> None:
        await self._stored.run()

    async def synced(self) -> None:
        await self._stored.wait_for_sync()

    def advice_of(self, job: Object) -> JobAdvice | None:
        """Return the stored advice of a job."""
        written = self._written.get(job.metadata.uid)
        return written or next(iter(self._stored.by_index("job", job.metadata.uid)), None)

    async def publish(
        self, job: Object, mode: str, items: Iterable[AdviceItem], history: str = ""
    ) -> bool:
        """Store the items of a job. Returns whether anything was written."""
        stored = self.advice_of(job)
        old = stored.status.items if stored else []
        now = self._now().replace(microsecond=0)
        refresh = stored is not None and _is_old(stored.status, now)
        # A refresh takes all news, also those below the hysteresis of an extra write.
        new = ordered(items) if refresh else settled(old, items)
        if stored is None and not new:
            return False
        if stored is not None and not _is_due(stored.status, new, mode, history, job, now):
            return False
        status = with_summary(
            JobAdviceStatus(
                job_kind=job.kind,
                job_generation=job.metadata.generation,
                mode=mode,
                updated=now,
                expires=now + EXPIRES,
                history=history,
                items=ordered(new),
            )
        )
        if not await self._write(job, stored, status):
            return False
        for change in changes(old, new):
            self._events.event(job, "Normal", change.reason, change.message)
        return True

    async def withdraw(self, job: Object) -> None:
        """Delete the advice of a job, whose owner does not want any."""
        stored = self.advice_of(job)
        if stored is None:
            return
        await self._delete(stored)
        self._written.pop(job.metadata.uid, None)

    async def withdraw_ended(self, ended: Collection[str]) -> None:
        """Delete the advice of jobs, given by uid, that have ended: nothing can be set any more."""
        for advice in list(self._stored.items()):
            if any(uid in ended for uid in _job_uids(advice)):
                await self._delete(advice)

    async def _delete(self, advice: JobAdvice) -> None:
        meta = advice.metadata
        try:
            await self._client.delete(JOB_ADVICE, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            log.debug("advice was deleted already", extra={"job": meta.name})

    def _on_stored(self, old: JobAdvice | None, new: JobAdvice | None) -> None:
        for uid in _job_uids(new or old):
            written = self._written.get(uid)
            if written and (new is None or _is_as_new(new.metadata, written.metadata)):
                del self._written[uid]

    async def _write(self, job: Object, stored: JobAdvice | None, status: JobAdviceStatus) -> bool:
        target = stored or await self._create(job)
        if target is None:
            return False
        meta = target.metadata
        body = {"status": _complete(status)}
        try:
            written = await self._client.patch(
                JOB_ADVICE, meta.name, body, meta.namespace, subresource="status"
            )
        except NotFound:
            # A user deleted it: it is created again in the next cycle.
            self._written.pop(job.metadata.uid, None)
            return False
        self._written[job.metadata.uid] = written
        return True

    async def _create(self, job: Object) -> JobAdvice | None:
        meta = job.metadata
        owner = OwnerReference(
            api_version=job.api_version, kind=job.kind, name=meta.name, uid=meta.uid
        )
        # Jobs of two kinds may have one name: the second gets its kind as suffix.
        for name in (meta.name, f"{meta.name}.{_trainer(job)}"):
            advice = JobAdvice(
                api_version=JOB_ADVICE.api_version,
                kind=JOB_ADVICE.kind,
                metadata=ObjectMeta(name=name, namespace=meta.namespace, owner_references=[owner]),
            )
            try:
                return await self._client.create(JOB_ADVICE, advice, meta.namespace)
            except AlreadyExists:
                stored = await self._client.get(JOB_ADVICE, name, meta.namespace)
                if meta.uid in _job_uids(stored):
                    return stored
        log.warning("the names for advice are in use", extra={"job": str(object_key(job))})
        return None


def _job_uids(advice: JobAdvice | None) -> list[str]:
    return [owner.uid for owner in advice.metadata.owner_references] if advice else []


def _is_as_new(seen: ObjectMeta, written: ObjectMeta) -> bool:
    """Return whether the informer shows the write, or a later state of the object."""
    first, second = seen.resource_version, written.resource_version
    if first.isdecimal() and second.isdecimal():
        return int(first) >= int(second)
    return first == second


def _is_due(
    stored: JobAdviceStatus,
    items: list[AdviceItem],
    mode: str,
    history: str,
    job: Object,
    now: datetime,
) -> bool:
    written = (stored.items, stored.mode, stored.history, stored.job_generation)
    return written != (items, mode, history, job.metadata.generation) or _is_old(stored, now)


def _is_old(stored: JobAdviceStatus, now: datetime) -> bool:
    return stored.updated is None or now - stored.updated >= REFRESH


def _complete(status: JobAdviceStatus) -> dict[str, object]:
    """Return all fields, also the empty ones: a merge patch would keep the former values."""
    body: dict[str, object] = {
        field.encode_name: None for field in msgspec.structs.fields(JobAdviceStatus)
    }
    body |= msgspec.to_builtins(status)
    return body | {"items": msgspec.to_builtins(status.items)}


def _trainer(job: Object) -> str:
    """Return the name of a job's kind, as in flags."""
    kind = find_job_kind(job.api_version, job.kind)
    return kind.trainer if kind else job.kind.lower()
