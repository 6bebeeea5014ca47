"""Warnings about lasting problems: logged once, and again only after a change."""

import logging


class Complaints:
    """Remembers the last warning about each subject."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: dict[str, str] = {}

    def say(self, about: str, text: str) -> None:
        """Log a warning, unless it equals the last one about the subject."""
        if self._said.get(about) != text:
            self._said[about] = text
            self._log.warning("%s", text)

    def settle(self, about: str) -> None:
        """Record that a problem is resolved."""
        self._said.pop(about, None)
