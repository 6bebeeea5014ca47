"""The table of pages. A page is added here; see the package.

A page has an address, a function that computes its view model, and the parts that a stream renews.
``compute`` runs for the page, for its JSON form and for its stream.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from gangline.dashboard.rights import NODE_KIND, POD_KIND, Question
from gangline.dashboard.settings import DashboardSettings
from gangline.dashboard.sources import Sources
from gangline.dashboard.viewers import Viewer
from gangline.dashboard.views.base import Observation, SeenJob, View
from gangline.dashboard.views.job import (
    JobHead,
    checkpoints_view,
    goodput_view,
    job_head,
    spec_view,
    why_view,
)
from gangline.dashboard.views.jobs import jobs_view, read_filter
from gangline.dashboard.views.nodes import node_details, nodes_view
from gangline.dashboard.views.overview import (
    diagnose_observed,
    node_failures,
    overview_view,
)
from gangline.dashboard.views.queues import queues_view
from gangline.kube.errors import NotFound
from gangline.sdk.client import JobClient, JobError
from gangline.sdk.jobs import JobState


class PageMissing(Exception):
    """There is nothing at this address; the message says what."""


class PageRefused(Exception):
    """The viewer may not see this; the message says which right is missing."""


Query = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What a page is computed from."""

    seen: Observation
    viewer: Viewer
    sources: Sources
    settings: DashboardSettings
    query: Query = field(default_factory=dict)
    match: Mapping[str, str] = field(default_factory=dict)
    """The variable parts of the address."""

    def first(self, name: str) -> str:
        """Return the first value of a parameter; empty if it is not given."""
        return next(iter(self.query.get(name, ())), "")

    def job(self) -> SeenJob:
        """Return the job of the address.

        Raises:
            PageMissing: the viewer sees no such job.
        """
        return self.find_job("{namespace}/{kind}/{name}".format(**self.match))

    def find_job(self, path: str) -> SeenJob:
        """Return a job by ``namespace/kind/name``.

        Raises:
            PageMissing: the viewer sees no such job.
        """
        namespace, _, rest = path.partition("/")
        kind, _, name = rest.partition("/")
        entry = self.seen.cluster.find((namespace, kind, name))
        # A job that may not be listed does not differ from one that does not exist.
        if entry is None or not self.seen.scope.sees_job(entry.kind, namespace):
            raise PageMissing(
                f"there is no {kind} {name!r} in namespace {namespace!r} that you may see"
            )
        return self.seen.see(entry)


@dataclass(frozen=True, slots=True)
class Page:
    """A page."""

    name: str
    """Name of its templates, and of its title in the catalogues of texts."""
    path: str
    compute: Callable[[PageRequest], Awaitable[View]]
    parts: tuple[str, ...]
    """Macros of ``parts/NAME.html`` that a stream renews; ``TEMPLATE:MACRO`` for another one."""
    command: str = ""
    """The equivalent command line, with the variable parts of the address in braces."""
    tab: str = ""
    """Of a job's page: which tab it is."""
    depends_on_viewer: bool = False
    """True if viewers with the same rights may see different things."""
    is_live: bool = True
    """False if it has no stream."""
    is_recorded: bool = False
    """True for a tab of a job that is read from the record, not from the cluster."""


class JobPage(View, frozen=True):
    """A job with the content of one tab."""

    head: JobHead
    content: View | None = None
    """None if there is nothing to show yet."""


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


def show_head(request: PageRequest, shown: SeenJob) -> JobHead:
    sources = request.sources
    accounts = sources.accounts([shown.job])
    usage = sources.pod_usage.of(shown.job.namespace).peek()
    gpus = sources.gpu_usage.peek() if shown.job.allocated_gpus else None
    return job_head(request.seen, shown, accounts, usage, gpus)


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
    explanations = sources.explanations.of(job.uid, job).peek() if waits and sees_cluster else None
    content = why_view(
        diagnosis or diagnose_observed(seen, shown),
        explanations or (),
        hidden=waits and not sees_cluster,
    )
    return JobPage(show_head(request, shown), content)


async def _replicas(request: PageRequest) -> View:
    return JobPage(show_head(request, request.job()))


async def _checkpoints(request: PageRequest) -> View:
    shown = request.job()
    account = await request.sources.account(shown.job).get()
    return JobPage(show_head(request, shown), checkpoints_view(account) if account else None)


async def _goodput(request: PageRequest) -> View:
    shown = request.job()
    account = await request.sources.account(shown.job).get()
    content = goodput_view(account, shown.job.requested_gpus) if account else None
    return JobPage(show_head(request, shown), content)


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

        try:
            effective = await effective_manifest(client, job)
        except JobError:
            effective = None  # its runtime does not exist; the tab Why says so
    other, with_ = None, request.first("with")
    if with_:
        against = request.find_job(with_.strip("/")).job
        jobs = JobClient(client, against.kind.trainer)
        other = await jobs.manifest(against.name, against.namespace)
    return JobPage(show_head(request, shown), spec_view(stored, effective, other, with_))


JOB = "/jobs/{namespace}/{kind}/{name}"
_HEAD = ("job:headline",)

PAGES: tuple[Page, ...] = (
    Page("overview", "/", _overview, ("summary",), "gangline list -A"),
    Page("jobs", "/jobs", _jobs, ("table",), "gangline list -A -o wide", depends_on_viewer=True),
    Page("queues", "/queues", _queues, ("tree",), "gangline queue list -o wide"),
    Page("nodes", "/nodes", _nodes, ("domains",), "gangline top node"),
    Page("node", "/nodes/{name}", _node, ("details",), "gangline top node {name} -d"),
    Page("why", JOB, _why, (*_HEAD, "content"), "gangline diagnose {name} -n {namespace} -T {kind}",
         tab="why"),
    Page("replicas", f"{JOB}/replicas", _replicas, (*_HEAD, "content"),
         "gangline get {name} -n {namespace} -T {kind} -w", tab="replicas"),
    Page("logs", f"{JOB}/logs", _replicas, _HEAD,
         "gangline logs {name} -n {namespace} -T {kind} -f", tab="logs"),
    Page("checkpoints", f"{JOB}/checkpoints", _checkpoints, (*_HEAD, "content"),
         "gangline get {name} -n {namespace} -T {kind} -w", tab="checkpoints"),
    Page("goodput", f"{JOB}/goodput", _goodput, (*_HEAD, "content"),
         "gangline get {name} -n {namespace} -T {kind} -o json", tab="goodput"),
    Page("spec", f"{JOB}/spec", _spec, _HEAD,
         "gangline get {name} -n {namespace} -T {kind} --spec", tab="spec"),
)  # fmt: skip
"""All pages. Those with the same ``JOB`` address are tabs, in this order."""

NAVIGATION = ("overview", "jobs", "queues", "nodes", "history", "usage", "compare")
"""Pages of the navigation, in order."""
