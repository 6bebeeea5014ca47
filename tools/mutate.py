"""Mutation test: changes the source in one place after the other and runs its unit tests.

    python tools/mutate.py                      # all modules of gangline.scheduler.preemption
    python tools/mutate.py --sample 100         # a hundred mutants, always the same ones
    python tools/mutate.py src/gangline/scheduler/queueing --tests tests/unit/scheduler/queueing

A mutant is a module with one change: another comparison, operator, number or ``and``/``or``, a
negated or dropped condition, or a statement less. A mutant that some test notices is *killed*; one
that never ends is killed by the time limit. Each mutant runs in a child process that was forked
after the large libraries were imported; the checkout is never changed. Tests that noticed earlier
mutants run first. Left alone are annotations, texts, and the upper-case constants of modules: most
of these are bounds of a search, where one step more or less changes nothing.

Prints the share of killed mutants and the others; ends with status 1 below ``--least`` percent.
"""

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import json
import os
import random
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import pytest
import yaml

PRELOADED = (msgspec, np, yaml)
"""Libraries that the tests need: children inherit them."""
ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
MODULES = ["src/gangline/scheduler/preemption"]
TESTS = [
    "tests/unit/scheduler/preemption/test_preempt.py",
    "tests/unit/scheduler/test_scenarios.py",
    "tests/unit/scheduler/preemption",
    "tests/unit/scheduler/cycle/test_cycle.py",
]
KILLERS = 12
"""Number of tests that noticed earlier mutants and run first."""
KILLED, SURVIVED, TIMEOUT, BROKEN = "killed", "survived", "timeout", "tests do not run"
RESULTS = {0: SURVIVED, 1: KILLED, 2: KILLED}
"""By exit status of pytest; 2: a module of tests cannot be imported with the mutant."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


@dataclass(slots=True)
class Mutant:
    """One changed place, and what came of it."""

    path: str
    line: int
    change: str
    source: str
    result: str = ""
    seconds: float = 0.0


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield all mutants of a module."""
    tree = ast.parse(path.read_text("utf-8"))
    ignored = _ignored(tree)
    for index, node in enumerate(ast.walk(tree)):
        if id(node) in ignored:
            continue
        for number, (change, _) in enumerate(_changes(node)):
            changed = copy.deepcopy(tree)
            twin = next(each for i, each in enumerate(ast.walk(changed)) if i == index)
            list(_changes(twin))[number][1]()
            source = ast.unparse(ast.fix_missing_locations(changed))
            yield Mutant(str(path.relative_to(ROOT)), getattr(node, "lineno", 0), change, source)


def _ignored(tree: ast.Module) -> set[int]:
    """Return the nodes of annotations, decorators, docstrings and constants of the module."""
    parts: list[ast.AST | None] = []
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                parts.append(node)
    for each in ast.walk(tree):
        match each:
            case ast.AnnAssign() | ast.arg():
                parts.append(each.annotation)
            case ast.FunctionDef():
                parts += [each.returns, *each.decorator_list]
            case ast.ClassDef():
                parts += [*each.bases, *each.decorator_list]
            case ast.Expr(value=ast.Constant()) | ast.Assert():
                parts.append(each)
    return {id(each) for part in parts if part is not None for each in ast.walk(part)}


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the changes of one node: a text, and a function that makes the change."""
    yield from _changed_expressions(node)
    yield from _dropped_statements(node)


def _changed_expressions(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            other = COMPARISONS[type(operator)]()
            yield _named(operator, other), lambda: setattr(node, "ops", [other])
        case ast.BinOp() | ast.AugAssign() if type(node.op) in OPERATORS:
            swapped = OPERATORS[type(node.op)]()
            yield _named(node.op, swapped), lambda: setattr(node, "op", swapped)
        case ast.BoolOp():
            either = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield _named(node.op, either), lambda: setattr(node, "op", either)
        case ast.Constant(value=bool(value)):
            yield f"{value} -> {not value}", lambda: setattr(node, "value", not value)
        case ast.Constant(value=int(value)) | ast.Constant(value=float(value)):
            yield f"{value} -> {value + 1}", lambda: setattr(node, "value", value + 1)
        case ast.UnaryOp(op=ast.Not()):
            yield "without not", lambda: _drop_not(node)
        case ast.If() | ast.IfExp():
            yield "if -> if not", lambda: setattr(node, "test", _negated(node.test))
        case ast.comprehension(ifs=[_, *_]):
            yield "comprehension without its condition", lambda: setattr(node, "ifs", [])
        case _:
            pass


def _dropped_statements(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    for field in ("body", "orelse"):
        statements = getattr(node, field, None)
        if not isinstance(statements, list):
            continue
        for index, each in enumerate(statements):
            is_call = isinstance(each, ast.Expr) and isinstance(each.value, ast.Call)
            if is_call or isinstance(each, ast.AugAssign | ast.Continue | ast.Break):
                text = f"without `{ast.unparse(each).splitlines()[0]}` (line {each.lineno})"
                yield text, _dropping(statements, index)


def _named(before: ast.AST, after: ast.AST) -> str:
    return f"{type(before).__name__} -> {type(after).__name__}"


def _negated(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _drop_not(node: ast.UnaryOp) -> None:
    # A double negation: the node itself cannot be replaced here.
    node.operand = ast.UnaryOp(ast.Not(), node.operand)


def _dropping(statements: list[ast.stmt], index: int) -> Callable[[], None]:
    def drop() -> None:
        statements[index] = ast.Pass()

    return drop


class MutantFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a changed source."""

    def __init__(self, mutant: Mutant) -> None:
        parts = Path(mutant.path).relative_to("src").with_suffix("").parts
        self._name = ".".join(part for part in parts if part != "__init__")
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of the changed module; None: another module."""
        del path, target
        if fullname != self._name:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=self._mutant.path)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the changed source."""
        exec(compile(self._mutant.source, self._mutant.path, "exec"), module.__dict__)


class FirstFailure:
    """A plug-in of pytest that keeps the first test that failed."""

    node_id = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a failure."""
        if report.failed and not self.node_id:
            self.node_id = report.nodeid


def run_mutant(mutant: Mutant, tests: Sequence[str], first: Sequence[str], limit_s: int) -> str:
    """Run the tests with a mutant in a child; return the test that noticed it, if any."""
    began = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 2
        with suppress(BaseException):
            os.close(reading)
            signal.alarm(limit_s)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            sys.meta_path.insert(0, MutantFinder(mutant))
            failure = FirstFailure()
            options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header"]
            status = int(pytest.main([*options, *first, *tests], plugins=[failure]))
            os.write(writing, failure.node_id.encode())
        os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        noticed = pipe.read().decode()
    _, wait_status = os.waitpid(child, 0)
    if os.WIFSIGNALED(wait_status):
        mutant.result = TIMEOUT
    else:
        mutant.result = RESULTS.get(os.WEXITSTATUS(wait_status), BROKEN)
    mutant.seconds = time.monotonic() - began
    return noticed


def main() -> int:
    """Run the mutants, print the result and return the status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("modules", nargs="*", default=MODULES)
    parser.add_argument("--tests", nargs="+", default=TESTS)
    parser.add_argument("--sample", type=int, default=0, help="number of mutants; 0: all of them")
    parser.add_argument("--limit", type=int, default=300, help="seconds for each mutant")
    parser.add_argument("--least", type=float, default=90.0, help="percent that must be killed")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path[:0] = [str(SOURCE), str(ROOT / "tests")]
    roots = [ROOT / each for each in options.modules]
    paths = [path for root in roots for path in ([root] if root.is_file() else root.rglob("*.py"))]
    mutants = [mutant for path in sorted(paths) for mutant in mutants_of(path)]
    random.Random(0).shuffle(mutants)
    mutants = mutants[: options.sample or None]
    unchanged = Mutant(mutants[0].path, 0, "", (ROOT / mutants[0].path).read_text("utf-8"))
    run_mutant(unchanged, options.tests, (), options.limit)
    if unchanged.result != SURVIVED:
        sys.exit(f"the tests do not pass without a mutant: {unchanged.result}")
    killers: deque[str] = deque(maxlen=KILLERS)
    for number, mutant in enumerate(mutants, start=1):
        noticed = run_mutant(mutant, options.tests, list(killers), options.limit)
        if noticed:
            with suppress(ValueError):
                killers.remove(noticed)
            killers.appendleft(noticed)
        if mutant.result == SURVIVED:
            print(f"{number}: {mutant.path}:{mutant.line}: {mutant.change}", flush=True)
        if options.json:
            results = [{**asdict(each), "source": ""} for each in mutants[:number]]
            options.json.write_text(json.dumps(results, indent=1))
    killed = sum(mutant.result in (KILLED, TIMEOUT) for mutant in mutants)
    percent = 100 * killed / max(1, len(mutants))
    print(f"{killed} of {len(mutants)} mutants killed: {percent:.1f} %")
    return int(percent < options.least)


if __name__ == "__main__":
    sys.exit(main())
