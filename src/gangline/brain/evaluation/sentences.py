"""Advice as published: its numbers as its sentence shows them, and the sentence."""

import logging
from typing import NamedTuple

from gangline.brain.advisers.advice import Advice, Reason
from gangline.brain.advisers.explain import displayed, displayed_reason, reason_sentence, sentence
from gangline.brain.publication.items import format_amount

log = logging.getLogger(__name__)


class PublishedAdvice(NamedTuple):
    """Advice with rounded numbers, so that JSON and sentence are equal."""

    advice: Advice
    sentence: str


def published(advice: Advice) -> PublishedAdvice:
    """Return advice as users see it. A reason without a sentence does not suppress the number."""
    try:
        shown = displayed(advice)
        return PublishedAdvice(shown, sentence(shown))
    except (KeyError, ValueError, TypeError):
        log.exception("a reason has no sentence", extra={"reason": advice.reason.code})
    subject = f"{advice.what} of {advice.role}" if advice.role else str(advice.what)
    value = format_amount(advice.value, advice.unit) or advice.target
    return PublishedAdvice(advice, f"{subject}: {value} ({advice.reason.code})")


def hold_sentence(reason: Reason | None) -> str:
    """Return a reason to hold; empty if there is none."""
    if reason is None:
        return ""
    try:
        return reason_sentence(displayed_reason(reason))
    except (KeyError, ValueError, TypeError):
        log.exception("a reason has no sentence", extra={"reason": reason.code})
        return reason.code
