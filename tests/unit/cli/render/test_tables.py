"""Tables on terminals of 80, 120 and 200 columns, and without a limit."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.cli.render.tables import (
    ELLIPSIS,
    GAP,
    GIVE_WAY,
    MIN_CELL,
    MIN_TEXT,
    fit_text,
    layout,
    text_width,
)

HEAD = [
    *("NAMESPACE", "NAME", "STATUS", "TRAINER", "DURATION", "GPU(Requested)", "GPU(Allocated)"),
    *("NODE", "RUNNING", "AGE", "QUEUE", "PRIORITY", "REASON"),
]
ROWS = [
    [
        *("research", "resnet-50-imagenet", "QUEUING", "PYTORCHJOB", "0s", "64", "0", "N/A"),
        *("0/8", "3m", "vision", "high"),
        "queue 'vision' has 48 of 64 GPUs in use; 2 gangs are ahead: bert-large and gpt-small",
    ],
    [
        *("default", "digits", "SUCCEEDED", "PYTORCHJOB", "12s", "0", "N/A", "node-0"),
        *("0/2", "5d", "default", "N/A", "N/A"),
    ],
]
COLOUR = re.compile(r"\x1b\[\d+m")

RED = f"\x1b[31m{20 * 'x'}\x1b[0m"
"""A word of twenty columns, with a colour."""

SNAPSHOTS = Path(__file__).parent / "snapshots"


def plain(table: str) -> str:
    return COLOUR.sub("", table)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_columns_give_way_and_reasons_continue(width: int) -> None:
    expected = (SNAPSHOTS / f"jobs_at_{width}.txt").read_text()
    assert plain(layout(HEAD, ROWS, width=width)) + "\n" == expected


def test_without_a_width_a_row_is_one_plain_line() -> None:
    table = layout(HEAD, ROWS)
    assert len(table.splitlines()) == 3
    assert plain(table) == table


def test_states_have_colours_only_in_their_columns() -> None:
    table = layout(["NAME", "STATUS"], [["FAILED", "FAILED"]], width=80)
    assert table.splitlines()[1] == "FAILED  \x1b[31mFAILED\x1b[0m"


def test_columns_stay_aligned_behind_east_asian_text() -> None:
    assert layout(["NAME", "AGE"], [["训练", "3m"], ["digits", "5d"]]).splitlines() == [
        "NAME    AGE",
        "训练    3m",
        "digits  5d",
    ]
    assert text_width("训练") == 4


words = st.text("abcdefgh-'", min_size=1, max_size=12)
sentences = st.lists(words, min_size=1, max_size=20).map(" ".join)
columns = st.lists(st.sampled_from(GIVE_WAY), unique=True, max_size=8)


@given(st.integers(MIN_TEXT + 20, 200), columns, st.data())
def test_table_fits_and_no_word_is_lost_or_broken(
    width: int, names: list[str], data: st.DataObject
) -> None:
    head = ["NAME", *names, "REASON"]
    row = [data.draw(words) for _ in head[:-1]]
    reason = data.draw(sentences)
    shown, first, *further = plain(layout(head, [[*row, reason]], width=width)).splitlines()
    assert max(map(len, (shown, first, *further))) <= width
    start = shown.index("REASON")
    assert " ".join(line[start:] for line in (first, *further)).split() == reason.split()
    kept = shown.split()
    assert kept == [name for name in head if name in kept]


@given(st.integers(30, 200), st.lists(words.map(lambda word: word * 3), min_size=2, max_size=5))
def test_cells_that_do_not_fit_are_cut_with_an_ellipsis(width: int, cells: list[str]) -> None:
    head = [*(f"NAME{index}" for index in range(len(cells) - 1)), "CAUSE"]
    lines = plain(layout(head, [[*cells[:-1], "one two three " * 9]], width=width)).splitlines()
    narrowest = [max(len("NAME0"), min(len(cell), MIN_CELL)) + GAP for cell in cells[:-1]]
    fixed = sum(narrowest) + MIN_TEXT
    assert max(map(len, lines)) <= max(width, fixed)
    for shown, cell in zip(lines[1].split(), cells[:-1], strict=False):
        start, cut, end = shown.partition(ELLIPSIS)
        assert cell.startswith(start)
        assert cell.endswith(end) if cut else shown == cell


def test_long_lines_break_between_words_but_commands_stay_in_one_piece() -> None:
    lines = ["a sentence that is too long", "  with an indented line below it"]
    lines += ["Reason:  it is a reason of many words", "  gangline logs digits -f", RED]
    assert fit_text("\n".join(lines), 20).splitlines() == [
        "a sentence that is",
        "too long",
        "  with an indented",
        "  line below it",
        "Reason:  it is a",
        "         reason of",
        "         many words",
        "  gangline logs digits -f",
        RED,
    ]


def test_long_words_of_a_sentence_stay_whole_and_names_keep_their_ends() -> None:
    name = "digits-with-a-very-long-name-worker-17"
    rows = [[f"pod/{name}", f"Created pod {name}"]]
    _, first, second = layout(["OBJECT", "MESSAGE"], rows, width=80).splitlines()
    assert first.split() == ["pod/digits-with-a-very-long-nam…orker-17", "Created", "pod"]
    assert second.split() == [name]
