"""The wheel as package indexes take it, and what a user gets from it in an empty environment.

Takes 70 s: it fetches the packages of an environment, PyTorch among them, and runs the demo there.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKERS = ("twine==6.2.0", "auditwheel==6.5.0")
PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile")
LIBRARY = "gangline/elastic/checkpoint/format/copy_summed.so"
DEMO_TIMEOUT_S = 900

pytestmark = pytest.mark.timeout(4 * DEMO_TIMEOUT_S)


def run(*command: str | Path, folder: Path, **variables: str) -> str:
    """Run a command without Python's variables of this environment; return what it printed."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command,
        cwd=folder,
        env=kept | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def empty_environment(folder: Path) -> Path:
    """Create an environment with pip only; return its interpreter."""
    venv.create(folder, with_pip=True)
    return folder / "bin/python"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, without what earlier builds left in it."""
    tree, into = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for folder in ("src", "examples", "tools", "deploy"):
        skip = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / folder, tree / folder, ignore=skip)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*pip, tree, "--wheel-dir", into, folder=tree)
    (built,) = into.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def checkers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs that check wheels."""
    folder = tmp_path_factory.mktemp("checkers")
    run(empty_environment(folder), *PIP, *CHECKERS, folder=folder)
    return folder / "bin"


def test_metadata_and_readme_are_as_package_indexes_require(wheel: Path, checkers: Path) -> None:
    shown = run(checkers / "twine", "check", "--strict", wheel, folder=wheel.parent)
    assert "PASSED" in shown


@pytest.mark.skipif(
    shutil.which("cc") is None or platform.machine() != "x86_64",
    reason="without a C compiler, and on other processors, the wheel has no native part",
)
def test_wheel_runs_with_every_glibc_that_its_name_allows(wheel: Path, checkers: Path) -> None:
    claimed = re.search(r"-py3-none-manylinux_2_(\d+)_x86_64\.whl$", wheel.name)
    assert claimed
    assert LIBRARY in zipfile.ZipFile(wheel).namelist()
    shown = " ".join(run(checkers / "auditwheel", "show", wheel, folder=wheel.parent).split())
    oldest = re.search(r'consistent with the following platform tag: "manylinux_2_(\d+)_', shown)
    assert oldest, shown
    assert int(oldest.group(1)) <= int(claimed.group(1))


TRAINING = """
import os, signal, sys, torch, torch.distributed as dist
from gangline.elastic.checkpoint import Checkpointer
from gangline.elastic.checkpoint.training import TrainingState

dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
state = {"training": TrainingState(model, torch.optim.Adam(model.parameters()))}
with Checkpointer(sys.argv[1]) as checkpointer:
    loaded = checkpointer.load(state)
    first = loaded.step + 1 if loaded else 1
    print(f"rank {dist.get_rank()} starts at {first}")
    for step in range(first, 7):
        model(torch.ones(2, 4)).sum().backward()
        checkpointer.save(step, state)
        if step == 4 and first == 1 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def training_image(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with PyTorch and NumPy 1, and with no extra of Gangline."""
    folder = tmp_path_factory.mktemp("environment")
    python = empty_environment(folder)
    demo = re.search(r"^demo = \[(.*)\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert demo
    (torch,) = re.findall(r'"(torch==[^"]*)"', demo.group(1))
    # Where a build for this machine can be had, it is a tenth of what the extra would fetch.
    run(python, ROOT / "tools/install_torch.py", torch, folder=folder)
    run(python, *PIP, "numpy==1.26.4", folder=folder)
    before = installed(python)
    run(python, *PIP, wheel, folder=folder)
    assert installed(python) - before == {"click", "gangline", "msgspec"}
    return python


def installed(python: Path) -> set[str]:
    """The names of the distributions of an environment."""
    names = run(python, "-m", "pip", "list", "--format=freeze", folder=python.parent)
    return {line.partition("==")[0] for line in names.splitlines() if "==" in line}


def test_a_killed_rank_goes_on_from_its_checkpoint_in_a_training_image(
    training_image: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    gangline = training_image.with_name("gangline")
    flags = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    shown = run(gangline, "run", *flags, "train.py", tmp_path / "saved", folder=tmp_path)
    assert shown.count("starts at 1") == 2
    assert len(re.findall(r"starts at [45]", shown)) == 2
    lacking = subprocess.run(
        [gangline, "list"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert lacking.returncode
    assert "pip install 'gangline[kubernetes]'" in lacking.stderr
    assert len(lacking.stderr.splitlines()) == 2


def test_demo_trains_from_the_wheel(wheel: Path, training_image: Path, tmp_path: Path) -> None:
    python, home = training_image, tmp_path / "home"
    home.mkdir()
    run(python, *PIP, f"gangline[demo] @ {wheel.as_uri()}", folder=tmp_path)
    variables = {"HOME": str(home), "PATH": f"{python.parent}:{os.environ['PATH']}"}
    place = run(python, "-c", "import gangline; print(gangline.__file__)", folder=home, **variables)
    assert Path(place.strip()).is_relative_to(python.parents[1])
    shown = run(python.with_name("gangline"), "demo", folder=home, **variables)
    assert "accuracy" in shown
