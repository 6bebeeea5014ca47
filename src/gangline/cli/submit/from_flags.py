"""From parsed options to ``JobFlags`` and objects; errors have flag, value and remedy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gangline.cli.params.target import ClusterTarget
from gangline.cli.submit import flags as parsers
from gangline.cli.submit.builders import BUILDERS, takes_code, training_jobs
from gangline.cli.submit.code_sync import CodeSync, add_git_sync, add_rsync, add_upload
from gangline.cli.submit.flags import JobFlags, Manifest, PodFlags, non_empty
from gangline.cli.submit.owned_objects import NODE_FOLDER, add_config_files, add_tensorboard
from gangline.cli.submit.working_folder import choose_working_folder, mount_folder

_AMOUNT_SUFFIXES = ("cpu", "memory", "cpu_limit", "memory_limit")


_ABSENT: dict[str, Any] = {
    "working_dir": "",
    "sync_mode": None,
    "sync_source": "",
    "sync_image": "",
    "gang": False,
    "retry": 0,
    "clean_task_policy": "",
    "pull_policy": "",
    "scheduler": "",
    "priority": "",
    "host_network": False,
    "host_ipc": False,
    "host_pid": False,
}
"""Values of flags that a kind does not have."""


def build_objects(
    kind: str, trainer: str, command: str, options: dict[str, Any], target: ClusterTarget
) -> list[Manifest]:
    """Return the job for a cluster, followed by the objects that it owns."""
    options = _ABSENT | options
    flags = _in_working_folder(_job_flags(kind, trainer, command, options), options, target)
    belongings: list[Manifest] = []
    flags, objects = add_config_files(flags, options["config_file"])
    belongings += objects
    if options["tensorboard"]:
        image, logdir = options["tensorboard_image"], options["logdir"]
        node_port = options["tensorboard_node_port"]
        cluster = target.embedded_cluster()
        # An embedded cluster that an ordinary user runs may not create a folder in /.
        folder = str(cluster.folder / "training-logs") if cluster else NODE_FOLDER
        flags, objects = add_tensorboard(flags, image, logdir, folder, node_port=node_port)
        belongings += objects
    flags, objects = _add_code(flags, options)
    belongings += objects
    return [BUILDERS[kind](flags), *belongings]


def _job_flags(kind: str, trainer: str, command: str, options: dict[str, Any]) -> JobFlags:
    for name, amount in options.items():
        if amount and (name in _AMOUNT_SUFFIXES or name.endswith(("_cpu", "_memory", "_limit"))):
            parsers.check_quantity(_flag(name), amount)
    extra = {name: _extra(name, value) for name, value in options.items()}
    return JobFlags(
        name=options["name"],
        pod=_pod(trainer, command, options),
        workers=options["workers"] or 0,
        queue=options["queue"],
        retry=options["retry"],
        clean_task_policy=options["clean_task_policy"],
        running_timeout_s=parsers.parse_seconds("--running-timeout", options["running_timeout"]),
        ttl_after_finished_s=parsers.parse_seconds(
            "--ttl-after-finished", options["ttl_after_finished"]
        ),
        gang=options["gang"],
        extra=extra,
    )


def _in_working_folder(flags: JobFlags, options: dict[str, Any], target: ClusterTarget) -> JobFlags:
    """Return the job with its working folder, which it mounts if it is one of this machine."""
    pod, has_runtime = flags.pod, "runtime" in options
    given = next((name for name in ("sync_mode", "working_dir") if options[name]), "")
    if has_runtime and given:
        _check_runtime(_flag(given), pod, options)
    elif has_runtime and (not pod.command or not training_jobs(options)):
        return flags
    folder = choose_working_folder(
        options["working_dir"], target, code_is_fetched=bool(options["sync_mode"])
    )
    if folder.is_local:
        pod = replace(pod, code=(mount_folder(folder.path), *pod.code))
    if given or folder.is_local or not has_runtime:
        pod = replace(pod, working_dir=folder.path)
    return replace(flags, pod=pod)


def _check_runtime(flag: str, pod: PodFlags, options: dict[str, Any]) -> None:
    """Refuse what the command of a TrainJob cannot do for its runtime."""
    if not pod.command:
        raise click.BadParameter("the command of a runtime ignores it; add one", param_hint=flag)
    if options["sync_mode"] and not takes_code(options):
        problem = (
            "the launcher of an MPI runtime would have the code, its nodes would not; use an image "
            "with the code, or a claim (--data)"
        )
        raise click.BadParameter(problem, param_hint=flag)


def _extra(name: str, value: Any) -> Any:
    if name.endswith(("_selector", "_annotation")):
        return parsers.parse_pairs(_flag(name), value)
    return parsers.parse_seconds(_flag(name), value) if name == "starting_timeout" else value


def _pod(trainer: str, command: str, options: dict[str, Any]) -> PodFlags:
    environment = [
        *parsers.parse_environment(options["env"]),
        *parsers.parse_secrets(options["secret"]),
    ]
    names = {variable["name"] for variable in environment}
    counts = {"workers": options["workers"], "gpus": options["gpus"]}
    environment += [
        {"name": name, "value": str(count)}
        for name, count in counts.items()
        # A runtime may give what the flags of a TrainJob leave out.
        if name not in names and "runtime" not in options
    ]
    shared = options["share_memory"]
    has_shared_memory = shared not in {"", "0"}
    return PodFlags(
        image=options["image"] or options.get("worker_image", ""),
        command=(options["shell"], "-c", parsers.check_launcher(command)) if command else (),
        gpus=options["gpus"],
        devices=parsers.parse_devices(options["device"]),
        cpu=options.get("cpu", ""),
        memory=options.get("memory", ""),
        share_memory=parsers.check_quantity("--share-memory", shared) if has_shared_memory else "",
        environment=tuple(environment),
        mounts=(
            *parsers.parse_claims(options["data"]),
            *parsers.parse_host_folders(options["data_dir"]),
        ),
        labels=_labels(trainer, options),
        annotations=_annotations(options),
        selector=parsers.parse_pairs("--selector", options["selector"]),
        tolerations=tuple(parsers.parse_tolerations(options["toleration"])),
        **{
            name: options[name]
            for name in (
                "pull_secrets", "pull_policy", "scheduler", "priority", "rdma",
                "host_network", "host_ipc", "host_pid",
            )
        },
    )  # fmt: skip


def _labels(trainer: str, options: dict[str, Any]) -> dict[str, str]:
    """Return labels that other tools use to find such jobs, and the user's labels."""
    ours = {"app": trainer, "release": options["name"]}
    ours |= non_empty({"modelName": options["model_name"]})
    if options["gang"]:
        group = "pod-group.scheduling.sigs.k8s.io"
        members = options["workers"] + options.get("ps", 0)
        members += int(bool(options.get("chief"))) + int(bool(options.get("evaluator")))
        ours |= {f"{group}/name": f"{trainer}-{options['name']}"}
        ours |= {f"{group}/min-available": str(members)}
    return ours | parsers.parse_pairs("--label", options["label"])


def _annotations(options: dict[str, Any]) -> dict[str, str]:
    if options["model_name"] and not options["model_source"]:
        raise click.BadParameter(
            "--model-name requires the location of the model", param_hint="--model-source"
        )
    total = (options["workers"] or 0) * options["gpus"]
    ours = non_empty({"modelSource": options["model_source"]})
    ours |= {"requestGPUsOfJobOwner": str(total)} if total else {}
    return ours | parsers.parse_pairs("--annotation", options["annotation"])


def _add_code(flags: JobFlags, options: dict[str, Any]) -> tuple[JobFlags, list[Manifest]]:
    mode, source = options["sync_mode"], options["sync_source"]
    if not mode:
        if source:
            hint = f"{source!r} has no effect without --sync-mode git, rsync or local"
            raise click.BadParameter(hint, param_hint="--sync-source")
        return flags, []
    if mode != "local" and not source:
        raise click.BadParameter(f"--sync-mode {mode} requires it", param_hint="--sync-source")
    sync = CodeSync(mode, source, options["sync_image"])
    match mode:
        case "git":
            return add_git_sync(flags, sync)
        case "rsync":
            return add_rsync(flags, sync)
    from gangline.cli.submit.code_sync import pack_code

    packed = pack_code(Path(source or "."))
    for skipped in packed.skipped:
        click.echo(f"Not uploaded: {skipped}", err=True)
    flags.pod.annotations.update(packed.annotations())
    return add_upload(flags, sync, packed.name, packed.parts)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
