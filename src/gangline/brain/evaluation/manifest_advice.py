"""Advice on a manifest that is not submitted yet, for ``gangline submit --like-history``."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from gangline.api.brain.job_advice import OPEN
from gangline.api.job_resources import JOB_KINDS, find_job_kind
from gangline.api.meta.objects import Object
from gangline.brain.advisers.view import ClusterView
from gangline.brain.collection.collector import Collector
from gangline.brain.collection.job_digest import DigestSettings, digest_job
from gangline.brain.evaluation.advisers import advise, build_view, evidence, published
from gangline.brain.evaluation.history import History
from gangline.brain.facts.records import Run
from gangline.brain.publication.items import advice_item, ordered


class ManifestAdviser:
    """Advises as if the manifest were a job that waits to start."""

    def __init__(self, collector: Collector, history: History, settings: DigestSettings) -> None:
        self._collector, self._history, self._settings = collector, history, settings

    async def __call__(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return ``{"items": [...], "runs": N}``.

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
            "runs": len(similar.runs) if similar else 0,
            "history": self._history.problem and "history not available",
        }

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
        return Run(
            job=msgspec.structs.replace(digested.job, started_ms=None, uid="", finished_ms=None)
        )
