"""The table of pages. A page is added here; see the package.

A page has an address, a function that computes its view model, and the parts that a stream renews.
``compute`` runs for the page, for its JSON form and for its stream.

Pages of the past read the record with the rights of the present: a job of the past is shown to
those who may list jobs of its kind in its namespace today, its last lines to those who may read
the logs of pods there. Without a record each page says why, and how to switch it on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gangline.dashboard.rights import NODE_KIND, POD_KIND, Question, Viewer, list_question, readable
from gangline.dashboard.sources import NoPast, Sources
from gangline.dashboard.views import job as job_views
from gangline.dashboard.views import past
from gangline.dashboard.views.base import Observation, SeenJob, View
from gangline.dashboard.views.curves import curves_view
from gangline.dashboard.views.job import JobPage
from gangline.dashboard.views.jobs import jobs_view, read_filter
from gangline.dashboard.views.nodes import node_details, nodes_view
from gangline.dashboard.views.overview import diagnose_observed, node_failures, overview_view
from gangline.dashboard.views.queues import queues_view
from gangline.kube.errors import NotFound
from gangline.sdk.client import JobClient, JobError
from gangline.sdk.goodput import Goodput
from gangline.sdk.jobs import Job, JobState
from gangline.sdk.kinds import JOB_KINDS, JobKind

PER_PAGE = 100
_KINDS: Mapping[str, JobKind] = {kind.trainer: kind for kind in JOB_KINDS}


class PageMissing(Exception):
    """There is nothing at this address; the message says what."""


class PageRefused(Exception):
    """The viewer may not see this; the message says which right is missing."""


def is_count(text: str) -> bool:
    """Return whether a text of a request is a number from 0 on that fits into 64 bits."""
    return text.isascii() and text.isdecimal() and len(text) <= 18


@dataclass(frozen=True, slots=True)
class PageRequest:
    seen: Observation
    viewer: Viewer
    sources: Sources
    query: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    match: Mapping[str, str] = field(default_factory=dict)
    """The variable parts of the address."""

    def first(self, name: str) -> str:
        """Return the first value of a parameter; empty if it is not given."""
        return next(iter(self.query.get(name, ())), "")

    def job(self) -> SeenJob:
        """Return the job of the address; ``PageMissing`` if the viewer sees no such job."""
        return self.find_job("{namespace}/{kind}/{name}".format(**self.match))

    def find_job(self, path: str) -> SeenJob:
        """Return a job by ``namespace/kind/name``, as ``job`` does."""
        namespace, kind, name = [*path.split("/", 2), "", ""][:3]
        entry = self.seen.cluster.by_key.get((namespace, kind, name))
        # A job that may not be listed does not differ from one that does not exist.
        if entry is None or not self.seen.scope.sees_job(entry.kind, namespace):
            raise PageMissing(
                f"there is no {kind} {name!r} in namespace {namespace!r} that you may see"
            )
        return self.seen.see(entry)


@dataclass(frozen=True, slots=True)
class Page:
    name: str
    """Name of its templates, and of its title in the catalogues of texts."""
    path: str
    compute: Callable[[PageRequest], Awaitable[View]]
    parts: tuple[str, ...]
    """Files of ``templates/parts`` that a stream renews; without any it has no stream."""
    command: str = ""
    """The equivalent command line, with the variable parts of the address in braces."""
    template: str = "part"
    """File in ``templates/pages``; ``part`` and ``tab`` include the part of its name."""
    tab: str = ""
    """Of a job's page: which tab it is."""
    depends_on_viewer: bool = False
    """True if viewers who may list the same objects may see different things."""
    is_recorded: bool = False
    """True for a tab of a job that is read from the record, not from the cluster."""


async def _overview(request: PageRequest) -> View:
    seen, sources = request.seen, request.sources
    running = [shown.job for shown in seen.jobs() if shown.job.state is JobState.RUNNING]
    return overview_view(
        seen, sources.accounts(running), sources.checks.peek(), sources.gpu_usage.peek()
    )


async def _jobs(request: PageRequest) -> View:
    return jobs_view(request.seen, read_filter(request.query), request.sources.accounts)


async def _queues(request: PageRequest) -> View:
    return queues_view(request.seen, request.sources.queues.peek())


async def _nodes(request: PageRequest) -> View:
    _require_nodes(request)
    sources, cluster = request.sources, request.seen.cluster
    domains = []
    if cluster.hypernodes:
        from gangline.scheduler.reporting.live import network_domains

        domains = network_domains(cluster.hypernodes.values(), cluster.nodes.values())
    usage = sources.node_usage.peek()
    return nodes_view(request.seen, domains, usage, sources.gpu_usage.peek())


async def _node(request: PageRequest) -> View:
    _require_nodes(request)
    name, sources = request.match["name"], request.sources
    node = request.seen.cluster.nodes.get(name)
    if node is None:
        raise PageMissing(f"there is no node {name!r}")
    failures = node_failures(request.seen, name)
    usage = sources.node_usage.peek()
    return node_details(request.seen, node, failures, usage, sources.gpu_usage.peek())


def _require_nodes(request: PageRequest) -> None:
    if not request.seen.scope.sees_all(NODE_KIND):
        raise PageRefused("you may not list nodes: that needs the verb list on nodes")


def _show_head(request: PageRequest, shown: SeenJob) -> job_views.JobHead:
    sources = request.sources
    accounts = sources.accounts([shown.job])
    usage = sources.pod_usage.of(shown.job.namespace).peek()
    gpus = sources.gpu_usage.peek() if shown.job.allocated_gpus else None
    return job_views.job_head(request.seen, shown, accounts, usage, gpus)


async def _why(request: PageRequest) -> View:
    shown, sources = request.job(), request.sources
    job, seen = shown.job, request.seen
    logs = Question("get", "", "pods", job.namespace, subresource="log")
    # Without a failure there is nothing to read. The end of the logs is only for those who may
    # read logs.
    has_failed = job.state in {JobState.FAILED, JobState.RESTARTING} or any(
        replica.exit_code or replica.restarts for replica in job.replicas
    )
    may_read = has_failed and await request.viewer.rights.may(logs)
    if may_read and seen.scope.sees(POD_KIND, job.namespace):
        diagnosis = await sources.diagnoses.of((job.uid, job.state), job).get()
    else:
        diagnosis = diagnose_observed(seen, shown)
    waits = job.state in {JobState.QUEUING, JobState.PENDING, JobState.RESTARTING}
    sees_cluster = seen.scope.sees_all(NODE_KIND) and seen.scope.sees_all(POD_KIND)
    explanations = sources.explanation(job) if waits and sees_cluster else ()
    content = job_views.why_view(
        diagnosis or diagnose_observed(seen, shown),
        explanations,
        hidden=waits and not sees_cluster,
    )
    return JobPage(_show_head(request, shown), content)


async def _replicas(request: PageRequest) -> View:
    return JobPage(_show_head(request, request.job()))


def _accounted(content: Callable[[Goodput, Job], View]) -> Callable[[PageRequest], Awaitable[View]]:
    """Return what computes a tab from the account of a job's time."""

    async def compute(request: PageRequest) -> View:
        shown = request.job()
        account = await request.sources.account(shown.job).get()
        head = _show_head(request, shown)
        return JobPage(head, content(account, shown.job) if account else None)

    return compute


async def _spec(request: PageRequest) -> View:
    shown = request.job()
    job, client = shown.job, request.viewer.client
    try:
        stored = await JobClient(client, job.kind.trainer).manifest(job.name, job.namespace)
    except (JobError, NotFound) as error:
        raise PageMissing(str(error)) from error
    effective = None
    if job.kind.has_runtime:
        from gangline.sdk.manifests import effective_manifest

        with suppress(JobError):  # its runtime does not exist; the tab Why says so
            effective = await effective_manifest(client, job)
    other, with_ = None, request.first("with")
    if with_:
        against = request.find_job(with_.strip("/")).job
        jobs = JobClient(client, against.kind.trainer)
        other = await jobs.manifest(against.name, against.namespace)
    return JobPage(_show_head(request, shown), job_views.spec_view(stored, effective, other, with_))


async def _may_list(request: PageRequest, kind: str, namespace: str) -> bool:
    """Whether the viewer may list jobs of a kind in a namespace that may have none now."""
    job_kind = _KINDS.get(kind.lower())
    if job_kind is None:
        return False
    if request.seen.scope.sees_job(job_kind, namespace):
        return True
    return await request.viewer.rights.may(list_question(readable(job_kind.resource), namespace))


async def _stored(request: PageRequest, path: str) -> dict[str, Any]:
    """Return the record of a job, by ``namespace/kind/name`` with ``@uid`` for one of several;
    ``PageMissing`` if there is none that the viewer may see.
    """
    address, _, uid = path.strip("/").partition("@")
    namespace, kind, name = [*address.split("/", 2), "", ""][:3]
    missing = PageMissing(
        f"the history has no {kind} {name!r} in namespace {namespace!r} that you may see"
    )
    if not name or not await _may_list(request, kind, namespace):
        raise missing
    try:
        stored = await request.sources.past.record(namespace, name, uid)
    except NoPast as error:
        raise PageMissing(str(error)) from error
    if stored is None or stored["job"]["kind"].lower() != kind.lower():
        raise missing
    logs = Question("get", "", "pods", namespace, subresource="log")
    if not await request.viewer.rights.may(logs):
        record = stored.get("record")
        if record and record.get("diagnosis"):
            record = {**record, "diagnosis": {**record["diagnosis"], "lastLines": []}}
        stored = {**stored, "logs": [], "record": record}
    return stored


async def _curves(request: PageRequest) -> View:
    shown = request.job()
    job = shown.job
    record = None
    with suppress(NoPast):
        stored = await request.sources.past.record(job.namespace, job.name, job.uid)
        record = (stored or {}).get("record")
    return JobPage(_show_head(request, shown), curves_view(record) if record else None)


async def _history(request: PageRequest) -> View:
    given = {name: request.first(name) for name in past.FILTERS}
    position = {
        name: value for name in ("until", "after") if is_count(value := request.first(name))
    }
    filters = {name: value for name, value in given.items() if value} | position
    if kind := _KINDS.get(given["kind"].lower()):
        filters["kind"] = kind.identity
    try:
        answer = await request.sources.past.jobs(PER_PAGE, filters)
    except NoPast as error:
        return past.HistoryView(filter=given, problem=str(error))
    jobs = answer["jobs"]
    allowed = await _allowed(request, {(job["kind"], job["namespace"]) for job in jobs})
    shown = [job for job in jobs if (job["kind"], job["namespace"]) in allowed]
    present = {entry.stored.metadata.uid for entry in request.seen.cluster}
    following = {name: str(value) for name, value in (answer.get("next") or {}).items()}
    return past.history_view(shown, present, given, following, len(jobs) - len(shown))


async def _allowed(request: PageRequest, places: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    asked = sorted(places)
    answers = await asyncio.gather(*(_may_list(request, *place) for place in asked))
    return {place for place, may in zip(asked, answers, strict=True) if may}


async def compute_usage(request: PageRequest) -> past.UsageView:
    """Return what jobs of the chosen month used, as far as the viewer may list jobs."""
    by = request.first("by") if request.first("by") in past.GROUPS else "queue"
    bounds = past.recent_months(request.seen.now)
    months = tuple(bounds)
    month = request.first("month") if request.first("month") in bounds else ""
    now_ms = round(request.seen.now.timestamp() * 1000) + 1
    since_ms, until_ms = bounds.get(month) or (bounds[months[-1]][0], now_ms)
    record = request.sources.past
    try:
        spaces = [row["key"] for row in await record.usage("namespace", since_ms, until_ms)]
        places = await _allowed(request, {(kind, space) for kind in _KINDS for space in spaces})
        namespaces = sorted({space for _, space in places})
        rows = await record.usage(by, since_ms, until_ms, *namespaces) if namespaces else []
    except NoPast as error:
        return past.UsageView(by, month, months, problem=str(error))
    return past.usage_view(rows, by, month, months)


async def _compare(request: PageRequest) -> View:
    given = tuple(job for job in request.query.get("job", ()) if job.strip())[:2]
    if len(given) < 2:
        return past.CompareView(given)
    try:
        left, right = await asyncio.gather(*(_stored(request, path) for path in given))
    except PageMissing as error:
        return past.CompareView(given, problem=str(error))
    return past.compare_view((given[0], given[1]), left, right)


JOB, RECORD = "/jobs/{namespace}/{kind}/{name}", "/history/{namespace}/{kind}/{name}"
_GET = "gangline get {name} -n {namespace} -T {kind}"
_HISTORY = "gangline history get {name} -n {namespace}"


def _tab(
    tab: str,
    compute: Callable[[PageRequest], Awaitable[View]],
    command: str,
    template: str = "tab",
    *,
    renews_content: bool = False,
) -> Page:
    path, parts = JOB if tab == "why" else f"{JOB}/{tab}", ("job", tab)
    # Lines of logs, and the specification, need further rights.
    return Page(
        tab, path, compute, parts[: 1 + renews_content], command, template, tab,
        depends_on_viewer=tab in {"why", "spec"},
    )  # fmt: skip


def _record_tab(
    tab: str, content: Callable[[Mapping[str, Any]], View | None], template: str = "tab"
) -> Page:
    async def compute(request: PageRequest) -> View:
        uid = request.first("uid")
        path = "{namespace}/{kind}/{name}".format(**request.match)
        stored = await _stored(request, f"{path}@{uid}" if uid else path)
        return past.recorded_page(stored, content(stored) if stored.get("record") else None)

    path, command = RECORD if tab == "why" else f"{RECORD}/{tab}", _HISTORY
    return Page(
        f"recorded_{tab}", path, compute, (), command, template, tab, is_recorded=True
    )  # fmt: skip


PAGES: tuple[Page, ...] = (
    Page("overview", "/", _overview, ("overview",), "gangline list -A"),
    Page("jobs", "/jobs", _jobs, ("jobs",), "gangline list -A -o wide", "jobs",
         depends_on_viewer=True),
    Page("queues", "/queues", _queues, ("queues",), "gangline queue list -o wide"),
    Page("nodes", "/nodes", _nodes, ("nodes",), "gangline top node"),
    Page("node", "/nodes/{name}", _node, ("node",), "gangline top node {name} -d", "node"),
    Page("history", "/history", _history, (), "gangline history list -A", "history"),
    Page("usage", "/usage", compute_usage, (), "gangline history export -A -o csv", "usage"),
    Page("compare", "/compare", _compare, (), "", "compare"),
    _tab("why", _why, "gangline diagnose {name} -n {namespace} -T {kind}",
         renews_content=True),
    _tab("replicas", _replicas, f"{_GET} -w", renews_content=True),
    _tab("logs", _replicas, "gangline logs {name} -n {namespace} -T {kind} -f", "logs"),
    _tab("curves", _curves, f"{_HISTORY} -o json"),
    _tab("checkpoints", _accounted(lambda account, _: job_views.checkpoints_view(account)),
         f"{_GET} -w", renews_content=True),
    _tab("goodput",
         _accounted(lambda account, job: job_views.goodput_view(account, job.requested_gpus)),
         f"{_GET} -o json", renews_content=True),
    _tab("spec", _spec, f"{_GET} --spec", "spec"),
    _record_tab("why", past.recorded_why),
    _record_tab("replicas", lambda stored: None),
    _record_tab("logs", past.recorded_logs, "recorded_logs"),
    _record_tab("curves", lambda stored: curves_view(stored["record"])),
    _record_tab("goodput", past.recorded_goodput),
    _record_tab("spec", past.recorded_spec, "spec"),
)  # fmt: skip
"""All pages. Tabs of ``JOB`` and of ``RECORD`` are shown in this order."""

NAVIGATION = ("overview", "jobs", "queues", "nodes", "history", "usage", "compare")
"""Pages of the navigation, in order."""
