"""Scripts and the style sheet: served with a digest of their content in the address, for ever.

Libraries are fetched when the package is built (``tools/fetch_assets.py``). Every page can be read
and used without them, so one that is missing is only reported.
"""

import hashlib
import logging
from dataclasses import dataclass, field
from importlib.resources import files

log = logging.getLogger(__name__)

OWN = ("style.css", "page.js", "curves.js", "icon.svg")
LIBRARIES = ("htmx.min.js", "hx-sse.min.js", "uplot.min.js", "uplot.min.css")
TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    name: str
    content: bytes = field(repr=False)
    digest: str

    @property
    def content_type(self) -> str:
        return TYPES[self.name.rpartition(".")[2]]


class Assets:
    def __init__(self) -> None:
        folder = files("gangline.dashboard").joinpath("static")
        self._assets: dict[str, Asset] = {}
        for name in (*OWN, *LIBRARIES):
            try:
                content = folder.joinpath(name).read_bytes()
            except FileNotFoundError:
                log.warning("pages are not live: %s is missing from the package", name)
                continue
            digest = hashlib.sha256(content).hexdigest()[:16]
            self._assets[name] = Asset(name, content, digest)

    def has(self, name: str) -> bool:
        return name in self._assets

    def path(self, name: str) -> str:
        """Return the address of a file, which changes with its content; empty if it is missing."""
        asset = self._assets.get(name)
        return f"/static/{asset.digest}/{name}" if asset else ""

    def find(self, digest: str, name: str) -> Asset | None:
        """Return the file of an address; None if there is none."""
        asset = self._assets.get(name)
        return asset if asset is not None and asset.digest == digest else None
