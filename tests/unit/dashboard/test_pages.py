"""Pages as they arrive: structure, escaping, languages, JSON, headers, streams, actions."""

import asyncio
import json
import re
import tomllib
from contextlib import AsyncExitStack, suppress
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest
from aiohttp import ClientPayloadError

from gangline.dashboard.pages import PAGES
from gangline.dashboard.rendering import Renderer, choose_language
from unit.dashboard.conftest import MakeSite, Site
from unit.dashboard.observed_state import condition, example, forbidden, unauthorized

JOB = "/jobs/default/pytorchjob/running"
ADDRESSES = [
    "/", "/jobs", "/jobs?q=nothing&phase=failed&sort=-name", "/queues", "/nodes", "/nodes/node-1",
    JOB, f"{JOB}/replicas", f"{JOB}/checkpoints", f"{JOB}/goodput", f"{JOB}/spec",
    f"{JOB}/actions/delete", f"{JOB}/actions/scale", f"{JOB}/actions/move",
    "/jobs/default/pytorchjob/failed", "/jobs/default/pytorchjob/waiting",
]  # fmt: skip


class Structure(HTMLParser):
    """What is checked of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.headings: list[int] = []
        self.problems: list[str] = []
        self.links: set[str] = set()
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [value for name, value in attrs if name == "id" and value]
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "script" and not (given.get("src") or "").startswith("/static/"):
            self.problems.append("inline or foreign script")
        if tag == "style" or "style" in given or any(name.startswith("on") for name in given):
            self.problems.append(f"inline style or handler of {tag}")
        if tag == "th" and given.get("scope") not in {"col", "row"}:
            self.problems.append("th without scope")
        is_field = tag in {"select", "textarea"} or (
            tag == "input" and given.get("type") != "hidden"
        )
        if is_field and "label" not in self._inside:
            self.problems.append(f"{given.get('name')} without label")
        if tag == "a" and (given.get("href") or "").startswith("/"):
            self.links.add(str(given["href"]))
        if tag not in {"meta", "link", "input", "br", "path", "rect"}:
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass


@pytest.mark.parametrize("language", ["en", "zh-CN,zh;q=0.9"])
async def test_pages_have_one_heading_unique_ids_labels_and_nothing_inline(
    site: Site, language: str
) -> None:
    links: set[str] = set()
    for address in ADDRESSES:
        text = await site.text(address, **{"Accept-Language": language})
        found = Structure(text)
        assert found.problems == [], address
        assert found.headings.count(1) == 1, address
        jumps = [b - a for a, b in zip(found.headings, found.headings[1:], strict=False)]
        assert max(jumps, default=0) <= 1, (address, found.headings)
        assert len(found.ids) == len(set(found.ids)), address
        assert f'<html lang="{language[:2]}"' in text
        links |= found.links
    for link in sorted(links - {link for link in links if "/logs" in link or "/history" in link}):
        async with site.client.get(link) as answer:
            assert answer.status == 200, link


async def test_hostile_texts_are_escaped_on_every_page(make_site: MakeSite) -> None:
    recorded = example()
    evil = '<script>alert("x")</script><img src=x onerror=y>'
    recorded.job("evil", condition("Failed", 5, evil), owner=evil, queue=evil)
    recorded.pod("evil", 0, "Failed", exit_code=1, message=evil, node="node-1")
    recorded.event("PyTorchJob/evil", evil, evil, 4, "uid-default-evil")
    site = await make_site(recorded)
    await site.log_in()
    for address in ("/", f"/jobs?q={evil}", "/nodes/node-1", "/jobs/default/pytorchjob/evil"):
        text = await site.text(address)
        assert "<script>alert" not in text, address
        assert "<img" not in text, address
        assert "&lt;script&gt;" in text or address in {"/", "/nodes/node-1"}, address


async def test_texts_of_both_languages_are_complete_and_used() -> None:
    folder = files("gangline.dashboard")
    english, chinese = (
        tomllib.loads(folder.joinpath("texts", f"{name}.toml").read_text("utf-8"))
        for name in ("en", "zh")
    )
    assert english.keys() == chinese.keys()
    templates = "".join(
        path.read_text()
        for part in ("", "pages", "parts")
        for path in folder.joinpath("templates", part).iterdir()
        if path.name.endswith(".html")
    )
    asked = re.findall(r"""\bt\('([^']+)'(?! ~)""", templates)
    asked += re.findall(r"""(?:empty|head)\((?:view, )?'([a-z_]+\.[a-z_.]+)'""", templates)
    assert sorted(key for key in set(asked) if key not in english) == []
    fields = {
        key: sorted(set(re.findall(r"\{(\w+)\}", str(text)))) for key, text in english.items()
    }
    assert fields == {
        key: sorted(set(re.findall(r"\{(\w+)\}", str(text)))) for key, text in chinese.items()
    }


@pytest.mark.parametrize(
    ("chosen", "accepted", "language"),
    [("", "de,zh-TW;q=0.8,en;q=0.7", "zh"), ("en", "zh", "en"), ("xx", "fr;q=x,*", "en")],
)
def test_language_is_the_chosen_one_or_the_first_that_a_browser_accepts(
    chosen: str, accepted: str, language: str
) -> None:
    assert choose_language(chosen, accepted) == language


async def test_every_page_has_a_json_form_of_the_same_view(site: Site) -> None:
    for page in (page for page in PAGES if not page.is_recorded):
        address = page.path.format(namespace="default", kind="pytorchjob", name="running")
        address = address.replace("/nodes/running", "/nodes/node-1")
        content = json.loads(await site.text(address, Accept="application/json"))
        assert content["apiVersion"] == "dashboard.gangline.dev/v1"
    listed = json.loads(await site.text("/jobs?phase=running", Accept="application/json"))
    assert [row["name"] for row in listed["rows"]] == ["running", "secret"]
    assert listed["rows"][0]["requestedGpus"] == 2


async def test_every_answer_has_the_headers_of_a_closed_origin(site: Site) -> None:
    for address in ("/", "/nothing", JOB, site.dashboard.assets["style.css"].path):
        async with site.client.get(address) as answer:
            headers = answer.headers
        assert "default-src 'self'" in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "same-origin"


async def test_files_are_immutable_under_their_digest_only(site: Site) -> None:
    path = site.dashboard.assets["style.css"].path
    async with site.client.get(path) as answer:
        assert "immutable" in answer.headers["Cache-Control"]
        assert len(await answer.read()) <= 15_000
    async with site.client.get("/static/0000000000000000/style.css") as answer:
        assert answer.status == 404


async def next_event(answer: Any) -> str:
    """The next event of a stream that is no comment."""
    lines: list[str] = []
    async with asyncio.timeout(10):
        while True:
            line = (await answer.content.readline()).decode().rstrip("\n")
            if line:
                lines.append(line)
            elif lines and not lines[0].startswith(":"):
                return "\n".join(lines)
            else:
                lines = []


async def test_stream_sends_the_parts_that_have_changed(site: Site) -> None:
    async with site.client.get("/jobs/stream") as answer:
        assert answer.headers["X-Accel-Buffering"] == "no"
        first = await next_event(answer)
        assert 'hx-target="#part-banner"' in first
        assert 'hx-target="#part-jobs"' in first
        site.recorded.job("fresh", condition("Running", 1), age_s=1)
        second = await next_event(answer)
        assert second.startswith(f"id: {site.recorded.cluster.revision}")
        assert "fresh" in second
        assert "part-banner" not in second


async def test_readers_share_rendering_and_ask_the_api_server_no_more_than_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[str] = []
    part = Renderer.part

    def counted(self: Renderer, name: str, view: object) -> str:
        rendered.append(name)
        return part(self, name, view)

    monkeypatch.setattr(Renderer, "part", counted)
    monkeypatch.setattr("gangline.dashboard.streams.REFRESH_S", 1e9)
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(site.client.get("/queues/stream")) for _ in range(20)
        ]
        for stream in streams:
            await next_event(stream)
        asked, rendered[:] = len(site.server.asked), []
        site.recorded.queue("new")
        for stream in streams:
            assert "new" in await next_event(stream)
    assert rendered.count("queues") == 1
    assert len(site.server.asked) == asked


async def test_page_of_a_job_is_rendered_again_only_when_the_job_changes(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.dashboard.streams.REFRESH_S", 1e9)
    part = Renderer.part
    rendered: list[str] = []

    def counted(self: Renderer, name: str, view: object) -> str:
        rendered.append(name)
        return part(self, name, view)

    monkeypatch.setattr(Renderer, "part", counted)
    recorded = site.recorded
    async with site.client.get(f"{JOB}/stream") as stream, site.client.get("/jobs/stream") as jobs:
        await next_event(stream)
        await next_event(jobs)
        recorded.job("other", condition("Running", 1))
        assert "other" in await next_event(jobs)
        assert rendered.count("job") == 1
        recorded.pod("running", 1, "Failed", exit_code=1)
        assert "worker-1 " in await next_event(stream)
        recorded.event("Pod/running-worker-1", "BackOff", "restarting failed container", 1)
        assert "restarting failed container" in await next_event(stream)


async def test_streams_that_were_closed_leave_nothing_behind(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.dashboard.streams.REFRESH_S", 0.01)
    before = len(asyncio.all_tasks())
    for path in ("/jobs/stream", f"{JOB}/stream", f"{JOB}/logs/lines") * 20:
        async with site.client.get(path) as stream:
            assert stream.status == 200
            stream.close()
    async with asyncio.timeout(10):
        # The log itself is read for a little longer, by one task that waits for its next reader.
        while len(asyncio.all_tasks()) > before + 2:
            await asyncio.sleep(0.01)
    assert len(site.viewers.viewers) == 1  # type: ignore[attr-defined]


async def test_all_streams_end_with_the_server_also_of_readers_that_do_not_read(
    site: Site,
) -> None:
    more_than_buffers = "ann" * 1_000_000
    site.recorded.job("running", condition("Running", 500), owner=more_than_buffers)
    paths = ("/queues/stream", "/jobs/stream", f"{JOB}/logs/lines")
    async with AsyncExitStack() as stack, asyncio.timeout(10):
        streams = [await stack.enter_async_context(site.client.get(path)) for path in paths * 3]
        await site.dashboard.close()
        for stream in streams:
            with suppress(ClientPayloadError):  # it was not the end of the document
                await stream.read()


async def test_page_that_is_opened_while_the_cluster_is_read_is_not_taken_for_missing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.dashboard.server.FIRST_READ_S", 0.0)
    (state,) = site.recorded.cluster.sources.values()
    state.synced = False
    late = "/jobs/default/pytorchjob/late"
    async with site.client.get(late) as answer:
        assert (answer.status, answer.headers["Refresh"]) == (503, "1")
        assert "being read" in await answer.text()
    monkeypatch.setattr("gangline.dashboard.server.FIRST_READ_S", 10.0)
    opening = asyncio.create_task(site.text(late))
    await asyncio.sleep(0)
    site.recorded.job("late", condition("Running", 1))
    state.synced = True
    site.recorded.cluster.note_change()
    assert "late" in await opening


async def test_stream_is_refused_before_it_opens_and_ends_when_rights_are_taken(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.dashboard.rights.REMEMBER_S", 0.0)
    monkeypatch.setattr("gangline.dashboard.server.SCOPE_S", 0.0)
    async with site.client.get("/nodes/stream") as answer:
        await next_event(answer)
        site.server.may = lambda asked: asked["resource"] != "nodes"
        site.recorded.cluster.note_change()
        assert await next_event(answer) == "event: ended\ndata: PageRefused"
    async with site.client.get("/nodes/stream") as refused:
        assert refused.status == 403
        assert "verb list on nodes" in await refused.text()


async def test_expired_credentials_end_the_session_and_its_streams(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.dashboard.rights.REMEMBER_S", 0.0)
    monkeypatch.setattr("gangline.dashboard.server.SCOPE_S", 0.0)
    site = await make_site(auth="token")
    form = {"token": "abc", "next": "//evil.example"}
    async with site.client.post("/login", data=form) as answer:
        assert (answer.status, answer.url.path) == (200, "/")
    async with site.client.get("/stream") as answer:
        await next_event(answer)
        site.server.problem = unauthorized()
        site.recorded.cluster.note_change()
        assert await next_event(answer) == "event: ended\ndata: Unauthorized"
    async with site.client.get("/jobs") as answer:
        assert answer.status == 401
        assert "no longer valid" in await answer.text()
    site.server.problem = None
    async with site.client.get("/jobs", allow_redirects=False) as answer:
        assert answer.headers["Location"] == "/login?next=%2Fjobs"


@pytest.mark.parametrize(
    ("start", "headers", "body", "status"),
    [
        pytest.param("GET /", b"Cookie: session=\xff\xfe", b"", 303, id="cookie"),
        pytest.param("GET /", b"Authorization: Bearer \xff", b"", 303, id="credentials"),
        pytest.param("GET /jobs?q=%ff%00&after=%5B%5B", b"", b"", 303, id="address"),
        pytest.param("POST /login", b"Content-Type: multipart/form-data", b"abc", 400,
                     id="form without a boundary"),
        pytest.param("POST /login", b"Content-Type: multipart/form-data; boundary=x", b"abc", 400,
                     id="form without parts"),
        pytest.param("POST /login", b"Content-Type: application/x-www-form-urlencoded; charset=no",
                     b"a=b", 400, id="unknown encoding"),
        pytest.param("POST /login", b"Content-Type: application/x-www-form-urlencoded",
                     b"token=\xff", 400, id="form that is no text"),
    ],
)  # fmt: skip
async def test_request_that_is_no_text_is_refused(
    make_site: MakeSite, start: str, headers: bytes, body: bytes, status: int
) -> None:
    site = await make_site(auth="token")
    url = site.client.make_url("/")
    reader, writer = await asyncio.open_connection(url.host, url.port)
    length = f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
    writer.write(f"{start} HTTP/1.1\r\nHost: x\r\n".encode() + headers + b"\r\n" * bool(headers))
    writer.write(length + body)
    assert (await reader.readline()).split()[1] == str(status).encode()
    writer.close()


async def test_numbers_without_end_are_no_numbers(site: Site) -> None:
    number = "9" * 5000
    async with site.client.get(f"{JOB}/logs/lines?after={number}") as answer:
        assert answer.status == 200
    form = {"csrf": await site.csrf(), "generation": number}
    async with site.client.post(f"{JOB}/actions/suspend", data=form) as answer:
        assert answer.status == 400


async def test_viewers_share_no_page_that_is_read_with_the_rights_of_one(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await make_site(auth="token")
    await site.client.post("/login", data={"token": "of one"})
    assert "pytorchReplicaSpecs" in await site.text(f"{JOB}/spec")

    async def refuse(*_: Any, **__: Any) -> None:
        raise forbidden()

    monkeypatch.setattr(site.server, "request_json", refuse)
    # The API server knows both by the same name, as servers do that cannot tell the name.
    await site.client.post("/login", data={"token": "of another"})
    async with site.client.get(f"{JOB}/spec") as answer:
        assert answer.status == 403
        assert "pytorchReplicaSpecs" not in await answer.text()


async def test_last_state_is_shown_while_the_api_server_is_away(site: Site) -> None:
    from gangline.kube.errors import Unreachable

    state = site.recorded.cluster.sources["pytorchjobs.kubeflow.org"]
    site.server.problem = Unreachable("no answer")
    state.problem = "no answer <b>"
    site.recorded.cluster.note_change()
    text = await site.text("/jobs")
    assert "The API server does not answer" in text
    assert "no answer &lt;b&gt;" in text
    assert "waiting" in text
    site.server.problem, state.problem = None, ""
    assert "does not answer" not in await site.text("/jobs")


@pytest.mark.parametrize(
    ("action", "fields", "body"),
    [
        pytest.param("suspend", {}, {"runPolicy": {"suspend": True}}, id="suspend"),
        pytest.param(
            "scale",
            {"role": "worker", "replicas": "5"},
            {"pytorchReplicaSpecs": {"Worker": {"replicas": 5}}},
            id="scale",
        ),
        pytest.param(
            "move",
            {"queue": "vision"},
            {"runPolicy": {"schedulingPolicy": {"queue": "vision"}}},
            id="move",
        ),
    ],
)
async def test_action_changes_the_job_of_the_generation_and_is_recorded(
    site: Site, action: str, fields: dict[str, str], body: dict[str, Any]
) -> None:
    assert "2 replicas that run are stopped" in await site.text(f"{JOB}/actions/suspend")
    form = {"csrf": await site.csrf(), "generation": "1", **fields}
    async with site.client.post(f"{JOB}/actions/{action}", data=form) as answer:
        assert answer.status == 200, await answer.text()
    ((_, _, written),) = site.server.changes
    assert written["spec"] == body
    assert written["metadata"] == {"uid": "uid-default-running", "resourceVersion": "7"}
    (event,) = site.events.events
    assert event[:3] == ("running", "Normal", "DashboardAction")
    assert event[3].startswith(f"ann: {action}")


async def test_action_on_a_changed_specification_is_a_conflict_that_shows_the_change(
    site: Site,
) -> None:
    await site.text(f"{JOB}/actions/delete")
    site.recorded.job("running", condition("Running", 500), workers=9, generation=2)
    form = {"csrf": await site.csrf(), "generation": "1"}
    async with site.client.post(f"{JOB}/actions/delete", data=form) as answer:
        assert answer.status == 409
        text = await answer.text()
    assert '<span class="del">-      replicas: 2</span>' in text
    assert '<span class="add">+      replicas: 9</span>' in text
    assert site.server.changes == []
    assert site.events.events[0][1] == "Warning"


async def test_forms_of_other_sites_are_refused(site: Site) -> None:
    csrf = await site.csrf()
    for form, headers in (
        ({"generation": "1"}, {}),
        ({"generation": "1", "csrf": "x" * len(csrf)}, {}),
        ({"generation": "1", "csrf": csrf}, {"Origin": "https://evil.example"}),
        ({"generation": "1", "csrf": csrf}, {"Sec-Fetch-Site": "cross-site"}),
    ):
        async with site.client.post(f"{JOB}/actions/delete", data=form, headers=headers) as answer:
            assert answer.status == 403
    async with site.client.get(f"{JOB}/actions/delete") as answer:
        assert answer.status == 200  # reading changes nothing
    assert site.server.changes == []


async def test_buttons_and_actions_need_the_right_and_a_dashboard_that_writes(
    site: Site, make_site: MakeSite
) -> None:
    site.server.may = lambda asked: asked["verb"] != "delete"
    text = await site.text(JOB)
    assert f"{JOB}/actions/suspend" in text
    assert f"{JOB}/actions/delete" not in text
    form = {"csrf": await site.csrf(), "generation": "1"}
    async with site.client.post(f"{JOB}/actions/delete", data=form) as answer:
        assert answer.status == 403
        assert "verb delete on pytorchjobs" in await answer.text()
    other = await make_site(read_only=True)
    await other.log_in()
    assert "/actions/" not in await other.text(JOB)
    form["csrf"] = await other.csrf()
    async with other.client.post(f"{JOB}/actions/suspend", data=form) as answer:
        assert answer.status == 404
    assert site.server.changes == other.server.changes == []


async def test_job_of_a_hidden_namespace_does_not_differ_from_a_missing_one(
    make_site: MakeSite,
) -> None:
    site = await make_site()
    site.server.may = lambda asked: asked.get("namespace") == "default"
    await site.log_in()
    answers = []
    for name in ("secret", "absent"):
        async with site.client.get(f"/jobs/other/pytorchjob/{name}") as answer:
            answers.append((answer.status, (await answer.text()).replace(name, "NAME")))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404


async def test_logs_need_their_own_right(site: Site) -> None:
    site.server.may = lambda asked: asked.get("subresource") != "log"
    assert "verb get on pods/log" in await site.text(f"{JOB}/logs")
    for path in ("lines", "download"):
        async with site.client.get(f"{JOB}/logs/{path}") as answer:
            assert answer.status == 403


async def test_base_path_is_in_every_address(make_site: MakeSite) -> None:
    site = await make_site(base_path="/gangline")
    async with site.client.get(f"/gangline/jobs?token={site.token}") as answer:
        assert answer.url.path == "/gangline/jobs"
        text = await answer.text()
    addresses = re.findall(r'(?:href|src|action|connect)="(/[^"]*)"', text)
    assert len(addresses) > 15
    assert [address for address in addresses if not address.startswith("/gangline/")] == []


async def test_cluster_without_kinds_of_jobs_says_how_to_install_them(site: Site) -> None:
    (state,) = site.recorded.cluster.sources.values()
    state.synced, state.absent = False, True
    text = await site.text("/")
    assert "gangline deploy" in text
    state.absent = False
    assert "gangline deploy" not in await site.text("/")
