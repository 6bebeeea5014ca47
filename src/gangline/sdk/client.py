"""Jobs of a cluster: submit, list, get, wait, delete. Asynchronous; one request for each kind."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from gangline.api.meta.resource import Resource
from gangline.kube.client.client import ApiClient
from gangline.kube.client.decoding import decode_objects
from gangline.kube.errors import Forbidden, NotFound, Unreachable
from gangline.sdk.jobs import JOB_NAME_LABEL, Job, build_job
from gangline.sdk.kinds import (
    JOB_KINDS,
    LISTED_GROUPS,
    JobKind,
    JobObject,
    ListedPodGroup,
    listed_resource,
)
from gangline.sdk.lean_pods import LISTED_PODS, ListedPod

T = TypeVar("T")
Owned = TypeVar("Owned", ListedPod, ListedPodGroup)
Manifest = Mapping[str, Any]


_PROGRESS_POLL_S = 2.0
_LAST_STATE_TIMEOUT_S = 5.0
"""Limit of the request for the state of a job that has not ended in time."""


class JobError(Exception):
    """An operation on a job is not possible; the message has the reason."""


class NoSuchJob(JobError):
    """There is no job of this name."""


class NoSuchNamespace(NoSuchJob):
    """The namespace does not exist, so it has no jobs."""


class AmbiguousJob(JobError):
    """Jobs of several kinds have this name."""


class UnknownKind(JobError):
    """The cluster, or this library, does not know a kind of job."""


class JobClient:
    """Works with the training jobs of one cluster."""

    def __init__(self, client: ApiClient, kind: str = "") -> None:
        """Work with jobs of one kind (by any of its names, such as ``pytorch``), or of all kinds.

        Raises:
            UnknownKind: there is no such kind.
        """
        self.client = client
        self.kinds = resolve_kinds(kind)
        self.unreadable: set[str] = set()
        """Resources that results lack so far, because the user may not read them."""

    async def submit(
        self, manifest: Manifest, namespace: str | None = None, *, dry_run: bool = False
    ) -> dict[str, Any]:
        """Create an object and return it as stored; the server refuses unknown fields.

        Args:
            manifest: the object, with ``apiVersion`` and ``kind``.
            namespace: the namespace, unless the object has one.
            dry_run: let the server validate the object only.

        Raises:
            AlreadyExists: an object of this name exists.
            Invalid, BadRequest: the object is invalid.
            UnknownKind: the cluster has no such kind.
        """
        path = await self._collection(manifest, namespace)
        params = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        try:
            created: dict[str, Any] = await self.client.request_json(
                "POST", path, body=manifest, params=params
            )
        except NotFound as error:
            if error.status.details and error.status.details.kind == "namespaces":
                raise
            raise _unknown_kind(manifest.get("apiVersion"), manifest.get("kind")) from error
        return created

    async def list(self, namespace: str | None = None, labels: str = "") -> list[Job]:
        """Return the jobs of a namespace (None: of all), the newest first.

        Kinds that the user may not list are skipped, and added to ``unreadable``.

        Raises:
            Forbidden: the user may not list any kind.
            NoSuchNamespace: the namespace does not exist.
        """
        # Concurrently: the server builds one response while the client decodes another.
        pods, (*kinds, groups) = await asyncio.gather(
            self._pods(namespace), self._gather(self._job_requests(namespace, labels))
        )
        jobs = [
            build_job(kind, job, pods.get(job.metadata.uid, []), groups.get(job.metadata.uid, []))
            for kind, listed in zip(self.kinds, _readable(kinds), strict=True)
            for job in listed
        ]
        if namespace and not jobs:
            await self.require_namespace(namespace)
        return sorted(jobs, key=lambda job: (job.created, job.name), reverse=True)

    async def require_namespace(self, namespace: str) -> None:
        """Check that a namespace exists; a user who may not read it passes.

        Servers answer requests for objects of a missing namespace as if it were empty.

        Raises:
            NoSuchNamespace: it does not exist.
        """
        from gangline.api.resources import NAMESPACES

        with suppress(Forbidden):
            try:
                await self.client.get(NAMESPACES, namespace)
            except NotFound as error:
                raise NoSuchNamespace(f"there is no namespace {namespace!r}") from error

    async def get(self, name: str, namespace: str) -> Job:
        """Return one job.

        Raises:
            NoSuchJob: no job has this name.
            AmbiguousJob: several jobs of different kinds have this name.
            Forbidden: no readable kind has it, and some kinds are not readable.
        """
        kind, job = await self._find(name, namespace)
        own = job.metadata.name
        pods, groups = await asyncio.gather(self._pods(namespace, own), self._groups(namespace))
        uid = job.metadata.uid
        return build_job(kind, job, pods.get(uid, []), groups.get(uid, []))

    async def manifest(self, name: str, namespace: str) -> dict[str, Any]:
        """Return a job as the server has stored it.

        Raises:
            NoSuchJob, AmbiguousJob: as ``get``.
        """
        kind, job = await self._find(name, namespace)
        answer: dict[str, Any] = await self.client.request_json(
            "GET", kind.resource.path(namespace, job.metadata.name)
        )
        return answer

    async def delete(self, name: str, namespace: str) -> None:
        """Delete a job; the garbage collector deletes its pods and services.

        Raises:
            NoSuchJob, AmbiguousJob: as ``get``.
        """
        kind, job = await self._find(name, namespace)
        meta = job.metadata
        await self.client.delete(
            kind.resource, meta.name, namespace, propagation="Background", uid=meta.uid
        )

    async def wait(
        self,
        name: str,
        namespace: str,
        progress: Callable[[Job], None] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Job:
        """Wait until a job has ended, and return it. Broken connections are reopened.

        ``progress`` is called with the job at the start, and whenever its state, its reason, the
        number of running replicas or of restarts changes, or its training reports its progress.

        Raises:
            NoSuchJob: no job has this name, or it was deleted meanwhile.
            AmbiguousJob: as ``get``.
            TimeoutError: the job has not ended within ``timeout_s``; it is not stopped.
        """
        reporter = _ProgressReporter(progress)
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await self._wait_for_end(name, namespace, reporter)
        except TimeoutError:
            if not limit.expired():
                raise
        late = f"job {name!r} has not ended within {timeout_s:g} s"
        try:
            async with asyncio.timeout(_LAST_STATE_TIMEOUT_S):
                job = await self.get(name, namespace)
        except (TimeoutError, Unreachable) as error:
            raise TimeoutError(f"{late}, and the cluster does not respond") from error
        if job.state.finished:
            return reporter.report(job)
        reason = f" ({job.reason})" if job.reason else ""
        running = f"{job.running} of {job.desired} replicas running"
        raise TimeoutError(f"{late}: it is {job.state}, {running}{reason}; the job goes on")

    async def _wait_for_end(self, name: str, namespace: str, reporter: "_ProgressReporter") -> Job:
        from gangline.kube.informers.informer import Informer

        kind, stored = await self._find(name, namespace)
        own = stored.metadata.name
        informer: Informer[Any] = Informer(
            self.client, kind.resource, namespace, fields=f"metadata.name={own}"
        )
        changed = asyncio.Event()
        informer.add_listener(lambda _old, _new: changed.set())
        following = asyncio.create_task(informer.run())
        try:
            await informer.wait_for_sync()
            while True:
                changed.clear()
                job = informer.get(namespace, own)
                if job is None or job.metadata.uid != stored.metadata.uid:
                    raise NoSuchJob(f"job {own!r} was deleted meanwhile")
                if build_job(kind, job, [], []).state.finished:
                    return reporter.report(await self._get_again(name, namespace))
                if reporter.is_active:
                    with suppress(Unreachable):  # the next change includes this one
                        reporter.report(await self._get_again(name, namespace))
                # Pods and pod groups change too, which this informer does not watch.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_PROGRESS_POLL_S if reporter.is_active else None):
                        await changed.wait()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _get_again(self, name: str, namespace: str) -> Job:
        """Return a job that was there; its deletion may be known before it is watched."""
        try:
            return await self.get(name, namespace)
        except NoSuchJob as error:
            raise NoSuchJob(f"job {name!r} was deleted meanwhile") from error

    async def _gather(self, requests: Iterable[Awaitable[T]]) -> Sequence[T]:
        """Return the results of requests, which are concurrent if they have far to go.

        A server on this machine responds in less time than another TLS handshake takes, so these
        requests follow each other on one connection.
        """
        if self.client.config.is_loopback:
            return [await request for request in requests]
        return await asyncio.gather(*requests)

    async def _find(self, name: str, namespace: str) -> tuple[JobKind, JobObject]:
        """Find a job by its name, or by kind and name such as ``pytorchjob/digits``."""
        from gangline.api.names import validate_dns_subdomain

        kind_word, _, name = name.rpartition("/")
        if problem := validate_dns_subdomain(name):
            # An empty name would select the collection, and a question mark end the path.
            raise NoSuchJob(f"no job {name!r}: the name {problem.problem}; {problem.remedy}")
        kinds = resolve_kinds(kind_word) if kind_word else self.kinds
        answers = await self._gather(self._get_or_refusal(kind, name, namespace) for kind in kinds)
        candidates = _existing_jobs(kinds, answers)
        if not candidates:
            for refused in answers:
                if isinstance(refused, Forbidden):
                    raise refused
            await self.require_namespace(namespace)
            from gangline.api.suggestions import did_you_mean

            near = did_you_mean(name, await self._names(kinds, namespace))
            raise NoSuchJob(f"no job {name!r} in namespace {namespace!r}.{near}".removesuffix("."))
        if len(candidates) > 1:
            several = ", ".join(kind.trainer for kind, _ in candidates)
            raise AmbiguousJob(
                f"jobs of several kinds are named {name!r}: {several}; select one with -T"
            )
        return candidates[0]

    async def kinds_with(self, name: str, namespace: str) -> Sequence[JobKind]:
        """Return the readable kinds of which a job has a name."""
        answers = await self._gather(
            self._get_or_refusal(kind, name, namespace) for kind in self.kinds
        )
        return [kind for kind, _ in _existing_jobs(self.kinds, answers)]

    async def _names(self, kinds: Iterable[JobKind], namespace: str) -> Sequence[str]:
        """Return the names of jobs that may be listed."""
        listings = await self._gather(self._jobs(kind, namespace, "") for kind in kinds)
        return [
            job.metadata.name
            for listing in listings
            if not isinstance(listing, Forbidden)
            for job in listing
        ]

    async def _get_or_refusal(
        self, kind: JobKind, name: str, namespace: str
    ) -> JobObject | Forbidden | None:
        try:
            job: JobObject = await self.client.get(kind.resource, name, namespace)
        except NotFound:
            return None
        except Forbidden as refused:
            return refused
        return job

    def _job_requests(
        self, namespace: str | None, labels: str
    ) -> Iterator[Coroutine[Any, Any, Any]]:
        """Yield the requests for the jobs of each kind, then the one for pod groups."""
        for kind in self.kinds:
            yield self._jobs(kind, namespace, labels)
        yield self._groups(namespace)

    async def _jobs(
        self, kind: JobKind, namespace: str | None, labels: str
    ) -> Sequence[JobObject] | Forbidden:
        try:
            listing = await self.client.list(listed_resource(kind), namespace, labels=labels)
        except NotFound:
            # The CRD of this kind is not installed.
            return []
        except Forbidden as refused:
            self.unreadable.add(kind.resource.plural)
            return refused
        if kind.has_runtime and listing.items:
            return decode_objects(kind.resource.type, listing.items)[0]
        return listing.items

    async def _pods(
        self, namespace: str | None, name: str = ""
    ) -> Mapping[str, Sequence[ListedPod]]:
        """Return pods by the UID of their job, which excludes pods of an earlier job."""
        labels = f"{JOB_NAME_LABEL}={name}" if name else JOB_NAME_LABEL
        return await self._by_owner(LISTED_PODS, namespace, labels)

    async def _groups(self, namespace: str | None) -> Mapping[str, Sequence[ListedPodGroup]]:
        return await self._by_owner(LISTED_GROUPS, namespace, "")

    async def _by_owner(
        self, resource: Resource[Owned], namespace: str | None, labels: str
    ) -> Mapping[str, Sequence[Owned]]:
        """Return objects by the UID of their controller; none if they may not be listed."""
        by_owner: defaultdict[str, deque[Owned]] = defaultdict(deque)
        try:
            listing = await self.client.list(resource, namespace, labels=labels)
        except NotFound:
            return by_owner
        except Forbidden:
            self.unreadable.add(resource.plural)
            return by_owner
        for item in listing.items:
            if owner := item.metadata.controller:
                by_owner[owner.uid].append(item)
        return by_owner

    async def object_path(self, stored: Manifest) -> str:
        """Return the URL path of a stored object."""
        metadata = stored["metadata"]
        collection = await self._collection(stored, metadata.get("namespace"))
        return f"{collection}/{metadata['name']}"

    async def _collection(self, manifest: Manifest, namespace: str | None) -> str:
        """Return the URL path at which an object is created."""
        from gangline.api.resources import BUILT_IN_RESOURCES, CUSTOM_RESOURCES

        api_version, kind = str(manifest.get("apiVersion", "")), str(manifest.get("kind", ""))
        metadata = manifest.get("metadata") or {}
        for resource in (*CUSTOM_RESOURCES, *BUILT_IN_RESOURCES):
            if (resource.api_version, resource.kind) == (api_version, kind):
                plural, namespaced = resource.plural, resource.namespaced
                break
        else:
            plural, namespaced = await self._discover(api_version, kind)
        prefix = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        where = metadata.get("namespace") or namespace or self.client.config.namespace
        return f"{prefix}/namespaces/{where}/{plural}" if namespaced else f"{prefix}/{plural}"

    async def _discover(self, api_version: str, kind: str) -> tuple[str, bool]:
        prefix = "/apis" if "/" in api_version else "/api"
        try:
            answer = await self.client.request_json("GET", f"{prefix}/{api_version}")
        except NotFound:
            answer = {}
        for resource in answer.get("resources", []):
            if resource["kind"] == kind and "/" not in resource["name"]:
                return str(resource["name"]), bool(resource["namespaced"])
        raise _unknown_kind(api_version, kind)


def _existing_jobs(
    kinds: Iterable[JobKind], answers: Iterable[JobObject | Forbidden | None]
) -> list[tuple[JobKind, JobObject]]:
    return [
        (kind, job)
        for kind, job in zip(kinds, answers, strict=True)
        if job is not None and not isinstance(job, Forbidden)
    ]


def _readable(
    answers: Sequence[Sequence[JobObject] | Forbidden],
) -> Sequence[Sequence[JobObject]]:
    """Return the jobs of each kind; none for a kind that may not be listed.

    Raises:
        Forbidden: no kind may be listed.
    """
    refused = [answer for answer in answers if isinstance(answer, Forbidden)]
    if refused and len(refused) == len(answers):
        raise refused[0]
    return [[] if isinstance(answer, Forbidden) else answer for answer in answers]


class _ProgressReporter:
    """Reports the progress of a job, and skips reports without a change."""

    def __init__(self, progress: Callable[[Job], None] | None) -> None:
        self._progress = progress
        self._last: tuple[object, ...] = ()

    @property
    def is_active(self) -> bool:
        """False if there is no callback."""
        return self._progress is not None

    def report(self, job: Job) -> Job:
        point = (job.state, job.reason, job.running, job.restarts, job.progress)
        if self._progress is not None and point != self._last:
            self._progress(job)
        self._last = point
        return job


def resolve_kinds(word: str) -> tuple[JobKind, ...]:
    """Return the kinds with a name or alias; all kinds for an empty one.

    Raises:
        UnknownKind: there is no such kind.
    """
    if not word:
        return JOB_KINDS
    meant = word.lower()
    kinds = tuple(kind for kind in JOB_KINDS if meant in kind.aliases)
    if not kinds:
        names = ", ".join(kind.trainer for kind in JOB_KINDS)
        raise UnknownKind(f"unknown kind of job {word!r}; known kinds: {names}")
    return kinds


def _unknown_kind(api_version: str | None, kind: str | None) -> UnknownKind:
    return UnknownKind(
        f"the cluster has no kind {kind!r} in apiVersion {api_version!r}; "
        "'kubectl api-resources' lists its kinds; the CRDs of gangline are in deploy/crds"
    )
