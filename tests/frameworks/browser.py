"""A page in a browser without a window, over the debugging protocol of Chromium.

Nothing but the browser itself is needed: it is asked for text of the page, those of its components'
own trees included, and for a picture of it.
"""

import asyncio
import base64
import shutil
import struct
import subprocess
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

from integration.cluster.embedded import until

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--window-size=1280,900", "--remote-debugging-port=0",
)  # fmt: skip
STARTS_WITHIN_S = 120.0
TEXT = """(() => {
  const texts = [];
  const walk = (node) => {
    if (node.nodeType === Node.TEXT_NODE) texts.push(node.data);
    if (node.shadowRoot) walk(node.shadowRoot);
    node.childNodes.forEach(walk);
  };
  walk(document.body);
  return texts.join(' ');
})()"""


def chromium() -> str | None:
    """The browser of this machine, if it has one."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Page:
    """What a browser shows."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = count(1)

    async def text(self) -> str:
        """All text of the page."""
        return str(await self.value(TEXT))

    async def value(self, expression: str) -> Any:
        """What an expression of the page's own language comes to."""
        asked = {"expression": expression, "returnByValue": True}
        return (await self._ask("Runtime.evaluate", asked))["result"].get("value")

    async def picture(self) -> bytes:
        """The page as a PNG."""
        return base64.b64decode((await self._ask("Page.captureScreenshot", {}))["data"])

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while (answer := await self._socket.receive_json()).get("id") != number:
            continue  # an event that nobody asked for
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result


@asynccontextmanager
async def opened_page(browser: str, address: str, folder: Path) -> AsyncIterator[Page]:
    """Open an address in a browser that knows nothing yet and is ended afterwards.

    Args:
        browser: the program.
        address: what to open.
        folder: for what the browser keeps; empty.
    """
    log = folder.with_suffix(".log")
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(browser, *FLAGS, f"--user-data-dir={folder}", address),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        async with aiohttp.ClientSession(raise_for_status=True) as session:

            async def target() -> str:
                note = folder / "DevToolsActivePort"
                assert process.returncode is None, log.read_text()
                if not note.exists() or not (port := note.read_text().partition("\n")[0]):
                    return ""
                async with session.get(f"http://127.0.0.1:{port}/json") as found:
                    pages = [each for each in await found.json() if each["type"] == "page"]
                return str(pages[0]["webSocketDebuggerUrl"]) if pages else ""

            where = await until(target, STARTS_WITHIN_S)
            async with session.ws_connect(where, max_msg_size=0) as socket:
                yield Page(socket)
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), 60)


def shades(picture: bytes) -> int:
    """How many different values the bytes of a PNG's points have: a blank one's have two or so."""
    packed, position = b"", 8
    while position < len(picture):
        length, kind = struct.unpack_from(">I4s", picture, position)
        if kind == b"IDAT":
            packed += picture[position + 8 : position + 8 + length]
        position += length + 12
    return len(set(zlib.decompress(packed)))
