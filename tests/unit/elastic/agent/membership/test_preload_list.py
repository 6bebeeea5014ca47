"""Encoding of the preload list."""

import zlib

import pytest

from gangline.elastic.agent.membership.master_messages import decode_modules, encode_modules


def test_a_list_is_read_as_it_was_written():
    modules = ("torch", "torch.distributed", "numpy")
    assert decode_modules(encode_modules(modules)) == modules


@pytest.mark.parametrize("held", [b"", b"torch", zlib.compress(b"{"), zlib.compress(b'{"a": 1}')])
def test_invalid_list_is_empty(held):
    assert decode_modules(held) == ()


def test_only_names_are_imported():
    assert decode_modules(zlib.compress(b'["torch", 3, null]')) == ("torch",)
