"""The site of the documentation in a browser: search, labels, width, and addresses that were used.

`make test-site` runs it. The search is the site's own, with the index that the build wrote.
Takes half a minute: it builds the site and starts a browser.
"""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import pytest_asyncio
from playwright.async_api import Page

from frameworks.browser import chromium, opened_page

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(chromium() is None, reason="no chromium on this machine"),
    pytest.mark.asyncio(loop_scope="module"),
]


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of the site, and its folder."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]
    subprocess.run([*build, str(folder)], cwd=ROOT, check=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=folder)) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page(site: tuple[str, Path]) -> AsyncIterator[Page]:
    browser = chromium()
    assert browser is not None
    async with opened_page(browser, site[0]) as opened:
        yield opened


@pytest.mark.parametrize(
    ("start", "query", "expected"),
    [
        ("", "why is my job pending", "scheduler/pending/"),
        ("", "jupyter", "sdk/"),
        ("", "gangline submit", "reference/commands/submit/"),
        ("", "preemption", "scheduler/preemption/"),
        ("getting-started.zh/", "任务一直等待", "scheduler/pending.zh/"),
        ("getting-started.zh/", "断点续训", "checkpoints.zh/"),
        ("getting-started.zh/", "jupyter", "sdk.zh/"),
        ("getting-started.zh/", "webhook", "operator/"),  # not translated
    ],
)
async def test_search_finds_the_page_among_the_first_three(
    site: tuple[str, Path], page: Page, start: str, query: str, expected: str
) -> None:
    address, _ = site
    await page.goto(f"{address}/{start}")
    await page.locator(".md-search__input").fill(query)
    results = page.locator(".md-search-result__item > a")
    await results.first.wait_for()
    links = await results.evaluate_all("links => links.map(link => link.href.split('?')[0])")
    assert f"{address}/{expected}" in links[:3]


@pytest.mark.parametrize(
    ("path", "placeholder", "following", "contents", "home"),
    [
        ("checkpoints/", "Search", "Next", "Table of contents", "Home"),
        ("checkpoints.zh/", "搜索", "下一页", "目录", "首页"),
    ],
)
async def test_labels_and_navigation_have_the_language_of_the_page(
    site: tuple[str, Path],
    page: Page,
    path: str,
    placeholder: str,
    following: str,
    contents: str,
    home: str,
) -> None:
    await page.goto(f"{site[0]}/{path}")
    assert await page.locator(".md-search__input").get_attribute("placeholder") == placeholder
    assert following in await page.locator(".md-footer__link--next").inner_text()
    assert contents in await page.locator(".md-nav--secondary").first.inner_text()
    assert await page.locator(".md-tabs__link").first.inner_text() == home
    links = page.locator(".md-select__link")
    assert {await link.get_attribute("href") for link in await links.all()} >= {
        "./" if path == "checkpoints/" else "../checkpoints/",
        "./" if path == "checkpoints.zh/" else "../checkpoints.zh/",
    }


async def test_no_page_is_wider_than_the_screen(site: tuple[str, Path], page: Page) -> None:
    """Blocks wrap or scroll within the page; none is cut."""
    address, folder = site
    await page.route("**/search_index.json", lambda route: route.abort())  # costs most of a visit
    cut = []
    for file in sorted(folder.rglob("index.html")):
        await page.goto(f"{address}/{file.parent.relative_to(folder)}/")
        for width, height in ((390, 844), (1280, 900)):
            await page.set_viewport_size({"width": width, "height": height})
            await page.wait_for_function(TABLES_SCROLL)
            cut += await page.evaluate(CUT, width)
    await page.unroute_all()
    assert cut == []


TABLES_SCROLL = """() =>
    document.querySelectorAll(".md-content table:not([class])").length ==
    document.querySelectorAll(".md-typeset__scrollwrap table").length"""
"""The theme's script has made each table scroll."""
CUT = """width => {
    const wide = document.documentElement.scrollWidth > width ? [location.href] : []
    const blocks = [...document.querySelectorAll(".md-content pre > code")]
    return wide.concat(blocks.filter(block =>
        block.scrollWidth > block.clientWidth && getComputedStyle(block).overflowX != "auto"
    ).map(block => location.href + ": " + block.textContent))
}"""


@pytest.mark.parametrize(
    ("path", "anchors"),
    [
        ("reference/commands/", ["gangline-submit-pytorch", "gangline-list"]),
        ("scheduler/", ["why-is-it-pending", "queues", "saves-before-an-eviction", "metrics"]),
    ],
)
async def test_addresses_of_pages_that_were_divided_still_lead_somewhere(
    site: tuple[str, Path], page: Page, path: str, anchors: list[str]
) -> None:
    await page.goto(f"{site[0]}/{path}")
    for anchor in anchors:
        assert await page.locator(f"[id='{anchor}']").count() == 1
