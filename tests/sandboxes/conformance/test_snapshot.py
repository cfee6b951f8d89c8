"""Workspaces at rest: equal ones have equal names, and copies of one know nothing of each other."""

import asyncio
import contextlib
import io
import os
import pickle
import re
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

from sandboxes.protocol import Command, File, FilesRefused, ProvisionFailed, Snapshot
from tests.sandboxes.conformance.backends import LIMITS, Backend, ask, sh, text

MAKE = (
    "mkdir -p d/e empty; echo one >d/a; echo two >d/e/b; chmod 755 d/a; chmod 700 d/e; ln -s ../d/a d/link; ln d/a hard"
)
LIST = "find . -printf '%P %y %m %l\\n' | sort"


async def make(backend: Backend, script: str = MAKE) -> Snapshot:
    async with backend.open() as sandbox:
        assert (await sh(sandbox, script)).exit_code == 0
        return await sandbox.snapshot()


async def test_a_copy_holds_files_links_modes_and_empty_folders(backend: Backend):
    async with backend.open() as sandbox:
        await sh(sandbox, MAKE)
        before = await text(sandbox, LIST)
        snapshot = await sandbox.snapshot()
    async with backend.open(snapshot=snapshot) as sandbox:
        assert await text(sandbox, LIST) == before
        assert await text(sandbox, "cat d/a d/e/b d/link; find hard -printf '%n\\n'") == "one\ntwo\none\n2\n"
        assert await text(sandbox, "echo x >>d/a; rm -r d/e empty; mkdir new; ls") == "d\nhard\nnew\n"


async def test_equal_workspaces_have_equal_digests_whenever_they_were_made(backend: Backend):
    first = await make(backend)
    await asyncio.sleep(1.1)
    second = await make(backend, "touch hard; mkdir later empty; rmdir later; rm hard; " + MAKE)
    assert first.digest == second.digest == sha256(first.archive).hexdigest()
    other = await make(backend, MAKE + "; chmod 644 d/a")
    assert other.digest != first.digest


async def test_a_snapshot_of_a_copy_is_the_same_snapshot(backend: Backend):
    first = await make(backend)
    async with backend.open(snapshot=first) as sandbox:
        await sh(sandbox, "cat d/a")
        assert (await sandbox.snapshot()).digest == first.digest
        await sh(sandbox, "echo x >>d/a")
        assert (await sandbox.snapshot()).digest != first.digest


async def test_copies_know_nothing_of_each_other(backend: Backend):
    snapshot = await make(backend)
    async with backend.open(snapshot=snapshot) as one, backend.open(snapshot=snapshot) as two:
        await sh(one, "echo changed >d/a; rm -r d/e; echo new >new; chmod 777 d")
        assert (
            await text(two, "cat d/a d/e/b; ls; find d -maxdepth 0 -printf '%m\\n'")
            == "one\ntwo\nd\nempty\nhard\n755\n"
        )
    async with backend.open(snapshot=snapshot) as three:
        assert (await three.snapshot()).digest == snapshot.digest


async def test_ten_thousand_files_are_copied(backend: Backend):
    limits = LIMITS.model_copy(update={"inodes": 12_000, "disk_mib": 64, "memory_mib": 256})
    source = """
import os
for d in range(100):
    os.mkdir(f"d{d}")
    for f in range(100): open(f"d{d}/f{f}", "w").write(str(d * f))
answer = 0
"""
    async with backend.open(limits) as sandbox:
        await ask(sandbox, source)
        snapshot = await sandbox.snapshot()
    for _ in range(2):
        async with backend.open(limits, snapshot=snapshot) as sandbox:
            assert await text(sandbox, "find . -type f | wc -l; cat d7/f9 d99/f99") == "10000\n639801"


async def test_a_snapshot_ends_every_program(backend: Backend):
    async with backend.open() as sandbox:
        await sh(sandbox, "trap '' TERM; while :; do echo x >>beat; sleep 0.01; done &")
        await sh(sandbox, "while [ ! -s beat ]; do sleep 0.01; done")
        first, second = await sandbox.snapshot(), await sandbox.snapshot()
        assert first == second
        assert await text(sandbox, "wc -l <beat") != "0\n"


async def test_an_empty_workspace_and_a_nearly_full_one_can_be_kept(backend: Backend):
    empty = await make(backend, "true")
    async with backend.open(snapshot=empty) as sandbox:
        assert await text(sandbox, "ls -A") == ""
        await sh(sandbox, "head -c 7000000 /dev/urandom >a; head -c 7000000 /dev/urandom >b")
        before = await text(sandbox, "sha256sum a b")
        full = await sandbox.snapshot()
    async with backend.open(snapshot=full) as sandbox:
        assert await text(sandbox, "sha256sum a b") == before


async def test_a_snapshot_travels_as_data(backend: Backend):
    snapshot = pickle.loads(pickle.dumps(await make(backend)))
    async with backend.open(snapshot=snapshot) as sandbox:
        assert await text(sandbox, "cat d/a") == "one\n"


async def test_put_files_and_the_snapshot_lie_together(backend: Backend):
    async with backend.open(snapshot=await make(backend), files={"job.txt": b"job"}) as sandbox:
        await sandbox.put({"d/more": File(b"more"), "d/a": File(b"other")})
        assert await text(sandbox, f"cat d/a d/more d/e/b {sandbox.job}/job.txt") == "othermoretwo\njob"


def archive_of(*entries: tuple[str, bytes, str]) -> Snapshot:
    """A snapshot from a stranger: name, content, target of a link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content, target in entries:
            entry = tarfile.TarInfo(name)
            entry.size, entry.linkname = len(content), target
            entry.type = tarfile.SYMTYPE if target else tarfile.REGTYPE
            archive.addfile(entry, io.BytesIO(content))
    return Snapshot(sha256(buffer.getvalue()).hexdigest(), buffer.getvalue())


async def test_a_hostile_archive_reaches_nothing_outside(backend: Backend, tmp_path: Path):
    tmp_path.chmod(0o777)
    hostile = (
        archive_of(("../../../../escaped", b"x", "")),
        archive_of((str(tmp_path / "escaped"), b"x", "")),
        archive_of(("out", b"", str(tmp_path)), ("out/escaped", b"x", "")),
        archive_of(("out", b"", "/etc"), ("out/escaped", b"x", "")),
    )
    for snapshot in hostile:
        with contextlib.suppress(ProvisionFailed):  # either way nothing is out of place
            async with backend.open(snapshot=snapshot) as sandbox:
                assert "escaped" not in await text(sandbox, "ls / /etc /usr $TMPDIR 2>&1; true")
    assert list(tmp_path.iterdir()) == []
    assert not Path("/escaped").exists()


@pytest.mark.parametrize(
    "digest", [sha256(os.urandom(9)).hexdigest(), "../../../tmp/escaped", ""], ids=["another", "path", "empty"]
)
async def test_a_snapshot_that_is_not_what_its_name_says_is_refused(backend: Backend, digest: str):
    with pytest.raises(ProvisionFailed, match="snapshot"):
        async with backend.open(snapshot=Snapshot(digest, archive_of(("f", b"1", "")).archive)):
            pass


async def test_what_is_no_archive_is_refused(backend: Backend):
    junk = b"this is no archive" * 99
    with pytest.raises(ProvisionFailed, match="snapshot"):
        async with backend.open(snapshot=Snapshot(sha256(junk).hexdigest(), junk)):
            pass


async def test_a_workspace_that_cannot_be_read_is_refused(backend: Backend):
    async with backend.open() as sandbox:
        await sh(sandbox, "mkdir closed; chmod 0 closed")
        with pytest.raises(FilesRefused):
            await sandbox.snapshot()
        assert (await sandbox.exec(Command(("true",)))).exit_code == 0


async def test_files_past_the_limits_are_taken_whole_or_refused_in_words(backend: Backend):
    """Some back-ends lay a snapshot below the workspace, uncounted; others unpack it within the limits."""
    async with backend.open() as sandbox:
        await sandbox.put({"large": File(bytes(range(256)) * 16_000)})
        snapshot = await sandbox.snapshot()
    refused = ""
    try:
        async with backend.open(LIMITS.model_copy(update={"disk_mib": 2}), snapshot=snapshot) as sandbox:
            assert await text(sandbox, "wc -c <large") == "4096000\n"
    except ProvisionFailed as error:
        refused = error.evidence
    assert not refused or re.search(r"disk_limit|No space left", refused), refused
    assert "Result(" not in refused
