"""The programs in ``tools`` as modules: they are in no package."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).parents[2] / "tools"


def load_tool(name: str) -> Any:
    """Return a new module of the program ``tools/NAME.py``."""
    specification = spec_from_file_location(name, TOOLS / f"{name}.py")
    assert specification
    assert specification.loader
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
