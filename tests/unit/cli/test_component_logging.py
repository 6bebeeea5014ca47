"""Logs of components, and their event loop."""

import gc
import io
import json
import logging
from collections.abc import Iterator

import pytest

from gangline.cli.component_logging import start_logging
from gangline.cli.event_loop import gc_disabled
from gangline.kube.log_fields import log_fields

log = logging.getLogger("gangline.test")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def written(form: str) -> str:
    stream = io.StringIO()
    start_logging("info", stream, form=form)
    with log_fields({"job": "team/train", "job_uid": "u-1"}):
        log.info("made %d pods", 3, extra={"names": ["a", "b"], "job_uid": "u-2"})
        log.debug("too much")
        try:
            raise KeyError("gone")
        except KeyError:
            log.exception("failed")
    return stream.getvalue()


def test_json_is_one_object_on_each_line() -> None:
    first, second = (json.loads(line) for line in written("json").splitlines())
    assert first.pop("ts").endswith("Z")
    assert first == {
        "level": "info",
        "logger": "gangline.test",
        "msg": "made 3 pods",
        "job": "team/train",
        "job_uid": "u-2",
        "names": ["a", "b"],
    }
    assert "KeyError" in second["err"]
    assert second["job"] == "team/train"


def test_text_has_the_fields_behind_the_message() -> None:
    first = written("text").splitlines()[0]
    assert first.endswith("made 3 pods job=team/train job_uid=u-2 names=\"['a', 'b']\"")


def test_values_that_json_lacks_are_written_as_text() -> None:
    stream = io.StringIO()
    start_logging("info", stream, form="json")
    log.info("odd", extra={"error": ValueError("no"), "msg_": object})
    assert json.loads(stream.getvalue())["error"] == "no"


def test_garbage_collection_is_enabled_after_short_work() -> None:
    assert gc.isenabled()
    with gc_disabled():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="as expected"), gc_disabled():
        raise ValueError("as expected")
    assert gc.isenabled()
