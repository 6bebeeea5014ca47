"""Each kubectl version against the API server."""

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE
from dataclasses import dataclass
from pathlib import Path

import pytest

from gangline.local.apiserver.server import ApiServer
from kubectl_versions import OLD, PROGRAMS, missing_reason


@dataclass
class Kubectl:
    program: str
    folder: Path
    kubeconfig: Path
    is_old: bool

    async def run(self, *arguments: str, text: str = "", editor: str = "true") -> tuple[int, str]:
        """Run a command. Returns its exit code and its output."""
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
                output, _ = await process.communicate(text.encode() or None)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return process.returncode, output.decode()

    async def __call__(self, line: str, *more: str, text: str = "", editor: str = "true") -> str:
        """Run a command that must succeed. Returns its output."""
        code, output = await self.run(*line.split(), *more, text=text, editor=editor)
        assert code == 0, output
        return output


@pytest.fixture(params=sorted(PROGRAMS))
async def kubectl(request: pytest.FixtureRequest, api_server: ApiServer, tmp_path: Path) -> Kubectl:
    program = PROGRAMS[request.param]
    if not program:
        pytest.skip(missing_reason(request.param))
    return Kubectl(program, tmp_path, api_server.kubeconfig, request.param == OLD)
