"""Mutation test of a package: mutmut changes a random sample of its functions, one change each.

    make mutation                                         # all packages of PACKAGES
    make mutation PACKAGES=kubelet MUTATION="--seed 2"    # one of them, another sample
    make mutation PACKAGES=scheduler MUTATION="--folder placement --mutants 50"    # a part of it

Runs the unit tests that call the changed function, and prints how many changes no test noticed.
Large functions are drawn more often. The draw depends on the names of functions, not on their
modules: after functions have moved, most of the sample is the same. Texts are left alone, because
few tests compare the words of a message. mutmut works on a copy, in .cache/mutation/PACKAGE; there
`mutmut show NAME` prints a change. Changed code may delete files or end processes: run it as an
ordinary user.
"""

import argparse
import ast
import hashlib
import math
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import libcst
from mutmut.__main__ import cli
from mutmut.configuration import reset_config
from mutmut.mutation import mutators
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.state import state
from mutmut.stats import status_by_exit_code
from mutmut.utils.format_utils import get_mutant_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "operator": ("operator", "operator", 75),
    "checkpoint": ("elastic/checkpoint", "elastic/checkpoint", 75),
    "apiserver": ("local/apiserver", "apiserver", 75),
    "kubelet": ("local/kubelet", "local/kubelet", 75),
    "scheduler": ("scheduler", "scheduler", 100),
}
"""Folders in src/gangline and in tests/unit, and the number of mutants."""


def functions(path: Path) -> Iterator[tuple[str, range, str]]:
    """Yield functions and methods: the name, the lines, and a source text of the function alone."""
    source = path.read_text("utf-8")
    lines = source.splitlines(keepends=True)
    for node in ast.parse(source).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"class {node.name}:\n" if isinstance(node, ast.ClassDef) else ""
        for member in members:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min(node.lineno for node in [member, *member.decorator_list])
                last = member.end_lineno or first
                text = prefix + "".join(lines[first - 1 : last])
                yield prefix + member.name, range(first, last + 1), text


def random_number(*key: object) -> float:
    """Return a number between 0 and 1 that depends on the key alone."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return (int.from_bytes(digest[:6], "big") + 1) / (2**48 + 2)


def draw(folder: Path, count: int, seed: int) -> dict[str, tuple[Path, range]]:
    """Return mutants by name: the module, and the lines of the function that is changed."""
    ordered = []
    for path in sorted(folder.rglob("*.py")):
        for name, lines, text in functions(path):
            order = -math.log(random_number(seed, name)) / len(lines)
            ordered.append((order, name, path, lines, text))
    drawn: dict[str, tuple[Path, range]] = {}
    for _, name, path, lines, text in sorted(ordered, key=lambda entry: entry[:3]):
        if len(drawn) == count:
            break
        if names := mutate_file_contents(path.name, text).mutant_names:
            index = int(random_number(seed, name, "mutant") * len(names))
            drawn[get_mutant_name(path, names[index])] = path, lines
    return drawn


def main() -> None:
    """Test one package."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", choices=PACKAGES)
    parser.add_argument("--folder", default="", help="change this folder of the package only")
    parser.add_argument("--mutants", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    source, tests, count = PACKAGES[options.package]

    work = ROOT / ".cache/mutation" / options.package
    subprocess.run(["rm", "-rf", work], check=True)
    work.mkdir(parents=True)
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    copied = sorted({path.partition("/")[0] for path in tracked})
    for name in copied:
        (work / name).symlink_to(ROOT / name)
    os.chdir(work)

    mutators.mutation_operators.remove((libcst.BaseString, mutators.operator_string))
    folder = Path("src/gangline") / source / options.folder
    mutants = draw(folder, options.mutants or count, options.seed)
    changed: dict[str, set[int]] = {}
    for path, function_lines in mutants.values():
        changed.setdefault(str(path), set()).update(function_lines)
    state()._covered_lines = {str(work / "mutants" / path): changed[path] for path in changed}
    settings = {
        "source_paths": "src",
        "only_mutate": "\n ".join(["", *changed]),
        "also_copy": "\n ".join(["", *copied]),
        "pytest_add_cli_args_test_selection": f"tests/unit/{tests}",
        "process_isolation": "forkserver",  # some tests cannot run twice in a process
        "timeout_constant": "10",  # seconds, beside the time of the tests
        "timeout_multiplier": "5",
    }
    lines = ["[mutmut]", *(f"{name} = {value}" for name, value in settings.items())]
    Path("setup.cfg").write_text("\n".join(lines), "utf-8")
    reset_config()  # the draw has read the configuration
    cli.main(["run", "--max-children", str(options.processes), *mutants], standalone_mode=False)

    results: Counter[str] = Counter()
    for name, (path, _) in mutants.items():
        data = SourceFileMutationData(path=path)
        data.load()
        result = status_by_exit_code[data.exit_code_by_key[name]]
        results[result] += 1
        print(f"{result}: {name}")
    print(f"{options.package}: {results.total()} mutants: {dict(results)}")


if __name__ == "__main__":
    main()
