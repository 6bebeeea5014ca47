"""Known failures by their lines in logs, with meaning and remedy; the documentation lists them all.

``symptoms.toml`` is read at the first failure that is explained, ``pending_causes.toml`` for jobs
that wait. A line that only reports the loss of another replica is a consequence: the cause is
searched at other replicas first.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from gangline.api.failure import Blame


@dataclass(frozen=True, slots=True)
class Symptom:
    """A kind of failure that a log line shows."""

    cause: str
    """One CamelCase word; stable, for programs."""
    pattern: re.Pattern[str]
    blame: Blame
    meaning: str
    remedy: str
    consequence: bool = False
    """The line reports that another replica failed before."""


@cache
def symptoms() -> Sequence[Symptom]:
    """Return the table. The first symptom that matches a line counts."""
    return _read_table("symptoms.toml")


@cache
def pending_causes() -> Sequence[Symptom]:
    """Return why jobs are pending, by messages. The first cause that matches one counts."""
    return _read_table("pending_causes.toml")


def _read_table(name: str) -> Sequence[Symptom]:
    text = resources.files(__package__).joinpath(name).read_text("utf-8")
    return [
        Symptom(
            cause,
            re.compile("|".join(entry.pop("patterns"))),
            Blame(entry.pop("blame")),
            **entry,
        )
        for cause, entry in tomllib.loads(text).items()
    ]


def find_symptom(text: str) -> tuple[Symptom, str] | None:
    """Return the symptom at the end of a log, and its line; None if no pattern matches.

    Causes come before consequences. An error whose line only reports the loss of another replica is
    a consequence, whatever its name.
    """
    matches = list(_matches(text))
    lines = {line for symptom, line in matches if symptom.consequence}
    causes = [match for match in matches if not match[0].consequence and match[1] not in lines]
    return next(iter([*causes, *matches]), None)


def _matches(text: str) -> Iterator[tuple[Symptom, str]]:
    for symptom in symptoms():
        for match in symptom.pattern.finditer(text):
            line = _line_at(text, match.start(), match.end())
            if symptom.cause == "PythonError" and _is_consequence(line):
                continue
            yield symptom, line
            break


def _is_consequence(line: str) -> bool:
    return any(symptom.consequence and symptom.pattern.search(line) for symptom in symptoms())


def _line_at(text: str, start: int, end: int) -> str:
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    return text[first : len(text) if last < 0 else last].strip()
