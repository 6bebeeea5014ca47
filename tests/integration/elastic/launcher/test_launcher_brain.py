"""`gangline run --brain`: facts are posted, and no Brain delays the training."""

import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gangline.elastic.master.facts.brain_client import QUEUE_LENGTH, BrainSink
from integration.elastic.launcher.conftest import Run

pytestmark = pytest.mark.slow

TRAIN = """
    import os, pathlib, time
    progress = pathlib.Path(os.environ["GANGLINE_PROGRESS_FILE"])
    for step in range(1, 101):
        progress.write_text(f"step {step}\\nfirst_step 1\\nbatch_size 8\\n")
        time.sleep(0.04)
    print("trained", flush=True)
"""


class Brain:
    """A web server that records what is posted."""

    def __init__(self, status: int = 200) -> None:
        posts: list[tuple[str, str, dict[str, Any]]] = []
        changed = threading.Condition()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with changed:
                    kind = self.headers["Content-Type"]
                    posts.append((self.path, kind, json.loads(body)))
                    changed.notify_all()
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.posts, self._changed = posts, changed
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def until(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.posts) >= count, 60), self.posts

    @contextmanager
    def serving(self) -> Iterator["Brain"]:
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


@pytest.fixture
def brain() -> Iterator[Brain]:
    with Brain().serving() as server:
        yield server


Launch = Callable[..., Run]


@pytest.fixture
def train(script: Callable[[str], Path]) -> Path:
    return script(TRAIN)


def check(facts: dict[str, Any], procs: int) -> None:
    assert (facts["v"], facts["namespace"], facts["name"]) == (1, "default", "job")
    assert len(facts["uid"]) == 32
    segment = facts["segments"][0]
    assert (segment["quality"], segment["procs"], segment["microBatch"]) == ("warm_up", procs, 8)
    assert facts["segments"][-1]["stepLast"] > 90
    assert facts["pods"][0]["peakMemoryBytes"] > 1 << 20


def test_job_of_one_node_sends_its_facts(launch: Launch, brain: Brain, train: Path) -> None:
    run = launch("--brain", brain.url, "--rdzv-id", "job", "--no-standby", train)
    assert run.wait() == 0, run.output
    path, kind, facts = brain.posts[-1]
    assert (path, kind) == ("/v1/facts", "application/json")
    check(facts, 1)


def test_brain_that_never_answers_does_not_end_the_training(launch: Launch, train: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # accepts connections, and no more
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        run = launch("--brain", url, "--rdzv-id", "job", "--no-standby", train)
        assert run.wait() == 0, run.output
    assert "trained" in run.output


def test_refused_facts_are_not_sent_again() -> None:
    with Brain(status=422).serving() as server:
        client = BrainSink(server.url, "")
        for number in range(3):
            client.put(b'{"number": %d}' % number)
        server.until(3)
        client.close()
        assert [facts["number"] for _, _, facts in server.posts] == [0, 1, 2]


def test_full_queue_drops_the_oldest_facts() -> None:
    server = Brain()
    client = BrainSink(server.url, "")
    with client._changed:  # the thread cannot take any of them
        for number in range(QUEUE_LENGTH + 20):
            client._queue.append(b'{"number": %d}' % number)
        client._changed.notify()
    with server.serving():
        server.until(QUEUE_LENGTH)
        client.close()
    assert [facts["number"] for _, _, facts in server.posts] == list(range(20, QUEUE_LENGTH + 20))
