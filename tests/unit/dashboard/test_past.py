"""Pages that read the record: curves, deleted jobs, usage, comparison; and what they do without."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from brain_records import HOUR_MS, NOW_MS, a_job
from gangline.brain.facts.job_record import (
    Curves,
    JobRecord,
    LogTail,
    Moment,
    RecordedExplanation,
    ReplicaRecord,
    TimelineEntry,
)
from gangline.brain.facts.records import Outcome
from gangline.brain.server import public_job
from gangline.brain.store.records import StoredRecord, UsageRow
from gangline.dashboard.sources import NoPast, Past
from gangline.dashboard.views.curves import curves_view
from gangline.dashboard.views.past import (
    compare_view,
    recent_months,
    to_csv,
    usage_view,
)
from unit.dashboard.conftest import MakeSite, Site
from unit.dashboard.observed_state import NOW
from unit.dashboard.test_pages import Structure

EVIL = '<script>alert("x")</script>'
RECORD = "/history/vision/elasticjob/gone"
TABS = ("", "/replicas", "/logs", "/curves", "/goodput", "/spec")
COMPARE = "/compare?job=vision/elasticjob/gone&job=vision/elasticjob/other@uid-2"
ADDRESSES = (
    "/history", "/history?name=x&outcome=failed", "/usage", "/usage?by=month", "/compare", COMPARE,
    *(f"{RECORD}{tab}" for tab in TABS),
)  # fmt: skip


def curves(**values: float) -> Curves:
    table = Curves()
    for number in range(5):
        point = {name: value * (5 - number) for name, value in values.items()}
        table = table.with_point(NOW_MS + number * 1000, {**point, "step": number * 10.0})
    return table


def stored(number: int = 1, name: str = "gone", **changes: Any) -> dict[str, Any]:
    """The answer of the Brain about a job that failed."""
    finding = {
        "replica": "worker-1", "cause": "Killed", "blame": "platform", "meaning": "It was killed.",
        "remedy": "Ask.", "evidence": EVIL, "node": "node-1", "exitCode": 137, "container": "",
    }  # fmt: skip
    record = JobRecord(
        state="FAILED",
        reason=f"because of {EVIL}",
        desired=4,
        timeline=(
            TimelineEntry(what=Moment.SUBMITTED, at_ms=NOW_MS),
            TimelineEntry(
                what=Moment.RESTARTED, at_ms=NOW_MS + 2500, number=1, cause="Killed",
                replica="worker-1", blame="platform",
            ),
        ),
        explanations=(RecordedExplanation(NOW_MS, f"waits for {EVIL}"),),
        replicas=(ReplicaRecord(name="gone-worker-1", role="worker", index=1, exit_code=137),),
        diagnosis={
            "summary": "worker-1 was killed", "root": finding, "consequences": [],
            "nextSteps": [], "lastLines": ["a line of the log"],
        },
        goodput={"share": 0.9, "wallSeconds": 100.0, "productiveSeconds": 90.0,
                 "unproductive": "starting 10.0 s", "step": 40},
        curves={
            "training": curves(loss=0.5),
            "usage": Curves((NOW_MS,), {"memory": (5 * 2.0**30,)}),
        },
    )  # fmt: skip
    tail = LogTail(pod="gone-worker-1", replica="worker-1", at_ms=NOW_MS, lines=(EVIL, "last"))
    job = a_job(number, name=name, outcome=Outcome.FAILED, cause="Killed")
    spec = {"written": {"kind": "ElasticJob", "metadata": {"name": name}, "spec": {"n": number}}}
    row = StoredRecord(job=job, record=record, spec=spec, logs=(tail,), gpu_seconds=7200)
    return {**msgspec.to_builtins(row), "job": public_job(job), **changes}


class StubPast(Past):
    """A record with two jobs."""

    def __init__(self, answers: Mapping[str, dict[str, Any]], problem: str = "") -> None:
        self.answers, self.problem = answers, problem
        self.asked: list[tuple[Any, ...]] = []

    async def jobs(self, limit: int, filters: Mapping[str, str | int]) -> dict[str, Any]:
        self._check("jobs", dict(filters))
        following = {"until": 7, "after": 3}
        return {"jobs": [one["job"] for one in self.answers.values()], "next": following}

    async def record(self, namespace: str, name: str, uid: str = "") -> dict[str, Any] | None:
        self._check("record", namespace, name, uid)
        return self.answers.get(name)

    async def usage(self, by: str, since_ms: int, until_ms: int, *spaces: str) -> list[Any]:
        self._check("usage", by, *spaces)
        key = "vision" if by == "namespace" else "=queue"
        rows = [UsageRow(key=key, jobs=2, gpu_seconds=7200, cpu_seconds=0, accounted_seconds=3600,
                         productive_seconds=1800)]  # fmt: skip
        built: list[Any] = msgspec.to_builtins(rows)
        return built

    def _check(self, *asked: Any) -> None:
        if self.problem:
            raise NoPast(self.problem)
        self.asked.append(asked)


@pytest.fixture
async def past(site: Site) -> StubPast:
    stub = StubPast({"gone": stored(), "other": stored(2, "other")})
    site.dashboard.sources.past = stub
    return stub


@pytest.mark.parametrize("language", ["en", "zh-CN"])
async def test_pages_of_the_past_have_the_structure_of_all_pages(
    site: Site, past: StubPast, language: str
) -> None:
    for address in ADDRESSES:
        text = await site.text(address, **{"Accept-Language": language})
        page = Structure(text)
        assert (page.problems, page.headings.count(1)) == ([], 1), address
        assert len(page.ids) == len(set(page.ids)), address
        assert "<script>alert" not in text, address


async def test_deleted_job_has_the_page_of_its_record(site: Site, past: StubPast) -> None:
    text = await site.text(RECORD)
    for shown in ("worker-1 was killed", "a line of the log", "waits for &lt;script&gt;", "Killed"):
        assert shown in text
    assert "attempt 1" in await site.text(f"{RECORD}/logs")
    assert "90.0%" in await site.text(f"{RECORD}/goodput")
    assert "Show data" in await site.text(f"{RECORD}/curves")
    listed = await site.text("/history")
    assert f"{RECORD}?uid=uid-1" in listed
    assert "until=7&amp;after=3" in listed


async def test_job_that_was_deleted_while_it_ran_is_not_shown_as_running(
    site: Site, past: StubPast
) -> None:
    gone = past.answers["gone"]
    gone["job"]["outcome"] = "deleted"
    gone["record"] |= {"state": "RUNNING", "diagnosis": None, "reason": ""}
    text = await site.text(RECORD)
    assert "s-running" not in text
    assert "deleted" in text


async def test_job_that_is_in_the_cluster_is_not_in_the_history(site: Site, past: StubPast) -> None:
    uid = next(iter(site.recorded.cluster)).stored.metadata.uid
    past.answers["gone"]["job"]["uid"] = uid
    assert RECORD not in await site.text("/history")


async def test_viewer_sees_jobs_and_lines_of_the_past_by_the_rights_of_today(
    make_site: MakeSite,
) -> None:
    site = await make_site()
    await site.log_in()
    site.dashboard.sources.past = StubPast({"gone": stored()})
    site.server.may = lambda asked: asked.get("subresource") != "log"
    for tab in ("", "/logs"):
        text = await site.text(f"{RECORD}{tab}")
        assert "a line of the log" not in text
        assert "last</" not in text
    other = await make_site()
    other.dashboard.sources.past = hidden = StubPast({"gone": stored()})
    other.server.may = lambda asked: asked.get("resource") != "elasticjobs"
    await other.log_in()
    async with other.client.get(RECORD) as answer:
        assert answer.status == 404
    assert RECORD not in await other.text("/history")
    assert "1 job that you may not see" in await other.text("/history")
    assert not [asked for asked in hidden.asked if asked[0] == "record"]


async def test_without_a_record_each_page_says_why(site: Site) -> None:
    site.dashboard.sources.past = StubPast({}, "no Brain answers")
    for address in ("/history", "/usage"):
        text = await site.text(address)
        assert "no Brain answers" in text
        assert "gangline up --record" in text
    assert "no Brain answers" in await site.text(COMPARE)
    assert "gangline up --record" in await site.text("/jobs/default/pytorchjob/running/curves")
    async with site.client.get(RECORD) as answer:
        assert answer.status == 404
    async with site.client.get("/usage.csv") as answer:
        assert answer.status == 503


async def test_usage_is_of_namespaces_that_the_viewer_may_list(site: Site, past: StubPast) -> None:
    async with site.client.get("/usage.csv?by=owner") as answer:
        assert (await answer.text()).splitlines() == [
            "owner,jobs,gpu_hours,core_hours,productive_share", "'=queue,2,2.000,0.000,0.5000",
        ]  # fmt: skip
    assert past.asked[-1] == ("usage", "owner", "vision")


def test_curves_have_marks_units_and_a_band_over_ranks() -> None:
    record = stored()["record"]
    ranks = Curves((1, 2), {n: (0.1, 0.2) for n in ("lowest", "median", "highest")})
    record["curves"]["ranks"] = msgspec.to_builtins(ranks)
    view = curves_view(record)
    names = [chart.name for chart in view.charts]
    assert names[:2] == ["loss", "step time"]
    by_name = {chart.name: chart for chart in view.charts}
    assert by_name["loss"].steps == (0.0, 10.0, 20.0, 30.0, 40.0)
    assert by_name["step time"].is_band
    assert (by_name["memory"].unit, by_name["memory"].main.values[0]) == ("GiB", 5.0)
    assert [(mark.what, mark.text) for mark in view.marks] == [("restarted", "worker-1: Killed")]
    assert len(by_name["loss"].rows) == 5


def test_comparison_pairs_curves_and_ignores_names() -> None:
    left, right = stored(), stored(2, "other")
    right["record"]["curves"] = {"training": msgspec.to_builtins(curves(loss=1, acc=1))}
    view = compare_view(("a", "b"), left, right)
    pairs = {pair.name: (bool(pair.left), bool(pair.right)) for pair in view.curves}
    assert pairs["loss"] == (True, True)
    assert pairs["acc"] == (False, True)
    assert [line for line in view.difference if line[:1] in "+-"] == ["-  n: 1", "+  n: 2"]
    assert view.left is not None
    assert (view.left.duration_s, view.left.gpu_hours) == (HOUR_MS / 1000 - 1, 2.0)


def test_months_reach_over_the_year() -> None:
    bounds = recent_months(NOW)
    months = list(bounds)
    assert (months[0], months[3], len(months)) == ("2026-03", "2025-12", 12)
    assert bounds["2025-12"] == (1_764_547_200_000, 1_767_225_600_000)


def test_share_of_a_cluster_without_devices_is_of_cores() -> None:
    rows = [
        {"key": key, "jobs": 1, "gpu_seconds": 0, "cpu_seconds": seconds, "accounted_seconds": 0,
         "productive_seconds": 0}
        for key, seconds in (("a", 3600), ("b", 10_800))
    ]  # fmt: skip
    view = usage_view(rows, "queue", "", ())
    assert [(row.share, row.core_hours, row.productive) for row in view.rows] == [
        (0.25, 1.0, None), (0.75, 3.0, None),
    ]  # fmt: skip
    assert to_csv(replace_key(view)).splitlines()[1].startswith("'=1+1,")


def replace_key(view: Any) -> Any:
    row = msgspec.structs.replace(view.rows[0], key="=1+1")
    return msgspec.structs.replace(view, rows=(row,))
