"""The fixture of the frameworks' tests: a cluster whose image map contains the examples' images.

Run by ``make test-frameworks``, which makes the environments and the map first.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from frameworks.training import Training, training_cluster

IMAGE_MAP = Path(__file__).parents[2] / ".cache" / "frameworks-image-map.yaml"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--image-map",
        type=Path,
        default=IMAGE_MAP,
        help="what tools/framework_environments.py has written",
    )


@pytest.fixture(scope="session")
def image_map(request: pytest.FixtureRequest) -> Path:
    """The file that maps the examples' images to environments."""
    path: Path = request.config.getoption("--image-map")
    if not path.exists():
        pytest.fail(f"there is no {path}: run 'make test-frameworks'")
    return path


@pytest.fixture
async def training(image_map: Path, tmp_path: Path) -> AsyncIterator[Training]:
    """A new cluster."""
    async with training_cluster(image_map, tmp_path / "home") as made:
        yield made
