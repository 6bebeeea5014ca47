"""Kubeconfigs as programs write them are read as a YAML library reads them, or left to it."""

import string

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.yaml_values import YamlValueLoader
from gangline.kube.config.block_yaml import read_block_yaml

KUBECTL = b"""apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: LS0tLS1CRUdJTg==
    server: https://127.0.0.1:6443
  name: kind-kind
contexts:
- context:
    cluster: kind-kind
    namespace: default
    user: kind-kind
  name: kind-kind
current-context: kind-kind
kind: Config
preferences: {}
users:
- name: kind-kind
  user:
    client-certificate-data: LS0tLS1CRUdJTg==
    exec:
    token: eyJhbGciOi.abc_def-ghi
"""


def library(text: bytes) -> object:
    return yaml.load(text, Loader=YamlValueLoader)


def test_file_of_kubectl_needs_no_library() -> None:
    assert read_block_yaml(KUBECTL) == library(KUBECTL)


@pytest.mark.parametrize(
    "token", ["9Ng-7BeO1BQzqazP1Pwn3", "0x1g", "1_2s", "7eY", "_abc", "-Kx_1", "2h"]
)
def test_token_that_begins_with_any_character_of_urls_is_text(token: str) -> None:
    text = f"a:\n  token: {token}\n".encode()
    assert library(text) == {"a": {"token": token}}
    assert read_block_yaml(text) == {"a": {"token": token}}


@pytest.mark.parametrize("value", ["1e5", "0xBAD", "0o17", "1_000", "-5", "-.inf", "2001-12-14"])
def test_number_and_date_are_left_to_the_library(value: str) -> None:
    assert read_block_yaml(f"a: {value}\n".encode()) is None


@pytest.mark.parametrize("sort", [True, False])
def test_file_of_pyyaml_needs_no_library(sort: bool) -> None:
    text = yaml.safe_dump(library(KUBECTL), sort_keys=sort).encode()
    assert b"exec: null" in text
    assert read_block_yaml(text.replace(b" null", b"")) == library(KUBECTL)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"# comment\na: b\n",
        b"a: 1\n",
        b"a: true\n",
        b"a: Off\n",
        b"a: 'b'\n",
        b"a: b # comment\n",
        b"a: b\n c\n",
        b"a: b\n  c: d\n",
        b"a: &x b\n",
        b"a: |\n  b\n",
        b"a: [b]\n",
        b"a:\n- b\n",
        b"a: b\na: c\n",
        b"a: b:\n",
        b"- a: b\n",
        b"---\na: b\n",
        b"a: \xc3\xa9\n",
        b"a:\tb\n",
        b"a:\n    b: c\n  d: e\n",
        b"a: " * 100,
        b"".join(b" " * depth + b"a:\n" for depth in range(200)),
    ],
)
def test_anything_else_is_left_to_the_library(text: bytes) -> None:
    assert read_block_yaml(text) is None


VALUES = st.one_of(
    st.sampled_from(
        [
            "",
            "{}",
            "yes",
            "Null",
            "inf",
            "e3",
            "a:b",
            "x:",
            "a.b/c",
            "y",
            "=",
            "NaN",
            "1e5",
            "0xBAD",
            "9Ng-7",
            "1:30",
        ]
    ),
    st.text(string.ascii_letters + string.digits + "-./:@+=_ ~#", max_size=8),
)
LINES = st.tuples(
    st.sampled_from(["", "  ", "    ", "   "]),
    st.sampled_from(["", "", "- "]),
    st.sampled_from(["a", "b", "c-d", "E"]),
    st.sampled_from([":", ": "]),
    VALUES,
)


@given(st.lists(LINES, max_size=8))
def test_a_text_that_is_read_means_the_same_to_the_library(lines: list[tuple[str, ...]]) -> None:
    text = "".join(f"{''.join(parts).rstrip()}\n" for parts in lines).encode()
    found = read_block_yaml(text)
    if found is not None:
        assert found == library(text)
