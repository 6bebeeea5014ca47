"""The wheel names the oldest C library that can load its native part."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def platform_tag(library: bytes) -> str:
    location = ROOT / "tools/build_native.py"
    specification = importlib.util.spec_from_file_location("build_native", location)
    assert specification
    assert specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    tag: str = module.platform_tag(library)
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
