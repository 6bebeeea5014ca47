"""Pages, parts and JSON from view models: templates with auto-escape, and texts in two languages.

``parts/NAME.html`` is included by a page and sent again by its stream, so both are always
the same. Texts of components (reasons, messages, log lines) are shown as they are.
"""

import tomllib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache, cached_property
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from gangline.api.figures import format_figure, plain_number
from gangline.dashboard.ansi import coloured
from gangline.dashboard.assets import Asset
from gangline.dashboard.views.base import View
from gangline.sdk.logs import LogLine
from gangline.sdk.progress import format_clock

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
    """Return the language that was chosen, else the first known one that a browser accepts."""
    if chosen in LANGUAGES:
        return chosen
    weighted = []
    for part in accepted.split(","):
        name, _, parameter = part.partition(";")
        try:
            weight = float(parameter.partition("q=")[2] or 1)
        except ValueError:
            weight = 0.0
        weighted.append((-weight, name.strip().lower().partition("-")[0]))
    known = [name for _, name in sorted(weighted, key=lambda one: one[0]) if name in LANGUAGES]
    return known[0] if known else "en"


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
        address = f"{self._base_path}{quote(path, safe='/:@')}"
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

    def span(self, seconds: float | None) -> str:
        if seconds is None:
            return ""
        for size, name in _UNITS:
            if seconds >= size or size == 1:
                return str(self.texts(f"time.{name}", int(seconds // size)))
        return ""

    def page(self, name: str, **values: Any) -> str:
        return self._render(f"pages/{name}.html", values)

    def part(self, name: str, view: object) -> str:
        return self._render(f"parts/{name}.html", {"view": view})

    def _render(self, path: str, values: Mapping[str, Any]) -> str:
        return _environment().get_template(path).render(**self._shared, **values)

    def log_line(self, line: LogLine) -> str:
        return str(self._shared["m"].log_line(line))


def json_form(kind: str, view: View) -> bytes:
    content = msgspec.to_builtins(view, enc_hook=str)
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": kind, **content})
