"""The whole suite once more as a user who is not root, as on a shared machine."""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.sandboxes.conformance.backends import ROOT
from tests.sandboxes.real_images import missing

REPOSITORY = Path(__file__).parents[3]
USER = 64200


def opened(command: list[str], scratch: Path) -> str:
    """A shell script that runs a command as USER, who may not pass the folders of root that Python may lie in.

    In a mount namespace of its own such a folder shows what is needed of it, and nothing else.
    """
    needed = [Path(sys.base_prefix), Path(sys.prefix), REPOSITORY]
    closed = {next((top for top in reversed(place.parents) if not top.stat().st_mode & 1), None) for place in needed}
    lines = ["set -e", "mount --make-rprivate /"]
    for number, place in enumerate(needed):
        (scratch / str(number)).mkdir()
        lines.append(f"mount --bind {place} {scratch}/{number}")
    lines += [f"mount -t tmpfs -o mode=755 tmpfs {top}" for top in closed if top is not None]
    for number, place in enumerate(needed):
        lines.append(f"mkdir -p {place}; mount --bind {scratch}/{number} {place}")
    user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--"]
    return "\n".join([*lines, f"cd {REPOSITORY}", shlex.join(["exec", *user, *command])])


@pytest.mark.slow
@pytest.mark.skipif(not ROOT, reason="this whole run is one without root")
@pytest.mark.parametrize("name", ["bubblewrap-rootless", "subprocess-rootless"])
def test_every_check_holds_without_root(name: str):
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        scratch.chmod(0o755)
        home = scratch / "home"
        home.mkdir()
        os.chown(home, USER, USER)
        suite = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", f"{home}/tests"]
        script = opened([*suite, "-k", name, str(Path(__file__).parent)], scratch)
        result = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script],
            env={"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
            | {key: value for key, value in os.environ.items() if key == "HEADRACE_REQUIRE"},
            capture_output=True,
            text=True,
            check=False,
        )
    if "setpriv" in result.stderr or "unshare" in result.stderr:
        missing(name, result.stderr)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    if " passed" not in result.stdout.splitlines()[-1]:
        missing(name, result.stdout[-500:])
