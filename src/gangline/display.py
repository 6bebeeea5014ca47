"""Values in notebooks, terminals and messages: HTML and plain text of headings, tables, errors.

HTML uses the light or dark colours of the notebook. Every text is escaped, because texts come from
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
MAX_PLAIN_CELL = 80
"""Limit of a cell of a plain table in characters."""


def heading(name: str, state: str, facts: Iterable[str] = ()) -> str:
    """Return a name with its coloured state, followed by the facts; empty ones are left out."""
    title = f"<b>{escape(name)}</b>{f' {_coloured(state)}' if state else ''}"
    return " · ".join([title, *(escape(fact) for fact in facts if fact)])


def error_text(error: BaseException) -> str:
    """Return what an error says, or its type if it says nothing."""
    return str(error) or type(error).__name__


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


def plain_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table of plain text with aligned columns; long cells are cut."""
    lines = [tuple(head), *(tuple(map(_plain_cell, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def preformatted(text: str) -> str:
    """Return a block of preformatted text."""
    return f"<pre>{escape(text)}</pre>"


def bullets(items: Sequence[str]) -> str:
    """Return a list of items; an empty text without items."""
    rows = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{rows}</ul>" if rows else ""


def _plain_cell(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= MAX_PLAIN_CELL else f"{text[: MAX_PLAIN_CELL - 1]}…"


def _cell(value: object) -> str:
    text = str(value)
    return f"<td>{_coloured(text) if text in _COLOURS else escape(text)}</td>"


def _coloured(state: str) -> str:
    return f'<b style="color:{_COLOURS.get(state, _GREY)}">{escape(state)}</b>'
