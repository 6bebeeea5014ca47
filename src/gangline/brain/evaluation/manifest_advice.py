"""Advice on a manifest that is not submitted yet, for ``gangline submit --like-history``."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from gangline.api.brain.job_advice import OPEN
from gangline.api.job_resources import JOB_KINDS, find_job_kind
from gangline.api.meta.objects import Object
from gangline.brain.advisers.explain import published
from gangline.brain.advisers.similarity import LEAST_RUNS, WINDOW_MS, last_ms, similarity_level
from gangline.brain.advisers.view import ClusterView, SimilarRuns
from gangline.brain.collection.collector import Collector
from gangline.brain.collection.job_digest import DigestSettings, digest_job
from gangline.brain.evaluation.advisers import advise, build_view, evidence
from gangline.brain.evaluation.history import JobHistory
from gangline.brain.facts.records import Outcome, RecordedJob, Run
from gangline.brain.publication.publisher import advice_item, ordered
from gangline.brain.store.reader import HistoryFilter


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
            cluster=job.cluster,
            namespace=job.namespace,
            stem=job.stem,
            outcome=Outcome.SUCCEEDED,
        )
        page = await self._history.read(lambda r, _: r.history(named))
        return why_not_counted(job, page.jobs if page else (), now_ms)

    def _run(self, manifest: Mapping[str, Any]) -> Run:
        version, name = str(manifest.get("apiVersion", "")), str(manifest.get("kind", ""))
        kind = find_job_kind(version, name)
        if kind is None:
            kinds = ", ".join(
                f"{job_kind.resource.api_version} {job_kind.resource.kind}"
                for job_kind in JOB_KINDS
            )
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
