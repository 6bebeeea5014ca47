"""Writes the newest checkpoint in memory to storage; the agent runs it when workers fail."""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gangline.elastic.checkpoint import flush_job
from gangline.elastic.protocol.channel import read_job_secret
from gangline.elastic.protocol.client import BlockingClient, ClientIdentity
from gangline.elastic.protocol.messages import Acknowledged, JobEvent
from gangline.elastic.protocol.wire import MasterUnreachableError, RequestRefusedError
from gangline.elastic.variables import FLUSH_RESULT_VARIABLE, node_number

FLUSH_TIMEOUT_S = 600.0
_EVENT_TIMEOUT_S = 5.0


def main() -> int:
    steps = flush_job(os.environ, FLUSH_TIMEOUT_S)
    if result_file := os.environ.get(FLUSH_RESULT_VARIABLE):
        Path(result_file).write_text(json.dumps(steps), encoding="utf-8")
    node = node_number(os.environ)
    events = []
    for target, step in steps.items():
        result = "could not be written" if step is None else f"step {step} is in storage"
        print(f"gangline: checkpoint in {target}: {result}", file=sys.stderr, flush=True)
        reason = "CheckpointNotSaved" if step is None else "CheckpointSaved"
        about = int(node) if node.isdecimal() else None
        events.append(JobEvent(reason=reason, message=f"{target}: {result}", node_id=about))
    if events:
        _send_events(os.environ, events)
    return int(any(step is None for step in steps.values()))


def _send_events(environment: Mapping[str, str], events: list[JobEvent]) -> None:
    """Add events to the job's timeline, if a master answers."""
    address = environment.get("GANGLINE_MASTER_ADDR")
    if not address:
        return
    job = environment.get("TORCHELASTIC_RUN_ID", "")
    client = BlockingClient(address, read_job_secret(environment, job), ClientIdentity(job=job))
    with client, suppress(MasterUnreachableError, RequestRefusedError):
        for event in events:
            client.ask(event, Acknowledged, timeout_s=_EVENT_TIMEOUT_S)


if __name__ == "__main__":
    sys.exit(main())
