"""Event files of TensorBoard, as tensorboardX wrote them, whole, growing and broken."""

import base64
import struct
import zlib
from pathlib import Path

import pytest

from gangline.sdk.event_files import EventFolder, Scalar, find_folder

WRITTEN = zlib.decompress(
    base64.b64decode(
        "eJyTYICAxfXeSpxFjA/mPjh0y1GKN6koMTNPz7UsNa/EyshU89VbCWR1QNrhT8hNRy1eLm4ulpz84mJRBoYGew7n"
        "adNkoOpOHJwqC1SnAFEnyMXPxZFalpijn5icLAqSt95u9FIKqlZo9g1doFoHsFoBRhRTGeynXythkYOqvHlHyAio"
        "MgGmEsNc+46ebyxo5jZAVDMhmbt61Sq7hVrn09HMXQBTiW4u0G/ujP9soaoTPD++4WSe8xAcVkBXGHDpcQnm5Zek"
        "6pekVpTEF5fm5iYWVTrxc7ALsQgxcTA6sWak5uTke3FwsXGxgJSctNntDQCuzGIh"
    )
)
"""Three steps of ``loss`` and ``eval/acc``, and a text; written by tensorboardX 2.6."""
SCALARS = [
    Scalar(1_700_000_000_000, 0, "loss", 1.0),
    Scalar(1_700_000_000_500, 0, "eval/acc", 0.0),
    Scalar(1_700_000_001_000, 1, "loss", 0.5),
    Scalar(1_700_000_001_500, 1, "eval/acc", 0.5),
    Scalar(1_700_000_002_000, 2, "loss", pytest.approx(1 / 3)),
    Scalar(1_700_000_002_500, 2, "eval/acc", 1.0),
]
NAME = "events.out.tfevents.1"


def test_file_is_read_once_also_while_it_grows(tmp_path: Path) -> None:
    folder, file = EventFolder(tmp_path), tmp_path / NAME
    read = []
    for end in (5, 100, 200, len(WRITTEN)):
        file.write_bytes(WRITTEN[:end])
        read += folder.read()
    assert read == SCALARS
    assert folder.read() == []


def test_files_of_folders_are_runs_and_other_files_are_none(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / NAME).write_bytes(WRITTEN)
    (tmp_path / "secret.txt").write_bytes(WRITTEN)
    assert {scalar.name for scalar in EventFolder(tmp_path).read()} == {
        "train/loss", "train/eval/acc",
    }  # fmt: skip


def test_scalar_may_be_a_tensor(tmp_path: Path) -> None:
    tensor = b"\x08\x01\x22\x04" + struct.pack("<f", 0.25)
    value = b"\x0a\x03acc\x42" + bytes([len(tensor)]) + tensor
    summary = b"\x0a" + bytes([len(value)]) + value
    event = b"\x09" + struct.pack("<d", 1.0) + b"\x10\x07\x2a" + bytes([len(summary)]) + summary
    (tmp_path / NAME).write_bytes(struct.pack("<QI", len(event), 0) + event + b"\0" * 4)
    assert EventFolder(tmp_path).read() == [Scalar(1000, 7, "acc", 0.25)]


@pytest.mark.parametrize(
    "content",
    [b"", b"no events at all", struct.pack("<QI", 2**62, 0), b"\xff" * 500,
     struct.pack("<QI", 3, 0) + b"\x2a\x7f\x01" + b"\0" * 4],
)  # fmt: skip
def test_broken_file_has_no_scalars(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert EventFolder(tmp_path).read() == []
    assert EventFolder(tmp_path / "missing").read() == []


def test_folder_is_that_of_the_node_behind_the_mount() -> None:
    def manifest(path: str, **container: object) -> dict[str, object]:
        pod = {
            "containers": [
                {"volumeMounts": [{"name": "data", "mountPath": "/data", "subPath": "a"}],
                 "env": [{"name": "TENSORBOARD_LOGDIR", "value": path}], **container}
            ],
            "volumes": [{"name": "data", "hostPath": {"path": "/srv"}}],
        }  # fmt: skip
        return {"spec": {"workers": {"template": {"spec": pod}}}}

    assert find_folder(manifest("/data/logs/x")) == Path("/srv/a/logs/x")
    assert find_folder(manifest("logs", workingDir="/data")) == Path("/srv/a/logs")
    assert find_folder(manifest("/elsewhere")) is None
    assert find_folder(manifest("/data/../etc")) is None
