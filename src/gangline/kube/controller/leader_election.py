"""Leader election: one of several replicas of a component is active, the others stand by.

The lock is a Lease. The holder renews it; another replica may take it if it has seen it unchanged
for the complete lease duration. Only the local monotonic clock is used: the times in the lease are
informational. Writes carry the resource version that was read, so that one of two concurrent
writers gets a Conflict.

Invariant: at most one replica is active. A leader that cannot renew stops after
``renew_deadline_s``, before the lease can pass on after ``lease_duration_s``. A leader that was
stopped itself meanwhile sends no write when it continues: ``write_guard``.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from gangline.api.core.core import Lease, LeaseSpec
from gangline.api.meta.objects import ObjectMeta
from gangline.api.resources import LEASES
from gangline.kube import metrics
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import AlreadyExists, ApiError, ConfigError, Conflict, NotFound
from gangline.kube.write_guard import elapsed_time_s, guarded_context

log = logging.getLogger(__name__)

STOP_GRACE_S = 3.0
RELEASE_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class LeaderElectionTiming:
    """Timing of an election: how fast a lost leader is replaced, and how often the lease is
    written.
    """

    lease_duration_s: int = 15
    """A lease that is unchanged for this long may be taken."""
    renew_deadline_s: float = 10.0
    """A leader that has not renewed for this long stops."""
    retry_s: float = 2.0
    """Interval between attempts to acquire, or between renewals."""

    def __post_init__(self) -> None:
        if not self.retry_s < self.renew_deadline_s < self.lease_duration_s:
            raise ValueError(
                f"retry {self.retry_s} s < renew deadline {self.renew_deadline_s} s < lease "
                f"duration {self.lease_duration_s} s must hold, or two replicas could lead"
            )


@dataclass(frozen=True, slots=True)
class LeaseObservation:
    """A state of the lease, and the time on our clock when it was first observed."""

    holder: str
    resource_version: str
    duration_s: float
    observed_at: float

    def has_expired(self, now: float) -> bool:
        """Whether the lease may be taken at time ``now``."""
        return not self.holder or now - self.observed_at > self.duration_s


def observe_lease(
    lease: Lease, last: LeaseObservation | None, now: float, default_duration_s: float
) -> LeaseObservation:
    """Return a new observation if the lease has changed since the last one, else the last one."""
    version = lease.metadata.resource_version
    if last is not None and last.resource_version == version:
        return last
    duration = lease.spec.lease_duration_seconds or default_duration_s
    return LeaseObservation(lease.spec.holder_identity or "", version, float(duration), now)


class LeaderElector:
    """Takes part in an election under ``identity``, which must be unique."""

    def __init__(
        self,
        client: ApiClient,
        name: str,
        namespace: str,
        identity: str,
        *,
        timing: LeaderElectionTiming | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.name, self.namespace, self.identity = name, namespace, identity
        self._client = client
        self._timing = timing or LeaderElectionTiming()
        self._now = now
        self._lease: Lease | None = None
        self._observation: LeaseObservation | None = None
        self._is_leader = False
        self._write_until = 0.0
        """Until then no other replica can take the lease, in the time of ``elapsed_time_s``."""
        self._metric = metrics.LEADER.labels(name)
        self._metric.set(0)
        self._transitions = metrics.LEADER_TRANSITIONS.labels(name)

    @property
    def is_leader(self) -> bool:
        """Whether this replica is the leader now."""
        return self._is_leader

    @property
    def may_write(self) -> bool:
        """Whether no other replica can lead yet."""
        return elapsed_time_s() < self._write_until

    @property
    def holder(self) -> str:
        """The last observed leader; empty if there is none."""
        return self._observation.holder if self._observation else ""

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Run ``lead`` while this replica is the leader; when leadership is lost, cancel it and
        wait again.

        Returns when ``lead`` returns. In any case the lease is released if we hold it.
        """
        while True:
            await self._acquire()
            log.info("leading", extra=self._fields())
            try:
                if await self._lead(lead):
                    return
                log.warning("leadership lost", extra=self._fields())
            finally:
                self._is_leader = False
                self._metric.set(0)
                await self._release()

    async def _acquire(self) -> None:
        while not await self._try_acquire():  # noqa: ASYNC110 - a remote lease has no event
            await asyncio.sleep(self._timing.retry_s * random.uniform(1.0, 1.2))
        self._is_leader = True
        self._metric.set(1)

    async def _try_acquire(self) -> bool:
        try:
            async with asyncio.timeout(self._timing.renew_deadline_s):
                return await self._acquire_once()
        except (Conflict, AlreadyExists):
            return False
        except (ApiError, ConfigError, TimeoutError) as error:
            log.debug("election: %s", error, extra=self._fields())
            return False

    async def _acquire_once(self) -> bool:
        try:
            lease = await self._client.get(LEASES, self.name, self.namespace)
        except NotFound:
            metadata = ObjectMeta(name=self.name, namespace=self.namespace)
            began = elapsed_time_s()
            fresh = Lease(metadata=metadata, spec=self._claimed_spec(LeaseSpec()))
            self._record_lease(await self._client.create(LEASES, fresh, self.namespace))
            self._extend(began)
            return True
        self._record_lease(lease)
        ours = self.holder == self.identity
        if not ours and self._observation and not self._observation.has_expired(_monotonic()):
            return False
        await self._write(lease, self._claimed_spec(lease.spec))
        return True

    async def _lead(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """Run ``lead`` while the lease can be renewed; return whether it ended by itself."""
        work = asyncio.get_running_loop().create_task(
            _awaited(lead), context=guarded_context(lambda: self.may_write)
        )
        renewal = asyncio.ensure_future(self._renew_until_lost())
        try:
            await asyncio.wait({work, renewal}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                return True
            renewal.result()
            return False
        finally:
            renewal.cancel()
            await self._stop(work)
            await asyncio.gather(renewal, return_exceptions=True)

    async def _stop(self, work: "asyncio.Future[None]") -> None:
        if work.done():
            return
        work.cancel()
        _, late = await asyncio.wait({work}, timeout=STOP_GRACE_S)
        if late:
            log.critical("still running after the loss of leadership", extra=self._fields())
            await asyncio.wait({work})

    async def _renew_until_lost(self) -> None:
        renewed_at = _monotonic()
        while True:
            await asyncio.sleep(self._timing.retry_s)
            left = self._timing.renew_deadline_s - (_monotonic() - renewed_at)
            began = _monotonic()
            try:
                async with asyncio.timeout(max(left, 0.0)):
                    await self._renew()
                # The time before the write: for other replicas the lease is as old as the write.
                renewed_at = began
            except _LeadershipLost:
                return
            except (ApiError, ConfigError, TimeoutError) as error:
                log.debug("renewal: %s", error, extra=self._fields())
                if _monotonic() - renewed_at >= self._timing.renew_deadline_s:
                    return

    async def _renew(self) -> None:
        assert self._lease is not None
        try:
            await self._write(self._lease, self._claimed_spec(self._lease.spec))
        except (Conflict, NotFound) as error:
            # Another writer changed it: a person, or we ourselves and the response was lost.
            if isinstance(error, NotFound) or not await self._still_ours():
                raise _LeadershipLost from error

    async def _still_ours(self) -> bool:
        try:
            self._record_lease(await self._client.get(LEASES, self.name, self.namespace))
        except NotFound:
            return False
        return self.holder == self.identity

    async def _release(self) -> None:
        """Release the lease, so that other replicas need not wait until it expires."""
        if self._lease is None or self.holder != self.identity:
            return
        spec = msgspec.structs.replace(
            self._lease.spec, holder_identity="", lease_duration_seconds=1, renew_time=self._time()
        )
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await self._write(self._lease, spec)
        except (ApiError, ConfigError, TimeoutError) as error:
            log.debug("lease not released: %s", error, extra=self._fields())

    async def _write(self, lease: Lease, spec: LeaseSpec) -> None:
        began = elapsed_time_s()
        changed = msgspec.structs.replace(lease, spec=spec)
        self._record_lease(await self._client.update(LEASES, changed, self.namespace))
        self._extend(began)

    def _extend(self, began: float) -> None:
        """Allow writes after the lease was written by a request that began at this time."""
        ours = self.holder == self.identity
        self._write_until = began + self._timing.renew_deadline_s if ours else 0.0

    def _record_lease(self, lease: Lease) -> None:
        self._lease = lease
        self._transitions.set(lease.spec.lease_transitions or 0)
        self._observation = observe_lease(
            lease, self._observation, _monotonic(), self._timing.lease_duration_s
        )

    def _claimed_spec(self, spec: LeaseSpec) -> LeaseSpec:
        """Return the spec of the lease with us as holder."""
        time = self._time()
        new = spec.holder_identity != self.identity
        transitions = spec.lease_transitions or 0
        return msgspec.structs.replace(
            spec,
            holder_identity=self.identity,
            lease_duration_seconds=self._timing.lease_duration_s,
            renew_time=time,
            acquire_time=time if new else spec.acquire_time,
            lease_transitions=transitions + (1 if new and spec.renew_time else 0),
        )

    def _time(self) -> datetime:
        # A fraction of zero is encoded without a fraction, which Kubernetes refuses in a MicroTime.
        now = self._now()
        return now if now.microsecond else now.replace(microsecond=1)

    def _fields(self) -> dict[str, str]:
        return {"lease": f"{self.namespace}/{self.name}", "identity": self.identity}


async def _awaited(work: Callable[[], Awaitable[None]]) -> None:
    await work()


class _LeadershipLost(Exception):
    """Another replica holds the lease."""


def _monotonic() -> float:
    return asyncio.get_running_loop().time()
