"""Sentences of advice and of reasons to hold, for users."""

from gangline.brain.advisers.advice import Advice, Reason
from gangline.brain.advisers.view import SimilarRuns
from gangline.brain.facts.records import Run
from gangline.brain.publication.items import format_amount


def sentence(advice: Advice, run: Run, similar: SimilarRuns | None) -> str:
    """Return the advice and its reason as one text."""
    subject = f"{advice.what.replace('_', ' ')} of {advice.role}" if advice.role else advice.what
    if advice.value is None:
        return f"{subject}: {advice.target or advice.reason.code}"
    was = format_amount(advice.was, advice.unit)
    return (
        f"{subject}: {format_amount(advice.value, advice.unit)}"
        f"{f' instead of {was}' if was else ''} ({advice.reason.code})"
    )


def hold_sentence(reason: Reason | None) -> str:
    """Return a reason to hold; empty if there is none."""
    if reason is None:
        return ""
    arguments = ", ".join(f"{key}={value}" for key, value in sorted(reason.arguments.items()))
    return f"{reason.code} ({arguments})" if arguments else reason.code
