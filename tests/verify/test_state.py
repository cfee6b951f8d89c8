# ruff: noqa: E501 - one program a line
import asyncio
import time

import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import SandboxRequest
from transforms.episode import CaseReport
from transforms.sources.kinds.state import (
    Case,
    FileProbe,
    PermissionProbe,
    PortProbe,
    Probe,
    ServiceProbe,
    State,
    UserProbe,
)
from transforms.sources.kinds.trees import Item
from transforms.sources.task import Task
from transforms.verify.artifacts import Entry, resolve
from transforms.verify.run import run_check

LIMITS = Limits(wall_time_s=2, cpu_time_s=2, memory_mib=128, processes=24, output_kib=64, file_mib=4, disk_mib=8)
UNITS = "etc/systemd/system"
BEFORE = {
    "etc/passwd": Item(b"root:x:0:0:root:/root:/bin/bash\nold:x:7:7::/home/old:/bin/sh\n"),
    "etc/group": Item(b"root:x:0:\nold:x:7:\nwheel:x:10:root\n"),
    "etc/shadow": Item(b"root:*:19000:0:99999:7:::\nold:$6$abc:19000:0:99999:7:::\n", 0o600),
    f"{UNITS}/a.service": Item(b"[Unit]\nAfter=network.target\n[Service]\nExecStart=/bin/a\n[Install]\nWantedBy=multi-user.target\n"),
    f"{UNITS}/multi-user.target.wants/a.service": Item(link=f"/{UNITS}/a.service"),
    "lib/systemd/system/b@.service": Item(b"[Service]\nExecStart=/bin/b %i\n"),
    "srv/app.py": Item(b"import sys\n", 0o755),
}  # fmt: skip


def grade(program: str, *probes: Probe, language: str = "bash", limits: Limits = LIMITS) -> CaseReport:
    check = State(tuple(Case(str(number), probe) for number, probe in enumerate(probes)), BEFORE, language)
    return asyncio.run(run_check(Bubblewrap(), Task("t", "p", check), program, SandboxRequest(limits=limits)))


def verdicts(program: str, *probes: Probe) -> list[tuple[str, str]]:
    return [(str(result.outcome), result.message) for result in grade("cd $ROOT\n" + program, *probes).results]


def check(program: str, *rows: tuple[Probe, str]) -> None:
    """Run a program once; each row is a probe and its message, empty where it passes."""
    came = verdicts(program, *(probe for probe, _ in rows))
    assert came == [("failed_tests" if message else "passed", message) for _, message in rows]


def test_files_are_looked_at_by_text_part_pattern_and_absence():
    check(
        "printf 'Port 22\\nroot no \\n\\n' >etc/ssh; ln -s ssh etc/link; ln -s $ROOT/etc/ssh etc/real; ln -s /etc/passwd etc/pw; ln -s nowhere etc/dangling; ln -s ../../../../etc/group out; mkdir etc/dir; rm etc/shadow",
        (FileProbe("etc/ssh", "text", "Port 22\nroot no"), ""),
        (FileProbe("etc/ssh", "text", "Port 22"), "etc/ssh has too many lines"),
        (FileProbe("etc/ssh", "contains", "22\nroot"), ""),
        (FileProbe("etc/ssh", "contains", "22 root"), "etc/ssh does not contain what it must"),
        (FileProbe("etc/ssh", "matches", r"^root\s+no\s*$"), ""),
        (FileProbe("etc/ssh", "matches", r"^no"), "the file does not match"),
        (FileProbe("etc/link", "contains", "Port"), ""),
        (FileProbe("etc/real", "contains", "Port"), ""),
        (FileProbe("etc/pw", "contains", "old:x:7"), ""),
        (FileProbe("out", "contains", "wheel:x:10:root"), ""),
        (FileProbe("etc/dangling", "absent"), "etc/dangling is there"),
        (FileProbe("etc/dangling", "contains", "x"), "etc/dangling is missing"),
        (FileProbe("etc/shadow", "absent"), ""),
        (FileProbe("no/such/folder", "absent"), ""),
        (FileProbe("etc/shadow", "matches", "x"), "etc/shadow is missing"),
        (FileProbe("etc/dir", "text", "x"), "etc/dir is no regular file"),
    )  # fmt: skip


def test_permissions_are_those_the_program_left():
    check(
        "chmod 2750 srv; chmod 4755 srv/app.py; chmod 0 etc/group; ln -s srv/app.py link",
        (PermissionProbe("srv", 0o2750), ""),
        (PermissionProbe("srv/app.py", 0o4755), ""),
        (PermissionProbe("link", 0o4755), ""),
        (PermissionProbe("etc/group", 0), ""),
        (PermissionProbe("etc/shadow", 0o600), ""),
        (PermissionProbe("etc/passwd", 0o600), "etc/passwd has another mode"),
        (PermissionProbe("nowhere", 0o600), "nowhere is missing"),
        (FileProbe("etc/group", "contains", "wheel"), ""),
    )


def test_users_are_read_as_the_c_library_does():
    check(
        """
        echo 'broken:x:²:1::/:/bin/sh' >>etc/passwd; echo "huge:x:$(printf %05000d 9):1::/:/bin/sh" >>etc/passwd
        echo 'web:x:1001:10:Web:/srv:/bin/false' >>etc/passwd; echo 'web:x:0:0::/:/bin/bash' >>etc/passwd
        echo 'web:!$6$x:1::::::' >>etc/shadow; echo 'www:x:33:ada,web' >>etc/group; sed -i /^old:/d etc/passwd
        echo 'direct:*:1002:1002::/:/bin/sh' >>etc/passwd; echo 'ghost:x:1003:1003::/:/bin/sh' >>etc/passwd""",
        (UserProbe("web", 1001, 10, "/srv", "/bin/false", ("wheel", "www"), True), ""),
        (UserProbe("web", uid=0), "web has another uid"),
        (UserProbe("web", shell="/bin/bash"), "web has another shell"),
        (UserProbe("web", groups=("www", "root")), "web is not in 1 of the groups"),
        (UserProbe("web", locked=False), "web is locked"),
        (UserProbe("old", absent=True), ""),
        (UserProbe("web", absent=True), "the user web is there"),
        (UserProbe("old"), "there is no user old"),
        (UserProbe("broken"), "there is no user broken"),
        (UserProbe("huge"), "there is no user huge"),
        (UserProbe("direct", locked=True), ""),
        (UserProbe("ghost", locked=True), "ghost is not in etc/shadow"),
        (UserProbe("root", locked=True), ""),
    )
    check("rm etc/passwd", (UserProbe("root"), "etc/passwd is missing"))
    check(
        "passwd=$(sed 's/^root:x/root:/' etc/passwd); echo \"$passwd\" >etc/passwd",
        (UserProbe("root", locked=True), "root is not locked"),
    )


ENABLED, DISABLED = ServiceProbe("a.service", True), ServiceProbe("a.service", False)


@pytest.mark.parametrize(
    ("program", "enabled"),
    [
        ("", True),
        (f"rm {UNITS}/multi-user.target.wants/a.service", False),
        (f"rm {UNITS}/a.service", False),
        (f"ln -sf /dev/null {UNITS}/a.service", False),
        (f": >{UNITS}/a.service", False),
        (f"cd {UNITS}; mv a.service ../../../lib/systemd/system/", True),
        (
            f"cd {UNITS}; rm -r *.wants; mkdir sockets.target.requires; ln -s ../a.service sockets.target.requires/",
            True,
        ),
        (f"cd {UNITS}; rm -r *.wants; mkdir x.wants; ln -s $ROOT/{UNITS}/a.service x.wants/b.service", False),
        (f"cd {UNITS}; rm -r *.wants; mkdir wants; ln -s ../a.service wants/", False),
    ],
)
def test_a_service_is_enabled_by_links_that_want_it(program: str, enabled: bool):
    check(
        program,
        (ENABLED, "" if enabled else "a.service is not enabled"),
        (DISABLED, "a.service is enabled" if enabled else ""),
    )


def test_units_are_read_with_drop_ins_and_continuations():
    check(
        f"""cd {UNITS}; mkdir a.service.d ../../../lib/systemd/system/a.service.d multi-user.target.wants -p
        printf '[Service]\\nUser=root\\nExecStart=\\nExecStart = /bin/new \\\\\\n  # no\\n  --flag\\nEnvironment=OLD=1\\nEnvironment=\\nEnvironment=A=1\\n' >a.service.d/10.conf
        printf '[Service]\\nUser=www\\nEnvironment="B=2"\\n[Unit]\\nAfter=db.service\\n' >a.service.d/20.conf
        printf '[Service]\\nUser=never\\n' >../../../lib/systemd/system/a.service.d/20.conf
        ln -s /lib/systemd/system/b@.service multi-user.target.wants/b@x.service""",
        (ServiceProbe("a.service", unit={"Service.User": "www", "Service.ExecStart": "/bin/new --flag"}), ""),
        (ServiceProbe("a.service", unit={"Service.Environment": "A=1", "Unit.After": "db.service network.target"}), ""),
        (ServiceProbe("a.service", unit={"Service.Environment": "OLD=1"}), "a.service: Service.Environment is wrong"),
        (ServiceProbe("a.service", unit={"Service.User": "root"}), "a.service: Service.User is wrong"),
        (ServiceProbe("a.service", unit={"Service.ExecStart": "/bin/a"}), "a.service: Service.ExecStart is wrong"),
        (ServiceProbe("a.service", unit={"Unit.User": "www"}), "a.service: Unit.User is wrong"),
        (ServiceProbe("a.service", unit={"Unit.After": "x.service"}), "a.service: Unit.After is wrong"),
        (ServiceProbe("b@x.service", True, {"Service.ExecStart": "/bin/b %i"}), ""),
        (ServiceProbe("c.service", unit={"Service.User": "www"}), "c.service has no unit file, or is masked"),
    )


SERVER = """cat >srv/app.py <<'EOF'
import os, socket, sys, time
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    connection, _ = server.accept()
    said = connection.recv(1000).decode()
    connection.sendall(f"you said {said} in {os.environ['ROOT']}".encode())
    time.sleep(60)
EOF
"""
ASKED = PortProbe(8080, ("python3", "srv/app.py", "8080"), "you said ping in", "ping")


@pytest.mark.parametrize(
    ("program", "outcome", "message"),
    [
        (SERVER, "passed", ""),
        (SERVER + "sed -i 's/you said/we say/' srv/app.py", "failed_tests", "the answer does not contain what it must"),
        (SERVER + "chmod 0 srv", "passed", ""),
        (SERVER + "python3 srv/app.py 8080 & echo 'raise SystemExit(4)' >srv/app.py", "failed_tests", "nobody listens on port 8080"),
        ("echo 'while True: print(1)' >srv/app.py", "output_limit", "output_limit broken"),
        ("echo 'import os\nwhile True: os.fork()' >srv/app.py", "process_limit", "process_limit broken"),
        ("rm srv/app.py", "failed_tests", "nobody listens on port 8080"),
    ],
)  # fmt: skip
def test_a_server_is_started_from_what_was_left_and_asked(program: str, outcome: str, message: str):
    ((came, why),) = verdicts(program, ASKED)
    assert came == outcome
    assert message in why


@pytest.mark.parametrize(
    ("program", "outcome", "message"),
    [
        ("while :; do :; done", "time_limit", "time_limit broken"),
        ("for i in 1 2 3; do head -c 3900000 /dev/zero >$i; done", "disk_limit", "disk_limit broken"),
        ("for i in $(seq 200); do truncate -s 4M $i; done", "policy_violation", "the workspace could not be read"),
        ("echo 9 >etc/f; rm -r ../root; ln -s / ../root", "failed_tests", "etc/f is missing"),
        ("rm -r etc; ln -s /etc etc; rm -f etc/f", "failed_tests", "etc/f is missing"),
        ("mkfifo etc/f", "failed_tests", "etc/f is no regular file"),
        ("ln -s /dev/zero etc/f", "failed_tests", "etc/f is missing"),
        ("ln -s f etc/f", "failed_tests", "etc/f is missing"),
        ("exit 3", "failed_tests", "etc/f is missing (the program: exit code 3)"),
        ("if", "failed_tests", "syntax error"),
        ("(sleep 0.5; echo 9 >etc/f) >/dev/null 2>&1 & disown", "failed_tests", "etc/f is missing"),
        ("echo 9 >etc/f; (sleep 0.3; echo 8 >etc/f) >/dev/null 2>&1 & exit 1", "passed", ""),
    ],
)  # fmt: skip
def test_what_else_programs_do(program: str, outcome: str, message: str):
    ((came, why),) = verdicts(program, FileProbe("etc/f", "text", "9"))
    assert came == outcome
    assert message in why


def test_links_without_end_are_given_up_soon():
    began = time.monotonic()
    tangle = {f"l{n}": Entry("link", 0o777, target="/".join(["."] * 900 + [f"l{n - 1}"] * 900)) for n in range(1, 50)}
    for entries in ({"": Entry("folder", 0o755), "l9": Entry("link", 0o777, target="l9")}, tangle):
        assert resolve(entries, "l9") is None
    assert time.monotonic() - began < 1


def test_a_pattern_that_never_ends_ends_at_the_time_limit():
    ((outcome, _), (other, _)) = verdicts(
        "printf 'a%.0s' $(seq 40) >etc/f; echo b >>etc/f",
        FileProbe("etc/f", "matches", "^(a+)+$"),
        FileProbe("etc/f", "contains", "aab"),
    )
    assert (outcome, other) == ("time_limit", "passed")


def test_python_programs_configure_too_and_one_that_is_none_is_a_syntax_error():
    source = "import os, pathlib\npathlib.Path(os.environ['ROOT'], 'etc/f').write_text('9')"
    probe = FileProbe("etc/f", "text", "9")
    assert str(grade(source, probe, language="python").results[0].outcome) == "passed"
    assert str(grade(source + "\nx =", probe, language="python").results[0].outcome) == "syntax_error"
