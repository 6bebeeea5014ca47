"""The values of YAML scalars are those of sigs.k8s.io/yaml."""

from typing import Any

import pytest

from gangline.api.yaml_text import InvalidYamlError, load_yaml_documents


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1:30:00", "1:30:00"),
        ("0o17", 15),
        ("017", 15),
        ("08", 8),
        ("0x1F", 31),
        ("-0b11", -3),
        ("1_000", 1000),
        ("1e3", 1000),
        ("1.0", 1),
        ("1.5", 1.5),
        (".5", 0.5),
        ("18446744073709551615", 18446744073709551615),
        ("2026-01-01", "2026-01-01"),
        ("2026-13-45", "2026-13-45"),
        ("yes", True),
        ("Off", False),
        ("y", "y"),
        ("~", None),
        ("<<", "<<"),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("!!float 1", 1),
    ],
)
def test_scalar_has_value_of_kubernetes(written: str, value: Any) -> None:
    (document,) = load_yaml_documents(f"a: {written}")
    assert document == {"a": value}
    assert type(document["a"]) is type(value)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("9" * 5000, "a number of 5000 characters"),
        ("18446744073709551616", "outside the range of 64-bit integers"),
        ("1e999", "outside the range of numbers"),
        ("!!int 1:1", "is not an integer"),
        ("!!bool maybe", "neither true nor false"),
        ("!!binary aGk=", "is not supported"),
        ("!!python/object:os.system x", "is not supported"),
    ],
)
def test_unsupported_scalar_is_refused(written: str, reason: str) -> None:
    with pytest.raises(InvalidYamlError, match=reason):
        load_yaml_documents(f"a: {written}")
