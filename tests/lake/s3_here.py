"""A real S3 server on this machine, for tests, which skip without, unless HEADRACE_REQUIRE names `s3`."""

import os
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from urllib.error import HTTPError, URLError

import pytest

from sandboxes.images.catalog import cache_folder

KEY, SECRET = "AKIAMARKERKEY", "marker/secret+2f9c"
"""What the servers take; no output, row or log may hold either."""


class S3Server:
    """versitygw over a folder, whose subfolders are the buckets; a context manager. Between, it can be stopped."""

    def __init__(self, folder: Path) -> None:
        self.program = _program()
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://{self.address}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def start(self) -> None:
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.program, "--port", self.address, "--access", KEY, "--secret", SECRET, "posix", self.folder],
                stdout=log,
                stderr=log,
            )
        waited_until = time.monotonic() + 60
        while time.monotonic() < waited_until:
            try:
                urllib.request.urlopen(f"http://{self.address}/", timeout=5).close()
            except HTTPError:
                return  # it answers: it wants a signature
            except URLError:
                time.sleep(0.05)
        raise TimeoutError(f"versitygw did not come up at {self.address}")

    def __enter__(self) -> "S3Server":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def _program() -> Path:
    script = Path(__file__).parents[2] / "deploy" / "s3-server.sh"
    surroundings = {**os.environ, "HEADRACE_CACHE": str(cache_folder())}
    told = subprocess.run([script, "path"], capture_output=True, text=True, check=True, env=surroundings)
    path = Path(told.stdout.strip())
    if not path.exists():
        if "s3" in os.environ.get("HEADRACE_REQUIRE", "").split(","):
            pytest.fail("HEADRACE_REQUIRE names s3, and there is no server: deploy/s3-server.sh install")
        pytest.skip("no S3 server here: deploy/s3-server.sh install")
    return path
