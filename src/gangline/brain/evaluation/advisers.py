"""What advisers see of a job, all of them in turn, and the runs behind their advice.

A mistake in one adviser does not take the advice of the others. ``ManifestAdviser`` advises on a
manifest that is not submitted yet, for ``gangline submit --like-history``.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from gangline.api.brain.job_advice import OPEN, AdviceEvidence
from gangline.api.job_resources import JOB_KINDS, find_job_kind
from gangline.api.jobs.elastic import PS
from gangline.api.meta.objects import Object
from gangline.brain.advisers import rightsize, start
from gangline.brain.advisers.advice import Advice, Choice
from gangline.brain.advisers.batch import advise_batch
from gangline.brain.advisers.checkpoints import advise_checkpoints
from gangline.brain.advisers.explain import published
from gangline.brain.advisers.servers import advise_servers
from gangline.brain.advisers.similarity import LEAST_RUNS, WINDOW_MS, last_ms, similarity_level
from gangline.brain.advisers.stragglers import advise_stragglers
from gangline.brain.advisers.view import AdviserView, ClusterView, Exposure, SimilarRuns
from gangline.brain.advisers.workers import advise_workers, fitted_segments, size_choices
from gangline.brain.collection.collector import Collector
from gangline.brain.collection.job_digest import DigestSettings, digest_job
from gangline.brain.collection.live_facts import JobObservations, device_peaks, ended_by_shortage
from gangline.brain.collection.measurements import ServerTable
from gangline.brain.evaluation.cluster_facts import exposure_by_node
from gangline.brain.evaluation.history import JobHistory
from gangline.brain.facts.records import Outcome, RecordedJob, Run
from gangline.brain.models.throughput import (
    ThroughputModel,
    fit_throughput,
    job_prior,
    observations,
)
from gangline.brain.publication import advice_item, ordered, remaining_s
from gangline.brain.store.reader import HistoryFilter
from gangline.sizing.hardware import find_device

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_NAMED_RUNS = 10
FAMILY_LEVEL = 2
"""Highest level of similarity whose runs are of the job's family."""


def build_view(
    run: Run, similar: SimilarRuns, cluster: ClusterView, now_ms: int, **more: Any
) -> AdviserView:
    """Return the view of a job with ``more`` fields; what is not known stays out."""
    began = run.job.started_ms
    rest_s = remaining_s(similar, (now_ms - began) / 1000 if began else 0.0)
    return AdviserView(
        now_ms=now_ms, run=run, similar=similar, cluster=cluster, remaining_s=rest_s, **more
    )


def with_live_facts(
    view: AdviserView,
    observed: JobObservations,
    servers: ServerTable,
    nodes: Mapping[str, Exposure],
) -> AdviserView:
    """Add what masters and the metrics API report of a running job.

    ``nodes`` are the failures and device hours of each node.
    """
    similar = view.similar
    family = (*similar.runs, *similar.bounds) if similar.level <= FAMILY_LEVEL else ()
    mine = {pod.node for pod in view.run.pods if pod.ended_ms is None}
    return replace(
        view,
        rank_speeds=observed.rank_speeds(view.now_ms),
        node_checks=observed.node_checks(),
        device_peaks=device_peaks(
            view.run.segments,
            _model_memory,
            (*ended_by_shortage([view.run]), *view.run.shortages),
            ended_by_shortage(family),
        ),
        servers=servers.use(
            {pod.rank for pod in view.run.pods if pod.role == PS and pod.ended_ms is None}
        ),
        exposure=Exposure.total(exposure_by_node([view.run, *family], view.now_ms).values()),
        node_exposure=Exposure.total(nodes[node] for node in sorted(mine & nodes.keys())),
    )


@lru_cache(maxsize=1024)
def _model_memory(model: str) -> int | None:
    try:
        return int(find_device(model).memory_bytes)
    except (LookupError, ValueError):
        return None


class Fitted(NamedTuple):
    """The throughput of a job; segments close every five minutes only."""

    of: tuple[object, ...]
    """What it was fitted to."""
    model: ThroughputModel | None
    choices: tuple[Choice, ...]
    """Predicted goodput by number of workers; empty where it is not known."""


class Advised(NamedTuple):
    """All advice on one job, one piece for each subject, and its fit."""

    advice: list[Advice]
    fitted: Fitted


def advise(view: AdviserView, earlier: Fitted | None = None) -> Advised:
    """Return all advice on one job, of which an earlier evaluation may have a fit."""
    fitted_to = (view.run.job, view.run.segments, view.similar, view.prediction_error)
    fitted = earlier
    if fitted is None or fitted.of != fitted_to:
        model = _attempt(view, partial(_fit, view))
        choices = None
        if model is not None and view.run.job.kind == "ElasticJob":
            choices = _attempt(view, partial(size_choices, view, model))
        fitted = Fitted(fitted_to, model, tuple(choices or ()))
    plain = (start.advise, rightsize.advise, advise_checkpoints, advise_stragglers, advise_servers)
    advisers = [partial(adviser, view) for adviser in plain]
    if view.run.segments:
        advisers.append(partial(advise_workers, view, fitted.model, fitted.choices or None))
        advisers.append(partial(advise_batch, view, fitted.model))
    by_subject: dict[tuple[str, str, int, str], Advice] = {}
    for adviser in advisers:
        for advice in _attempt(view, adviser) or ():
            by_subject.setdefault(advice.key, advice)
    return Advised(list(by_subject.values()), fitted)


def _attempt(view: AdviserView, work: Callable[[], T]) -> T | None:
    try:
        return work()
    except (ArithmeticError, ValueError, LookupError, TypeError):
        job = view.run.job
        log.exception("an adviser failed", extra={"job": f"{job.namespace}/{job.name}"})
        return None


def _fit(view: AdviserView) -> ThroughputModel | None:
    """Fit the throughput to the job and its family: the same program, up to the specification.

    Ages are counted from the newest segment on. The weights of all segments shrink alike with time,
    so the present time has no effect.
    """
    if not view.run.segments:
        return None
    family = view.similar.runs if view.similar.level <= 1 else ()
    past = [segment for run in reversed(family) for segment in run.segments]
    now_ms = max(segment.until for segment in (*view.run.segments, *past))
    data = observations(fitted_segments(view.run.segments, past), now_ms)
    return fit_throughput(data, job_prior([view.run, *family]))


def evidence(advice: Advice, job: RecordedJob, similar: SimilarRuns) -> AdviceEvidence:
    """Return the runs behind advice; those of other namespaces are counted and not named."""
    runs = (*similar.runs, *similar.bounds)
    meant = [run for run in runs if run.job.uid in set(advice.evidence)]
    named = [run.job.name for run in meant if run.job.namespace == job.namespace]
    ends = [run.job.finished_ms for run in meant if run.job.finished_ms is not None]
    first = datetime.fromtimestamp(min(ends) / 1000, UTC).replace(microsecond=0) if ends else None
    return AdviceEvidence(
        runs=len(advice.evidence),
        of=named[:MAX_NAMED_RUNS],
        namespaces=len({run.job.namespace for run in meant}),
        since=first,
    )


class ManifestAdviser:
    """Advises as if the manifest were a job that waits to start."""

    def __init__(self, collector: Collector, history: JobHistory, settings: DigestSettings) -> None:
        self._collector, self._history, self._settings = collector, history, settings

    async def __call__(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return ``{"items": [...], "runs": N, "notCounted": TEXT}``.

        Raises:
            ValueError: it is no manifest of a job.
        """
        run = self._run(manifest)
        now_ms = round(time.time() * 1000)
        similar = await self._history.similar(run, now_ms)
        view = build_view(run, similar, ClusterView(nodes=self._collector.nodes()), now_ms)
        advice = map(published, (await asyncio.to_thread(advise, view)).advice)
        items = [
            advice_item(shown, sentence, evidence(shown, run.job, similar), OPEN)
            for shown, sentence in advice
        ]
        return {
            "items": msgspec.to_builtins(ordered(items)),
            "runs": len(similar.runs),
            "notCounted": await self._not_counted(run.job, similar, now_ms),
            "history": self._history.problem and "history not available",
        }

    async def _not_counted(self, job: RecordedJob, similar: SimilarRuns, now_ms: int) -> str:
        """Return why successful runs of the same name do not count; empty if some do."""
        if similar.runs:
            return ""
        named = HistoryFilter(
            cluster=job.cluster, namespace=job.namespace, stem=job.stem, outcome=Outcome.SUCCEEDED
        )
        page = await self._history.read(lambda r, _: r.history(named))
        return why_not_counted(job, page.jobs if page else (), now_ms)

    def _run(self, manifest: Mapping[str, Any]) -> Run:
        version, name = str(manifest.get("apiVersion", "")), str(manifest.get("kind", ""))
        kind = find_job_kind(version, name)
        if kind is None:
            resources = [job_kind.resource for job_kind in JOB_KINDS]
            kinds = ", ".join(f"{one.api_version} {one.kind}" for one in resources)
            raise ValueError(f"apiVersion and kind: {version!r} {name!r} is none of {kinds}")
        job: Object = msgspec.convert({**manifest, "status": {}}, kind.resource.type)
        digested = digest_job(kind, job, self._settings)  # type: ignore[arg-type]
        return Run(job=replace(digested.job, started_ms=None, uid="", finished_ms=None))


def why_not_counted(job: RecordedJob, past: Sequence[RecordedJob], now_ms: int) -> str:
    """Say why none of the successful runs of a name count for a job; empty without any."""
    reasons = Counter(_obstacle(job, one, now_ms) for one in past)
    if not reasons:
        return ""
    count = sum(reasons.values())
    listed = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
    return f"{count} successful run{'s' if count > 1 else ''} of {job.stem} do not count: {listed}."


def _obstacle(job: RecordedJob, past: RecordedJob, now_ms: int) -> str:
    if not past.complete:
        return "not watched from start to end, as the Brain ran a part of the time only"
    if now_ms - last_ms(past) > WINDOW_MS:
        return "ended more than 30 days ago"
    if past.kind != job.kind:
        return f"of the kind {past.kind}"
    level = similarity_level(Run(job=job), Run(job=past))
    if level is None:
        return f"with another image ({past.image.repository})"
    what = "another owner or command" if level == 2 else "the same family"
    return f"with {what}, where {LEAST_RUNS[level]} are needed"
