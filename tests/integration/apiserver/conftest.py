"""Stock kubectl, a current one and the 1.20 of Debian bookworm, against the API server.

``GANGLINE_KUBECTL`` and ``GANGLINE_KUBECTL_OLD`` name the programs; without them ``kubectl`` on the
path is the current one, and the old one is looked for where continuous integration unpacks it.
"""

import asyncio
import os
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from dataclasses import dataclass
from pathlib import Path

import pytest

from gangline.local.apiserver.server import ApiServer

UNPACKED = "/var/cache/gangline-kubectl/1.20/usr/bin/kubectl"
PROGRAMS = {
    "current": os.environ.get("GANGLINE_KUBECTL") or shutil.which("kubectl") or "",
    "1.20": os.environ.get("GANGLINE_KUBECTL_OLD") or (UNPACKED if Path(UNPACKED).exists() else ""),
}


@dataclass
class Kubectl:
    program: str
    folder: Path
    kubeconfig: Path
    is_old: bool

    async def run(self, *arguments: str, text: str = "", editor: str = "true") -> tuple[int, str]:
        """Run it; give its exit code and all that it said."""
        process = await asyncio.create_subprocess_exec(
            self.program,
            f"--cache-dir={self.folder / 'cache'}",
            *arguments,
            stdin=PIPE if text else DEVNULL,
            stdout=PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={
                **os.environ,
                "KUBECONFIG": str(self.kubeconfig),
                "HOME": str(self.folder),
                "EDITOR": editor,
            },
        )
        try:
            async with asyncio.timeout(60):
                said, _ = await process.communicate(text.encode() or None)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return process.returncode, said.decode()

    async def __call__(self, line: str, *more: str, text: str = "", editor: str = "true") -> str:
        """Run a command line that must succeed; give what it said."""
        code, said = await self.run(*line.split(), *more, text=text, editor=editor)
        assert code == 0, said
        return said


@pytest.fixture(params=sorted(PROGRAMS))
async def kubectl(request: pytest.FixtureRequest, api_server: ApiServer, tmp_path: Path) -> Kubectl:
    program = PROGRAMS[request.param]
    if not program:
        pytest.skip(f"no {request.param} kubectl here")
    return Kubectl(program, tmp_path, api_server.kubeconfig, request.param == "1.20")
