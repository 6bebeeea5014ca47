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
    content: bytes = field(repr=False)
    content_type: str
    path: str
    """Its address, which changes with its content."""


def read_assets() -> dict[str, Asset]:
    """Return the files that pages load, by name."""
    folder = files("gangline.dashboard").joinpath("static")
    assets: dict[str, Asset] = {}
    for name in (*OWN, *LIBRARIES):
        try:
            content = folder.joinpath(name).read_bytes()
        except FileNotFoundError:
            log.warning("pages are not live: %s is missing from the package", name)
            continue
        digest = hashlib.sha256(content).hexdigest()[:16]
        assets[name] = Asset(content, TYPES[name.rpartition(".")[2]], f"/static/{digest}/{name}")
    return assets
