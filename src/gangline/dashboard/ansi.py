"""ANSI colours of log lines as elements with classes; every other escape sequence is dropped."""

import re

from markupsafe import Markup, escape

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
    if "\x1b" not in line:
        return escape(_OTHER.sub("", line))
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
