"""Pages that read the record: curves, jobs of the past, usage, and the comparison of two runs.

Rights are those of the present: a job of the past is shown to those who may list jobs of its kind
in its namespace today, its last lines to those who may read the logs of pods there. Without a
record each page says why, and how to switch it on.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gangline.dashboard.pages import (
    JOB,
    PAGES,
    JobPage,
    Page,
    PageMissing,
    PageRequest,
    show_head,
)
from gangline.dashboard.past import NoPast
from gangline.dashboard.rights import Question, list_question, readable
from gangline.dashboard.views.base import View
from gangline.dashboard.views.compare import CompareView, compare_view
from gangline.dashboard.views.curves import curves_view
from gangline.dashboard.views.past import (
    FILTERS,
    HistoryView,
    history_view,
    recorded_goodput,
    recorded_logs,
    recorded_page,
    recorded_spec,
    recorded_why,
)
from gangline.dashboard.views.usage import (
    GROUPS,
    UsageView,
    month_bounds,
    months_before,
    usage_view,
)
from gangline.sdk.kinds import JOB_KINDS, JobKind

PER_PAGE = 100
RECORD = "/history/{namespace}/{kind}/{name}"
_KINDS: Mapping[str, JobKind] = {kind.trainer: kind for kind in JOB_KINDS}


async def _may_list(request: PageRequest, kind: str, namespace: str) -> bool:
    """Whether the viewer may list jobs of a kind in a namespace that may have none now."""
    known = _KINDS.get(kind.lower())
    if known is None:
        return False
    if request.seen.scope.sees_job(known, namespace):
        return True
    return await request.viewer.rights.may(list_question(readable(known.resource), namespace))


async def _stored(request: PageRequest, path: str) -> dict[str, Any]:
    """Return the record of a job, by ``namespace/kind/name`` with ``@uid`` for one of several.

    Raises:
        PageMissing: there is none that the viewer may see.
    """
    address, _, uid = path.strip("/").partition("@")
    namespace, _, rest = address.partition("/")
    kind, _, name = rest.partition("/")
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
        stored = {**stored, "logs": [], "record": _without_lines(stored.get("record"))}
    return stored


def _without_lines(record: Any) -> Any:
    if not record or not record.get("diagnosis"):
        return record
    return {**record, "diagnosis": {**record["diagnosis"], "lastLines": []}}


async def _curves(request: PageRequest) -> View:
    shown = request.job()
    job = shown.job
    try:
        stored = await request.sources.past.record(job.namespace, job.name, job.uid)
    except NoPast:
        stored = None
    record = (stored or {}).get("record")
    return JobPage(show_head(request, shown), curves_view(record) if record else None)


def _recorded(content: Callable[[Mapping[str, Any]], View | None]) -> Any:
    async def compute(request: PageRequest) -> View:
        uid = request.first("uid")
        path = "{namespace}/{kind}/{name}".format(**request.match)
        stored = await _stored(request, f"{path}@{uid}" if uid else path)
        return recorded_page(stored, content(stored) if stored.get("record") else None)

    return compute


async def _history(request: PageRequest) -> View:
    given = {name: request.first(name) for name in FILTERS}
    position = {
        name: value
        for name in ("until", "after")
        if (value := request.first(name)).isascii() and value.isdecimal()
    }
    filters = {name: value for name, value in given.items() if value} | position
    if kind := _KINDS.get(given["kind"].lower()):
        filters["kind"] = kind.identity
    try:
        answer = await request.sources.past.jobs(PER_PAGE, filters)
    except NoPast as error:
        return HistoryView(filter=given, problem=str(error))
    jobs = answer["jobs"]
    allowed = await _allowed(request, {(job["kind"], job["namespace"]) for job in jobs})
    shown = [job for job in jobs if (job["kind"], job["namespace"]) in allowed]
    present = {entry.stored.metadata.uid for entry in request.seen.cluster}
    following = {name: str(value) for name, value in (answer.get("next") or {}).items()}
    return history_view(shown, present, given, following, len(jobs) - len(shown))


async def _allowed(request: PageRequest, places: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    asked = sorted(places)
    answers = await asyncio.gather(*(_may_list(request, *place) for place in asked))
    return {place for place, may in zip(asked, answers, strict=True) if may}


async def compute_usage(request: PageRequest) -> UsageView:
    """Return what jobs of the chosen month used, as far as the viewer may list jobs."""
    by = request.first("by") if request.first("by") in GROUPS else "queue"
    months = tuple(months_before(request.seen.now))
    month = request.first("month") if request.first("month") in months else ""
    bounds = month_bounds(month) if month else month_bounds(months[-1])
    assert bounds is not None
    now_ms = round(request.seen.now.timestamp() * 1000) + 1
    since_ms, until_ms = bounds if month else (bounds[0], now_ms)
    past = request.sources.past
    try:
        spaces = [row["key"] for row in await past.usage("namespace", since_ms, until_ms)]
        places = await _allowed(request, {(kind, space) for kind in _KINDS for space in spaces})
        namespaces = sorted({space for _, space in places})
        rows = await past.usage(by, since_ms, until_ms, *namespaces) if namespaces else []
    except NoPast as error:
        return UsageView(by, month, months, problem=str(error))
    return usage_view(rows, by, month, months)


async def _compare(request: PageRequest) -> View:
    given = tuple(job for job in request.query.get("job", ()) if job.strip())[:2]
    if len(given) < 2:
        return CompareView(given)
    try:
        left, right = await asyncio.gather(*(_stored(request, path) for path in given))
    except PageMissing as error:
        return CompareView(given, problem=str(error))
    return compare_view((given[0], given[1]), left, right)


_COMMAND = "gangline history get {name} -n {namespace}"


def _record_page(tab: str, content: Callable[[Mapping[str, Any]], View | None]) -> Page:
    path = RECORD if tab == "why" else f"{RECORD}/{tab}"
    return Page(
        f"recorded_{tab}", path, _recorded(content), (), _COMMAND, tab=tab, is_live=False,
        is_recorded=True,
    )  # fmt: skip


PAST_PAGES: tuple[Page, ...] = (
    Page("curves", f"{JOB}/curves", _curves, ("job:headline",),
         "gangline history get {name} -n {namespace} -o json", tab="curves"),
    Page("history", "/history", _history, (), "gangline history list -A", is_live=False),
    Page("usage", "/usage", compute_usage, (), "gangline history export -A -o csv", is_live=False),
    Page("compare", "/compare", _compare, (), is_live=False),
    _record_page("why", recorded_why),
    _record_page("replicas", lambda stored: None),
    _record_page("logs", recorded_logs),
    _record_page("curves", lambda stored: curves_view(stored["record"])),
    _record_page("goodput", recorded_goodput),
    _record_page("spec", recorded_spec),
)  # fmt: skip
"""Pages of this module; those with the same ``RECORD`` address are tabs, in this order."""

_AFTER_LOGS = [page.name for page in PAGES].index("logs") + 1
ALL_PAGES = (*PAGES[:_AFTER_LOGS], *PAST_PAGES, *PAGES[_AFTER_LOGS:])
"""All pages, with the tab Curves after the logs."""
