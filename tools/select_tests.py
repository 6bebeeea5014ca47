"""Which tests of a running system a change can reach by imports, the nearest first.

python tools/select_tests.py [--since COMMIT] [--seconds N] [FILE...]

Prints test files of tests/integration and tests/security for the files that have changed since a
commit, or for these files. Unit tests, the core of the others (tests/core.py) and the end-to-end
suite on the embedded cluster run for each change anyway.

A test reaches what it imports, what its helpers import, and so on through the source. The name of a
module in a string is an import too: ``python -m gangline.elastic.master``. That of a package is one
of all its modules, and that of a command one of its module. A file that is no module is reached by
the tests that have its name in a string, or else that of the folder it is in.

Nearly all tests reach a module at the bottom of the tree. So each changed file has an order of its
tests: by the number of imports between, then those that reach less. The first tests of all changed
files are taken, those first that are it for most, then the second ones, ... until ``--seconds`` of
a processor are used; a test file that needs more than 20 s states it in its docstring ("Takes 40 s:
..."). What is left over runs in `make test-all` and in the stages of `make release-check`.
"""

import argparse
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SELECTABLE = ("tests/integration/", "tests/security/")
IMPORT = re.compile(r"^ *(?:from ([\w.]+) import (\([^)]*\)|.*)|import ([\w.]+))", re.MULTILINE)
NAME = re.compile(r"\w+")
STRING = re.compile(r"""["']([^"'\n]+)["']""")
NAMED = re.compile(r"gangline[.\w]*")
HOOKS = "hook"
"""The folder that processes have on their path: its modules are in no package."""
USUAL_S = 8
"""Processor seconds of a test file that states none."""


def stated_seconds(file: str) -> int:
    """What the docstring of a test file says that it takes."""
    stated = re.search(r"^Takes (\d+) s\b", (ROOT / file).read_text(), re.MULTILINE)
    return int(stated[1]) if stated else USUAL_S


class Reach:
    """Which files of the source and the tests import which, by path."""

    def __init__(self) -> None:
        self.importers: dict[str, set[str]] = defaultdict(set)
        self.words: dict[str, set[str]] = defaultdict(set)
        self.files: dict[str, str] = {}
        for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
            parts = path.relative_to(ROOT).with_suffix("").parts[1:]
            parts = parts[-1:] if path.parent.name == HOOKS else parts
            self.files[".".join(parts).removesuffix(".__init__")] = str(path.relative_to(ROOT))
        self.packages: dict[str, set[str]] = defaultdict(set)
        for name in self.files:
            for depth in range(2, name.count(".") + 1):
                self.packages[".".join(name.split(".")[:depth])].add(name)
        self.packages[HOOKS] = {name for name, file in self.files.items() if f"/{HOOKS}/" in file}
        for name, file in self.files.items():
            self._read(file, (ROOT / file).read_text().replace("{__name__}", name))

    def _read(self, file: str, text: str) -> None:
        for module, names, plain in IMPORT.findall(text):
            for name in NAME.findall(names):
                self._add(file, f"{module}.{name}")
            self._add(file, plain or module)
        for word in STRING.findall(text):
            if not file.startswith(("src/", "tests/unit/")):
                self.words[word].add(file)
                self._add(file, f"gangline.cli.commands.{word}")
            for name in [word, *NAMED.findall(word)]:
                self._add(file, "gangline.__main__" if name == "gangline" else name)
                for module in self.packages.get(name.rstrip("."), ()):
                    self._add(file, module)

    def _add(self, importer: str, name: str) -> None:
        """Note the import of a module."""
        file = self.files.get(name)
        if file and file != importer:
            self.importers[file].add(importer)

    @cache  # noqa: B019 - one graph for each process
    def direct(self, file: str) -> set[str]:
        """Files that import a file, or read it if it is no module."""
        folder, _, name = file.rpartition("/")
        if name == "conftest.py":
            return {path for path in self.files.values() if path.startswith(f"{folder}/")} - {file}
        found = set(self.importers.get(file, ()))
        if name == "__init__.py":  # who imports a module of a package imports the package
            modules = {path for path in self.files.values() if path.startswith(f"{folder}/")}
            found |= modules.union(*(self.importers.get(path, ()) for path in modules))
        if not file.endswith(".py"):
            words = (file, name, *reversed(folder.split("/")))
            found = next((self.words[word] for word in words if word in self.words), set())
        return found - {file}

    def tests(self, file: str) -> dict[str, int]:
        """Test files that reach a file, and over how many imports; a test reaches itself."""
        found, last, distance = {file: 0}, {file}, 0
        while last:
            distance += 1
            last = set[str]().union(*map(self.direct, last)) - found.keys()
            found |= dict.fromkeys(last, distance)
        return {path: far for path, far in found.items() if "/test_" in path}

    def select(self, changed: Iterable[str], seconds: float) -> list[str]:
        """The nearest tests of each changed file, as many as fit into the time."""
        imports = Counter(test for importers in self.importers.values() for test in importers)
        ranks: dict[str, int] = {}
        files = Counter[str]()
        for file in set(changed):
            found = self.tests(file)
            tests = [test for test in found if test.startswith(SELECTABLE)]
            tests.sort(key=lambda test: (found[test], imports[test], test))
            files.update(tests[:1])
            for rank, test in enumerate(tests):
                ranks[test] = min(rank, ranks.get(test, rank))
        selected, left = [], seconds
        for test in sorted(ranks, key=lambda test: (ranks[test], -files[test], test)):
            left -= stated_seconds(test)
            if left < 0:
                break
            selected.append(test)
        return selected


def changed_since(commit: str) -> list[str]:
    """Files that differ from a commit; all files if it is unknown."""
    command = ["git", "-C", str(ROOT), "diff", "--name-only", "--diff-filter=d", commit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        command[3:] = ["ls-files"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def main() -> None:
    """Print the selected files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--since", default="HEAD", metavar="COMMIT")
    parser.add_argument("--seconds", type=float, default=240)
    given = parser.parse_args()
    changed = given.files or changed_since(given.since)
    print(*Reach().select(changed, given.seconds), sep="\n")


if __name__ == "__main__":
    main()
