"""Runs stages of the project's tests one after the other, and says what each took.

python tools/stages.py [--list] [--again] [--minutes N] GROUP...

A stage of the group ``release`` that passes is recorded in .ci/stages.json with a digest of its
inputs; ``due`` are those whose inputs have changed since. With ``--minutes`` a stage starts only if
it fits into what is left, by the time that it took when it was recorded. The others stay due, and
each commit begins at another stage, so that each has its turn. ``due`` is the last that a commit
must show, so the commit is recorded then: what later ones must show is what differs from it.
``--again``: if few tests failed, these run once more, alone, and the outcome of that counts: a
shared machine may stand still for longer than a test waits.
"""

import argparse
import hashlib
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))
from core import CORE  # noqa: E402

RECORDS = ROOT / ".ci" / "stages.json"
PYTHON = shlex.quote(sys.executable)
MOST_FAILURES = 8
"""More failures than this are not caused by a busy machine."""
LONG_S = 20
"""A test file that takes longer says so in its docstring."""
UNKNOWN_S = 300
"""What a stage is expected to take that has never passed."""
UNIT_HALF = ("cli", "kube", "operator", "scheduler", "sdk", "sizing")
"""Folders of unit tests that take as long as all others."""
STOPPED = 124
OUTCOMES = {0: "passed", 3: "cannot be had here", STOPPED: "is due; takes longer than is left"}
"""By exit status; all others are failures."""


@dataclass
class Run:
    """How a stage went."""

    log: Path | None = None
    """Where its output goes, if not to the terminal."""
    limit_s: float = math.inf
    status: int = 0
    seconds: float = 0
    of_processors: float = 0

    def shell(self, command: str) -> None:
        """Run a command, and add what it took."""
        # Without a limit no `timeout`, which keeps Ctrl-C from what it runs.
        limit = ["timeout", "--kill-after=60", f"{self.limit_s:.0f}"]
        command_line = [*(limit if self.limit_s < math.inf else ()), "bash", "-c", command]
        began = time.monotonic()
        with (
            self.log.open("ab") if self.log else nullcontext() as output,
            subprocess.Popen(command_line, cwd=ROOT, stdout=output, stderr=output) as process,
        ):
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        self.status = process.returncode
        self.seconds += time.monotonic() - began
        self.of_processors += used.ru_utime + used.ru_stime


@dataclass(frozen=True)
class Stage:
    """A command, or arguments of pytest, and the files that decide most about its outcome."""

    name: str
    command: str = ""
    tests: str = ""
    inputs: tuple[str, ...] = ()
    """Patterns of git; only stages of the release have them."""
    beside: bool = False
    """Runs beside the others of its group: most of a test with real processes is waiting."""

    def digest(self) -> str:
        """Of the names and contents of the inputs."""
        command = ["git", "ls-files", "-co", "--exclude-standard", "--", *self.inputs]
        names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        found = hashlib.sha256()
        for name in sorted(set(names.splitlines())):
            if (ROOT / name).is_file():
                found.update(name.encode() + (ROOT / name).read_bytes())
        return found.hexdigest()[:16]

    def run(self, again: bool, limit_s: float = math.inf) -> Run:
        """Run it, up to a limit."""
        run = Run(self.file("log") if self.beside else None, limit_s)
        self.file("log").parent.mkdir(parents=True, exist_ok=True)
        self.file("log").unlink(missing_ok=True)
        if self.command:
            run.shell(self.command)
            return run
        shutil.rmtree(self.file("d"), ignore_errors=True)
        cache, report = (shlex.quote(str(self.file(kind))) for kind in ("d", "xml"))
        pytest = f"{PYTHON} -m pytest -o cache_dir={cache}"
        run.shell(f"{pytest} -q --junitxml={report} {self.tests}")
        path = self.file("d") / "v/cache/lastfailed"
        failed = sorted(json.loads(path.read_text())) if run.status and path.exists() else []
        if again and 0 < len(failed) <= MOST_FAILURES:
            said = shlex.join(["", "once more, alone, what failed:", *failed])
            # Names that passed are left out: with --last-failed, they would be missing ones.
            words = shlex.split(self.tests)
            options = [word for word in words if not (ROOT / word.split("::")[0]).exists()]
            alone = f"{pytest} -v {shlex.join([*options, *failed])} --numprocesses 0"
            run.shell(f"printf '%s\\n' {said} && {alone}")
        run.status = run.status if run.status in (0, STOPPED) else 1
        return run

    def count(self) -> int:
        """Number of its tests that ran."""
        if self.command or not self.file("xml").exists():
            return 0
        suite = next(ElementTree.parse(self.file("xml")).iter("testsuite")).attrib
        return int(suite["tests"]) - int(suite["skipped"])

    def unstated(self) -> Iterator[str]:
        """Test files that took long and do not say so."""
        seconds = Counter[str]()
        for case in ElementTree.parse(self.file("xml")).iter("testcase"):
            file = case.get("classname", "").replace(".", "/") + ".py"
            seconds[file] += float(case.get("time", 0))
        # A test takes twice as long where twice as many processes want to run as can.
        longest = LONG_S * max(1, os.getloadavg()[1] / (os.cpu_count() or 1))
        for file, took in seconds.items():
            path = ROOT / file
            if took > longest and path.is_file() and "\nTakes " not in path.read_text():
                yield f"{file} took {took:.0f} s: its docstring states neither that nor the reason"

    def file(self, kind: str) -> Path:
        """A file or folder that it writes."""
        return ROOT / f".cache/stages/{self.name.replace('/', '-')}.{kind}"


def _units() -> Iterator[Stage]:
    """The unit tests in two processes of their own: those of pytest-xdist would each collect all of
    them and report each one, which takes a tenth more of the processors.
    """
    halves = " ".join(f"tests/unit/{name}" for name in UNIT_HALF)
    yield Stage("unit/1", tests=halves)
    ignored = " ".join(f"--ignore=tests/unit/{name}" for name in UNIT_HALF)
    yield Stage("unit/2", tests=f"{ignored} tests/unit", beside=True)


def _folders() -> Iterator[Stage]:
    """What `make test-all` adds, folder by folder; a folder is named after what it tests."""
    for folder in [*sorted((ROOT / "tests/integration").glob("*/")), ROOT / "tests/security"]:
        if not folder.name.startswith("_"):
            path = str(folder.relative_to(ROOT))
            source = f":(glob)src/gangline/**/{folder.name}/**"
            yield Stage(path, tests=f"--numprocesses 3 {path}", inputs=(path, source))


def _frameworks() -> Iterator[Stage]:
    """Training with each framework that has an example, then what needs all of them."""
    for path in sorted((ROOT / "tests/frameworks").glob("test_*.py")):
        name = path.stem.removeprefix("test_")
        if name != "clients" and (ROOT / "examples" / name).exists():
            inputs = (str(path), f"examples/{name}", "src/gangline/operator/frameworks")
            yield Stage(
                f"frameworks/{name}", f"make test-frameworks FRAMEWORKS={name}", inputs=inputs
            )
    inputs = ("tests/frameworks", "examples", "tools/*_environments.py")
    yield Stage("frameworks", "make test-frameworks", inputs=inputs)


PACKAGE = ("pyproject.toml", "constraints.txt", "tools/install.py")
# What depends on versions of packages: wire formats, certificates, the command line, the client.
VERSIONED = shlex.quote(
    "tests/unit/api/meta tests/unit/apiserver/auth tests/unit/cli/test_command_line.py "
    "tests/unit/cli/test_usual_mistakes.py tests/unit/kube tests/unit/operator/engine"
)
SITE = ("docs", "mkdocs.yml", "tools/site_*", "tools/reference_pages.py", "tests/documentation")
PAGES = ("src/gangline/dashboard", "tools/fetch_assets.py", "tests/browser")
DEBIAN = (*PACKAGE, "tools/other-debian")
IMAGES = f"""set -e
{PYTHON} tools/build_images.py build/images
{PYTHON} tools/build_images.py build/images-again gangline gangline-init
diff <(grep -v '^gangline-initializer:' build/images/digests.txt) build/images-again/digests.txt
rm -r build/images-again"""
# The seed is fixed: a change is not refused for a fault that it did not bring.
FUZZ = f"PYTHONPATH=tests {PYTHON} -m security.fuzz --seconds 4 --processor-time --seed 1"
# The properties that unit tests state, with many more examples than `make test` draws.
LAWS = f"HYPOTHESIS_PROFILE=thorough {PYTHON} -m pytest -q -m hypothesis tests/unit"
# A hundred kills at random times; each of the other tests kills a rank or two.
LOST_RANKS = (
    f"GANGLINE_TEST_KILLS=100 {PYTHON} -m pytest -q -k many_kills "
    "tests/integration/elastic/launcher/test_launcher_survivors.py"
)
KUBERNETES = "tests/e2e --cluster kubernetes --maxfail 9"
# Many jobs are run by the embedded cluster, and only accepted by the one kubelet of the other.
ONLY_THERE = "-m kubernetes_only -k 'not two_hundred'"


def groups() -> dict[str, list[Stage]]:
    """The stages by the name of their group."""
    journeys = shlex.join(f"tests/{test}" for test in dict.fromkeys(sum(CORE.values(), ())))
    core = Stage("core", tests=f"--numprocesses 3 --maxschedchunk 1 {journeys}", beside=True)
    units = list(_units())
    folders = list(_folders())
    release = [
        *folders,
        Stage("wheel", tests="tests/release", inputs=(*PACKAGE, "tests/release", "tools/build_*")),
        Stage("lowest", f"make test-versions TESTS={VERSIONED}", inputs=PACKAGE),
        Stage("newest", f"make test-versions RESOLUTION=highest TESTS={VERSIONED}", inputs=PACKAGE),
        Stage("debian-13", "tools/other-debian trixie", inputs=DEBIAN),
        Stage("debian-14", "tools/other-debian forky", inputs=DEBIAN),
        Stage("site", "make test-site", inputs=SITE),
        Stage("dashboard", "make test-dashboard", inputs=PAGES),
        Stage("images", IMAGES, inputs=(*PACKAGE, "tools/*image*.py", "deploy/Containerfile")),
        Stage("random-input", FUZZ, inputs=("tests/security/fuzz",)),
        Stage("laws", LAWS, inputs=("tests/unit", "src/gangline")),
        Stage(
            "lost-ranks", LOST_RANKS, inputs=("src/gangline/elastic", "tests/integration/elastic")
        ),
        *_frameworks(),
        Stage("kubernetes", tests=f"{KUBERNETES} --all-rights", inputs=("tests/e2e", "deploy")),
    ]
    # With the unit tests that ask who runs them: .ci/run runs the others as an ordinary user only.
    near = f"$(git grep -l geteuid tests/unit) $({PYTHON} tools/select_tests.py --since {_base()})"
    return {
        "unit": units,
        "test": [*units, core],
        "test-all": [*units, *folders],
        "release": release,
        "due": release,
        "selected": [Stage("selected", tests=f"--numprocesses 3 {near}")],
        "embedded": [Stage("embedded", tests="--numprocesses 3 tests/e2e --cluster embedded")],
        "on-kubernetes": [Stage("on-kubernetes", tests=f"{KUBERNETES} {ONLY_THERE}")],
    }


def records() -> dict[str, Any]:
    """What stages of the release took when they passed, and the commit at which all tests did."""
    return json.loads(RECORDS.read_text()) if RECORDS.exists() else {}


def _of(stage: Stage) -> dict[str, Any]:
    return records().get(stage.name, {"inputs": "", "seconds": UNKNOWN_S, "tests": 0})


def _record(name: str, value: Any) -> None:
    RECORDS.write_text(json.dumps(records() | {name: value}, indent=1, sort_keys=True) + "\n")


def _git_head() -> str:
    return _git("rev-parse", "HEAD")


def _git(*arguments: str) -> str:
    """What git prints; nothing if it fails."""
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True
    )
    return done.stdout.strip()


def _base() -> str:
    """The commit that a change is compared with: where it left the branch that it is for, or else
    the last one at which all passed.
    """
    left = _git("merge-base", "HEAD", "origin/HEAD")
    left = "" if left == _git_head() else left
    return os.environ.get("GANGLINE_BASE") or left or records().get("commit", "HEAD")


def main() -> int:
    """Run the stages of the named groups; whether one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="+", choices=(known := groups()), metavar="GROUP")
    parser.add_argument("--list", action="store_true", help="print the stages only")
    parser.add_argument("--again", action="store_true", help="once more what failed")
    parser.add_argument("--minutes", type=float, default=0)
    given = parser.parse_args()
    wanted = [stage for name in given.names for stage in known[name]]
    if given.names == ["due"]:
        wanted = [stage for stage in wanted if stage.digest() != _of(stage)["inputs"]]
        start = int(_git_head()[:8], 16) % max(len(wanted), 1)
        wanted = wanted[start:] + wanted[:start]
    if given.list:
        print(*(stage.name for stage in wanted), sep="\n")
        return 0
    failed = _run(wanted, given.again, given.minutes * 60 or math.inf)
    if not failed and {"test-all", "due"} & set(given.names):
        _record("commit", _git_head())
    if "test" in given.names:
        others = [_of(stage) for stage in known["test-all"] if stage.inputs]
        tests, seconds = (sum(each[key] for each in others) for key in ("tests", "seconds"))
        print(
            f"the core is one journey for each documented feature; make test-all runs all "
            f"{tests} integration and security tests, in {seconds / 60:.0f} minutes more"
        )
    return int(failed)


def _run(wanted: list[Stage], again: bool, left: float) -> bool:
    """Run stages within a time, and say how they went; whether one failed."""
    failed, table = False, []
    with ThreadPoolExecutor() as threads:
        running = {stage: threads.submit(stage.run, again) for stage in wanted if stage.beside}
        for stage in wanted:
            if left < _of(stage)["seconds"]:
                table.append(f"{stage.name:24} is due; make release-check runs it")
                continue
            print(f"\n=== {stage.name}", flush=True)
            run = running[stage].result() if stage.beside else stage.run(again, left)
            if run.log:
                print(run.log.read_text(), flush=True)
            left -= run.seconds
            failed |= run.status not in OUTCOMES
            outcome = OUTCOMES.get(run.status, "FAILED")
            count = stage.count()
            tests = f"{count:6} tests" if count else " " * 12
            times = f"{run.seconds:5.0f} s, of processors {run.of_processors:5.0f} s"
            table.append(f"{stage.name:24} {tests} {times}  {outcome}")
            if stage.inputs and not run.status:
                done = {"inputs": stage.digest(), "seconds": round(run.seconds), "tests": count}
                _record(stage.name, done)
            table += stage.unstated() if stage.tests and not run.status else ()
    print("", *table, sep="\n", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
