"""The dashboard in Debian's Chromium, on a recorded cluster: live, without script, accessible.

`make test-dashboard` runs it. The rules of accessibility are those of axe-core, whose archive is
fetched from the npm registry and checked against its hash.
"""

import io
import tarfile
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, async_playwright, expect

from frameworks.browser import FLAGS, chromium
from gangline.dashboard.rendering import LIBRARIES
from unit.dashboard.conftest import MakeSite, Site
from unit.dashboard.observed_state import condition
from unit.tool_modules import load_tool

AXE = "https://registry.npmjs.org/axe-core/-/axe-core-4.14.1.tgz"
AXE_HASH = (
    "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r7"
    "6ASyFNNtuFooJpZe37OgudVGtQ=="
)
JOB = "/jobs/default/pytorchjob"
PAGES = (
    "/", "/jobs", "/queues", "/nodes", "/nodes/node-1", f"{JOB}/running", f"{JOB}/running/replicas",
    f"{JOB}/running/spec", f"{JOB}/failed", f"{JOB}/waiting", f"{JOB}/running/actions/scale",
    f"{JOB}/running/actions/delete", "/history", "/usage", "/compare", "/nothing",
)  # fmt: skip

expect.set_options(timeout=30_000)

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(chromium() is None, reason="no chromium on this machine"),
]


@asynccontextmanager
async def opened(site: Site, **context: Any) -> AsyncIterator[Page]:
    """Log in with a new browser."""
    async with AsyncExitStack() as stack:
        playwright = await stack.enter_async_context(async_playwright())
        browser = await playwright.chromium.launch(
            executable_path=chromium(), args=FLAGS, chromium_sandbox=False, timeout=120_000
        )
        stack.push_async_callback(browser.close)
        page = await (await browser.new_context(**context)).new_page()
        page.set_default_timeout(60_000)
        await page.goto(address(site, f"/?token={site.token}"))
        yield page


def address(site: Site, path: str) -> str:
    return str(site.client.make_url(path))


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core."""
    try:
        with urllib.request.urlopen(AXE, timeout=60) as answer:
            content = answer.read()
    except OSError as error:
        pytest.skip(f"axe-core cannot be fetched: {error}")
    load_tool("fetch_assets").check(content, AXE_HASH)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


async def test_changes_are_seen_without_a_reload_and_a_pause_stops_them(
    make_site: MakeSite,
) -> None:
    site = await make_site()
    missing = [name for name in LIBRARIES if name not in site.dashboard.assets]
    assert missing == [], "tools/fetch_assets.py fetches them"
    problems: list[str] = []
    async with opened(site) as page:
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        await page.goto(address(site, "/jobs"))
        search = page.get_by_role("searchbox")
        await search.fill("half a wo")
        site.recorded.job("fresh", condition("Running", 1), age_s=1)
        await expect(page.get_by_role("link", name="fresh", exact=True)).to_be_visible()
        assert await search.input_value() == "half a wo"  # what the user does is kept
        await page.get_by_role("button", name="Pause updates").click()
        site.recorded.job("later", condition("Running", 1), age_s=1)
        await expect(page.get_by_role("button", name="Go on with updates")).to_be_visible()
        assert await page.get_by_role("link", name="later", exact=True).count() == 0
        await page.get_by_role("button", name="Go on with updates").click()
        await expect(page.get_by_role("link", name="later", exact=True)).to_be_visible()
    assert problems == []


async def test_end_of_rights_is_said_on_the_open_page(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.dashboard.rights.REMEMBER_S", 0.0)
    monkeypatch.setattr("gangline.dashboard.server.SCOPE_S", 0.0)
    site = await make_site()
    async with opened(site) as page:
        await page.goto(address(site, "/nodes"))
        await expect(page.get_by_role("heading", level=1)).to_have_text("Nodes")
        site.server.may = lambda asked: asked["resource"] != "nodes"
        site.recorded.cluster.note_change()
        await expect(page.locator("#ended")).to_be_visible()


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
async def test_job_is_suspended_after_its_loss_was_named(make_site: MakeSite, script: bool) -> None:
    site = await make_site()
    async with opened(site, java_script_enabled=script) as page:
        await page.get_by_role("link", name="Jobs", exact=True).first.click()
        await page.get_by_role("link", name="running", exact=True).click()
        await page.get_by_role("link", name="Suspend").click()
        await expect(page.get_by_text("2 replicas that run are stopped")).to_be_visible()
        assert site.server.changes == []
        await page.get_by_role("button", name="Suspend").click()
        await expect(page.get_by_role("status").filter(has_text="Done.")).to_be_visible()
    ((_, _, change),) = site.server.changes
    assert change["spec"] == {"runPolicy": {"suspend": True}}


@pytest.mark.parametrize(
    "colours",
    [
        pytest.param({"color_scheme": "light"}, id="light"),
        pytest.param({"color_scheme": "dark"}, id="dark"),
        pytest.param({"color_scheme": "dark", "forced_colors": "active"}, id="forced colours"),
    ],
)
async def test_pages_break_no_rule_of_accessibility(
    make_site: MakeSite, axe: str, colours: dict[str, Any]
) -> None:
    site = await make_site()
    broken: list[tuple[str, str, str]] = []
    async with opened(site, bypass_csp=True, **colours) as page:
        for path in PAGES:
            await page.goto(address(site, path))
            await page.evaluate(axe)
            result = await page.evaluate("axe.run({resultTypes: ['violations']})")
            broken += [
                (path, violation["id"], violation["nodes"][0]["html"])
                for violation in result["violations"]
            ]
    assert broken == []


async def test_pages_fit_a_narrow_screen_and_are_used_by_keyboard(
    make_site: MakeSite, tmp_path: Path
) -> None:
    site = await make_site()
    async with opened(site, viewport={"width": 320, "height": 640}) as page:
        for path in PAGES:
            await page.goto(address(site, path))
            width = await page.evaluate("document.documentElement.scrollWidth")
            assert width <= 320, path
        await page.goto(address(site, "/jobs"))
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.className") == "skip"
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.id") == "main"
        await page.screenshot(path=tmp_path / "jobs.png", full_page=True)
