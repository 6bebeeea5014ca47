"""Builds the images of ``BUILDERS`` without a daemon, a registry or root.

usage: build_images.py FOLDER [IMAGE...]

Debian's packages are the base, wheels with the hashes of constraints.txt the second layer, Gangline
the third. Needs a Debian machine (apt-get, dpkg-deb) with x86-64. Two builds from one commit and
the same Debian packages have the same digest. FOLDER gets for each image an OCI layout, an OCI
archive and a bill of materials (CycloneDX), and digests.txt.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from oci_image import ImageSettings, Layer, OciLayout

ROOT = Path(__file__).parents[1]
DIGESTS = "digests.txt"
"""Written last: a line for each image."""
SUITE = "bookworm"
PYTHON = "3.11"
MULTIARCH = "x86_64-linux-gnu"
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (36, 35, 34, 31, 28, 27, 24, 17, 12, 5)]
BASE_PACKAGES = (
    "python3.11-minimal",
    "libpython3.11-stdlib",
    "libstdc++6",
    "dash",  # commands of jobs
)
INIT_PACKAGES = ("busybox-static",)
CERTIFICATES = "ca-certificates"
"""Only its files: its dependencies are for changing them."""
INIT_PYTHONS = ("3.11", "3.12", "3.13", "3.14")
INIT_WHEELS = ("cffi", "click", "cryptography", "msgspec", "psutil", "pycparser")
"""What launcher and agent import beside PyTorch."""
USELESS = (
    *("usr/share/man", "usr/share/locale", "usr/share/lintian", "usr/share/info"),
    *("usr/lib/python3.11/lib2to3", "usr/lib/python3.11/pydoc_data"),
    *(f"usr/lib/{MULTIARCH}/gconv", "usr/share/i18n"),
)
SKIPPED_PACKAGES = {
    *("debconf", "debianutils", "dpkg", "libacl1", "libmd0", "libpcre2-8-0", "libselinux1"),
    *("libzstd1", "perl-base", "tar"),
    # Of the modules nis and dbm.ndbm.
    *("libcom-err2", "libdb5.3", "libgssapi-krb5-2", "libk5crypto3", "libkeyutils1", "libkrb5-3"),
    *("libkrb5support0", "libnsl2", "libtirpc-common", "libtirpc3"),
}
"""Dependencies that nothing of the image uses, such as what installs packages."""
INITIALIZER_WHEELS = (
    *("anyio", "click", "filelock", "fsspec", "h11", "hf-xet", "httpcore2", "httpx2"),
    *("huggingface-hub", "idna", "msgspec", "obstore", "packaging", "pyyaml", "tqdm"),
    *("truststore", "typing-extensions"),
)
"""What ``gangline initialize`` imports: the clients of Hugging Face and S3 with what they need."""
EMBEDDED_ONLY = ("cel-expr-python==",)
"""Large packages that only the API server of an embedded cluster imports."""
MAX_MB = 80
"""Each image, compressed."""
UNCOMPILED = "pygments"
"""Large, and hardly ever imported."""
UNUSED_PARTS = ("numpy/f2py", "alembic/testing", "sqlalchemy/testing")
"""Parts of packages that Gangline does not import."""
SOURCE_SUFFIXES = {".a", ".c", ".cpp", ".h", ".hpp", ".pxd", ".pyi", ".pyx"}
"""Files of wheels that only compilers and editors read."""
PASSWD = "root:x:0:0:root:/root:/usr/sbin/nologin\ngangline:x:65532:65532::/home/gangline:/bin/sh\n"
GROUP = "root:x:0:\ngangline:x:65532:\n"
SCRIPT = """#!/usr/bin/python3.11
import sys
from {module} import {function}
sys.exit({function}())
"""
SCRIPTS = {
    "gangline": ("gangline.cli.main", "main"),
    "dlrover-run": ("gangline.elastic.launcher.main", "dlrover_run"),
}
INIT_SCRIPT = """#!/usr/bin/env python3
# Runs Gangline of this folder with the Python of the image that it was copied into.
import os
import sys
folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
compiled = os.path.join(folder, "python%d.%d" % sys.version_info[:2])
if not os.path.isdir(compiled):
    sys.exit("gangline: no build for Python %d.%d; there are {versions}" % sys.version_info[:2])
sys.path[:0] = [os.path.join(folder, "lib"), compiled]
os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], os.environ.get("PYTHONPATH", "")])
from {module} import {function}
sys.exit({function}())
"""


class Component(NamedTuple):
    """An entry of a bill of materials."""

    name: str
    version: str
    url: str


def main(arguments: list[str]) -> int:
    """Build the images and print their digests."""
    folder = Path(arguments[0]).resolve()
    chosen = arguments[1:] or list(BUILDERS)
    epoch = source_date()
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)
    os.umask(0o022)
    version = version_of((ROOT / "pyproject.toml").read_text())
    digests = []
    (folder / DIGESTS).unlink(missing_ok=True)
    for name in chosen:
        target = folder / name
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        layout = OciLayout(target, epoch)
        with tempfile.TemporaryDirectory(prefix="gangline-image-") as work:
            layers, settings, components = BUILDERS[name](layout, Path(work), version)
        digest = layout.add_image(layers, settings, name, version)
        layout.write_archive(folder / f"{name}.tar")
        (folder / f"{name}.cdx.json").write_text(bill_of_materials(name, version, components))
        size = sum(layer.size for layer in layers) / 1e6
        print(f"{name}:{version} {digest} ({size:.1f} MB compressed)", flush=True)
        if size > MAX_MB:
            raise SystemExit(f"the image {name} has more than {MAX_MB} MB")
        digests.append(f"{name}:{version} {digest}\n")
    (folder / DIGESTS).write_text("".join(digests))
    return 0


def build_gangline(
    layout: OciLayout, work: Path, version: str
) -> tuple[list[Layer], ImageSettings, list[Component]]:
    """All components of the control plane; the launcher, too, but no PyTorch."""
    layers, components = add_python_layers(layout, work, version, None)
    settings = python_settings(
        version, "Gangline: operator, scheduler, webhook, Brain and commands"
    )
    return layers, settings, components


def build_initializer(
    layout: OciLayout, work: Path, version: str
) -> tuple[list[Layer], ImageSettings, list[Component]]:
    """The program of a TrainJob's initializer pods."""
    layers, components = add_python_layers(layout, work, version, INITIALIZER_WHEELS)
    settings = python_settings(version, "Fetches data and models for a training")
    return layers, settings, components


def add_python_layers(
    layout: OciLayout, work: Path, version: str, names: Iterable[str] | None
) -> tuple[list[Layer], list[Component]]:
    """Add Debian's Python, the named wheels or those of the control plane, and Gangline."""
    base, wheels, own = work / "base", work / "wheels", work / "own"
    packages = unpack_debian(base, BASE_PACKAGES, work)
    write_system_files(base)
    site = f"usr/local/lib/python{PYTHON}/dist-packages"
    install_wheels(wheels / site, work, PYTHON, names)
    install_gangline(own / site, work)
    for name, (module, function) in SCRIPTS.items():
        write_executable(
            own / "usr/local/bin" / name, SCRIPT.format(module=module, function=function)
        )
    for root, below in ((base, "usr/lib/python3.11"), (wheels, site), (own, site)):
        compile_python(base, root / below, f"/{below}")
    layers = [
        layout.add_layer(base, f"Debian {SUITE}: {', '.join(BASE_PACKAGES)}"),
        layout.add_layer(wheels, "wheels of constraints.txt"),
        layout.add_layer(own, f"gangline {version}"),
    ]
    return layers, [*packages, *python_components(wheels / site)]


def python_settings(version: str, description: str) -> ImageSettings:
    """Return the settings of an image whose commands are Gangline's."""
    return ImageSettings(
        entrypoint=(),
        command=("gangline", "--help"),
        environment={
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        labels=labels(version, description),
    )


def build_init(
    layout: OciLayout, work: Path, version: str
) -> tuple[list[Layer], ImageSettings, list[Component]]:
    """Copies launcher and agent into a volume, from which the image of a user runs them."""
    base, own = work / "base", work / "own"
    packages = unpack_debian(base, INIT_PACKAGES, work)
    write_files(base, {"etc/passwd": PASSWD, "etc/group": GROUP})
    target = own / "gangline"
    install_gangline(target / "lib", work)
    components = list(packages)
    for python in INIT_PYTHONS:
        install_wheels(target / f"python{python}", work, python, INIT_WHEELS)
    components += python_components(target / f"python{PYTHON}")
    versions = ", ".join(INIT_PYTHONS)
    for name, (module, function) in SCRIPTS.items():
        text = INIT_SCRIPT.format(module=module, function=function, versions=versions)
        write_executable(target / "bin" / name, text)
    layers = [
        layout.add_layer(base, f"Debian {SUITE}: {', '.join(INIT_PACKAGES)}"),
        layout.add_layer(own, f"gangline {version} with wheels for Python {versions}"),
    ]
    settings = ImageSettings(
        entrypoint=("/bin/busybox", "cp", "-R", "/gangline/."),
        command=("/opt/gangline",),
        labels=labels(version, "Copies Gangline's launcher and agent into a volume"),
    )
    return layers, settings, components


BUILDERS = {
    "gangline": build_gangline,
    "gangline-init": build_init,
    "gangline-initializer": build_initializer,
}


def source_date() -> int:
    """Return the time that all files get: that of the commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout or 0)


def version_of(project: str) -> str:
    """Return the version in a pyproject.toml."""
    found = re.search(r'^version = "([^"]+)"', project, re.MULTILINE)
    assert found is not None
    return found[1]


def labels(version: str, description: str) -> dict[str, str]:
    """Return the labels of an image."""
    prefix = "org.opencontainers.image"
    return {
        f"{prefix}.title": "gangline",
        f"{prefix}.description": description,
        f"{prefix}.version": version,
        f"{prefix}.licenses": "Apache-2.0",
    }


def unpack_debian(target: Path, packages: Iterable[str], work: Path) -> list[Component]:
    """Unpack packages with all that they depend on; their scripts do not run."""
    apt = work / "apt"
    (apt / "lists/partial").mkdir(parents=True, exist_ok=True)
    (apt / "cache/archives/partial").mkdir(parents=True, exist_ok=True)
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    sources = Path("/etc/apt/sources.list.d/debian.sources")
    found = re.search(r"^URIs: *(\S+)", sources.read_text() if sources.exists() else "", re.M)
    mirror = found[1] if found else "http://deb.debian.org/debian"
    (apt / "sources.list").write_text(f"deb [signed-by={keyring}] {mirror} {SUITE} main\n")
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    options = {
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::Lists": apt / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": apt / "cache",
        "APT::Sandbox::User": user,
        "Debug::NoLocking": "1",
    }
    command = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in options.items())]
    run([*command, "update"])
    install = ["install", "--download-only", "--yes", "--no-install-recommends"]
    run([*command, *install, *packages])
    archives = apt / "cache/archives"
    if CERTIFICATES not in packages and packages is BASE_PACKAGES:
        run([*command, "download", CERTIFICATES], cwd=archives)
    target.mkdir(parents=True)
    # One order, because two packages may have one folder; merged /usr, as on any Debian.
    for each in ("bin", "sbin", "lib", "lib64"):
        (target / "usr" / each).mkdir(parents=True)
        (target / each).symlink_to(f"usr/{each}")
    unpacked = []
    for package in sorted(archives.glob("*.deb")):
        name, version, architecture = package.stem.split("_")
        if name in SKIPPED_PACKAGES:
            continue
        content = work / "package"
        run(["dpkg-deb", "-x", str(package), str(content)])
        merge_tree(content, target)
        shutil.rmtree(content)
        version = version.replace("%3a", ":")
        unpacked.append(
            Component(name, version, f"pkg:deb/debian/{name}@{version}?arch={architecture}")
        )
    for path in USELESS:
        shutil.rmtree(target / path, ignore_errors=True)
    return unpacked


def merge_tree(source: Path, target: Path) -> None:
    """Move a tree over another one, through the links of merged folders."""
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_symlink() or path.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            path.rename(place)
        else:
            place.mkdir(parents=True, exist_ok=True)


def write_system_files(base: Path) -> None:
    """Write what the scripts of packages would make."""
    certificates = sorted((base / "usr/share/ca-certificates").rglob("*.crt"))
    write_files(
        base,
        {
            "etc/passwd": PASSWD,
            "etc/group": GROUP,
            "etc/nsswitch.conf": "hosts: files dns\n",
            "etc/ssl/certs/ca-certificates.crt": "".join(p.read_text() for p in certificates),
        },
    )
    for link, target in (("usr/bin/python3", "python3.11"), ("usr/bin/python", "python3.11")):
        (base / link).symlink_to(target)
    (base / "usr/bin/sh").unlink(missing_ok=True)
    (base / "usr/bin/sh").symlink_to("dash")
    (base / "tmp").mkdir(exist_ok=True)


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """Write texts by their path below a folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_executable(path: Path, text: str) -> None:
    """Write a script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def requirements(names: Iterable[str] | None = None) -> str:
    """Return the pinned packages of control plane, Brain and dashboard, or those named."""
    text = (ROOT / "constraints.txt").read_text()
    if names is not None:
        return _entries(text, names)
    wanted = re.split(r"^# section (\S+)$", text, flags=re.MULTILINE)
    sections = dict(zip(wanted[1::2], wanted[2::2], strict=True))
    listed = sections["runtime"] + sections["brain"] + sections["dashboard"]
    entries = re.split(r"^(?=[#A-Za-z0-9])", listed, flags=re.MULTILINE)
    return "".join(entry for entry in entries if not entry.startswith(EMBEDDED_ONLY))


def _entries(text: str, names: Iterable[str]) -> str:
    entries = re.split(r"^(?=[#A-Za-z0-9])", text, flags=re.MULTILINE)
    return "".join(each for each in entries if each.partition("==")[0].lower() in set(names))


def install_wheels(
    target: Path, work: Path, python: str, names: Iterable[str] | None = None
) -> None:
    """Install wheels for a Python that need not be the running one; hashes are checked."""
    pinned = work / f"requirements-{python}.txt"
    pinned.write_text(requirements(names))
    options = ["--require-hashes", "--requirement", str(pinned), "--python-version", python]
    install(target, [*options, "--only-binary=:all:", *(f"--platform={p}" for p in PLATFORMS)])
    for path in [found for part in UNUSED_PARTS for found in target.glob(part)]:
        shutil.rmtree(path)
    for path in sorted(target.rglob("*")):
        if path.is_dir() and path.name == "tests" and "numpy" in path.parts:
            shutil.rmtree(path)
        elif path.suffix in SOURCE_SUFFIXES and path.is_file():
            path.unlink()


def install_gangline(target: Path, work: Path) -> None:
    """Build Gangline's wheel from a copy of the sources, and install it."""
    source = work / "source"
    if not source.exists():
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        for name in ("src", "examples", "deploy/chart", "tools"):
            shutil.copytree(ROOT / name, source / name, ignore=ignored, symlinks=True)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, source / name)
        pip("wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={work}", str(source))
    (wheel,) = work.glob("gangline-*.whl")
    install(target, [str(wheel)])
    for record in target.glob("gangline-*.dist-info/direct_url.json"):
        record.unlink()  # the folder of this build


def install(target: Path, options: list[str]) -> None:
    """Install with pip into a folder, without traces of this machine."""
    target.mkdir(parents=True)
    pip("install", "--no-deps", "--no-compile", f"--target={target}", *options)
    # Scripts for the Python that runs pip; RECORD lists them and their digests.
    shutil.rmtree(target / "bin", ignore_errors=True)
    for record in target.glob("*.dist-info/RECORD"):
        lines = record.read_text().splitlines(keepends=True)
        # direct_url.json names the folder of this build.
        kept = [each for each in lines if not each.startswith("../") and "direct_url" not in each]
        record.write_text("".join(sorted(kept)))


def pip(*arguments: str) -> None:
    """Run pip."""
    run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments])


def compile_python(base: Path, folder: Path, shown: str) -> None:
    """Compile modules with the Python of the image: its file system is read-only when it runs."""
    loader = base / "usr/lib64/ld-linux-x86-64.so.2"
    libraries = f"{base}/usr/lib/{MULTIARCH}"
    python = [str(loader), "--library-path", libraries, str(base / "usr/bin/python3.11")]
    options = ["-q", "-f", "--invalidation-mode", "unchecked-hash", "-s", str(folder), "-p", shown]
    environment = {
        "PYTHONHOME": str(base / "usr"),
        "PYTHONHASHSEED": "0",
        "PATH": os.environ["PATH"],
    }
    subprocess.run(
        [*python, "-m", "compileall", *options, "-x", f"/{UNCOMPILED}/", str(folder)],
        env=environment,
        check=False,  # templates of other Python versions in packages are no modules of this one
        stdout=subprocess.DEVNULL,
    )


def python_components(site: Path) -> list[Component]:
    """Return the Python packages in a folder."""
    found = []
    for metadata in sorted(site.glob("*.dist-info/METADATA")):
        fields = dict(
            line.split(": ", 1) for line in metadata.read_text().splitlines()[:40] if ": " in line
        )
        name, version = fields["Name"], fields["Version"]
        found.append(Component(name, version, f"pkg:pypi/{name.lower()}@{version}"))
    return found


def bill_of_materials(name: str, version: str, components: Iterable[Component]) -> str:
    """Return a CycloneDX document (https://cyclonedx.org/specification)."""
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name, "version": version}},
        "components": [
            {"type": "library", "name": each.name, "version": each.version, "purl": each.url}
            for each in sorted(components)
        ],
    }
    return json.dumps(document, indent=1) + "\n"


def run(command: list[str], cwd: Path | None = None) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, check=True, cwd=cwd, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
