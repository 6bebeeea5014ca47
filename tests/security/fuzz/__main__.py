"""Run parsers on random input.

usage: python -m security.fuzz [--seconds N] [--processor-time] [--processes N] [--seed N]
                              [TARGET ...]

``--seconds`` is for each target; with ``--processor-time`` it is processor time, so that other work
on the machine does not shorten the run.

The exit status is 1 if some input made a parser raise an error that it does not document, take more
than ``MAX_SECONDS`` of processor time, or more memory than ``MAX_MEMORY_BYTES``. Such inputs are
written to ``tests/security/corpus``.
"""

import argparse
import hashlib
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import FrameType
from typing import NoReturn

from security.fuzz.targets import TARGETS, Target

CORPUS = Path(__file__).parents[1] / "corpus"
MAX_SECONDS = 5.0
"""Processor seconds of one input: inputs are small, and nothing takes longer than linear time."""
HANG_SECONDS = 4 * MAX_SECONDS
"""Processor seconds after which an input is given up."""
MAX_MEMORY_BYTES = 4 << 30
"""Address space of a process that runs parsers: beyond it, an input raises ``MemoryError``."""
MAX_FINDINGS = 5


class ParserHangs(BaseException):
    """Not an ``Exception``, so that no parser handles it."""


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise ParserHangs


def corpus_inputs(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*.bin"))]


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))


def problem_of(target: Target, content: bytes) -> str:
    """Return why an input is a finding, or an empty text."""
    started = time.process_time()
    signal.signal(signal.SIGVTALRM, _interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)
    try:
        target.run(content)
    except target.errors:
        pass
    except (Exception, ParserHangs):
        return traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    took = time.process_time() - started
    return f"took {took:.1f} s of processor time" if took > MAX_SECONDS else ""


def fuzz(
    name: str, seconds: float, seed: int, clock: Callable[[], float] = time.monotonic
) -> tuple[str, int, dict[bytes, str]]:
    """Run one target. Returns its name, the number of inputs, and findings with their reasons."""
    target, rng = TARGETS[name], random.Random(f"{name} {seed}")
    inputs = [*target.seeds, *corpus_inputs(name)]
    findings: dict[bytes, str] = {}
    places: set[str] = set()
    count, end = 0, clock() + seconds
    while clock() < end and len(findings) < MAX_FINDINGS:
        content = rng.choice(inputs)
        for _ in range(rng.choice((1, 1, 2, 3))):
            content = target.mutate(rng, content, rng.choice(inputs), list(target.tokens))
        problem = problem_of(target, content)
        count += 1
        place = "\n".join(problem.splitlines()[-4:-1])
        if problem and place not in places:
            places.add(place)
            findings[content] = problem
        elif not problem and rng.random() < 0.01 and len(inputs) < 500:
            inputs.append(content)
    return name, count, findings


def main() -> int:
    parser = argparse.ArgumentParser(prog="security.fuzz")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=time.time_ns())
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []])
    options = parser.parse_args()
    names = options.targets or list(TARGETS)
    print(f"seed {options.seed}")
    clock = time.process_time if options.processor_time else time.monotonic
    failed = False
    with ProcessPoolExecutor(options.processes, initializer=_limit_memory) as pool:
        running = [pool.submit(fuzz, name, options.seconds, options.seed, clock) for name in names]
        for done in running:
            name, count, findings = done.result()
            print(f"{name}: {count} inputs, {len(findings)} findings", flush=True)
            for content, problem in findings.items():
                failed = True
                digest = hashlib.sha256(content).hexdigest()[:12]
                path = CORPUS / name / f"{digest}.bin"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                print(f"{path}: {content[:200]!r}\n{problem}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
