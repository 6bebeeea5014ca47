"""What the fork server records of imports, in an interpreter of its own."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from gangline.elastic.agent.process import HOOK_FOLDER

PYTHON = sys._base_executable  # type: ignore[attr-defined]
RECORD = """
    import json, sys
    import gangline_import_records
    recorder = gangline_import_records.ImportRecorder()
    recorder.set_varying(["RANK"])
    recorder.import_modules(sys.argv[1:])
    print(json.dumps({
        "dependent": recorder.find_dependent(),
        "reads": {
            name: [key for key in ("TQDM_DISABLE", "HOME", "RANK") if key.encode() in record.reads]
            for name, record in recorder.records.items()
        },
    }))
"""


def record(libraries: Path, *modules: str) -> Any:
    ended = subprocess.run(
        [PYTHON, "-c", textwrap.dedent(RECORD), *modules],
        env={"PYTHONPATH": f"{HOOK_FOLDER}{os.pathsep}{libraries}", "RANK": "1", "HOME": "/"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(ended.stdout)


def write(folder: Path, **modules: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))


def test_library_that_filters_the_environment_depends_on_its_prefix_only(tmp_path: Path) -> None:
    """As tqdm does, which PyTorch imports where it is installed."""
    filters = """
        import os
        def overrides():
            return {k: v for k, v in os.environ.items() if k.startswith("TQDM_")}
    """
    write(tmp_path / "tqdm", utils=filters, __init__="from .utils import overrides\noverrides()\n")
    write(tmp_path, user="import tqdm\n", other="import os\ndict(os.environ)\n")
    seen = record(tmp_path, "user", "other")
    assert seen["dependent"] == {"other": "reads the environment while it is imported"}
    assert seen["reads"]["tqdm"] == ["TQDM_DISABLE"], "also one that is not set"


def test_import_function_takes_its_arguments_by_name(tmp_path: Path) -> None:
    write(
        tmp_path,
        library="""
            import builtins
            builtins.__import__("json", globals=globals(), locals=None, fromlist=["dumps"], level=0)
        """,
    )
    assert record(tmp_path, "library")["dependent"] == {}
