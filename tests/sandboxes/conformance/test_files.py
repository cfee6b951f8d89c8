"""Files in and out: any name and content, and nothing that is no regular file."""

import time
from pathlib import Path

import pytest

from sandboxes.limits import MIB
from sandboxes.protocol import File, FilesRefused, Sandbox
from tests.sandboxes.conformance.backends import LIMITS, Backend, ask, python, sh, text


async def test_files_come_back_as_they_were_put(backend: Backend):
    files = {
        "plain.txt": File(b"hello\n"),
        "empty": File(b"", 0o600),
        "bin/run.sh": File(b"#!/bin/sh\necho ran\n", 0o755),
        "all bytes": File(bytes(range(256)) * 4, 0o640),
        "a/b/c/d/e/deep": File(b"deep", 0o444),
        "ünïcode ✓/名前": File("名前".encode(), 0o644),
        "-rf": File(b"dash"),
        "two\nlines": File(b"newline"),
        "n" * 200: File(b"long"),
    }
    async with backend.open() as sandbox:
        await sandbox.put(files)
        assert await sandbox.get(list(files), max_bytes=MIB) == files
        assert await text(sandbox, "./bin/run.sh; cat plain.txt") == "ran\nhello\n"


async def test_put_files_belong_to_the_program_and_carry_no_special_mode(backend: Backend):
    async with backend.open() as sandbox:
        await sandbox.put({"f": File(b"x", 0o6755)})
        assert await text(sandbox, "find f -printf '%m\\n'; echo more >>f; chmod 600 f; rm f; ls") == "755\n"


async def test_absolute_paths_reach_every_writable_folder(backend: Backend):
    async with backend.open() as sandbox:
        tmp = (await text(sandbox, "echo $TMPDIR")).strip()
        await sandbox.put({f"{sandbox.work}/a": File(b"1"), f"{tmp}/b/c": File(b"2", 0o600)})
        assert await text(sandbox, "cat a $TMPDIR/b/c") == "12"
        found = await sandbox.get(["a", f"{tmp}/b"], max_bytes=9)
        assert found == {"a": File(b"1"), f"{tmp}/b/c": File(b"2", 0o600)}


async def test_a_put_replaces_what_was_there(backend: Backend):
    async with backend.open() as sandbox:
        await sandbox.put({"f": File(b"old content", 0o444)})
        await sandbox.put({"f": File(b"new", 0o600)})
        assert await sandbox.get(["f"], max_bytes=99) == {"f": File(b"new", 0o600)}


async def test_eight_megabytes_go_both_ways(backend: Backend):
    content = bytes(range(256)) * (8 * MIB // 256)
    async with backend.open() as sandbox:
        await sandbox.put({"big": File(content)})
        assert (await sandbox.get(["big"], max_bytes=len(content)))["big"].content == content


async def test_a_thousand_files_go_both_ways(backend: Backend):
    files = {f"d{n % 7}/f{n}": File(b"%d" % n) for n in range(1000)}
    async with backend.open() as sandbox:
        await sandbox.put(files)
        assert await sandbox.get([f"d{n}" for n in range(7)], max_bytes=MIB) == files


async def test_what_does_not_exist_is_not_in_the_answer(backend: Backend):
    async with backend.open() as sandbox:
        await sandbox.put({"there": File(b"1")})
        await sh(sandbox, "mkdir -p bare/folder")
        assert await sandbox.get(["no", "no/such", "there"], max_bytes=9) == {"there": File(b"1")}
        assert await sandbox.get(["no"], max_bytes=9) == {}
        assert await sandbox.get(["bare"], max_bytes=9) == {}
        assert await sandbox.get([], max_bytes=9) == {}


async def test_a_folder_gives_all_files_below_it(backend: Backend):
    async with backend.open() as sandbox:
        await sh(sandbox, "mkdir -p out/in; echo 1 >out/a; echo 2 >out/in/.b; echo 3 >outer; chmod 700 out/a")
        assert await sandbox.get(["out"], max_bytes=99) == {"out/a": File(b"1\n", 0o700), "out/in/.b": File(b"2\n")}
        assert (await sandbox.get(["./out/"], max_bytes=99)).keys() == {"./out/a", "./out/in/.b"}
        everything = await sandbox.get([sandbox.work], max_bytes=99)
        assert everything.keys() == {f"{sandbox.work}/{name}" for name in ("out/a", "out/in/.b", "outer")}


@pytest.mark.parametrize(
    "plant",
    [
        "ln -s /etc/passwd bad",
        "ln -s good bad",
        "ln -s nowhere bad",
        "mkdir bad; ln -s / bad/root",
        "mkfifo bad",
        "mkdir bad; mkfifo bad/pipe",
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"bad\")'",
        "mkdir bad; echo x >bad/closed; chmod 0 bad/closed",
        "mkdir -p bad/closed; chmod 0 bad/closed",
    ],
    ids=["link", "link-to-own", "dangling", "link-below", "fifo", "fifo-below", "socket", "unreadable", "shut-folder"],
)
async def test_what_is_no_regular_file_is_refused(backend: Backend, plant: str):
    async with backend.open() as sandbox:
        await sandbox.put({"good": File(b"1")})
        assert (await sh(sandbox, plant)).exit_code == 0
        began = time.monotonic()
        with pytest.raises(FilesRefused):
            await sandbox.get(["good", "bad"], max_bytes=MIB)
        assert time.monotonic() - began < 3
        assert await sandbox.get(["good"], max_bytes=9) == {"good": File(b"1")}


async def test_devices_are_refused(backend: Backend):
    async with backend.open() as sandbox:
        for device in ("/dev/zero", "/dev/null", "/dev/urandom"):
            with pytest.raises(FilesRefused):
                await sandbox.get([device], max_bytes=MIB)


async def test_hard_links_are_files_of_their_own(backend: Backend):
    async with backend.open() as sandbox:
        await sh(sandbox, "echo 1 >a; ln a b; ln a c")
        assert await sandbox.get(["a", "b", "c"], max_bytes=99) == dict.fromkeys("abc", File(b"1\n"))


@pytest.mark.parametrize("name", ["../x", "a/../../x", "..", "", "/", "a\0b"])
async def test_names_that_leave_the_folder_or_are_none_are_refused(backend: Backend, name: str):
    async with backend.open() as sandbox:
        with pytest.raises(FilesRefused):
            await sandbox.put({name: File(b"x")})
        with pytest.raises(FilesRefused):
            await sandbox.get([name], max_bytes=9)


async def test_files_cannot_be_put_where_programs_cannot_write(backend: Backend):
    async with backend.open() as sandbox:
        for place in ("/etc/x", "/usr/bin/x", f"{sandbox.job}/x", "/x", "/proc/self/x", "/sys/x"):
            with pytest.raises(FilesRefused):
                await sandbox.put({place: File(b"x")})
        await sh(sandbox, "mkdir folder; echo x >folder/kept; echo x >file")
        for name in ("folder", "file/below"):
            with pytest.raises(FilesRefused):
                await sandbox.put({name: File(b"x")})
        assert await text(sandbox, "cat folder/kept file") == "x\nx\n"


async def test_content_past_the_bound_is_refused_and_up_to_it_is_not(backend: Backend):
    async with backend.open() as sandbox:
        await sandbox.put({"a": File(bytes(60_000)), "b": File(bytes(40_000))})
        assert len(await sandbox.get(["a", "b"], max_bytes=100_000)) == 2
        for bound in (99_999, 1):
            with pytest.raises(FilesRefused, match=f"more than {bound} bytes"):
                await sandbox.get(["a", "b"], max_bytes=bound)


async def test_a_terabyte_of_nothing_is_refused_at_once(backend: Backend):
    limits = LIMITS.model_copy(update={"file_mib": 1024 * 1024})
    async with backend.open(limits) as sandbox:
        assert await text(sandbox, "truncate -s 1099511627776 hole && find hole -printf %s") == "1099511627776"
        began = time.monotonic()
        with pytest.raises(FilesRefused):
            await sandbox.get(["hole"], max_bytes=MIB)
        assert time.monotonic() - began < 5
        await sandbox.put({"after": File(b"1")})


async def test_a_put_that_fills_the_disk_is_refused_and_the_sandbox_lives(backend: Backend):
    limits = LIMITS.model_copy(update={"disk_mib": 4})
    async with backend.open(limits) as sandbox:
        with pytest.raises(FilesRefused):
            await sandbox.put({f"f{n}": File(bytes(MIB)) for n in range(6)})
        await sh(sandbox, "rm -f f*")
        await sandbox.put({"small": File(b"1")})
        assert (await sh(sandbox, "cat small")).stdout == b"1"


async def test_too_many_files_put_are_refused(backend: Backend):
    limits = LIMITS.model_copy(update={"inodes": 100})
    async with backend.open(limits) as sandbox:
        with pytest.raises(FilesRefused):
            await sandbox.put({f"f{n}": File(b"") for n in range(200)})


async def test_a_planted_link_leads_nowhere_outside(backend: Backend, tmp_path: Path):
    """A put goes where the program itself could write, or nowhere; never to the host."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    tmp_path.chmod(0o777)
    victim.chmod(0o666)
    async with backend.open() as sandbox:
        await sh(sandbox, f"ln -s {tmp_path} folder; ln -s {victim} file; ln -s /etc etc; ln -s /proc/1/root root")
        for name in ("folder/new", "folder/victim", "etc/new", f"root{victim}", f"root{tmp_path}/new"):
            with pytest.raises(FilesRefused):
                await sandbox.put({name: File(b"stolen")})
        await sandbox.put({"file": File(b"instead of the link")})
        assert await sandbox.get(["file"], max_bytes=99) == {"file": File(b"instead of the link")}
        with pytest.raises(FilesRefused):
            await sandbox.get(["folder", "etc"], max_bytes=MIB)
    assert victim.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [victim]


async def lie_about_tar(sandbox: Sandbox) -> None:
    await sh(
        sandbox,
        "printf '#!/bin/sh\\nexit 0\\n' >tar; chmod +x tar; cp tar $TMPDIR/tar; printf 'alias tar=true' >.profile",
    )


async def test_a_program_cannot_put_itself_in_the_way_of_a_transfer(backend: Backend):
    async with backend.open() as sandbox:
        await lie_about_tar(sandbox)
        await sandbox.put({"f": File(b"1")})
        assert await sandbox.get(["f"], max_bytes=9) == {"f": File(b"1")}


async def test_a_file_that_grows_while_it_is_read_is_bounded(backend: Backend):
    async with backend.open() as sandbox:
        await sh(sandbox, "while :; do head -c 4096 /dev/zero >>grows; head -c 9 /dev/zero >grows; done &")
        for _ in range(3):
            try:
                found = await sandbox.get(["grows"], max_bytes=200_000)
            except FilesRefused:
                continue
            assert all(len(file.content) <= 200_000 for file in found.values())
        assert await ask(sandbox, "answer = 1") == 1


async def test_transfers_are_no_doing_of_the_program(backend: Backend):
    """What they carry is no output, and the bounds on them are no broken limits."""
    async with backend.open(LIMITS.model_copy(update={"disk_mib": 4})) as sandbox:
        await sandbox.put({"f": File(b"some content")})
        await sandbox.get(["f"], max_bytes=99)
        await sandbox.snapshot()
        for refused in (sandbox.get(["f"], max_bytes=2), sandbox.put({"g": File(bytes(6 * MIB))})):
            with pytest.raises(FilesRefused):
                await refused
    usage = await sandbox.destroy()
    assert (usage.stdout, usage.stderr, usage.breach) == (b"", b"", None)


async def test_transfers_work_beside_a_running_program(backend: Backend):
    async with backend.open() as sandbox:
        await sh(sandbox, "(while [ ! -e stop ]; do sleep 0.01; done; echo seen >reply) &")
        await sandbox.put({"stop": File(b"")})
        assert (
            await python(sandbox, "import time, os\nwhile not os.path.exists('reply'): time.sleep(.01)")
        ).exit_code == 0
