"""Sends facts to a Brain outside of a cluster, in a thread of its own.

Neither the master nor a worker waits for it: a queue of bounded length drops its oldest element.
"""

import logging
import os
import threading
import urllib.error
import urllib.request
from collections import deque
from http import HTTPStatus

from gangline.elastic.master.settings import check_brain_url

log = logging.getLogger(__name__)

TOKEN_VARIABLE = "GANGLINE_BRAIN_TOKEN"
"""Names the variable with a bearer token for the Brain; may be unset."""
QUEUE_LENGTH = 100
TIMEOUT_S = 1.0
RETRY_S = 5.0


class BrainSink:
    """Posts facts to ``URL/v1/facts``."""

    def __init__(self, url: str, token: str | None = None) -> None:
        """Start the thread.

        Args:
            token: a bearer token; None for the one of the environment, if any.

        Raises:
            BrainUrlError: it is no URL of a web server.
        """
        self._url = f"{check_brain_url(url)}/v1/facts"
        self._token = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
        self._queue: deque[bytes] = deque(maxlen=QUEUE_LENGTH)
        self._changed = threading.Condition()
        self._is_closed = False
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="brain", daemon=True)
        self._thread.start()

    async def publish(self, facts: bytes) -> bool:
        """Queue facts; the oldest element of a full queue is dropped."""
        self.put(facts)
        return True

    def put(self, facts: bytes) -> None:
        with self._changed:
            self._queue.append(facts)
            self._changed.notify()

    def close(self, timeout_s: float = 2 * TIMEOUT_S) -> None:
        """Send what is queued, for at most ``timeout_s``; each element gets one attempt."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closed)
                if not self._queue:
                    return
                facts = self._queue.popleft()
            if not self._post(facts):
                with self._changed:
                    if len(self._queue) < QUEUE_LENGTH and not self._is_closed:
                        self._queue.appendleft(facts)
                    self._changed.wait_for(lambda: self._is_closed, RETRY_S)

    def _post(self, facts: bytes) -> bool:
        """Send once; return False if another attempt may help."""
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self._url, facts, headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                pass
        except urllib.error.HTTPError as error:
            self._failed(f"HTTP {error.code}")
            error.close()
            return error.code < HTTPStatus.INTERNAL_SERVER_ERROR
        except (OSError, ValueError) as error:
            self._failed(str(error))
            return False
        self._is_failing = False
        return True

    def _failed(self, reason: str) -> None:
        if not self._is_failing:
            log.warning("facts cannot be sent to the Brain", extra={"reason": reason})
        self._is_failing = True
