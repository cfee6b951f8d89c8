"""One definition, one result: as a folder for bubblewrap and as an image of a Docker engine."""

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException, ImageNotFound

from sandboxes.backends.walls import find_bwrap
from sandboxes.images.build import build_image
from sandboxes.images.catalog import definition_digest, find_image, load_layers
from sandboxes.images.docker import dockerfile, load_into_docker
from sandboxes.images.tree import list_tree
from sandboxes.protocol import ProvisionFailed
from tests.sandboxes.real_images import missing, real_image, shell_image

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root builds images")
PROGRAMS = {
    "python": (
        "import json, sqlite3\nprint(json.dumps([6 * 7, sqlite3.sqlite_version]))",
        "python3 $1",
        '[42, "3.40.1"]',
    ),
    "pytest": (
        "def test_it():\n    assert 6 * 7 == 42",
        "python3 -m pytest -q $1 2>&1 | tail -1 | cut -c1-8",
        "1 passed",
    ),
    "c": ('#include <stdio.h>\nint main(void) { printf("%d\\n", 6 * 7); }', "gcc -x c -o a $1 && ./a", "42"),
    "c++": ("#include <iostream>\nint main() { std::cout << 6 * 7; }", "g++ -x c++ -o b $1 && ./b", "42"),
    "javascript": ("console.log([6 * 7].map(String))", "node $1", "[ '42' ]"),
    "bash": ("a=(6 7); echo $((a[0] * a[1]))", "bash $1", "42"),
    "sqlite": ("select 6 * 7;", "sqlite3 < $1", "42"),
    "owners": ("", "stat -c '%U:%G %a' /etc/shadow /tmp | tr '\\n' ' '", "root:shadow 640 root:root 1777 "),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def engine() -> Iterator[docker.DockerClient]:
    try:
        client = docker.from_env()
        client.ping()
    except DockerException as error:
        missing("docker", f"no Docker engine: {error}")
    yield client
    client.close()


@pytest.fixture
def name(engine: docker.DockerClient) -> Iterator[str]:
    """A name for images, all of which are gone from the engine afterwards."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    for image in engine.images.list():
        for tag in image.tags:
            if name in tag:
                engine.images.remove(tag, force=True)


def quiet(line: str) -> None:
    del line


def test_the_dockerfile_says_what_the_definition_says(tmp_path: Path) -> None:
    assert dockerfile(load_layers("base")) == (
        "FROM debian:bookworm\n"
        "RUN export DEBIAN_FRONTEND=noninteractive && apt-get update && apt-get -y dist-upgrade && "
        "apt-get install -y --no-install-recommends g++ gcc libc6-dev nodejs procps python3 python3-pytest sqlite3 && "
        "rm -rf /var/lib/apt/lists/*\n"
        'RUN ["/bin/sh", "-ec", "echo program:x:1000:1000::/work:/bin/sh >> /etc/passwd && '
        'echo program:x:1000: >> /etc/group"]\n'
    )
    (tmp_path / "own.yaml").write_text(
        'name: own\nbase: base\nfiles: {/b c: B, /a: A}\ncommands: [\'echo "$HOME"\', "one\\ntwo"]\n'
    )
    assert dockerfile(load_layers(str(tmp_path / "own.yaml"))).splitlines() == [
        f"FROM headrace/base:{definition_digest(load_layers('base'))[:16]}",
        'COPY ["files/0", "/a"]',
        'COPY ["files/1", "/b c"]',
        'RUN ["/bin/sh", "-ec", "echo \\"$HOME\\""]',
        'RUN ["/bin/sh", "-ec", "one\\ntwo"]',
    ]


@needs_root
def test_an_image_is_imported_once(tmp_path: Path, engine: docker.DockerClient, name: str) -> None:
    (tmp_path / "few.yaml").write_text(f"name: {name}\nbase: scratch\nfiles: {{/etc/motd: hello}}\n")
    image = build_image(str(tmp_path / "few.yaml"), say=quiet)
    tag = load_into_docker(image, engine)
    assert tag == f"headrace/{name}:{image.manifest.digest[:16]}"
    there = engine.images.get(tag)
    assert there.labels == {"headrace.image": name, "headrace.digest": image.manifest.tree_digest}
    assert sorted(there.tags) == sorted([tag, f"headrace/{name}:latest"])
    assert find_image(name).manifest.docker_image == there.id
    assert load_into_docker(find_image(name), engine) == tag
    assert engine.images.get(tag).id == there.id  # another import would have another time, so another id
    changed = find_image(name)
    changed.manifest.__dict__["tree_digest"] = "0" * 64
    load_into_docker(changed, engine)
    assert engine.images.get(f"headrace/{name}:latest").labels["headrace.digest"] == "0" * 64
    assert engine.images.get(tag).id != there.id
    with pytest.raises(ImageNotFound):
        engine.images.get(there.id)


@needs_root
def test_both_builders_give_the_same_files(
    tmp_path: Path, engine: docker.DockerClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = shell_image(tmp_path, f"{name}-shell")
    tool = "#!/bin/sh\\necho made > /made; touch /tmp/x\\n"
    (tmp_path / "own.yaml").write_text(
        f'name: {name}\nbase: {shell.stem}\nfiles: {{/opt/a b/tool: "{tool}", /opt/text: t}}\n'
        "commands: ['\"/opt/a b/tool\"', 'touch /bin/own && umask > /umask']\n"
    )
    own = str(tmp_path / "own.yaml")
    first = build_image(own, say=quiet)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "other"))
    shell_image(tmp_path, shell.stem)
    lines: list[str] = []
    second = build_image(own, say=lines.append, builder="dockerfile", client=engine)
    assert [path.read_text() for path in (second.rootfs / "made", second.rootfs / "umask")] == ["made\n", "0022\n"]
    assert second.manifest.builder == "dockerfile"
    assert list_tree(second.rootfs) == list_tree(first.rootfs)
    assert second.manifest.tree_digest == first.manifest.tree_digest
    assert any(line.startswith(f"{name}: docker build, from headrace/{shell.stem}:") for line in lines)
    with pytest.raises(ImageNotFound):
        engine.images.get(f"headrace/building-{name}:{second.folder.name}")


@needs_root
@pytest.mark.parametrize("definition", ["base: scratch\ncommands: [echo NAME]", "base: debian:nosuchsuite"])
def test_a_failed_docker_build_is_told_and_leaves_no_container(
    tmp_path: Path, engine: docker.DockerClient, name: str, definition: str
) -> None:
    (tmp_path / "own.yaml").write_text(f"name: {name}\n{definition.replace('NAME', name)}\n")
    with pytest.raises(ProvisionFailed, match=f"{name} could not be built: docker build"):
        build_image(str(tmp_path / "own.yaml"), say=quiet, builder="dockerfile", client=engine)
    left = engine.api.containers(all=True)
    assert [container["Id"] for container in left if name in container["Command"]] == []


@needs_root
def test_an_engine_that_is_not_there_is_the_hosts_failure(tmp_path: Path) -> None:
    (tmp_path / "few.yaml").write_text("name: few\nbase: scratch\n")
    image = build_image(str(tmp_path / "few.yaml"), say=quiet)
    gone = docker.DockerClient(base_url=f"unix://{tmp_path}/none.sock", version="1.41")
    with pytest.raises(ProvisionFailed, match="few could not be loaded into the engine") as failed:
        load_into_docker(image, gone)
    assert "No such file" in failed.value.evidence


@needs_root
def test_one_program_has_one_result_in_both_back_ends(tmp_path: Path, engine: docker.DockerClient) -> None:
    image = real_image("base")
    assert set(PROGRAMS) - {"pytest", "owners"} == set(image.manifest.languages)
    lines = ["cd /tmp", "export PATH=/usr/bin:/bin"]
    for program, (source, command, _) in PROGRAMS.items():
        (tmp_path / f"test_{program}.py").write_text(source + "\n")
        lines.append(f'set -- /mnt/test_{program}.py; echo "{program}: $({command})"')
    (tmp_path / "run.sh").write_text("\n".join(lines))
    argv = ["sh", "/mnt/run.sh"]
    root = ["--unshare-net", "--clearenv", "--ro-bind", str(image.rootfs), "/", "--dev", "/dev", "--proc", "/proc"]
    places = ["--perms", "1777", "--tmpfs", "/tmp", "--bind", str(tmp_path), "/mnt"]
    bubblewrap = subprocess.run([find_bwrap(), *root, *places, *argv], capture_output=True, text=True, check=False)
    tag = load_into_docker(image, engine)
    volumes = {str(tmp_path): {"bind": "/mnt"}}
    container = engine.containers.run(tag, argv, remove=True, network_mode="none", volumes=volumes)
    assert bubblewrap.stdout == container.decode(), bubblewrap.stderr
    said = dict(line.split(": ", 1) for line in bubblewrap.stdout.splitlines())
    assert said == {program: expected for program, (_, _, expected) in PROGRAMS.items()}
