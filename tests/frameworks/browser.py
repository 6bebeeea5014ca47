"""Debian's Chromium, driven by Playwright: pages as a user sees them."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Page, async_playwright

FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


def chromium() -> Path | None:
    """The browser of this machine; None if it has none (Playwright would download one)."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    return Path(found) if found else None


@asynccontextmanager
async def opened_page(browser: Path, address: str) -> AsyncIterator[Page]:
    """Open an address in a new browser, which is closed afterwards."""
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(
            executable_path=browser, args=FLAGS, chromium_sandbox=False, timeout=120_000
        )
        async with started:
            page = await started.new_page(viewport={"width": 1280, "height": 900})
            page.set_default_timeout(120_000)
            await page.goto(address)
            yield page
