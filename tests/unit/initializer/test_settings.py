"""Variables of an initializer."""

from pathlib import Path

import pytest

from gangline.initializer.errors import InitializerError
from gangline.initializer.settings import PICKLED_WEIGHTS, read_settings

URI = {"STORAGE_URI": "s3://bucket/data"}


def test_defaults_are_those_of_upstream() -> None:
    dataset, model = read_settings("dataset", URI), read_settings("model", URI)
    assert (dataset.output, model.output) == (Path("/workspace/dataset"), Path("/workspace/model"))
    assert (dataset.ignored, model.ignored) == ((), PICKLED_WEIGHTS)


def test_empty_patterns_ignore_nothing() -> None:
    assert read_settings("model", {**URI, "IGNORE_PATTERNS": ""}).ignored == ()
    given = read_settings("model", {**URI, "IGNORE_PATTERNS": "*.a, b/ ,"})
    assert given.ignored == ("*.a", "b/")


@pytest.mark.parametrize(
    ("environment", "field"),
    [
        ({}, "spec.initializer.dataset.storageUri (STORAGE_URI)"),
        ({"STORAGE_URI": "cache://a/b"}, "spec.initializer.dataset.storageUri (STORAGE_URI)"),
        ({**URI, "OUTPUT_DIR": "data"}, "OUTPUT_DIR"),
        ({**URI, "ENDPOINT": "minio:9000"}, "spec.initializer.dataset.env[ENDPOINT]"),
        ({**URI, "ACCESS_KEY_ID": "a"}, "spec.initializer.dataset.env[SECRET_ACCESS_KEY]"),
        ({**URI, "SECRET_ACCESS_KEY": "a"}, "spec.initializer.dataset.env[ACCESS_KEY_ID]"),
    ],
)
def test_error_names_its_field(environment: dict[str, str], field: str) -> None:
    with pytest.raises(InitializerError) as caught:
        read_settings("dataset", environment)
    assert caught.value.field == field


def test_credentials_of_a_uri_are_not_repeated() -> None:
    with pytest.raises(InitializerError) as caught:
        read_settings("dataset", {"STORAGE_URI": "s3://key:secret@bucket/data"})
    assert "secret" not in str(caught.value).partition("; ")[0]
