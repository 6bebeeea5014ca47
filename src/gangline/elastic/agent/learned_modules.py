"""The modules that a script has imported, kept in the user's cache for its later starts.

There is one file for each script and interpreter. It is used while the script is unchanged. A file
that cannot be read or written, or that has other content, is as good as none.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

_SECRETS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "KEY")
"""Parts of the names of variables whose values are not written to a file."""


class LearnedModules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one start of a script has shown."""

    script: str
    """Digest of the script."""
    modules: dict[str, int] = {}
    """Modules in the order of their imports, with the index of the variables set before; or -1."""
    changes: list[dict[str, str | None]] = []
    """Variables that the script had set (None: removed) before an import."""
    excluded: dict[str, str] = {}
    """Packages that depend on the process, with reasons."""
    varies: bool = False
    """True if the script sets variables differently each time: nothing is imported in advance."""


class LearnedFile:
    """The file of one script and interpreter."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Find the file for a command line: interpreter, option, script or ``-m`` and module."""
        interpreter, program = arguments[0], [*arguments[2:4]]
        self._script = ""
        if program and program[0] != "-m":
            script = Path(program[0]).absolute()
            program = [str(script)]
            with contextlib.suppress(OSError):
                self._script = hashlib.sha256(script.read_bytes()).hexdigest()
        name = "\0".join([str(Path(interpreter).absolute()), str(Path.cwd()), *program])
        home = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/"), ".cache")
        digest = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()
        self.path = Path(home, "gangline", "imports", f"{digest[:32]}.json")
        self.content = self._read()

    def _read(self) -> LearnedModules:
        with contextlib.suppress(OSError, ValueError):
            content = msgspec.json.decode(self.path.read_bytes(), type=LearnedModules)
            indexes = range(-1, len(content.changes))
            if content.script == self._script and all(
                n in indexes for n in content.modules.values()
            ):
                return content
        return LearnedModules(self._script)

    def keep(
        self,
        modules: Mapping[str, int],
        changes: Sequence[Mapping[str, str | None]],
        excluded: Mapping[str, str],
    ) -> None:
        """Write what was learned, unless the script varies or nothing is new."""
        if self.content.varies or modules.keys() == self.content.modules.keys():
            return
        used = {number: at for at, number in enumerate(sorted({*modules.values()} - {-1}))}
        without = [
            {key: value for key, value in changes[number].items() if not _is_secret(key)}
            for number in used
        ]
        numbers = {name: used.get(number, -1) for name, number in modules.items()}
        self._write(LearnedModules(self._script, numbers, without, dict(excluded)))

    def keep_none(self) -> None:
        """Note that a process cannot have the modules of another start."""
        if not self.content.varies:
            self._write(LearnedModules(self._script, varies=True))

    def _write(self, content: LearnedModules) -> None:
        self.content = content
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=self.path.parent)  # for this user only
            with open(descriptor, "wb") as file:
                file.write(msgspec.json.encode(content))
            os.replace(temporary, self.path)


def _is_secret(name: str) -> bool:
    return any(part in name.upper() for part in _SECRETS)
