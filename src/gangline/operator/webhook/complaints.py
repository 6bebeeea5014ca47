"""Warnings about lasting problems: logged once, and again only after a change."""

import logging


class DeduplicatedWarnings:
    """Remembers the last warning about each subject."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._logged: dict[str, str] = {}

    def warn(self, subject: str, text: str) -> None:
        """Log a warning, unless it equals the last one about the subject."""
        if self._logged.get(subject) != text:
            self._logged[subject] = text
            self._log.warning("%s", text)

    def clear(self, subject: str) -> None:
        """Record that a problem is resolved."""
        self._logged.pop(subject, None)
