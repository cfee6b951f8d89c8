"""Running commands: what goes in, what comes out, how they end."""

import asyncio
import hashlib
import os
import time

import pytest

from sandboxes.protocol import Command
from tests.sandboxes.conformance.backends import LIMITS, PYTHON, Backend, ask, python, sh, text


async def test_stdout_and_stderr_come_apart(backend: Backend):
    result = await backend.run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (result.exit_code, result.signal, result.breach) == (3, None, None)
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")


async def test_arguments_arrive_as_they_are(backend: Backend):
    arguments = ["", " two  words ", "-x", "--", "a'b\"c$HOME`id`", "line\nline", "ünïcode ✓", "*", "\\"]
    assert await backend.ask("import sys; answer = sys.argv[1:]", *arguments) == arguments


async def test_five_megabytes_of_stdin_arrive(backend: Backend):
    content = os.urandom(5_000_000)
    source = "import sys, hashlib; answer = hashlib.sha256(sys.stdin.buffer.read()).hexdigest()"
    assert await backend.ask(source, stdin=content) == hashlib.sha256(content).hexdigest()


async def test_stdin_that_nobody_reads_holds_nothing_up(backend: Backend):
    async with backend.open() as sandbox:
        for script in ("exit 4", "exec 0<&-; sleep 0.1; exit 4", "sleep 0.1; head -c 10 >/dev/null; exit 4"):
            result = await sh(sandbox, script, stdin=bytes(5_000_000))
            assert (result.exit_code, result.breach) == (4, None)
            assert result.wall_s < 3


async def test_no_stdin_is_at_its_end(backend: Backend):
    async with backend.open() as sandbox:
        assert await text(sandbox, "wc -c; readlink /proc/self/fd/0 | cut -d: -f1", wall_time_s=2) == "0\npipe\n"


async def test_the_environment_is_ours_and_nothing_else(backend: Backend, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CANARY_7F3A", "secret")
    async with backend.open() as sandbox:
        script = "tr '\\0' '\\n' </proc/self/environ"
        lines = (await text(sandbox, script, env={"OWN": "a=b\tc", "LANG": "de_DE"})).splitlines()
        found = dict(line.split("=", 1) for line in lines)
        own = {"OWN": "a=b\tc", "LANG": "de_DE", "HOME": sandbox.work, "TZ": "UTC", "PYTHONHASHSEED": "0"}
        assert found.items() >= own.items()
        assert found.keys() - own.keys() == {"PATH", "TMPDIR", "PYTHONDONTWRITEBYTECODE"}


async def test_commands_start_in_the_workspace_or_where_they_are_told(backend: Backend):
    async with backend.open() as sandbox:
        assert await text(sandbox, "pwd; mkdir deep") == sandbox.work + "\n"
        assert await text(sandbox, "pwd", cwd=sandbox.work + "/deep") == f"{sandbox.work}/deep\n"
        assert await text(sandbox, "pwd", cwd="/") == "/\n"
        result = await sh(sandbox, "pwd", cwd="/nowhere")
        assert result.exit_code in (126, 127)
        assert b"/nowhere" in result.stderr


async def test_workspace_and_tmpdir_can_be_written_and_are_empty(backend: Backend):
    async with backend.open() as sandbox:
        assert await text(sandbox, 'ls -A "$PWD" "$TMPDIR" | grep -v : ; echo x >a; echo y >"$TMPDIR/b"') == "\n"
        assert await text(sandbox, 'cat a "$TMPDIR/b"') == "x\ny\n"


async def test_trusted_commands_have_another_user_whose_files_are_closed(backend: Backend):
    async with backend.open() as sandbox:
        place = "${TMPDIR}/kept"
        script = f"id -u; umask 077; echo secret >{place}; chmod 600 {place}"
        trusted = await text(sandbox, script, user="trusted", env={"HOME": "/"})
        assert trusted != await text(sandbox, "id -u")
        for attack in (f"cat {place}", f"echo lie >{place}", f"rm -f {place}", f"mv {place} {place}2"):
            assert (await sh(sandbox, attack)).exit_code != 0
        assert await text(sandbox, f"cat {place}", user="trusted") == "secret\n"


async def test_the_job_folder_can_be_read_and_not_changed(backend: Backend):
    files = {"a.txt": b"\0one", "deep/b.txt": b"two"}
    async with backend.open(files=files) as sandbox:
        assert (
            await text(sandbox, f"cd {sandbox.job}; find . -type f | sort; cat deep/b.txt")
            == "./a.txt\n./deep/b.txt\ntwo"
        )
        for attack in (
            "echo x >a.txt",
            "echo x >new",
            "rm -f a.txt",
            "mv deep off",
            "chmod 777 a.txt",
            "ln -s / deep/l",
        ):
            assert (await sh(sandbox, f"cd {sandbox.job} && {attack}")).exit_code != 0, attack
        assert (await sandbox.get([f"{sandbox.job}/a.txt"], max_bytes=9))[f"{sandbox.job}/a.txt"].content == b"\0one"


async def test_every_exit_code_is_a_result(backend: Backend):
    """Among them those that runtimes use for their own failures, and with their words."""
    async with backend.open() as sandbox:
        for code in (0, 1, 2, 125, 126, 127, 128, 130, 137, 139, 255):
            words = "OCI runtime exec failed: bwrap: execvp: Killed"
            result = await sh(sandbox, f"echo {words} >&2; exit {code}")
            assert (result.exit_code, result.signal, result.breach) == (code, None, None)
            assert result.stderr.decode() == words + "\n"


async def test_the_signal_that_ended_a_program_is_told(backend: Backend):
    async with backend.open() as sandbox:
        for number in (6, 9, 11, 15):
            result = await sh(sandbox, f"kill -{number} $$; sleep 5")
            assert (result.exit_code, result.signal, result.breach) == (None, number, None)
        result = await python(sandbox, "import ctypes; ctypes.string_at(0)")
        assert (result.signal, result.breach) == (11, None)


async def test_what_cannot_be_started_is_a_result(backend: Backend):
    async with backend.open() as sandbox:
        await sh(sandbox, "echo x >plain; mkdir folder; printf '#!/nowhere/sh\\n' >script; chmod +x script")
        for program, codes in (
            ("no-such-program", {127}),
            ("./plain", {126}),
            ("./folder", {126}),
            ("./script", {126, 127}),
        ):
            result = await sandbox.exec(Command((program, "x")))
            assert result.exit_code in codes, program
            assert program.encode() in result.stderr


@pytest.mark.parametrize("stream", [1, 2])
async def test_too_much_output_is_a_breach_and_cut_at_the_limit(backend: Backend, stream: int):
    async with backend.open() as sandbox:
        result = await sh(sandbox, f"echo first; echo first >&2; exec yes 0123456789 >&{stream}")
        flooded, other = (result.stdout, result.stderr)[:: 1 if stream == 1 else -1]
        assert result.breach == "output_limit"
        assert flooded == (b"first\n" + b"0123456789\n" * 6000)[: 64 * 1024]
        assert other == b"first\n"
        assert result.wall_s < 5
    usage = await sandbox.destroy()
    assert usage.breach == "output_limit"
    assert (usage.stdout, usage.stderr) == (result.stdout, result.stderr)


async def test_flooding_both_streams_at_once_is_no_deadlock(backend: Backend):
    async with backend.open() as sandbox:
        result = await sh(sandbox, "yes >&2 & yes; wait")
        assert result.breach == "output_limit"
        assert max(len(result.stdout), len(result.stderr)) == 64 * 1024


async def test_output_up_to_the_limit_is_whole(backend: Backend):
    """1 MiB on each stream under a cap of exactly that, and one byte more."""
    source = "import sys, os\nfor fd in 1, 2:\n  n = int(sys.argv[1])\n  while n: n -= os.write(fd, bytes(n))"
    async with backend.open() as sandbox:
        result = await python(sandbox, source, str(1 << 20), output_kib=1024)
        assert (result.exit_code, result.breach) == (0, None)
        assert result.stdout == result.stderr == bytes(1 << 20)
        assert (await python(sandbox, source, str((1 << 20) + 1), output_kib=1024)).breach == "output_limit"


async def test_any_bytes_may_be_printed(backend: Backend):
    junk = bytes(range(256)) + b"\xed\xa0\x80\xff\xfe\x1b]0;title\x07\x1b[2J" + b"x" * 50_000 + b"\0"
    async with backend.open() as sandbox:
        result = await sandbox.exec(Command(("cat",), stdin=junk))
        assert result.stdout == junk


async def test_a_grandchild_that_holds_stdout_holds_nothing_up(backend: Backend):
    async with backend.open() as sandbox:
        result = await sh(sandbox, "(sleep 8; echo late) & echo done")
        assert (result.exit_code, result.breach, result.stdout) == (0, None, b"done\n")
        assert result.wall_s < 2


async def test_what_a_left_child_prints_goes_to_nobody(backend: Backend):
    async with backend.open() as sandbox:
        await sh(sandbox, "while :; do echo late; sleep 0.01; done &")
        result = await sh(sandbox, "sleep 0.2; echo mine")
        assert result.stdout == b"mine\n"


async def test_a_daemon_lives_from_command_to_command_until_it_is_killed(backend: Backend):
    daemon = "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  while 1: open('beat', 'a').write('x'); time.sleep(.02)\n os._exit(0)"  # noqa: E501
    async with backend.open() as sandbox:
        assert (await python(sandbox, daemon)).exit_code == 0
        first = int(await text(sandbox, "sleep 0.3; wc -c <beat"))
        second = int(await text(sandbox, "sleep 0.3; wc -c <beat"))
        assert 0 < first < second
        async with await sandbox.start(Command(("sleep", "9"))) as process:
            assert (await process.kill()).signal == 9
        last = await text(sandbox, "wc -c <beat")
        assert await text(sandbox, "sleep 0.2; wc -c <beat") == last


async def test_leaving_a_process_ends_it_and_its_children(backend: Backend):
    async with backend.open() as sandbox:
        async with await sandbox.start(Command(("sh", "-c", "trap '' TERM; sleep 30 & while :; do sleep 1; done"))):
            await asyncio.sleep(0.1)
        assert (await text(sandbox, "cat /proc/[0-9]*/comm")).split().count("sleep") == 0


async def test_commands_run_at_once_and_apart(backend: Backend):
    async with backend.open() as sandbox:
        began = time.monotonic()
        results = await asyncio.gather(*(sh(sandbox, f"echo {n}; sleep 0.5; exit {n}") for n in range(4)))
        assert [(result.exit_code, result.stdout) for result in results] == [(n, b"%d\n" % n) for n in range(4)]
        assert time.monotonic() - began < 1.5


async def test_programs_start_with_the_three_streams_and_no_signal_masked(backend: Backend):
    async with backend.open() as sandbox:
        source = """
import os
answer = sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + fd))
"""
        assert await ask(sandbox, source) == [0, 1, 2]
        lines = (await text(sandbox, "exec cat /proc/self/status")).splitlines()
        masks = dict(line.split(":\t") for line in lines if line.startswith(("SigIgn", "SigBlk")))
        # 32 and 33 are the C library's own: it lets nobody change what whoever started us made of them.
        assert {name: int(mask, 16) & ~(3 << 31) for name, mask in masks.items()} == {"SigIgn": 0, "SigBlk": 0}
        result = await sh(sandbox, "yes | head -n 1")  # its reader gone, `yes` dies of the signal
        assert (result.stdout, result.stderr) == (b"y\n", b"")


async def test_there_is_no_terminal(backend: Backend):
    async with backend.open() as sandbox:
        assert (await sh(sandbox, "test -t 0 || test -t 1 || test -t 2")).exit_code == 1
        assert (await sh(sandbox, "exec 3<>/dev/tty")).exit_code != 0


async def test_orphans_are_buried(backend: Backend):
    async with backend.open() as sandbox:
        await sh(sandbox, "for i in 1 2 3 4 5 6 7 8 9; do (true & ) ; done; sleep 0.1")
        states = await text(sandbox, "sleep 0.1; grep -h State /proc/[0-9]*/status; true")
        assert "zombie" not in states


async def test_the_trees_of_one_hundred_commands_leave_the_sandbox_as_it_was(backend: Backend):
    source = "import os; answer = len([p for p in os.listdir('/proc') if p.isdigit()])"
    async with backend.open() as sandbox:
        before = await ask(sandbox, source)
        for _ in range(10):
            await asyncio.gather(*(sh(sandbox, "true | true") for _ in range(5)))
        assert await ask(sandbox, source) == before


async def test_hash_order_and_time_zone_are_the_same_everywhere(backend: Backend):
    """Else one program has one result here and another there."""
    source = "import time; answer = (hash('headrace'), time.tzname[0], time.localtime(0).tm_hour)"
    first, second = [await ask_plain(backend, source) for _ in range(2)]
    assert first == second
    assert first.split(", ")[1:] == ["'UTC'", "0)"]


async def ask_plain(backend: Backend, source: str) -> str:
    """Without -I, which ignores PYTHONHASHSEED."""
    async with backend.open() as sandbox:
        return (await sandbox.exec(Command(("python3", "-c", source + "\nprint(answer)")))).stdout.decode().strip()


async def test_limits_of_one_command_are_its_own(backend: Backend):
    async with backend.open(LIMITS) as sandbox:
        assert (await sh(sandbox, "sleep 5", wall_time_s=0.2)).breach == "time_limit"
        assert (await sh(sandbox, "while :; do :; done", cpu_time_s=0.2)).breach == "time_limit"
        assert (await sh(sandbox, "yes | head -c 3000", output_kib=2)).breach == "output_limit"
        assert (await sh(sandbox, "sleep 0.4; yes | head -c 3000")).breach is None
        assert PYTHON[0] == "python3"
