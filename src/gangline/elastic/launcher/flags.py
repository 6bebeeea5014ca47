"""All flags of the launcher as a table (torchrun, dlrover-run, Gangline), and their parser.

Every flag is accepted with ``-`` and with ``_``, and as the environment variable ``PET_<NAME>``.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent


def comma_separated(text: str) -> list[str]:
    """Split at commas. A doubled comma stands for a literal one."""
    return [part.replace("\0", ",") for part in text.replace(",,", "\0").split(",")]


@dataclass(frozen=True, slots=True)
class Flag:
    name: str
    help: str
    default: object = None
    type: Callable[[str], object] = str
    short: str = ""
    choices: tuple[object, ...] = ()
    is_switch: bool = False

    @property
    def description(self) -> str:
        """The help with the default."""
        return self.help if self.default in (None, "", ()) else f"{self.help} [{self.default}]"

    @property
    def usage(self) -> str:
        """The names and the value, as help writes them."""
        short = f"-{self.short}, " if self.short else ""
        return f"{short}--{self.name} {self.metavar}".rstrip()

    @property
    def metavar(self) -> str:
        """The name of the value; empty for a switch."""
        return "" if self.is_switch else self.name.rpartition("-")[2].upper()


TORCHRUN_FLAGS = (
    Flag("nnodes", "Number of nodes, or MIN:MAX.", "1:1"),
    Flag("nproc-per-node", "Workers on each node: a number, auto, cpu, gpu, xpu or npu.", "1"),
    Flag("rdzv-backend", "static or c10d; both are served by the job's master.", "static"),
    Flag("rdzv-endpoint", "HOST:PORT of the master; the node that has this address hosts it.", ""),
    Flag("rdzv-id", "Name of the job.", "none"),
    Flag(
        "rdzv-conf",
        "KEY=VALUE,… of join_timeout, timeout, last_call_timeout, pend_timeout, node_unit, "
        "is_host and rank.",
        "",
    ),
    Flag("standalone", "One node, without a rendezvous.", is_switch=True),
    Flag(
        "max-restarts",
        "Restarts of the workers: N, or N/TIME such as 10/1h, renewed by progress; "
        "3, but 0 for errors of the program.",
    ),
    Flag("monitor-interval", "Seconds between reads of teed output.", 0.1, float),
    Flag("start-method", "Only spawn: workers are programs of their own.", "spawn"),
    Flag("event-log-handler", "null, or console: log the agent's decisions on stderr.", "null"),
    Flag("role", "Role name of the workers.", "default"),
    Flag("module", "Run a module, as python -m does.", short="m", is_switch=True),
    Flag("no-python", "Run a program that is no Python script.", is_switch=True),
    Flag("run-path", "Run a script given by its absolute path.", is_switch=True),
    Flag("log-dir", "Folder in which this run's folder of files is created."),
    Flag("redirects", "Streams to files: 1 stdout, 2 stderr, 3 both; or RANK:N,…", "0", short="r"),
    Flag("tee", "Streams to files and console, as --redirects.", "0", short="t"),
    Flag("local-ranks-filter", "Local ranks whose output is shown.", ""),
    Flag("duplicate-stdout-filters", "Teed lines with one of these go to a file as well.", (),
         comma_separated),
    Flag("duplicate-stderr-filters", "Likewise for stderr.", (), comma_separated),
    Flag("node-rank", "Rank of this node; NODE_RANK of the environment when not given.", None, int),
    Flag("master-addr", "Address of node 0.", "127.0.0.1"),
    Flag("master-port", "Port on node 0.", None, int),
    Flag("local-addr", "Address of this node for other nodes."),
    Flag("logs-specs", "Refused: plug-ins of torch would have to be loaded."),
    Flag("numa-binding", "Bind workers to the processors near their devices: node."),
    Flag("signals-to-handle", "Signals that end the run and are forwarded.",
         "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
    Flag("shutdown-timeout", "Seconds that workers may take to end.", None, int),
    Flag("virtual-local-rank", "Each worker sees its device as number 0.", is_switch=True),
)  # fmt: skip

DLROVER_FLAGS = (
    Flag("precheck", "0: none; 1: node check; 2: and communication.", 0, int, choices=(0, 1, 2)),
    Flag("network-check", "Check the nodes before training.", is_switch=True),
    Flag("comm-perf-test", "Measure communication before training.", is_switch=True),
    Flag("node-unit", "The number of nodes is a multiple of this.", 1, int),
    Flag("auto-config", "Nodes from NODE_NUM, workers from devices.", is_switch=True),
    Flag("auto-tunning", "Data loaders read settings that the master passes on.", is_switch=True),
    Flag("exclude-straggler", "Exclude nodes that the node check finds slow.", is_switch=True),
    Flag("save-at-breakpoint", "Save checkpoints in memory when workers fail.", is_switch=True),
    Flag("accelerator", "Kind of device.", "nvidia.com/gpu",
         choices=("nvidia.com/gpu", "ascend-npu", "mthreads.com/gpu", "metax-tech.com/gpu")),
    Flag("training-port", "First port of collectives on NPUs.", 60_000, int),
    Flag("numa-affinity", "As --numa-binding node.", is_switch=True),
    Flag("membind-policy", "preferred, or bind (needs --numa-affinity and numactl).", "preferred",
         choices=("preferred", "bind", "none")),
    Flag("ucp-device-type", "Refused: checkpoints are not converted."),
)  # fmt: skip

OWN_FLAGS = (
    Flag("restart-grace", "Seconds that workers may take to end before a restart.", None, float),
    Flag(
        "min-workers",
        "Workers that go on while a lost one has no successor, for scripts with SurvivorGroup; "
        "all when not given.",
        None,
        int,
    ),
    Flag(
        "successors",
        "Processes on each node that wait to replace a lost worker, for scripts with "
        "SurvivorGroup; 1, but 0 beside GPUs.",
        None,
        int,
    ),
    Flag("no-standby", "No spare interpreters beside the workers.", is_switch=True),
    Flag("preload", "Modules that spares import besides those learned.", (), comma_separated),
    Flag("standby-reserve", "MiB that must stay free beside spares.", 1024, int),
    Flag(
        "hang-timeout",
        "Seconds without progress after which workers count as hung; auto: learned; or "
        "PHASE=SECONDS,… of step, start, first_step, evaluation and checkpoint.",
    ),
    Flag("brain", "URL of a Brain outside of a cluster, to which facts of the job are sent."),
    Flag("check-matrix-size", "Node check: rows of the matrices; 0: by device.", 0, int),
    Flag("check-matrix-repeats", "Node check: timed products; 0: by device.", 0, int),
    Flag("check-collective-mib", "Node check: MiB of an all-reduce; 0: by device.", 0.0, float),
    Flag("check-collective-repeats", "Node check: timed all-reduces; 0: by device.", 0, int),
    Flag("check-timeout", "Node check: seconds for a test, and for partners.", 30.0, float),
    Flag("check-memory-limit", "Node check: share of a GPU that may be in use.", 0.3, float),
    Flag("straggler-ratio", "A node is slow from this multiple of the median on.", 2.0, float),
    Flag("straggler-seconds", "A node is slow if it needs longer; 0: no limit.", 0.0, float),
)

FLAG_GROUPS = {
    "Flags of torchrun": TORCHRUN_FLAGS,
    "Flags of dlrover-run": DLROVER_FLAGS,
    "Further flags": OWN_FLAGS,
}
ALL_FLAGS = tuple(flag for flags in FLAG_GROUPS.values() for flag in flags)

EXAMPLES = """\
gangline run --nproc-per-node 4 train.py --epochs 3
gangline run --standalone --nproc-per-node gpu -m package.train
gangline run --nnodes 2:4 --rdzv-endpoint node-0:29400 train.py
"""


ENVIRONMENT_PREFIX = "PET_"


class FlagError(Exception):
    """A flag cannot be honoured; the text names it and the reason."""


def parse_flags(
    arguments: Sequence[str], environment: Mapping[str, str], program: str
) -> argparse.Namespace:
    """Parse a command line. Every flag becomes an attribute in its ``_`` spelling.

    The attribute ``given`` holds the names of flags that were set, here or in the environment.

    Raises:
        SystemExit: it is wrong, or help is requested; argparse has printed a message.
        FlagError: an environment variable is wrong.
    """
    parser = _parser(program)
    values = parser.parse_args(arguments)
    given = set(vars(values)) - {"training_script", "training_script_args"}
    for flag in ALL_FLAGS:
        name = flag.name.replace("-", "_")
        if name in given:
            continue
        if (text := environment.get(ENVIRONMENT_PREFIX + name.upper())) is not None:
            setattr(values, name, _parse_value(flag, text))
            given.add(name)
        else:
            setattr(values, name, False if flag.is_switch else flag.default)
    values.given = frozenset(given)
    return values


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        usage="%(prog)s [FLAGS] training_script ...",
        description="Start a training script on this node, and start it again when it fails.",
        epilog="Examples:\n" + indent(EXAMPLES, "  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    for title, flags in FLAG_GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            names = dict.fromkeys((f"--{flag.name}", f"--{flag.name.replace('-', '_')}"))
            short = [f"-{flag.short}"] if flag.short else []
            if flag.is_switch:
                group.add_argument(*short, *names, action="store_true", help=flag.help)
                continue
            group.add_argument(
                *short,
                *names,
                type=flag.type,
                choices=flag.choices or None,
                help=flag.description,
                metavar=None if flag.choices else flag.metavar,
            )
    parser.add_argument("training_script", help="The script, module or program.")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help="Its arguments.")
    return parser


def _parse_value(flag: Flag, text: str) -> object:
    name = ENVIRONMENT_PREFIX + flag.name.replace("-", "_").upper()
    try:
        value = bool(int(text)) if flag.is_switch else flag.type(text)
    except ValueError:
        expected = "0 or 1" if flag.is_switch else "a number"
        raise FlagError(f"{name}={text}: must be {expected}") from None
    if flag.choices and value not in flag.choices:
        raise FlagError(f"{name}={text}: must be one of {', '.join(map(str, flag.choices))}")
    return value
