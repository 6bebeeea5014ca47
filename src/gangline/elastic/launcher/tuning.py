"""The parallel configuration file of this node, and the variables that name it to workers."""

from pathlib import Path

from gangline.elastic.agent.tuning_file import TuningFile
from gangline.elastic.variables import LOADER_FILE_VARIABLES, TUNING_FILE_VARIABLE


def prepare_tuning_file(folder: Path, base: dict[str, str], *, tunes_batch: bool) -> TuningFile:
    """Choose the file and add its variables to ``base``.

    Args:
        folder: folder of this run.
        base: the environment of workers.
        tunes_batch: True if data loaders are to read the file. A file that the environment names
            for them is then used instead of a new one.
    """
    path = folder / "tuning.json"
    if tunes_batch:
        named = next((base[name] for name in LOADER_FILE_VARIABLES if base.get(name)), "")
        path = Path(named) if named else path
        base |= dict.fromkeys(LOADER_FILE_VARIABLES, str(path))
    base[TUNING_FILE_VARIABLE] = str(path)
    return TuningFile(path, tunes_batch=tunes_batch)
