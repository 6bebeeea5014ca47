"""Advice and reasons as sentences, and sentences back to their numbers.

A sentence begins with what is advised, as in ``memory of worker: 11.3Gi (10.2Gi to 12.6Gi) instead
of 32Gi.``; the sentence of the reason follows. ``displayed`` rounds all numbers of an advice as its
sentence shows them: what is published as JSON and what people read are then equal.
"""

import re
from functools import cache

import msgspec

from gangline.brain.advisers.advice import Advice, Reason, Unit, What
from gangline.brain.advisers.quantities import KINDS, QuantityKind, Value, kind_of
from gangline.brain.advisers.sentences import TEMPLATES

_TOKEN = re.compile(r"\{(\w+):([^}]+)\}|\[(\+?[^\]]*)\]")
_SUBJECTS = {
    What.WORKERS: "workers",
    What.MEMORY: "memory",
    What.CPU: "CPU",
    What.MICRO_BATCH: "micro-batch",
    What.GLOBAL_BATCH: "global batch",
    What.LOADER_WORKERS: "data loader processes",
    What.CHECKPOINT_INTERVAL: "checkpoint interval",
    What.PS_COUNT: "number of servers",
    What.PS_CPU: "server CPU",
    What.PS_MEMORY: "server memory",
    What.NODE: "node",
    What.WARNING: "warning",
}
_UNITS = {
    Unit.COUNT: KINDS["number"],
    Unit.BYTES: KINDS["bytes"],
    Unit.MILLICORES: KINDS["millicores"],
    Unit.SECONDS: KINDS["seconds"],
}
_ANY = "|".join(f"(?:{kind.pattern})" for kind in reversed(_UNITS.values()))
_NAME = KINDS["name"].pattern
_HEAD = re.compile(
    rf"(?P<what>{'|'.join(map(re.escape, _SUBJECTS.values()))})"
    rf"(?: of (?P<role>{_NAME}))?(?: rank (?P<rank>\d+))?(?: on (?P<target>{_NAME}))?"
    rf"(?:: (?P<value>{_ANY})(?: \((?P<low>{_ANY}) to (?P<high>{_ANY})\))?"
    rf"(?: instead of (?P<was>{_ANY}))?)?\. "
)


class ParsedSentence(msgspec.Struct, frozen=True, kw_only=True):
    """What a sentence of an advice says."""

    what: What
    role: str
    rank: int | None
    target: str
    was: float | None
    value: float | None
    low: float | None
    high: float | None
    reason: Reason


def sentence(advice: Advice) -> str:
    """Return the sentence of an advice.

    Raises:
        KeyError: the code of its reason has no sentence, or an argument is missing.
    """
    head = _SUBJECTS[advice.what]
    if advice.role:
        head += f" of {advice.role}"
    if advice.rank is not None:
        head += f" rank {advice.rank}"
    if advice.target and not _is_implied(advice):
        head += f" on {advice.target}"
    if advice.value is not None:
        kind = _UNITS[advice.unit]
        head += f": {kind.text(advice.value)}"
        if advice.low is not None and advice.high is not None:
            head += f" ({kind.text(advice.low)} to {kind.text(advice.high)})"
        if advice.was is not None:
            head += f" instead of {kind.text(advice.was)}"
    return f"{head}. {reason_sentence(advice.reason)}"


def parse_sentence(text: str) -> ParsedSentence:
    """Parse what ``sentence`` wrote.

    Raises:
        ValueError: the text is not the sentence of an advice.
    """
    match = _HEAD.match(text)
    if match is None:
        raise ValueError(f"not the sentence of an advice: {text!r}")
    what = next(what for what, subject in _SUBJECTS.items() if subject == match["what"])
    reason = parse_reason(text[match.end() :])
    return ParsedSentence(
        what=what,
        role=match["role"] or "",
        rank=None if match["rank"] is None else int(match["rank"]),
        target=match["target"] or (reason.code if what is What.WARNING else ""),
        was=_quantity(match["was"]),
        value=_quantity(match["value"]),
        low=_quantity(match["low"]),
        high=_quantity(match["high"]),
        reason=reason,
    )


def displayed(advice: Advice) -> Advice:
    """Return the advice with all numbers rounded as its sentence shows them."""
    kind = _UNITS[advice.unit]
    shown = advice.value is not None
    ranged = shown and advice.low is not None and advice.high is not None

    def rounded(value: float | None, show: bool) -> float | None:
        return _quantity(kind.text(value)) if show and value is not None else None

    return msgspec.structs.replace(
        advice,
        was=rounded(advice.was, shown),
        value=rounded(advice.value, shown),
        low=rounded(advice.low, ranged),
        high=rounded(advice.high, ranged),
        reason=displayed_reason(advice.reason),
    )


def reason_sentence(reason: Reason) -> str:
    """Return the sentence of a reason.

    Raises:
        KeyError: the code has no sentence, or an argument is missing.
    """
    return _fill(TEMPLATES[reason.code], reason.arguments)


def parse_reason(text: str) -> Reason:
    """Parse what ``reason_sentence`` wrote.

    Raises:
        ValueError: the text is the sentence of no reason.
    """
    for code in TEMPLATES:
        pattern, kinds = _compiled(code)
        match = pattern.fullmatch(text)
        if match is not None:
            found = {key: kinds[key].read(value) for key, value in _found(match)}
            return Reason(code=code, arguments=found)
    raise ValueError(f"not the sentence of a reason: {text!r}")


def displayed_reason(reason: Reason) -> Reason:
    """Return the reason with its arguments as its sentence shows them."""
    _, kinds = _compiled(reason.code)
    shown = _shown(TEMPLATES[reason.code], reason.arguments)
    rounded = {key: kinds[key].read(kinds[key].text(reason.arguments[key])) for key in shown}
    return Reason(code=reason.code, arguments=rounded)


def _is_implied(advice: Advice) -> bool:
    """The target of a warning is the code of its reason, which the sentence shows."""
    return advice.what is What.WARNING and advice.target == advice.reason.code


def _quantity(text: str | None) -> float | None:
    if text is None:
        return None
    for kind in reversed(_UNITS.values()):
        if re.fullmatch(kind.pattern, text):
            value = kind.read(text)
            return value if isinstance(value, float) else float(str(value))
    raise ValueError(f"not a quantity: {text!r}")


def _found(match: re.Match[str]) -> list[tuple[str, str]]:
    return [(key, value) for key, value in match.groupdict().items() if value is not None]


def _fill(template: str, arguments: dict[str, Value]) -> str:
    def replace(token: re.Match[str]) -> str:
        key, kind, group = token.groups()
        if group is None:
            return kind_of(kind).text(arguments[key])
        shown = _has_all(group, arguments)
        return _fill(group.removeprefix("+"), arguments) if shown else ""

    return _TOKEN.sub(replace, template)


def _shown(template: str, arguments: dict[str, Value]) -> list[str]:
    keys = []
    for key, _, group in _TOKEN.findall(template):
        if key:
            keys.append(key)
        elif _has_all(group, arguments):
            keys += [inner for inner, _, _ in _TOKEN.findall(group)]
    return keys


def _has_all(group: str, arguments: dict[str, Value]) -> bool:
    keys = [key for key, _, _ in _TOKEN.findall(group)]
    if any(key not in arguments for key in keys):
        return False
    values = (arguments[key] for key in keys)
    return not group.startswith("+") or all(_is_positive(value) for value in values)


def _is_positive(value: Value) -> bool:
    return not isinstance(value, int | float) or value > 0


@cache
def _compiled(code: str) -> tuple[re.Pattern[str], dict[str, QuantityKind]]:
    """The regular expression of a template, and the kind of each of its arguments."""
    kinds: dict[str, QuantityKind] = {}

    def expression(template: str) -> str:
        parts, end = [], 0
        for token in _TOKEN.finditer(template):
            parts.append(re.escape(template[end : token.start()]))
            end = token.end()
            key, kind, group = token.groups()
            if group is not None:
                parts.append(f"(?:{expression(group.removeprefix('+'))})?")
            else:
                kinds[key] = kind_of(kind)
                parts.append(f"(?P<{key}>{kinds[key].pattern})")
        return "".join([*parts, re.escape(template[end:])])

    return re.compile(expression(TEMPLATES[code])), kinds
