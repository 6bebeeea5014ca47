"""Scripts that may start in an interpreter with PyTorch imported."""

import pytest

from gangline.elastic.nodecheck.interpreters import imports_torch_first


@pytest.mark.parametrize(
    ("source", "may"),
    [
        pytest.param("import torch", True, id="nothing before"),
        pytest.param("from torch.nn import Linear", True, id="a part of it"),
        pytest.param(
            '"""Trains."""\nimport os, json\nimport torch', True, id="the standard library"
        ),
        pytest.param(
            "from __future__ import annotations\nimport numpy as np\nimport torch.distributed as d",
            True,
            id="numpy",
        ),
        pytest.param("import os, torch", True, id="in one line"),
        pytest.param(
            "import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch", False, id="set"
        ),
        pytest.param(
            "import warnings\nwarnings.simplefilter('error')\nimport torch", False, id="call"
        ),
        pytest.param("import mine\nimport torch", False, id="another module"),
        pytest.param("from . import mine\nimport torch", False, id="a relative one"),
        pytest.param("try:\n    import torch\nexcept ImportError:\n    pass", False, id="perhaps"),
        pytest.param("def train():\n    import torch", False, id="later"),
        pytest.param("print('no torch')", False, id="never"),
        pytest.param("", False, id="empty"),
        pytest.param("import (", False, id="no Python"),
        pytest.param("\0", False, id="no text"),
    ],
)
def test_script_imports_torch_first(source: str, may: bool) -> None:
    assert imports_torch_first(source.encode()) is may
