"""`headrace sandbox ...`: see, clean, time, enter and build what programs run in."""

import json
import sys
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.explain import FAILED, UsageError, did_you_mean, explained

if TYPE_CHECKING:
    from sandboxes.images.catalog import Image
    from sandboxes.limits import SandboxSpec

sandbox_app = typer.Typer(no_args_is_help=True, help="See, clean, time and enter the places where programs run.")


class Backend(StrEnum):
    """Where programs run."""

    BUBBLEWRAP = "bubblewrap"
    DOCKER = "docker"
    GVISOR = "gvisor"
    SUBPROCESS = "subprocess"


AsJson = Annotated[bool, typer.Option("--json", help="A JSON list, for programs.")]
ImageName = Annotated[
    str | None,
    typer.Option("--image", metavar="NAME", help="An image that is built; else host, or base for docker and gvisor."),
]


@sandbox_app.command("list")
@explained
def list_sandboxes(as_json: AsJson = False) -> None:
    """List the sandboxes open on this machine, and those that dead processes left.

    It shows your own user's sandboxes, and all containers of ours.

    [dim]Examples:[/dim]

        headrace sandbox list

        headrace sandbox list --json
    """
    from pipelines.sandbox_leftovers import seen_sandboxes

    seen = seen_sandboxes()
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in seen], indent=2))
        return
    if not seen:
        typer.echo("no sandbox is open", err=True)
        return
    rows = [
        [each.id, each.backend, each.image, each.owner or "-", _age(each.age_s), str(each.pid or "-"), each.state]
        for each in seen
    ]
    _print_table(["id", "back-end", "image", "owner", "age", "process", "state"], rows, right={4, 5})
    left = sum(each.state != "live" for each in seen)
    if left:
        typer.echo(f"\n{left} left behind by dead processes: `headrace sandbox clean` removes them", err=True)


@sandbox_app.command()
@explained
def clean(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
) -> None:
    """Remove what dead processes left: records, control groups, containers, folders, half-built images.

    Unpacked snapshots that nothing used for a day go too. What a live process uses stays.
    Every run does this at its start as well.

    Exit status 0 if everything is gone, else 1.

    [dim]Examples:[/dim]

        headrace sandbox clean --dry-run

        headrace sandbox clean
    """
    from pipelines.sandbox_leftovers import find_leftovers

    leftovers, failed = find_leftovers(), 0
    for each in leftovers:
        if dry_run:
            typer.echo(f"would remove {each.kind} {each.name}")
            continue
        try:
            each.remove()
        except FileNotFoundError:  # a run that starts now cleans too
            continue
        except OSError as error:
            failed += 1
            typer.echo(f"cannot remove {each.kind} {each.name}: {error}", err=True)
        else:
            typer.echo(f"removed {each.kind} {each.name}")
    if not leftovers:
        typer.echo("nothing was left behind", err=True)
    if failed:
        raise typer.Exit(FAILED)


@sandbox_app.command()
@explained
def bench(
    backend: Annotated[
        list[Backend] | None, typer.Option("--backend", help="One back-end; may be given again. Else all.")
    ] = None,
    n: Annotated[int, typer.Option("--n", min=1, max=100_000, help="Sandboxes of each kind.")] = 30,
    at_once: Annotated[int, typer.Option("--at-once", min=1, max=1024, help="Asked for at the same moment.")] = 1,
    image: ImageName = None,
    as_json: AsJson = False,
) -> None:
    """Time the sandboxes of this machine: from asking for one until Python in it speaks, and to its end.

    Cold ones are made when asked for; pooled ones stand ready. Milliseconds on the clock.
    A back-end that does not work here is named on stderr and left out; asked for by name, it is an error.

    [dim]Examples:[/dim]

        headrace sandbox bench --backend bubblewrap

        headrace sandbox bench --backend bubblewrap --n 256 --at-once 64 --json
    """
    import asyncio

    from pipelines.sandbox_bench import measure, why_not
    from sandboxes.protocol import SandboxError

    timings = []
    for each in backend or list(Backend):
        try:
            spec = _spec(each, image)
            timings += asyncio.run(measure(spec, n=n, at_once=at_once, say=lambda line: typer.echo(line, err=True)))
        except SandboxError as error:
            if backend:
                raise
            typer.echo(f"{each.value}: does not work here: {why_not(error)}", err=True)
    if not timings:
        raise typer.Exit(FAILED)
    if as_json:
        typer.echo(json.dumps([asdict(timing) for timing in timings], indent=2))
        return
    names = ["back-end", "how", "n", "at once", "start p50", "p99", "end p50", "p99", "ready"]
    rows = [
        [
            each.backend, each.how, str(each.n), str(each.at_once), *(
                f"{ms:.1f}" for ms in (each.start_p50_ms, each.start_p99_ms, each.end_p50_ms, each.end_p99_ms)
            ),
            "-" if each.ready is None else f"{each.ready:.0%}",
        ]
        for each in timings
    ]  # fmt: skip
    _print_table(names, rows, right=set(range(2, 9)))


@sandbox_app.command()
@explained
def shell(
    task: Annotated[str | None, typer.Option("--task", metavar="FILE", help="A JSONL file, or builtin:NAME.")] = None,
    task_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="The task of that file.")] = None,
    image: ImageName = None,
    backend: Annotated[Backend, typer.Option("--backend", help="Where it runs.")] = Backend.BUBBLEWRAP,
    command: Annotated[
        str | None, typer.Option("--command", "-c", metavar="LINE", help="Run this line instead of a shell.")
    ] = None,
) -> None:
    """Open a terminal in a sandbox, as a program of an episode would find it; its end is the sandbox's end.

    With a task the workspace holds prompt.md, gold.py if there is one, and cases.py, which runs a file against
    the cases. Hidden cases are among them: this is for people who debug tasks; no episode's sandbox holds them.

    Memory 2 GiB, 512 processes, 1 GiB of files, no limit of time, no network.
    The exit status is the shell's; 137 if the sandbox ended first.

    [dim]Examples:[/dim]

        headrace sandbox shell

        headrace sandbox shell --task builtin:humaneval --id HumanEval/0

        headrace sandbox shell --task my.jsonl --id add -c 'python3 cases.py gold.py'
    """
    from pipelines.sandbox_shell import find_task, open_shell

    if task is None and task_id is not None:
        raise UsageError("--id names a task of a file\n\nhint: give the file with --task")
    chosen = find_task(task, task_id) if task is not None else None
    raise typer.Exit(open_shell(_spec(backend, image), chosen, command))


@sandbox_app.command()
@explained
def build(
    target: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A shipped definition, or a YAML file of yours.")],
    docker: Annotated[bool, typer.Option("--docker", help="Load it into the Docker engine too.")] = False,
    from_dockerfile: Annotated[
        bool, typer.Option("--from-dockerfile", help="Let the engine build it: needs a registry that it reaches.")
    ] = False,
) -> None:
    """Build an image, and those it lies on, unless they are built. Needs root, and minutes for the first.

    The same definition gives the same name in the cache (HEADRACE_CACHE, else ~/.cache/headrace).
    A definition of yours: name, base, packages, files, commands; see sandboxes/images/definitions/base.yaml.

    [dim]Examples:[/dim]

        headrace sandbox build base

        headrace sandbox build my-image.yaml --docker
    """
    from sandboxes.images.build import build_image
    from sandboxes.images.catalog import load_layers, shipped_names

    if "/" not in target and not target.endswith((".yaml", ".yml")) and target not in shipped_names():
        known = did_you_mean(target, shipped_names())
        raise UsageError(f"no image definition is named `{target}`; an own one is the path of a YAML file{known}")
    try:
        load_layers(target)
    except ValueError as error:
        raise UsageError(str(error)) from None
    client = None
    if docker or from_dockerfile:
        from sandboxes.backends.container_engine import connect

        client = connect(None)
    say = lambda line: typer.echo(line, err=True)  # noqa: E731
    image = build_image(target, say=say, builder="dockerfile" if from_dockerfile else "debootstrap", client=client)
    if client is not None:
        from sandboxes.images.docker import load_into_docker

        say(f"{image.name}: in the Docker engine as {load_into_docker(image, client)}")
    typer.echo(_summary(image))


@sandbox_app.command()
@explained
def images(
    check: Annotated[
        bool, typer.Option("--verify", help="Work out again the digest of every file; seconds each.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the images that are built, and the shipped ones that are not.

    Exit status 1 if --verify finds one that is not what was built.

    [dim]Examples:[/dim]

        headrace sandbox images

        headrace sandbox images --verify
    """
    from sandboxes.images.catalog import (
        definition_digest,
        images_folder,
        load_layers,
        open_image,
        shipped_names,
        verify,
    )
    from sandboxes.protocol import SandboxError

    folders = sorted(path.parent for path in images_folder().glob("[!.]*/manifest.json"))
    built, spoilt = [], 0
    for folder in folders:
        try:
            image = open_image(folder)
            assert image is not None
            built.append(image)
            if check:
                verify(image)
        except SandboxError as error:
            spoilt += 1
            typer.echo(f"error: {error}", err=True)
    if as_json:
        typer.echo(json.dumps([image.manifest.model_dump() for image in built], indent=2))
    elif built:
        rows = [
            [image.name, image.manifest.digest[:16], ", ".join(image.manifest.languages) or "-",
             str(len(image.manifest.packages)), image.manifest.built_at[:10]]
            for image in sorted(built, key=lambda image: image.name)
        ]  # fmt: skip
        _print_table(["name", "digest", "languages", "packages", "built"], rows, right={3})
    for name in shipped_names():
        if definition_digest(load_layers(name)) not in {image.manifest.digest for image in built}:
            older = any(image.name == name for image in built)
            state = "its definition is not the one that was built" if older else "not built"
            typer.echo(f"{name}: {state}; headrace sandbox build {name}", err=True)
    if check and not spoilt:
        typer.echo(f"{len(built)} of {len(built)} hold what was built", err=True)
    if spoilt:
        raise typer.Exit(FAILED)


def _spec(backend: Backend, image: str | None) -> "SandboxSpec":
    from sandboxes.limits import SandboxSpec

    contained = backend in (Backend.DOCKER, Backend.GVISOR)
    return SandboxSpec(backend=backend.value, image=image or ("base" if contained else "host"))


def _summary(image: "Image") -> str:
    manifest = image.manifest
    return (
        f"{image.name} {manifest.digest[:16]}: {len(manifest.packages)} packages; {_languages(image)}\n"
        f"in {image.folder}\nto use it: `image: {image.name}` under `sandbox` in a spec, or headrace sandbox shell "
        f"--image {image.name}"
    )


def _languages(image: "Image") -> str:
    return ", ".join(f"{name} {version}" for name, version in image.manifest.languages.items()) or "no languages"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _print_table(names: list[str], rows: list[list[str]], *, right: set[int]) -> None:
    """Rows on stdout: on a terminal as wide as it is, aligned with spaces elsewhere."""
    if not sys.stdout.isatty():
        from pipelines.show import aligned

        typer.echo(aligned(names, rows, [index in right for index in range(len(names))]), nl=False)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for index, name in enumerate(names):
        short = all(len(row[index]) <= 16 for row in rows)
        table.add_column(name, justify="right" if index in right else "left", overflow="fold", no_wrap=short)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(highlight=False).print(table)
