"""Pages, parts and JSON from view models: templates with auto-escape, and texts in two languages.

``parts/NAME.html`` is a part of a page and sent again by its stream, so both are always the same.
Texts of components (reasons, messages, log lines) are shown as they are; of log lines the ANSI
colours are elements with classes, and every other escape sequence is dropped.

Scripts and the style sheet are served with a digest of their content in the address, for ever.
Libraries are fetched when the package is built (``tools/fetch_assets.py``). Every page can be read
and used without them, so one that is missing is only reported.
"""

import hashlib
import logging
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from gangline.api.figures import format_figure, plain_number
from gangline.dashboard.views.base import View
from gangline.sdk.logs import LogLine
from gangline.sdk.progress import format_clock

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


_SEQUENCE = re.compile(r"\x1b\[([0-9;]{0,32})m")
_OTHER = re.compile(
    r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)?|\[[0-?]*[ -/]*[@-~]?|[@-_])|[\x00-\x08\x0b-\x1f\x7f]"
)
_CLASSES = {
    "1": "b", "2": "dim", "3": "i", "4": "u",
    **{str(30 + n): f"c{n}" for n in range(8)},
    **{str(90 + n): f"c{n}" for n in range(8)},
}  # fmt: skip
"""The sequences that are shown. Backgrounds are not: they would need colours of their own."""


def coloured(line: str) -> Markup:
    """Return a log line with its colours; all text is escaped."""
    parts: list[Markup] = []
    active: list[str] = []
    at = 0
    for match in _SEQUENCE.finditer(line):
        parts.append(_span(line[at : match.start()], active))
        at = match.end()
        for code in (match[1] or "0").split(";"):
            if code in {"", "0"}:
                active = []
            elif code in {"39", "22"}:
                active = [name for name in active if not name.startswith("c") and name != "b"]
            elif (name := _CLASSES.get(code)) is not None:
                active = [one for one in active if one[0] != "c" or name[0] != "c"] + [name]
    parts.append(_span(line[at:], active))
    return Markup("").join(parts)


def _span(text: str, classes: list[str]) -> Markup:
    shown = escape(_OTHER.sub("", text))
    if not classes or not shown:
        return shown
    return Markup('<span class="{}">{}</span>').format(" ".join(f"a-{c}" for c in classes), shown)


def plain(line: str) -> str:
    return _OTHER.sub("", _SEQUENCE.sub("", line))


LANGUAGES = {"en": "English", "zh": "中文"}
API_VERSION = "dashboard.gangline.dev/v1"
_UNITS = ((86_400, "days"), (3_600, "hours"), (60, "minutes"), (1, "seconds"))


class Texts:
    """The catalogue of one language; a text that it lacks is taken from English."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._texts = {**_catalogue("en"), **_catalogue(language)}

    def __call__(self, key: str, count: float | None = None, **values: object) -> Any:
        """Return a text with its values, which are escaped, in the form for a count."""
        text = self._texts.get(key, key)
        if isinstance(text, Mapping):
            text = text["one"] if count == 1 and "one" in text else text["other"]
        if count is not None:
            values["n"] = format_figure(count)
        return Markup(escape(text)).format(**values) if values else text


@cache
def _catalogue(language: str) -> dict[str, Any]:
    path = files("gangline.dashboard").joinpath("texts", f"{language}.toml")
    return tomllib.loads(path.read_text("utf-8"))


def choose_language(chosen: str, accepted: str) -> str:
    """Return the language that was chosen, else the one that a browser prefers of those here."""
    if chosen in LANGUAGES:
        return chosen
    ranges = re.findall(r"([a-z]+)[\w-]*\s*(?:;\s*q=([01](?:\.\d*)?))?", accepted.lower())
    # Of zh-CN and zh the first one counts.
    weights = {name: float(weight or 1) for name, weight in reversed(ranges) if name in LANGUAGES}
    return max(weights, key=weights.__getitem__, default="en")


@lru_cache(4096)
def _quote(path: str) -> str:
    return quote(path, safe="/:@")


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("gangline.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )


class Renderer:
    def __init__(
        self,
        language: str,
        assets: Mapping[str, Asset],
        base_path: str = "",
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.texts = Texts(language)
        self._assets = assets
        self._base_path = base_path
        self._clock = clock

    @cached_property
    def _shared(self) -> dict[str, Any]:
        """What all templates use: macros as ``m``, texts as ``t``, functions."""
        shared = {
            "t": self.texts,
            "lang": self.texts.language,
            "languages": LANGUAGES,
            "url": self.url,
            "asset": lambda name: self.url(self._assets[name].path) if name in self._assets else "",
            "assets": self._assets,
            "when": self.when,
            "ago": self.ago,
            "span": self.span,
            "clock": format_clock,
            "figure": format_figure,
            "share": lambda value: f"{value:.1%}",
            "cores": lambda milli: plain_number(round(milli / 1000, 1)),
            "gib": lambda value: plain_number(round(value / 2**30, 1)),
            "coloured": coloured,
        }
        return {**shared, "m": _environment().get_template("macros.html").make_module(shared)}

    def url(self, path: str, **query: Any) -> str:
        """Return an address of this server, with parameters that are not empty."""
        given = {name.rstrip("_"): value for name, value in query.items() if value}
        address = f"{self._base_path}{_quote(path)}"
        return f"{address}?{urlencode(given, doseq=True)}" if given else address

    def ago(self, at: datetime | None) -> str:
        if at is None:
            return ""
        seconds = (self._clock() - at).total_seconds()
        return str(self.texts("time.ago", span=self.span(max(0.0, seconds))))

    def when(self, at: datetime | None) -> Markup:
        """Return a time as an element: relative, and absolute as its title."""
        if at is None:
            return Markup("")
        return Markup('<time datetime="{}" title="{}">{}</time>').format(
            at.astimezone(UTC).isoformat(timespec="seconds"),
            at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            self.ago(at),
        )

    def span(self, seconds: float) -> str:
        size, name = next(unit for unit in _UNITS if seconds >= unit[0] or unit[0] == 1)
        return str(self.texts(f"time.{name}", int(seconds // size)))

    def page(self, name: str, parts: Mapping[str, str], **values: Any) -> str:
        """Return a page; ``parts`` are those that are rendered already, by their ids."""

        def part(name: str) -> Markup:
            return Markup(parts.get(f"part-{name}") or self.part(name, values["view"]))

        return self._render(f"pages/{name}.html", {**values, "part": part})

    def part(self, name: str, view: object) -> str:
        """Return an element with the id ``part-NAME``."""
        content = self._render(f"parts/{name}.html", {"view": view})
        return f'<div id="part-{name}">{content}</div>'

    def _render(self, path: str, values: Mapping[str, Any]) -> str:
        return _environment().get_template(path).render(**self._shared, **values)

    def log_line(self, line: LogLine) -> str:
        return str(self._shared["m"].log_line(line))


def json_form(kind: str, view: View) -> bytes:
    content = msgspec.to_builtins(view, enc_hook=str)
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": kind, **content})
