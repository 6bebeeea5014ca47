"""The server: addresses, headers, errors, and what a request is answered with.

Every answer has the headers of ``SECURITY_HEADERS``; no page loads anything of another origin.
Reading needs a session; writing further the token of the session's forms, and no ``--read-only``.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from gangline.dashboard import actions, streams
from gangline.dashboard.login import sessions
from gangline.dashboard.logs import LogHub, SharedLog, chosen_replica
from gangline.dashboard.pages import (
    JOB,
    NAVIGATION,
    PAGES,
    Page,
    PageMissing,
    PageRefused,
    PageRequest,
    compute_usage,
    is_count,
)
from gangline.dashboard.rendering import (
    LANGUAGES,
    Renderer,
    choose_language,
    json_form,
    plain,
    read_assets,
)
from gangline.dashboard.rights import Question, Scope, Viewer, read_scope, readable
from gangline.dashboard.settings import DashboardSettings
from gangline.dashboard.sources import Sources
from gangline.dashboard.views.base import Observation, SeenJob, View
from gangline.dashboard.views.past import to_csv
from gangline.kube.errors import ApiError, Conflict, Forbidden, Unauthorized
from gangline.sdk.kinds import JOB_KINDS
from gangline.sdk.logs import LogLine

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        "object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
SCOPE_S = 1.0
"""How long what a viewer sees is used again; the answers behind it are remembered longer."""
STALE_SCOPE_S = 300.0
"""How long a viewer sees the last state while the API server is away."""
FIRST_READ_S = 0.5
LOG_WAIT_S = 1.0
SHOWN_LINES = 500
MAX_FORM = 64 * 1024
IN_LOOP = 128 * 1024
"""A larger page is compressed in a thread."""
SESSION: web.RequestKey[sessions.Session] = web.RequestKey("session", sessions.Session)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class BannerView(View, frozen=True):
    """What is said above every page."""

    problem: str = ""
    """Why the state is not current; empty if it is."""
    since: datetime | None = None
    is_loading: bool = False
    has_jobs: bool = True
    """False if the cluster has none of the kinds of jobs."""


class Dashboard:
    def __init__(
        self,
        settings: DashboardSettings,
        sources: Sources,
        login: sessions.Login,
        runner: actions.ActionRunner,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.settings = settings
        self.cluster = sources.cluster
        self.sources = sources
        self.login = login
        self.runner = runner
        self.clock = clock
        self.assets = read_assets()
        self.hub = LogHub(sources.client)
        self._following: set[asyncio.Task[Any]] = set()
        """Requests whose answer is a stream."""
        self._rendered = streams.RenderCache()
        self._renderers = {
            name: Renderer(name, self.assets, settings.base_path, clock) for name in LANGUAGES
        }

    def application(self) -> web.Application:
        app = web.Application(
            middlewares=[self._errors, self._authentication], client_max_size=MAX_FORM
        )
        app.on_response_prepare.append(_add_headers)
        base = self.settings.base_path
        get = app.router.add_get
        for page in PAGES:
            get(f"{base}{page.path}", self._page_handler(page))
            if page.parts:
                get(f"{base}{page.path.rstrip('/')}/stream", self._stream_handler(page))
        get(f"{base}/usage.csv", self._usage_csv)
        get(f"{base}{JOB}/logs/lines", self._log_stream)
        get(f"{base}{JOB}/logs/download", self._log_download)
        get(f"{base}{JOB}/actions/{{action}}", self._confirm)
        app.router.add_post(f"{base}{JOB}/actions/{{action}}", self._act)
        app.router.add_post(f"{base}/logout", self._logout)
        get(f"{base}/login", self._login_form)
        get(f"{base}/language", self._language)
        get(f"{base}/static/{{digest}}/{{name}}", self._static)
        for path in {"/healthz", "/readyz", f"{base}/healthz", f"{base}/readyz"}:
            get(path, self._health)
        return app

    # Middlewares, from the outside to the inside.

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            if error.status < 400 or error.content_type != "text/plain":
                raise
            return self._error(request, error.status, error.text or error.reason)
        except PageMissing as error:
            if self.cluster.has_synced:
                return self._error(request, 404, str(error))
            response = self._error(request, 503, str(error))
            response.headers["Refresh"] = "1"  # what is missing may not be read yet
            return response
        except (PageRefused, Forbidden) as error:
            return self._error(request, 403, str(error))
        except sessions.LoginRefused as error:
            return await self._login_form(request, str(error), status=401)
        except (actions.ActionRefused, Conflict) as error:
            return self._error(request, 409, str(error), getattr(error, "difference", ()))
        except Unauthorized:
            return await self._ended(request)
        except ApiError as error:
            return self._error(request, 503, str(error))

    @web.middleware
    async def _authentication(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        path = request.path.removeprefix(self.settings.base_path)
        if path in {"/healthz", "/readyz"}:
            return await handler(request)
        answer = await self.login.intercept(request)
        if answer is not None:
            return answer
        if path.startswith("/static/") or path in {"/login", "/language"}:
            return await handler(request)
        session = await self.login.authenticate(request)
        if session is None:
            return self._ask_to_log_in(request)
        request[SESSION] = session
        if request.method not in {"GET", "HEAD"}:
            await self._check_form(request, session)
        return await handler(request)

    async def _check_form(self, request: web.Request, session: sessions.Session) -> None:
        if session.csrf == sessions.NO_CSRF:
            return
        form = await sessions.read_form(request)
        site = request.headers.get("Sec-Fetch-Site", "same-origin")
        origin = request.headers.get("Origin", "")
        is_foreign = site not in {"same-origin", "none"} or (
            origin not in {"", "null"} and urlsplit(origin).netloc != request.host
        )
        if is_foreign or not sessions.is_same(str(form.get("csrf", "")), session.csrf):
            raise web.HTTPForbidden(
                text="this form is not of a page of your session: open the page again"
            )

    # What all pages share.

    async def _open(self, request: web.Request) -> PageRequest:
        """Return what a page is computed from; ``Unauthorized`` if the credentials have expired."""
        session = request[SESSION]
        viewer = await self.login.viewers.viewer(session.identity, session.name)
        async with viewer.scope_lock:  # the streams of one viewer ask at the same moment
            scope = await self._scope(viewer)
        query = {name: tuple(request.query.getall(name)) for name in request.query}
        seen = Observation(self.cluster, scope, self.clock(), viewer.name)
        return PageRequest(seen, viewer, self.sources, query, dict(request.match_info))

    async def _scope(self, viewer: Viewer) -> Scope:
        now = time.monotonic()
        if viewer.scope is not None and now - viewer.scope_read_at < SCOPE_S:
            return viewer.scope
        kinds = [readable(kind.resource) for kind in JOB_KINDS]
        namespaces = {
            readable(kind.resource): names for kind, names in self.cluster.namespaces().items()
        }
        try:
            viewer.scope = await read_scope(viewer.rights, kinds, namespaces)
        except (Unauthorized, Forbidden):
            raise
        except ApiError:
            # The API server is away. Until it is back the viewer sees the last state, as before.
            if viewer.scope is None or now - viewer.scope_read_at > STALE_SCOPE_S:
                raise
            return viewer.scope
        viewer.scope_read_at = now
        return viewer.scope

    def _renderer(self, request: web.Request) -> Renderer:
        chosen = request.cookies.get("gangline_language", "")
        language = choose_language(chosen, request.headers.get("Accept-Language", ""))
        return self._renderers[language]

    def _banner(self) -> BannerView:
        problem, sources = self.cluster.problem(), self.cluster.sources
        kinds = [f"{kind.resource.plural}.{kind.resource.group}" for kind in JOB_KINDS]
        return BannerView.of(
            problem,
            is_loading=not self.cluster.has_synced and problem is None,
            has_jobs=not all(sources[name].absent for name in kinds if name in sources)
            or sources.keys().isdisjoint(kinds),
        )

    def _html(
        self,
        request: web.Request,
        template: str,
        *,
        page: Page | None = None,
        status: int = 200,
        **values: Any,
    ) -> web.Response:
        session: sessions.Session | None = request.get(SESSION)
        path = request.path.removeprefix(self.settings.base_path)
        stream = f"{path.rstrip('/')}/stream" if page is not None and page.parts else ""
        renderer = self._renderer(request)
        banner = renderer.part("banner", self._banner())
        html = renderer.page(
            template,
            {**values.pop("parts", {}), "part-banner": banner},
            **{"view": None, "actions": (), **values},
            page=page,
            pages={one.name: one for one in PAGES},
            navigation=NAVIGATION,
            session=session,
            path=path or "/",
            here=request.path_qs,
            stream=stream,
            query={name: request.query.getall(name) for name in request.query},
            match=dict(request.match_info),
        )
        response = web.Response(
            text=html, content_type="text/html", status=status, zlib_executor_size=IN_LOOP
        )
        response.headers["Cache-Control"] = "no-store"
        response.headers["Vary"] = "Accept, Accept-Language, Cookie"
        response.enable_compression()
        return response

    def _error(
        self, request: web.Request, status: int, text: str, difference: tuple[str, ...] = ()
    ) -> web.Response:
        if wants_json(request):
            return web.json_response({"status": status, "message": text}, status=status)
        values: dict[str, Any] = {"error_status": status, "message": text, "difference": difference}
        return self._html(request, "error", status=status, **values)

    # Pages and their streams.

    def _page_handler(self, page: Page) -> Handler:
        async def show(request: web.Request) -> web.StreamResponse:
            # At the start a page waits for what it shows, but not for a large cluster.
            await streams.wait_until(self.cluster.wait_until_synced(), FIRST_READ_S)
            opened = await self._open(request)
            if wants_json(request):
                body = json_form(page.name.capitalize(), await page.compute(opened))
                return web.Response(body=body, content_type="application/json")
            values: dict[str, Any]
            if page.parts:
                rendered = await self._parts(page, request, opened)
                values = {"view": rendered.view, "parts": rendered.parts}
            else:
                values = {"view": await page.compute(opened)}
            if page.tab and not page.is_recorded:
                values["actions"] = await self._actions(opened.viewer, opened.job())
            if page.name == "logs":
                values |= await self._log_values(request)
            return self._html(request, page.template, page=page, **values)

        return show

    def _stream_handler(self, page: Page) -> Handler:
        async def follow(request: web.Request) -> web.StreamResponse:
            # The first reading is before the headers, so that a refusal has its status.
            parts = await self._parts(page, request, await self._open(request))
            sent: Mapping[str, str] = {}
            match = request.match_info
            job = (match["namespace"], match["kind"], match["name"]) if page.tab else None

            async def step(stream: streams.PageStream) -> Awaitable[Any]:
                nonlocal parts, sent
                if sent:
                    parts = await self._parts(page, request, await self._open(request))
                revision = parts.state[0]
                if news := parts.news(sent):
                    sent = parts.digests
                    await stream.send(news)
                return self.cluster.wait_for_change(revision, job)

            return await self._follow(request, step, eager=bool(page.tab))

        return follow

    async def _follow(
        self,
        request: web.Request,
        step: Callable[[streams.PageStream], Awaitable[Awaitable[Any] | None]],
        *,
        eager: bool = False,
    ) -> web.StreamResponse:
        """Open a stream. ``step`` sends what is new and returns what to wait for; None ends it."""
        stream, task = streams.PageStream(request), asyncio.current_task()
        assert task is not None
        self._following.add(task)
        try:
            await stream.open()
            while (news := await step(stream)) is not None:
                await stream.rest(news, eager=eager)
        except (Unauthorized, Forbidden, PageRefused, PageMissing) as error:
            # Rights were taken away, the token has expired, or the object is gone.
            await stream.send(streams.named("ended", type(error).__name__))
        except ConnectionError:
            pass  # the reader is gone
        finally:
            self._following.discard(task)
        return stream.response

    async def close(self) -> None:
        """End all streams: none of them would end by itself."""
        following = list(self._following)
        for task in following:
            task.cancel()
        await asyncio.gather(*following, self.hub.aclose(), return_exceptions=True)

    async def _parts(
        self, page: Page, request: web.Request, opened: PageRequest
    ) -> streams.RenderedParts:
        renderer = self._renderer(request)
        language = renderer.texts.language

        async def render() -> tuple[View, dict[str, str]]:
            view = await page.compute(opened)
            parts = {"banner": self._banner(), **dict.fromkeys(page.parts, view)}
            html = {f"part-{name}": renderer.part(name, shown) for name, shown in parts.items()}
            return view, html

        own = (opened.viewer.identity, opened.viewer.name)
        viewer = own if page.depends_on_viewer else None
        query = tuple(sorted(opened.query.items()))
        place = tuple(sorted(opened.match.items()))
        key = (page.name, place, query, opened.seen.scope.key, viewer, language)
        job = opened.job().entry if page.tab else None
        revision = job.revision if job else self.cluster.revision
        return await self._rendered.parts(key, revision, render)

    async def _usage_csv(self, request: web.Request) -> web.StreamResponse:
        view = await compute_usage(await self._open(request))
        if view.problem:
            raise web.HTTPServiceUnavailable(text=view.problem)
        return _download("usage.csv", to_csv(view), "text/csv")

    # Logs.

    async def _open_log(self, request: web.Request) -> tuple[SharedLog, str]:
        """Return a log and the replica that is read; ``PageRefused`` without the right to it."""
        opened = await self._open(request)
        job = opened.job().job
        if not await opened.viewer.rights.may(
            Question("get", "", "pods", job.namespace, subresource="log")
        ):
            raise PageRefused(
                f"you may not read logs in namespace {job.namespace!r}: that needs the verb get on "
                "pods/log"
            )
        replica = chosen_replica(job, request.query.get("replica", ""))
        previous = request.query.get("previous", "") == "1"
        return self.hub.open(job, replica, previous=previous), replica

    async def _first_lines(self, shared: SharedLog) -> tuple[list[LogLine], int]:
        with shared.read():
            await streams.wait_until(shared.wait(0), LOG_WAIT_S)
        return shared.since(0)

    async def _log_values(self, request: web.Request) -> dict[str, Any]:
        try:
            shared, replica = await self._open_log(request)
        except PageRefused as error:
            return {"lines": [], "replica": "", "log_refused": str(error), "log_stream": ""}
        lines, position = await self._first_lines(shared)
        text = request.query.get("q", "")
        matching = [line for line in lines if not text or text.lower() in line.text.lower()]
        path = request.path.removeprefix(self.settings.base_path)
        return {
            "lines": matching[-SHOWN_LINES:],
            "replica": replica,
            "log_refused": "",
            "log_problem": shared.problem,
            "log_stream": "" if shared.has_ended else f"{path}/lines",
            "log_position": position,
            "search": text,
            "previous": request.query.get("previous", "") == "1",
        }

    async def _log_stream(self, request: web.Request) -> web.StreamResponse:
        shared, _ = await self._open_log(request)
        given = request.headers.get("Last-Event-ID") or request.query.get("after", "0")
        position = int(given) if is_count(given) else 0
        text = request.query.get("q", "").lower()
        renderer = self._renderer(request)

        async def step(stream: streams.PageStream) -> Awaitable[Any] | None:
            nonlocal position
            await self._open_log(request)
            lines, position = shared.since(position)
            shown = [line for line in lines if not text or text in line.text.lower()]
            if shown:
                html = "".join(renderer.log_line(line) for line in shown)
                added = streams.message({"log-lines": html}, str(position), swap="beforeend")
                await stream.send(added)
            if shared.has_ended:
                await stream.send(streams.named("complete"))
                return None
            return shared.wait(position)

        with shared.read():
            return await self._follow(request, step)

    async def _log_download(self, request: web.Request) -> web.StreamResponse:
        shared, replica = await self._open_log(request)
        lines, _ = await self._first_lines(shared)
        text = "".join(f"{line.time} {line.replica} {plain(line.text)}\n" for line in lines)
        name = f"{request.match_info['name']}{f'-{replica}' if replica else ''}.log"
        return _download(name, text, "text/plain")

    # Actions.

    async def _actions(self, viewer: Viewer, shown: SeenJob) -> tuple[str, ...]:
        if self.settings.read_only:
            return ()
        try:
            return await actions.allowed_actions(viewer, shown.job)
        except (Unauthorized, Forbidden):
            raise
        except ApiError:
            return ()  # the API server is away

    async def _chosen(self, request: web.Request) -> tuple[PageRequest, SeenJob, actions.Action]:
        """Return job and action of an address, or refuse it."""
        opened = await self._open(request)
        shown = opened.job()
        action = actions.ACTIONS.get(request.match_info["action"])
        if action is None or self.settings.read_only:
            raise PageMissing("this dashboard is read-only" if action else "no such action")
        if not action.applies(shown.job):
            raise actions.ActionRefused(
                f"the job is {shown.job.state}: {action.name} is not possible now"
            )
        answers = await opened.viewer.rights.may_all(actions.questions(action, shown.job))
        if missing := [one for one, may in answers.items() if not may]:
            one = missing[0]
            raise PageRefused(
                f"you may not {action.name} this job: that needs the verb {one.verb} on "
                f"{one.resource} in namespace {one.namespace!r}"
            )
        return opened, shown, action

    async def _confirm(self, request: web.Request) -> web.StreamResponse:
        opened, shown, action = await self._chosen(request)
        generation = await self.runner.read(opened.viewer, shown.job)
        account = await self.sources.account(shown.job).get()
        queues = tuple(sorted(name for name in self.cluster.queues if name != "root"))
        view = actions.confirm_view(action, shown, generation, account, queues)
        if wants_json(request):
            return web.Response(body=json_form("Confirm", view), content_type="application/json")
        return self._html(request, "confirm", view=view)

    async def _act(self, request: web.Request) -> web.StreamResponse:
        opened, shown, action = await self._chosen(request)
        form = await sessions.read_form(request)
        generation = str(form.get("generation", ""))
        if not is_count(generation):
            raise web.HTTPBadRequest(text="generation: the form must bring the generation along")
        value = str(form.get(action.field, "")) if action.field else ""
        if action.field == "replicas" and (role := str(form.get("role", ""))):
            value = f"{role}={value}"
        confirmed = actions.ActionRequest(action, opened.viewer, shown.job, int(generation), value)
        await self.runner.run(confirmed)
        if wants_json(request):
            return web.json_response({"status": 200, "message": action.name})
        target = "/jobs" if action.name == "delete" else shown.row().path
        return sessions.see_other(f"{self.settings.base_path}{target}?done={action.name}")

    # Logging in and out, language, files, health.

    def _ask_to_log_in(self, request: web.Request) -> web.StreamResponse:
        if wants_json(request) or _is_stream(request):
            return web.json_response({"status": 401, "message": "log in first"}, status=401)
        if not self.login.login_path or request.method != "GET":
            return self._html(request, "login", status=401, problem="", next="", form=False)
        next_path = self._renderers["en"].url(self.login.login_path, next=request.path_qs)
        return sessions.see_other(next_path)

    async def _ended(self, request: web.Request) -> web.StreamResponse:
        """Answer a viewer whose credentials are no longer valid."""
        if session := request.get(SESSION):
            self.login.sessions.end_all_of(session.identity)
        if wants_json(request) or _is_stream(request) or not self.login.login_path:
            return self._error(request, 401, "the API server no longer accepts your credentials")
        return await self._login_form(request, "login.expired", status=401)

    async def _login_form(
        self, request: web.Request, problem: str = "", status: int = 200
    ) -> web.StreamResponse:
        return self._html(
            request,
            "login",
            status=status,
            problem=problem,
            next=self._next(request),
            form=bool(self.login.login_path),
            mode=str(self.settings.auth),
        )

    async def _logout(self, request: web.Request) -> web.StreamResponse:
        path = self.login.login_path or "/"
        response = sessions.see_other(f"{self.settings.base_path}{path}")
        self.login.sessions.end(request, response)
        return response

    def _next(self, request: web.Request) -> str:
        """Return the path of this server at which the viewer goes on."""
        given = request.query.get("next", "")
        return sessions.local_path(given, f"{self.settings.base_path}/")

    async def _language(self, request: web.Request) -> web.StreamResponse:
        response = sessions.see_other(self._next(request))
        if (chosen := request.query.get("to", "")) in LANGUAGES:
            response.set_cookie(
                "gangline_language", chosen, path=self.settings.base_path or "/",
                max_age=31_536_000, samesite="Lax",
            )  # fmt: skip
        return response

    async def _static(self, request: web.Request) -> web.StreamResponse:
        asset = self.assets.get(request.match_info["name"])
        if asset is None or not request.path.endswith(asset.path):
            raise web.HTTPNotFound(text="no such file")
        response = web.Response(body=asset.content, content_type=asset.content_type)
        response.charset = "utf-8"
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        response.enable_compression()
        return response

    async def _health(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/readyz") and not self.cluster.has_synced:
            return web.Response(text="starting", status=503)
        return web.Response(text="ok")


def wants_json(request: web.Request) -> bool:
    accepted = request.headers.get("Accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def _download(name: str, text: str, content_type: str) -> web.Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return web.Response(text=text, content_type=content_type, headers=headers)


def _is_stream(request: web.Request) -> bool:
    return "text/event-stream" in request.headers.get("Accept", "")


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    for name, value in SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)
