"""Sources of initializers, as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.trainer.storage_uri import StorageUri, StorageUriError, parse_storage_uri


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://squad", StorageUri("hf", "squad")),
        ("hf://squad@v1", StorageUri("hf", "squad", revision="v1")),
        ("hf://team/net", StorageUri("hf", "team/net")),
        ("hf://team/net@v1.2", StorageUri("hf", "team/net", revision="v1.2")),
        ("hf://team/net@v1/data/train", StorageUri("hf", "team/net", "data/train", "v1")),
        ("s3://bucket", StorageUri("s3", "bucket")),
        ("s3://bucket/a/b/", StorageUri("s3", "bucket", "a/b")),
        ("S3://bucket/a", StorageUri("s3", "bucket", "a")),
        ("file:///data/a", StorageUri("file", path="/data/a")),
        ("pvc://claim/a/b", StorageUri("pvc", "claim", "a/b")),
        ("pvc://claim", StorageUri("pvc", "claim")),
        ("cache://schema/table", StorageUri("cache")),
    ],
)
def test_parts_of_a_source(text: str, expected: StorageUri) -> None:
    assert parse_storage_uri(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "bucket/path", "://a", "s3://", "hf:///net", "hf://team/net@", "hf://team/-net"),
        *("s3://b", "s3:///path", "s3://key:secret@bucket/a", "file://data/a", "file://host/a"),
        *("pvc://Claim_/a", "pvc:///a", "s3://bucket/../a", "pvc://claim/./a", "s3://bucket/a\nb"),
    ],
)
def test_what_is_no_source(text: str) -> None:
    with pytest.raises(StorageUriError) as caught:
        parse_storage_uri(text)
    assert caught.value.remedy


@given(st.text(max_size=40))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        source = parse_storage_uri(text)
    except StorageUriError:
        return
    assert ".." not in source.path.split("/")
