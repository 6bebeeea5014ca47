"""Tables and texts that fit a width.

Columns give way by priority, then texts continue on further lines, then other cells are cut with an
ellipsis. Words are never broken. Without a width, as in pipes and files, every column is printed,
and a row is one line.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap
from unicodedata import combining, east_asian_width

GAP = 2
"""Spaces between columns."""

TEXTS = frozenset(("REASON", "MESSAGE", "WHY", "CAUSE", "DESCRIPTION"))
"""Columns of sentences. They continue on further lines, broken between words."""
MIN_TEXT = 20
"""Narrowest column of sentences; with less, another column gives way."""
MIN_CELL = 8
"""Narrowest column of other cells, whose ends are cut at last."""
ELLIPSIS = "…"
END = 8
"""Characters at the end of a longer cell that stay."""

GIVE_WAY = (
    "UNKNOWN", "COMPLETED", "DEQUEUE", "RECLAIMABLE", "PARENT", "INQUEUE", "WEIGHT", "COUNT",
    "IS_CHIEF", "GPU(Mode)", "VOLUME", "STORAGECLASS", "ACCESSMODE", "OWNER", "PRIORITY",
    "ROLE", "CPU(Allocated)", "MEMORY(Allocated)", "PODS", "MEMORY(Used)", "IPADDRESS",
    "GPU(Allocated)", "GPU(Requested)", "CONFIDENCE", "RESTARTS", "ENDED", "QUEUE", "TRAINER",
    "KIND", "AGE", "SOURCE", "NODE", "DURATION", "CPU(Used)", "RUNNING", "WORKERS", "TYPE",
    "NAMESPACE",
)  # fmt: skip
"""Columns that are left out if a table is too wide, the first one first. Others always stay."""

COLOURS = {
    "SUCCEEDED": 32, "Succeeded": 32, "Ready": 32, "Open": 32, "RUNNING": 36, "Running": 36,
    "FAILED": 31, "Failed": 31, "NotReady": 31, "Lost": 31, "PENDING": 33, "QUEUING": 33,
    "Pending": 33, "RESTARTING": 33, "Warning": 33, "SUSPENDED": 2, "Closed": 2,
}  # fmt: skip
"""ANSI attributes of states (ECMA-48): green, cyan, red, yellow, faint."""
_START = re.compile(r"\s*(?:[A-Z]\w*:\s{2,})?")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
STATES = frozenset(("STATUS", "STATE", "OUTCOME", "TYPE"))
"""Columns whose states have colours on a terminal."""


def layout(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    width: int | None = None,
    indent: str = "",
) -> str:
    """Return rows under a header, left-aligned.

    Args:
        head: names of the columns.
        rows: the cells, without line breaks.
        width: columns of the terminal; None for no limit and no colours.
        indent: begins every line.
    """
    lines = [list(head), *(list(row) for row in rows)]
    if width is None:
        return "\n".join(_text_lines(lines, _widths(lines), indent))
    width -= len(indent)
    kept = _columns_that_fit(head, _widths(lines), width)
    lines = [[line[index] for index in kept] for line in lines]
    widths = _narrowed(lines, width)
    return "\n".join(_coloured_lines(lines, widths, indent))


def fit_text(text: str, width: int) -> str:
    """Break lines that are wider than a terminal between words.

    Further lines have the indent of their line, or of the text behind ``Name: ``. A line that is a
    command or a line of a log stays in one piece.
    """
    return "\n".join(_fitted_lines(text.split("\n"), width))


def _fitted_lines(lines: Iterable[str], width: int) -> Iterator[str]:
    for line in lines:
        start = _START.match(line)
        assert start is not None
        head, words = start[0], line[start.end() :]
        is_whole = words.startswith(("gangline ", "kubectl ", "helm ", "| "))
        if is_whole or text_width(_COLOUR.sub("", line)) <= width:
            yield line
            continue
        first, *further = _wrapped(words, width - len(head))
        yield head + first
        yield from (f"{' ' * len(head)}{part}" for part in further)


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes; East Asian characters take two."""
    if text.isascii():
        return len(text)
    return sum(
        0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1
        for character in text
    )


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [_column_width(column) for column in zip(*lines, strict=True)]


def _column_width(column: Sequence[str]) -> int:
    # Almost every column is ASCII, and the length of its longest cell takes a tenth of the time.
    return max(map(len if "".join(column).isascii() else text_width, column))


def _columns_that_fit(head: Sequence[str], widths: Sequence[int], width: int) -> list[int]:
    """Return the indices of the columns that stay."""
    kept = list(range(len(head)))
    for name in GIVE_WAY:
        if _needed(head, widths, kept) <= width:
            break
        kept = [index for index in kept if head[index] != name]
    return kept


def _needed(head: Sequence[str], widths: Sequence[int], kept: Sequence[int]) -> int:
    """Return the narrowest width of a table with these columns, without cutting cells."""
    narrowest = (min(widths[i], MIN_TEXT) if head[i] in TEXTS else widths[i] for i in kept)
    return sum(narrowest) + GAP * (len(kept) - 1)


def _narrowed(lines: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return widths that fit: first sentences become narrower, then the widest other columns."""
    head, narrowed = lines[0], _widths(lines)
    least = [
        max(MIN_TEXT, min(_longest_word(column), width // 2)) if name in TEXTS else MIN_CELL
        for name, column in zip(head, zip(*lines, strict=True), strict=True)
    ]
    for is_text in (True, False):
        columns = [i for i, name in enumerate(head) if (name in TEXTS) is is_text]
        columns = [i for i in columns if head[i] not in STATES]
        while sum(narrowed) + GAP * (len(head) - 1) > width:
            columns = [i for i in columns if narrowed[i] > least[i]]
            if not columns:
                break
            narrowed[max(columns, key=narrowed.__getitem__)] -= 1
    return narrowed


def _longest_word(column: Sequence[str]) -> int:
    return max((text_width(word) for text in column for word in text.split()), default=0)


def _text_lines(
    lines: Sequence[Sequence[str]], widths: Sequence[int], indent: str
) -> Iterator[str]:
    if all(map(str.isascii, map("".join, lines))):
        # One format for a line takes a third of the time of padding each cell.
        form = indent.replace("%", "%%") + "".join(f"%-{width + GAP}s" for width in widths)
        for line in lines:
            yield (form % tuple(line)).rstrip()
        return
    for line in lines:
        yield indent + "".join(map(_padded, line, widths)).rstrip()


def _coloured_lines(
    lines: Sequence[Sequence[str]], widths: Sequence[int], indent: str
) -> Iterator[str]:
    head = lines[0]
    for line in lines:
        cells = (
            _wrapped(text, width) if name in TEXTS else [_cut(text, width)]
            for name, text, width in zip(head, line, widths, strict=True)
        )
        for row in zip_longest(*cells, fillvalue=""):
            yield indent + "".join(map(_cell, head, row, widths)).rstrip()


def _cut(text: str, width: int) -> str:
    """Return a text that fits, with an ellipsis in place of what is cut off.

    A longer text keeps its end too: names of pods differ there.
    """
    if text_width(text) <= width:
        return text
    end = text[-END:] if width > 2 * END else ""
    while text_width(text) > width - len(ELLIPSIS) - text_width(end):
        text = text[:-1]
    return f"{text}{ELLIPSIS}{end}"


def _wrapped(text: str, width: int) -> list[str]:
    """Break a text between words; a longer word stays in one piece."""
    return wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _cell(column: str, text: str, width: int) -> str:
    padded = _padded(text, width)
    attribute = COLOURS.get(text) if column in STATES else None
    if attribute is None:
        return padded
    return f"\x1b[{attribute}m{text}\x1b[0m{padded[len(text) :]}"


def _padded(text: str, width: int) -> str:
    if text.isascii():
        return text.ljust(width + GAP)
    return text + " " * (width - text_width(text) + GAP)
