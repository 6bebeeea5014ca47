"""Initializers fetch from servers, through the unchanged clients of Hugging Face and S3."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline.initializer.download import RetryPolicy
from gangline.initializer.main import FAILED, REFUSED, SUCCEEDED, run_initializer
from storage_servers import BucketHandler, HubHandler, StorageServer

LARGE = bytes(range(256)) * 400
HUB_FILES = {
    "datasets/team/digits/README.md": b"# digits",
    "datasets/team/digits/data/train.bin": LARGE,
    "datasets/team/digits/data/test.bin": b"test",
    "models/team/net/config.json": b"{}",
    "models/team/net/model.safetensors": LARGE,
    "models/team/net/pytorch_model.bin": b"pickle",
    "models/team/net/original/tokenizer.model": b"tokens",
    "models/team/net/image.png": b"png",
}
BUCKET_FILES = {
    "team/digits/train.bin": LARGE,
    "team/digits/test.bin": b"test",
    "team/digits/deep/": b"",
    "team/digits/deep/er/a file+%41.txt": b"text",
    "team/digits-old/train.bin": b"other",
    "team/digits/model.pt": b"pickle",
}
KEYS = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "not-logged"}


@pytest.fixture
def hub() -> Iterator[StorageServer]:
    with StorageServer(HubHandler, dict(HUB_FILES)).running() as server:
        yield server


@pytest.fixture
def bucket() -> Iterator[StorageServer]:
    server = StorageServer(BucketHandler, dict(BUCKET_FILES))
    server.token = "key"
    with server.running():
        yield server


class Run:
    """An initializer with its exit status, and what it reports."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.reason = ""

    def __call__(self, server: StorageServer, uri: str, step: str = "dataset", **env: str) -> int:
        def report(reason: str) -> None:
            self.reason = reason

        given = {"STORAGE_URI": uri, "OUTPUT_DIR": str(self.output), "ENDPOINT": server.url}
        if uri.startswith("s3"):
            given |= KEYS
        retry = RetryPolicy(attempts=4, first_delay_s=0.01)
        return run_initializer(step, {**given, **env}, report, retry)

    def files(self) -> dict[str, bytes]:
        """What the folder has, but the client's and the initializer's own files."""
        return {
            str(path.relative_to(self.output)): path.read_bytes()
            for path in sorted(self.output.rglob("*"))
            if path.is_file() and not path.relative_to(self.output).parts[0].startswith(".")
        }


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    return Run(tmp_path / "output")


def below(files: dict[str, bytes], prefix: str) -> dict[str, bytes]:
    return {
        path.removeprefix(prefix): content
        for path, content in files.items()
        if path.startswith(prefix) and not path.endswith("/")
    }


@pytest.mark.parametrize("uri", ["hf://team/digits", "hf://team/digits@v1"])
def test_data_of_a_repository(hub: StorageServer, run: Run, uri: str) -> None:
    assert run(hub, uri) == SUCCEEDED
    assert run.files() == below(HUB_FILES, "datasets/team/digits/")


def test_folder_of_a_repository_keeps_its_path(hub: StorageServer, run: Run) -> None:
    assert run(hub, "hf://team/digits/data") == SUCCEEDED
    assert set(run.files()) == {"data/train.bin", "data/test.bin"}


def test_model_is_fetched_without_pickled_weights(hub: StorageServer, run: Run) -> None:
    assert run(hub, "hf://team/net", "model") == SUCCEEDED
    assert set(run.files()) == {
        "config.json",
        "model.safetensors",
        "original/tokenizer.model",
    }


def test_objects_of_a_bucket(bucket: StorageServer, run: Run) -> None:
    """Also those of later pages, and none of a prefix that only begins equally."""
    assert run(bucket, "s3://team/digits/") == SUCCEEDED
    assert run.files() == below(BUCKET_FILES, "team/digits/")


def test_one_object(bucket: StorageServer, run: Run) -> None:
    assert run(bucket, "s3://team/digits/train.bin") == SUCCEEDED
    assert run.files() == {"train.bin": LARGE}


def test_ignored_patterns(bucket: StorageServer, run: Run) -> None:
    assert run(bucket, "s3://team/digits", IGNORE_PATTERNS="*.pt, deep/") == SUCCEEDED
    assert set(run.files()) == {"train.bin", "test.bin"}


SOURCES = [
    ("hub", "hf://team/digits", "datasets/team/digits/data/train.bin", "data/train.bin"),
    ("bucket", "s3://team/digits", "team/digits/train.bin", "train.bin"),
]


@pytest.fixture(params=SOURCES, ids=["hf", "s3"])
def case(request: pytest.FixtureRequest) -> tuple[Any, str, str, str]:
    name, uri, stored, path = request.param
    return request.getfixturevalue(name), uri, stored, path


Case = tuple[StorageServer, str, str, str]


def test_restart_fetches_nothing(case: Case, run: Run) -> None:
    server, uri, _, _ = case
    assert run(server, uri) == SUCCEEDED
    server.served.clear()
    server.files.clear()
    assert run(server, uri) == SUCCEEDED
    assert server.served == []


def test_removed_file_is_fetched_again(case: Case, run: Run) -> None:
    server, uri, _, path = case
    assert run(server, uri) == SUCCEEDED
    (run.output / path).unlink()
    assert run(server, uri) == SUCCEEDED
    assert run.files()[path] == LARGE


def test_interrupted_fetch_continues(case: Case, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    server, uri, stored, path = case
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)
    server.cut[stored] = 60_000
    assert run(server, uri) == SUCCEEDED
    assert run.files()[path] == LARGE
    spans = [span for name, span in server.served if name == stored]
    assert spans[-1].startswith("bytes=60000-"), spans


def test_next_run_fetches_what_the_last_one_did_not(case: Case, run: Run) -> None:
    server, uri, stored, path = case
    server.refusals[stored] = 1000
    assert run(server, uri) == FAILED
    server.refusals.clear()
    others = {name for name, _ in server.served} - {stored}
    server.served.clear()
    assert run(server, uri) == SUCCEEDED
    assert run.files()[path] == LARGE
    assert not others & {name for name, _ in server.served}


def test_busy_server_is_asked_again(case: Case, run: Run) -> None:
    server, uri, stored, path = case
    server.refusals[stored] = 2
    assert run(server, uri) == SUCCEEDED
    assert run.files()[path] == LARGE


def test_damaged_content_is_fetched_again(case: Case, run: Run) -> None:
    server, uri, stored, path = case
    server.damaged[stored] = 1
    assert run(server, uri) == SUCCEEDED
    assert run.files()[path] == LARGE


def test_etag_that_is_no_md5_does_not_stop_a_fetch(bucket: StorageServer, run: Run) -> None:
    """As with objects that a key of KMS encrypts: every fetch has the same other content."""
    bucket.damaged["team/digits/train.bin"] = 2
    assert run(bucket, "s3://team/digits") == SUCCEEDED
    assert run.files()["train.bin"] == bytes(byte ^ 1 for byte in LARGE)


def test_token_opens_a_private_repository(
    hub: StorageServer, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hub.token = "not-logged"
    assert run(hub, "hf://team/digits") == REFUSED
    assert "spec.initializer.dataset.storageUri" in run.reason
    assert "ACCESS_TOKEN" in run.reason
    assert run(hub, "hf://team/digits", ACCESS_TOKEN="not-logged") == SUCCEEDED
    assert "not-logged" not in caplog.text


@pytest.mark.parametrize(
    ("uri", "field"),
    [
        ("hf://team/nothing", "spec.initializer.dataset.storageUri"),
        ("hf://team/digits@v9", "spec.initializer.dataset.storageUri"),
        ("hf://team/digits/nowhere", "spec.initializer.dataset.storageUri"),
    ],
)
def test_wrong_source_of_the_hub_is_refused(
    hub: StorageServer, run: Run, uri: str, field: str
) -> None:
    assert run(hub, uri) == REFUSED
    assert run.reason.startswith(field), run.reason


@pytest.mark.parametrize(
    ("uri", "key", "field"),
    [
        ("s3://nothing/digits", "key", "spec.initializer.dataset.storageUri"),
        ("s3://team/nothing", "key", "spec.initializer.dataset.storageUri"),
        ("s3://team/digits", "other", "spec.initializer.dataset.env[ACCESS_KEY_ID]"),
    ],
)
def test_wrong_source_in_s3_is_refused(
    bucket: StorageServer, run: Run, uri: str, key: str, field: str
) -> None:
    assert run(bucket, uri, ACCESS_KEY_ID=key) == REFUSED
    assert run.reason.startswith(field), run.reason
    assert "not-logged" not in run.reason


def test_no_server(hub: StorageServer, run: Run) -> None:
    for uri in ("hf://team/digits", "s3://team/digits"):
        assert run(hub, uri, ENDPOINT="http://127.0.0.1:1") == FAILED
        assert run.reason


def test_second_pod_waits_for_the_first(bucket: StorageServer, run: Run) -> None:
    """Two jobs with one claim: each file is fetched once."""
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(run(bucket, "s3://team/digits")))
        for _ in range(2)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert statuses == [SUCCEEDED, SUCCEEDED]
    fetched = [name for name, _ in bucket.served]
    assert len(fetched) == len(set(fetched))


def test_object_that_leads_out_of_the_folder_is_refused(bucket: StorageServer, run: Run) -> None:
    bucket.files["team/digits/../../escaped"] = b"no"
    assert run(bucket, "s3://team/digits") == REFUSED
    assert not list(run.output.parent.rglob("escaped"))


def test_too_little_space(bucket: StorageServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    assert run(bucket, "s3://team/digits") == REFUSED
    assert run.reason.startswith("OUTPUT_DIR"), run.reason
