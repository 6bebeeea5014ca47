"""Requests of the agent to a training process: save after the present step, and stop there.

Two files beside the progress file (``GANGLINE_PROGRESS_FILE``). The agent writes ``save-request``
with the id of the request and the longest stop in seconds. ``Checkpointer`` writes ``save-reply``:
empty once it looks for requests, then the id and the saved step. The process then waits until the
agent removes the request, so that no later step is lost by the eviction that follows. Only the
standard library is used here.
"""

import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gangline.elastic.progress import PROGRESS_VARIABLE

_REQUEST = "save-request"
_REPLY = "save-reply"
_POLL_S = 0.02
MAX_HOLD_S = 600.0
"""A process never stops for longer, whatever the file says."""


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """A request, as a training process reads it."""

    id: str
    hold_s: float


class SaveOrders:
    """A training process's end; without an agent it has nothing to do."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        progress = environment.get(PROGRESS_VARIABLE)
        self._request = Path(progress).with_name(_REQUEST) if progress else None
        self._reply = Path(progress).with_name(_REPLY) if progress else None
        self._replied = ""

    @property
    def is_enabled(self) -> bool:
        """False if no agent started this process."""
        return self._request is not None

    def announce(self) -> None:
        """Announce that this process looks for requests at each step."""
        if self._reply is not None:
            with contextlib.suppress(OSError):
                self._reply.touch()

    def pending(self) -> SaveOrder | None:
        """Return the request that this process has not answered; a few microseconds."""
        order = self._read()
        return order if order is not None and order.id != self._replied else None

    def _read(self) -> SaveOrder | None:
        if self._request is None:
            return None
        try:
            content: Any = json.loads(self._request.read_bytes())
            return SaveOrder(str(content["id"]), min(float(content["hold_s"]), MAX_HOLD_S))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def reply(self, order: SaveOrder, step: int) -> None:
        """Report that a complete save of this step is in memory."""
        self._replied = order.id
        if self._reply is not None:
            with contextlib.suppress(OSError):
                _replace(self._reply, {"id": order.id, "step": step})

    def hold(self, order: SaveOrder) -> float:
        """Wait until the request is withdrawn or its time is over; return the seconds."""
        begin = time.monotonic()
        while time.monotonic() - begin < order.hold_s:
            present = self._read()
            if present is None or present.id != order.id:
                break
            time.sleep(_POLL_S)
        return time.monotonic() - begin


def _replace(path: Path, content: dict[str, Any]) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(json.dumps(content), encoding="utf-8")
    new.replace(path)


def write_order(progress: Path, order: SaveOrder) -> None:
    """Ask the process with this progress file for a save.

    Raises OSError: the file cannot be written.
    """
    _replace(progress.with_name(_REQUEST), {"id": order.id, "hold_s": order.hold_s})


def withdraw_order(progress: Path) -> None:
    """Let the process with this progress file continue."""
    with contextlib.suppress(OSError):
        progress.with_name(_REQUEST).unlink(missing_ok=True)


def takes_orders(progress: Path) -> bool:
    """Return whether the process looks for requests."""
    return progress.with_name(_REPLY).exists()


def replied_step(progress: Path, order_id: str) -> int | None:
    """Return the step that the process has saved for this request; None: it has not yet."""
    try:
        content: Any = json.loads(progress.with_name(_REPLY).read_bytes())
        return int(content["step"]) if content["id"] == order_id else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
