"""HTML for notebooks, built from plain values: a heading with a state, notes, tables, lists.

It uses the light or dark colours of the notebook. Every text is escaped, because texts come from
the cluster: the message of a pod must not become markup.
"""

from collections.abc import Iterable, Sequence
from html import escape

_COLOURS = {
    "RUNNING": "#1a73e8",
    "SUCCEEDED": "#188038",
    "FAILED": "#d93025",
    "RESTARTING": "#e37400",
    "QUEUING": "#e37400",
}
_GREY = "#80868b"


def heading(name: str, state: str, facts: Iterable[str] = ()) -> str:
    """Return a name with its coloured state, followed by the facts that are not empty."""
    title = f"<b>{escape(name)}</b> {_coloured(state)}"
    return " · ".join([title, *(escape(fact) for fact in facts if fact)])


def paragraph(text: str) -> str:
    """Return escaped text."""
    return escape(text)


def note(text: str) -> str:
    """Return a text in italics."""
    return f"<i>{escape(text)}</i>"


def lines(parts: Iterable[str]) -> str:
    """Return rendered parts one below the other; empty parts are skipped."""
    return "<br>".join(filter(None, parts))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; a cell that is the name of a job state gets its colour."""
    top = "".join(f"<th>{escape(word)}</th>" for word in head)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def preformatted(text: str) -> str:
    """Return a block of preformatted text."""
    return f"<pre>{escape(text)}</pre>"


def bullets(items: Sequence[str]) -> str:
    """Return a list of items; an empty text without items."""
    rows = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{rows}</ul>" if rows else ""


def _cell(value: object) -> str:
    text = str(value)
    return f"<td>{_coloured(text) if text in _COLOURS else escape(text)}</td>"


def _coloured(state: str) -> str:
    return f'<b style="color:{_COLOURS.get(state, _GREY)}">{escape(state)}</b>'
