"""Packages of extras: every import of another package has one that names it."""

import re
import sys
from pathlib import Path

import gangline
from gangline.extras import explain_missing, find_extra

SOURCE = Path(gangline.__file__).parent
BASE = {"click", "gangline", "msgspec", "numpy", "torch"}
"""What is in the base, or in the training image."""
OF_TRAININGS = {"deepspeed", "lightning", "pytorch_lightning", "transformers", "datasets"}
"""What only scripts of users bring."""


IMPORT = re.compile(
    r"^ *(?:import (\w+)[\w.]*(?: as \w+)?$|from (\w+)[\w.]* import )", re.MULTILINE
)


def imported(path: Path) -> set[str]:
    """The packages that a module imports, at any time."""
    tops = {name or other for name, other in IMPORT.findall(path.read_text())}
    return {name for name in tops - sys.stdlib_module_names if not name.startswith("gangline")}


def test_an_extra_brings_each_package_that_is_imported() -> None:
    names = set[str]().union(*map(imported, SOURCE.rglob("*.py"))) - BASE - OF_TRAININGS
    assert len(names) > 15
    lacking = {name for name in names if not find_extra(name)[1]}
    assert lacking <= {"IPython"}, lacking


def test_a_message_names_the_smallest_extra() -> None:
    assert explain_missing(ModuleNotFoundError(name="aiohttp.web")) == (
        "the package aiohttp is not installed",
        "pip install 'gangline[kubernetes]'",
    )
    assert find_extra("re2") == ("google-re2", "cluster")
    assert find_extra("sqlalchemy.orm") == ("sqlalchemy", "brain")
    assert explain_missing(ModuleNotFoundError(name="nothing_of_ours")) == ("", "")
