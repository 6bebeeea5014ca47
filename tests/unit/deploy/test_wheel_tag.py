"""The wheel names the oldest C library that can load its native part."""

import pytest

from unit.tool_modules import load_tool


def platform_tag(library: bytes) -> str:
    tag: str = load_tool("build_native").platform_tag(library)
    return tag


@pytest.mark.parametrize(
    ("symbols", "tag"),
    [
        (b"GLIBC_2.2.5\0GLIBC_2.14\0", "manylinux_2_17_x86_64"),
        (b"GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0", "manylinux_2_34_x86_64"),
        (b"no versions: another C library", "linux_x86_64"),
    ],
)
def test_wheel_platform_is_that_of_the_newest_symbol(
    symbols: bytes, tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_platform", lambda: "linux-x86_64")
    assert platform_tag(symbols) == tag
