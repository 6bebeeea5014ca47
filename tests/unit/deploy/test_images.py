"""The pure parts of the image build: archives and descriptions are the same for the same files."""

import gzip
import hashlib
import importlib.util
import io
import json
import os
import sys
import tarfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TOOLS = Path(__file__).parents[3] / "tools"
EPOCH = 1_700_000_000


@pytest.fixture(scope="module")
def tools() -> Any:
    """The modules ``oci_image`` and ``build_images``."""
    found = []
    for name in ("oci_image", "build_images"):
        spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        found.append(module)
    yield found
    for name in ("oci_image", "build_images"):
        del sys.modules[name]


def make_tree(root: Path, names: list[str], mode: int) -> Path:
    """The same files, made in another order, with another umask and at another time."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        path.chmod(mode)
        os.utime(path, (mode, mode))
    (root / "bin/run").chmod(mode | 0o100)
    (root / "link").symlink_to("bin/run")
    return root


def build(tools: Any, folder: Path, root: Path) -> tuple[str, dict[str, bytes]]:
    oci, _ = tools
    layout = oci.OciLayout(folder, EPOCH)
    layer = layout.add_layer(root, "test")
    settings = oci.ImageSettings(entrypoint=(), command=("gangline",), labels={"a": "b"})
    digest = layout.add_image([layer], settings, "train", "1.0")
    files = {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }
    return digest, files


def test_an_image_is_the_same_for_the_same_files(tools: Any, tmp_path: Path) -> None:
    names = ["bin/run", "etc/passwd", "etc/a/b"]
    first = make_tree(tmp_path / "1", names, 0o600)
    second = make_tree(tmp_path / "2", names[::-1], 0o664)
    one, two = build(tools, tmp_path / "o1", first), build(tools, tmp_path / "o2", second)
    assert one == two
    (second / "etc/passwd").write_text("changed")
    assert build(tools, tmp_path / "o3", second)[0] != one[0]


def test_an_image_has_the_form_of_the_specification(tools: Any, tmp_path: Path) -> None:
    root = make_tree(tmp_path / "root", ["bin/run", "etc/passwd"], 0o600)
    digest, files = build(tools, tmp_path / "image", root)
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["digest"] == digest
    assert entry["platform"] == {"architecture": "amd64", "os": "linux"}
    # The name that "ctr images import" gives it.
    assert entry["annotations"]["io.containerd.image.name"] == "docker.io/library/train:1.0"

    def blob(described: dict[str, Any]) -> bytes:
        algorithm, _, name = described["digest"].partition(":")
        data = files[f"blobs/{algorithm}/{name}"]
        assert len(data) == described["size"]
        assert hashlib.sha256(data).hexdigest() == name
        return data

    manifest = json.loads(blob(entry))
    config = json.loads(blob(manifest["config"]))
    assert config["config"]["User"] == "65532:65532"
    assert config["created"] == "2023-11-14T22:13:20Z"
    (layer,) = manifest["layers"]
    archive = gzip.decompress(blob(layer))
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(archive).hexdigest()}"]
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        entries = {each.name: each for each in opened}
    assert list(entries) == ["bin", "bin/run", "etc", "etc/passwd", "link"]
    assert {(each.uid, each.gid, each.mtime) for each in entries.values()} == {(0, 0, EPOCH)}
    assert (entries["bin/run"].mode, entries["etc/passwd"].mode) == (0o755, 0o644)
    assert entries["link"].linkname == "bin/run"


def test_pinned_packages_have_hashes(tools: Any) -> None:
    _, images = tools
    every = images.requirements()
    assert "aiohttp==" in every
    assert "sqlalchemy==" in every.lower()
    assert every.lower().count("\nmarkupsafe==") == 1
    assert "torch==" not in every
    few = images.requirements(images.INIT_WHEELS)
    names = {line.partition("==")[0] for line in few.splitlines() if "==" in line}
    assert names == set(images.INIT_WHEELS)
    assert few.count("--hash=") > len(names)


def test_initializer_has_all_that_its_clients_need(tools: Any) -> None:
    _, images = tools
    needed, waiting = set(), {"click", "huggingface-hub", "msgspec", "obstore"}
    while waiting:
        name = waiting.pop()
        needed.add(name)
        for each in map(Requirement, metadata.requires(name) or ()):
            if each.marker is None or each.marker.evaluate({"extra": ""}):
                waiting |= {canonicalize_name(each.name)} - needed
    assert needed == set(images.INITIALIZER_WHEELS)
    pinned = images.requirements(images.INITIALIZER_WHEELS)
    assert {line.partition("==")[0] for line in pinned.splitlines() if "==" in line} == needed


def test_the_bill_of_materials_lists_every_component(tools: Any) -> None:
    _, images = tools
    components = [
        images.Component("zlib1g", "1:1.2", "pkg:deb/debian/zlib1g@1:1.2?arch=amd64"),
        images.Component("click", "8.4", "pkg:pypi/click@8.4"),
    ]
    found = json.loads(images.bill_of_materials("gangline", "1.0", components))
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.5")
    assert [each["name"] for each in found["components"]] == ["click", "zlib1g"]
