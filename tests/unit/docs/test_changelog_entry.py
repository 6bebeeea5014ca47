"""Which changes need an entry of the changelog."""

import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "tools/changelog-entry"


@pytest.mark.parametrize(
    ("changed", "message", "status"),
    [
        (["src/a.py"], "A change", 1),
        (["src/a.py", "CHANGELOG.md"], "A change", 0),
        (["src/a.py"], "A change\n\nChangelog: none", 0),
        (["docs/a.md"], "A change", 0),
    ],
)
def test_changelog_entry(tmp_path: Path, changed: list[str], message: str, status: int) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True)

    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "First")
    git("checkout", "-q", "-b", "change")
    for name in changed:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text\n")
    git("add", ".")
    git("commit", "-q", "-m", message)
    ran = subprocess.run([PROGRAM, "main"], cwd=tmp_path, check=False, capture_output=True)
    assert ran.returncode == status
