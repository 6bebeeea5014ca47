"""Volumes of API objects: their files, and atomic updates."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.core.pod import Pod
from gangline.local.kubelet.configuration import (
    ContainerConfigError,
    TokenSpec,
    ValueSources,
)
from gangline.local.kubelet.volumes import (
    ProjectedFile,
    build_payload,
    token_file,
    write_payload,
)

SOURCES = ValueSources(
    objects={("configmap", "cm"): {"a": b"1", "b": b"2"}, ("secret", "s"): {"k": b"hidden"}},
    service_account_tokens={TokenSpec(): "token", TokenSpec("vault", 600): "for vault"},
)
NAMES = st.text("abc", min_size=1, max_size=3)
FILES = st.dictionaries(
    st.builds("/".join, st.lists(NAMES, min_size=1, max_size=2)), st.binary(max_size=5), max_size=4
)


def files_of(**volume: Any) -> dict[str, tuple[bytes, int]] | None:
    spec = {
        "containers": [{"name": "c", "resources": {"limits": {"cpu": "2"}}}],
        "volumes": [{"name": "v", **volume}],
    }
    meta = {"name": "p", "namespace": "ns", "labels": {"x": "y"}}
    pod = msgspec.convert({"metadata": meta, "spec": spec}, Pod)
    files = build_payload(pod, pod.spec.volumes[0], SOURCES)
    return None if files is None else {name: (f.content, f.mode) for name, f in files.items()}


def test_all_keys_or_those_that_are_listed() -> None:
    assert files_of(configMap={"name": "cm"}) == {"a": (b"1", 0o644), "b": (b"2", 0o644)}
    items = [{"key": "a", "path": "sub/x", "mode": 0o600}]
    assert files_of(configMap={"name": "cm", "items": items, "defaultMode": 0o400}) == {
        "sub/x": (b"1", 0o600)
    }
    assert files_of(secret={"secretName": "s", "defaultMode": 0o400}) == {"k": (b"hidden", 0o400)}
    assert files_of(emptyDir={}) is None


def test_several_sources_in_one_folder() -> None:
    field = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
    limit = {"path": "cpu", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}}
    sources = [
        {"configMap": {"name": "cm", "items": [{"key": "a", "path": "a"}]}},
        {"secret": {"name": "s"}},
        {"secret": {"name": "none", "optional": True}},
        {"downwardAPI": {"items": [field, limit]}},
        {"serviceAccountToken": {"path": "token"}},
        {
            "serviceAccountToken": {
                "path": "vault",
                "audience": "vault",
                "expirationSeconds": 600,
            }
        },
    ]
    files = files_of(projected={"sources": sources})
    assert files is not None
    assert {name: content for name, (content, _) in files.items()} == {
        "a": b"1",
        "k": b"hidden",
        "labels": b'x="y"',
        "cpu": b"2",
        "token": b"token",
        "vault": b"for vault",
    }


@pytest.mark.parametrize(
    ("shared", "users", "mode", "owner"),
    [
        ({}, [None], 0o644, None),
        ({"fsGroup": 7}, [None], 0o600, None),
        ({"runAsUser": 5}, [None, None], 0o600, 5),
        ({"runAsUser": 5}, [6, 6], 0o600, 6),
        ({"runAsUser": 5}, [6, None], 0o644, None),
        ({}, [6, None], 0o644, None),
        ({}, [0], 0o600, 0),
    ],
)
def test_token_is_for_its_user_if_the_pod_names_one(
    shared: dict[str, int], users: list[int | None], mode: int, owner: int | None
) -> None:
    containers = [
        {"name": f"c{number}", "securityContext": {} if user is None else {"runAsUser": user}}
        for number, user in enumerate(users)
    ]
    body = {"spec": {"securityContext": shared, "containers": containers}}
    file = token_file(msgspec.convert(body, Pod), "t")
    assert (file.content, file.mode, file.owner) == (b"t", mode, owner)


def test_mode_zero_is_a_mode() -> None:
    assert files_of(secret={"secretName": "s", "defaultMode": 0}) == {"k": (b"hidden", 0)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to a group")
def test_the_group_reads_each_version_of_the_files(tmp_path: Path) -> None:
    for content in (b"1", b"2"):
        files = {"sub/a": ProjectedFile(content, 0o400, 5)}
        assert write_payload(tmp_path / "v", files, 7)
        assert not write_payload(tmp_path / "v", files, 7)
        status = (tmp_path / "v/sub/a").stat()
        assert (status.st_mode & 0o777, status.st_uid, status.st_gid) == (0o440, 5, 7)
    assert (tmp_path / "v/sub").stat().st_mode & 0o7777 == 0o2755


def test_files_are_readable_with_any_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_payload(tmp_path / "v", {"sub/a": ProjectedFile(b"1", 0o444)})
    finally:
        os.umask(before)
    places = [tmp_path / "v", tmp_path / "v/..data/sub", tmp_path / "v/sub/a"]
    assert [place.stat().st_mode & 0o777 for place in places] == [0o755, 0o755, 0o444]


@pytest.mark.parametrize(
    ("volume", "problem"),
    [
        ({"configMap": {"name": "none"}}, 'configmap "none" not found'),
        ({"secret": {"secretName": "none"}}, 'secret "none" not found'),
        ({"configMap": {"name": "cm", "items": [{"key": "z", "path": "z"}]}}, "config key: z"),
        ({"configMap": {"name": "cm", "items": [{"key": "a", "path": "../z"}]}}, "leads out"),
        ({"configMap": {"name": "cm", "items": [{"key": "a", "path": "/z"}]}}, "leads out"),
    ],
)
def test_unavailable_value_is_named_in_the_error(volume: dict[str, Any], problem: str) -> None:
    with pytest.raises(ContainerConfigError, match=problem):
        files_of(**volume)


@given(before=FILES, after=FILES)
def test_a_folder_holds_exactly_the_newest_files(
    tmp_path_factory: pytest.TempPathFactory, before: dict[str, bytes], after: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("volume")
    for files in (before, after):
        payload = {path: ProjectedFile(content, 0o644) for path, content in _apart(files).items()}
        write_payload(folder, payload)
        assert not write_payload(folder, payload)
    assert _visible(folder) == _apart(after)
    assert len([entry for entry in folder.iterdir() if entry.name.startswith("..")]) == 2


def test_an_open_folder_sees_old_or_new_files_never_both(tmp_path: Path) -> None:
    write_payload(tmp_path, {"a": ProjectedFile(b"1", 0o644), "b": ProjectedFile(b"1", 0o644)})
    before = os.readlink(tmp_path / "..data")
    write_payload(tmp_path, {"a": ProjectedFile(b"2", 0o644)})
    assert os.readlink(tmp_path / "..data") != before
    assert _visible(tmp_path) == {"a": b"2"}


def _apart(files: dict[str, bytes]) -> dict[str, bytes]:
    """Without files that are folders of others."""
    return {
        path: content
        for path, content in files.items()
        if not any(other.startswith(path + "/") for other in files)
    }


def _visible(folder: Path) -> dict[str, bytes]:
    return {
        os.path.relpath(Path(top, name), folder): Path(top, name).read_bytes()
        for top, folders, names in os.walk(folder, followlinks=True)
        for name in names
        if ".." not in os.path.relpath(top, folder)
    }
