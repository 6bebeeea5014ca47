"""Mutation test: changes the source in one place after the other and runs its unit tests.

    python tools/mutate.py                      # preemption, queueing and placement
    python tools/mutate.py --sample 40          # 40 mutants of each module; the same for a --seed
    python tools/mutate.py --again results.json # those that survived in the run of this --json
    python tools/mutate.py src/gangline/scheduler/queueing --tests tests/unit/scheduler/queueing

A mutant is a module with one change: another comparison, operator, number or ``and``/``or``, a
negated or dropped condition, or a statement less. A mutant that some test notices is *killed*; one
that never ends is killed by the time limit. Left alone are annotations, texts, defaults of fields,
and the upper-case constants of modules: most of these are bounds of a search, where one step more
or less changes nothing.

The tests are collected once, and run once to learn which functions each of them calls. Each mutant
is a child process, in which the changed code replaces that of the imported module. It runs the
tests that call the changed function: first those that noticed earlier mutants, then the shortest
ones. Tests that take longer than ``--longest`` are left out. The checkout is never changed.

``equivalent_mutants.toml`` lists changes that no test can notice, with the reason; they are
neither run nor counted. Prints for each package the number of killed mutants, and all others; ends
with status 1 below ``--least`` percent in a package. After an interrupt (SIGINT) it reports those
that were run.
"""

import argparse
import ast
import copy
import json
import math
import os
import random
import signal
import sys
import time
import tomllib
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import FrameType, FunctionType, ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
SCHEDULER = "src/gangline/scheduler"
MODULES = [f"{SCHEDULER}/{package}" for package in ("preemption", "queueing", "placement")]
TESTS = ["tests/unit/scheduler"]
KILLERS = 5
"""Number of tests that noticed earlier mutants of a function, or of others, and run first."""
KILLED, SURVIVED, TIMEOUT = "killed", "survived", "timeout"
BROKEN = "cannot be run"
EXIT_SURVIVED, EXIT_KILLED, EXIT_BROKEN = 0, 1, 3

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
    function: str
    """Qualified name of the changed function or method."""
    line: int
    text: str
    """The first line of the changed place."""
    change: str
    make: Callable[[], str]
    """Returns the changed source."""
    result: str = ""
    noticed_by: str = ""
    seconds: float = 0.0

    @property
    def package(self) -> str:
        """The folder of the module."""
        return str(Path(self.path).parent)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.function}: {self.change}: {self.text}"


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield all mutants of a module."""
    source = path.read_text("utf-8")
    lines = source.splitlines()
    tree = ast.parse(source)
    ignored = _ignored(tree)
    functions = _functions(tree)
    line = 0
    for index, node in enumerate(ast.walk(tree)):
        line = getattr(node, "lineno", 0) or _first_line(node)
        function = functions.get(id(node))
        if function is None or id(node) in ignored:
            continue
        for number, (change, at, _) in enumerate(_changes(node)):
            where = at or line
            yield Mutant(
                path=str(path.relative_to(ROOT)),
                function=function,
                line=where,
                text=lines[where - 1].strip() if where else "",
                change=change,
                make=_maker(tree, index, number),
            )


def _maker(tree: ast.Module, index: int, number: int) -> Callable[[], str]:
    def make() -> str:
        changed = copy.deepcopy(tree)
        twin = next(each for i, each in enumerate(ast.walk(changed)) if i == index)
        list(_changes(twin))[number][2]()
        return ast.unparse(ast.fix_missing_locations(changed))

    return make


def _first_line(node: ast.AST) -> int:
    return min((line for each in ast.walk(node) if (line := getattr(each, "lineno", 0))), default=0)


def _functions(tree: ast.Module) -> dict[int, str]:
    """Return the outermost function of each node, by the identity of the node."""
    names: dict[int, str] = {}

    def visit(parent: ast.AST, prefix: str) -> None:
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.ClassDef):
                visit(node, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names.update((id(each), f"{prefix}{node.name}") for each in ast.walk(node))

    visit(tree, "")
    return names


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


Change = tuple[str, int, Callable[[], None]]
"""A text, the line if it is not that of the node, and a function that makes the change."""


def _changes(node: ast.AST) -> Iterator[Change]:
    """Yield the changes of one node."""
    for text, change in _changed_expressions(node):
        yield text, 0, change
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


def _dropped_statements(node: ast.AST) -> Iterator[Change]:
    for name in ("body", "orelse"):
        statements = getattr(node, name, None)
        if not isinstance(statements, list):
            continue
        for index, each in enumerate(statements):
            is_call = isinstance(each, ast.Expr) and isinstance(each.value, ast.Call)
            if is_call or isinstance(each, ast.AugAssign | ast.Continue | ast.Break):
                yield "without the statement", each.lineno, _dropping(statements, index)


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


def install(mutant: Mutant) -> None:
    """Replace the code of the imported module's functions by that of the mutant.

    Raises:
        ValueError: a function of the mutant has other free variables.
    """
    name = ".".join(Path(mutant.path).relative_to("src").with_suffix("").parts)
    original = sys.modules[name]
    changed = ModuleType(name)
    changed.__file__ = original.__file__
    code = compile(mutant.make(), str(ROOT / mutant.path), "exec")
    try:
        sys.modules[name] = changed  # Dataclasses look their module up.
        exec(code, changed.__dict__)
    finally:
        sys.modules[name] = original
    _replace_codes(vars(original), vars(changed), name)


def _replace_codes(old: Mapping[str, object], new: Mapping[str, object], module: str) -> None:
    for name, value in list(old.items()):
        other = new.get(name)
        if isinstance(value, type) and isinstance(other, type) and value.__module__ == module:
            _replace_codes(vars(value), vars(other), module)
            continue
        before, after = _function_of(value), _function_of(other)
        if before is None or after is None or before.__module__ != module:
            continue
        before.__code__ = after.__code__
        before.__defaults__ = after.__defaults__
        before.__kwdefaults__ = after.__kwdefaults__


def _function_of(value: object) -> FunctionType | None:
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, staticmethod | classmethod):
        value = value.__func__
    elif isinstance(value, cached_property):
        value = value.func
    value = getattr(value, "__wrapped__", value)
    return value if isinstance(value, FunctionType) else None


@dataclass(slots=True)
class Call:
    """What a test calls, and how long it takes."""

    seconds: float = 0.0
    functions: set[tuple[str, str]] = field(default_factory=set)
    """Path and qualified name."""


class MutationRun:
    """A plug-in of pytest that runs the collected tests once for each mutant."""

    def __init__(self, mutants: Sequence[Mutant], options: argparse.Namespace) -> None:
        self._mutants = mutants
        self._options = options
        self._failed = ""
        self._items: dict[str, pytest.Item] = {}
        self._calls: dict[str, Call] = {}
        self._killers: dict[tuple[str, str], Counter[str]] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all mutants instead of the tests."""
        self._items = {item.nodeid: item for item in session.items}
        self._calls = self._learn_calls()
        running: dict[int, tuple[Mutant, int, float]] = {}
        pending = list(reversed(self._mutants))
        while pending or running:
            while pending and len(running) < self._options.processes:
                mutant = pending.pop()
                pid, pipe = self._start(mutant)
                running[pid] = mutant, pipe, time.monotonic()
            pid, status = os.wait()
            mutant, pipe, began = running.pop(pid)
            mutant.seconds = time.monotonic() - began
            with os.fdopen(pipe, "rb") as reading:
                mutant.noticed_by = reading.read().decode()
            self._keep(mutant, status)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the first failure."""
        if report.failed and not self._failed:
            self._failed = report.nodeid

    def _keep(self, mutant: Mutant, status: int) -> None:
        if os.WIFSIGNALED(status):
            mutant.result = TIMEOUT
        elif os.WEXITSTATUS(status) == EXIT_BROKEN:
            mutant.result = BROKEN
        else:
            killed = os.WEXITSTATUS(status) == EXIT_KILLED
            mutant.result = KILLED if killed else SURVIVED
        if mutant.noticed_by:
            key = mutant.path, mutant.function
            self._killers.setdefault(key, Counter())[mutant.noticed_by] += 1
        if mutant.result in (SURVIVED, BROKEN):
            print(f"{mutant.result}: {mutant}", flush=True)

    def _start(self, mutant: Mutant) -> tuple[int, int]:
        """Start a child that runs a mutant; return its process, and the pipe of its result."""
        tests = self._tests_of(mutant)
        expected_s = sum(self._calls[test].seconds for test in tests)
        reading, writing = os.pipe()
        child = os.fork()
        if child:
            os.close(writing)
            return child, reading
        status = EXIT_BROKEN
        with suppress(BaseException):
            os.close(reading)
            # Processor time: how busy the machine is does not matter.
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_PROF, self._options.limit + 3 * expected_s)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            install(mutant)
            self._run(tests)
            status = EXIT_KILLED if self._failed else EXIT_SURVIVED
            os.write(writing, self._failed.encode())
        os._exit(status)

    def _run(self, tests: Sequence[str]) -> None:
        """Run tests until one fails."""
        for test in tests:
            item = self._items[test]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if self._failed:
                return

    def _tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that call the changed function, in the order in which they run."""
        key = mutant.path, mutant.function
        killers = self._killers.get(key, Counter())
        calling = [
            test
            for test, call in self._calls.items()
            if call.seconds <= self._options.longest and key in call.functions
        ]
        return sorted(calling, key=lambda test: (-killers[test], self._calls[test].seconds))

    def _learn_calls(self) -> dict[str, Call]:
        """Run all tests, and return what each of them calls; each test runs in a child.

        Raises:
            SystemExit: a test fails without any mutant.
        """
        calls: dict[str, Call] = {}
        running: deque[tuple[str, int, int]] = deque()
        for test, item in self._items.items():
            if len(running) >= self._options.processes:
                earlier, *process = running.popleft()
                calls[earlier] = self._learned_call(earlier, *process)
            running.append((test, *self._start_tracing(item)))
        for test, child, pipe in running:
            calls[test] = self._learned_call(test, child, pipe)
        return calls

    def _start_tracing(self, item: pytest.Item) -> tuple[int, int]:
        """Start a child that traces a test; return its process, and the pipe of its result."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(reading)
                # Ends the child. Tracing takes about as long as the test itself.
                signal.setitimer(signal.ITIMER_PROF, 2 * self._options.longest)
                call = self._trace(item)
                with os.fdopen(writing, "wb") as pipe:
                    pipe.write(json.dumps([call.seconds, sorted(call.functions)]).encode())
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(int(bool(self._failed)))
        os.close(writing)
        return child, reading

    def _learned_call(self, test: str, child: int, pipe: int) -> Call:
        with os.fdopen(pipe, "rb") as reading:
            text = reading.read()
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return Call(math.inf)
        if os.WEXITSTATUS(status) or not text:
            sys.exit(f"fails without a mutant: {test}")
        seconds, functions = json.loads(text)
        return Call(seconds, {(path, name) for path, name in functions})

    def _trace(self, item: pytest.Item) -> Call:
        paths = {str(ROOT / mutant.path): mutant.path for mutant in self._mutants}
        call = Call()

        def trace(frame: FrameType, event: str, arg: object) -> None:
            del event, arg
            path = paths.get(frame.f_code.co_filename)
            if path is not None:
                call.functions.add((path, frame.f_code.co_qualname.partition(".<locals>")[0]))

        began = time.process_time()
        sys.settrace(trace)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        sys.settrace(None)
        call.seconds = time.process_time() - began
        return call


Entry = tuple[str, str, str]
"""Function, change and first line of a mutant that no test can notice."""


def equivalent_entries() -> frozenset[Entry]:
    """Return the entries of ``equivalent_mutants.toml``."""
    listed = tomllib.loads(EQUIVALENT.read_text("utf-8")).get("mutant", [])
    return frozenset((each["function"], each["change"], each["line"]) for each in listed)


def entry_of(mutant: Mutant) -> Entry:
    """Return the entry that would name a mutant."""
    module = Path(mutant.path).relative_to(SCHEDULER).with_suffix("")
    return f"{module}.{mutant.function}", mutant.change, mutant.text


def main() -> int:
    """Run the mutants, print the result and return the status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("modules", nargs="*", default=MODULES)
    parser.add_argument("--tests", nargs="+", default=TESTS)
    parser.add_argument("--sample", type=int, default=0, help="mutants of each module; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--again", type=Path, help="run only what survived in these results")
    parser.add_argument("--longest", type=float, default=1.0, help="seconds of a test")
    parser.add_argument("--limit", type=float, default=5.0, help="further seconds of a mutant")
    parser.add_argument("--least", type=float, default=90.0, help="percent that must be killed")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all results to this file")
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path[:0] = [str(SOURCE), str(ROOT / "tests")]
    roots = [ROOT / each for each in options.modules]
    paths = [path for root in roots for path in ([root] if root.is_file() else root.rglob("*.py"))]
    mutants: list[Mutant] = []
    equivalent: Counter[str] = Counter()
    survived = _survivors(options.again) if options.again else set()
    entries = equivalent_entries()
    unknown = set(entries)
    for path in sorted(paths):
        listed = list(mutants_of(path))
        found = [each for each in listed if entry_of(each) not in entries]
        unknown -= {entry_of(each) for each in listed}
        equivalent[str(path.parent.relative_to(ROOT))] += len(listed) - len(found)
        if options.again:
            found = [each for each in found if _key(str(each)) in survived]
        random.Random(options.seed).shuffle(found)
        mutants += found[: options.sample or None]
    # So that those before an interrupt are a sample of all.
    random.Random(options.seed).shuffle(mutants)
    if unknown and options.modules == MODULES:
        sys.exit(f"no such mutants: {sorted(unknown)}")
    plugin = MutationRun(mutants, options)
    pytest.main(["-p", "no:cacheprovider", "-p", "no:terminal", *options.tests], plugins=[plugin])
    if options.json:
        options.json.write_text(json.dumps([_record(each) for each in mutants], indent=1))
    return max(
        (_report(mutants, package, count, options.least) for package, count in equivalent.items())
    )


def _survivors(results: Path) -> set[str]:
    listed = json.loads(results.read_text("utf-8"))
    return {_key(each["mutant"]) for each in listed if each["result"] in ("", SURVIVED)}


def _key(mutant: str) -> str:
    """Return a mutant without its line, which later changes of the module move."""
    path, _, rest = mutant.partition(":")
    return path + rest.partition(":")[2]


def _report(mutants: Sequence[Mutant], package: str, equivalent: int, least: float) -> int:
    results = Counter(each.result for each in mutants if each.package == package)
    killed, count = results[KILLED] + results[TIMEOUT], results.total() - results[""]
    percent = 100 * killed / max(1, count)
    print(f"{package}: {killed} of {count} killed ({percent:.1f} %), {equivalent} equivalent")
    return int(percent < least)


def _record(mutant: Mutant) -> dict[str, object]:
    return {
        "mutant": str(mutant),
        "result": mutant.result,
        "noticed_by": mutant.noticed_by,
        "seconds": round(mutant.seconds, 2),
    }


if __name__ == "__main__":
    sys.exit(main())
