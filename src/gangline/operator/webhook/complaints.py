"""What is wrong for a while is said once, and again only when it has changed or come back."""

import logging


class Complaints:
    """Remembers what has been said about what."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: dict[str, str] = {}

    def say(self, about: str, text: str) -> None:
        """Warn, unless that has been said already."""
        if self._said.get(about) != text:
            self._said[about] = text
            self._log.warning("%s", text)

    def settle(self, about: str) -> None:
        """Note that nothing is wrong any more."""
        self._said.pop(about, None)
