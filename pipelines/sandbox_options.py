"""The options of commands that run a set of programs in sandboxes, and what they ask for."""

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipelines.explain import UsageError

if TYPE_CHECKING:
    from sandboxes.limits import SandboxSpec

_BACKENDS = {"bwrap": "bubblewrap", "docker": "docker", "gvisor": "gvisor", "subprocess": "subprocess"}

Sandbox = Annotated[
    Literal["bwrap", "docker", "gvisor", "subprocess"],
    typer.Option("--sandbox", metavar="NAME", help="Where programs run: bwrap, docker, gvisor or subprocess."),
]
Image = Annotated[
    str | None,
    typer.Option("--image", metavar="NAME", help="What they find there; else `host`, or `base` in containers."),
]
Workers = Annotated[
    int | None, typer.Option("--workers", metavar="N", min=1, max=256, help="Programs at once; else one a core.")
]


def sandbox_spec(sandbox: str, image: str | None, workers: int | None, **settings: Any) -> "SandboxSpec":
    """What the options ask for; `settings` are further fields of the spec.

    Raises UsageError for what does not go together, ImageMissing for an image that is not built.
    """
    from pydantic import ValidationError

    from sandboxes.images.catalog import find_image
    from sandboxes.limits import SandboxSpec

    given = {"backend": _BACKENDS[sandbox], "parallel": workers or len(os.sched_getaffinity(0)), **settings}
    try:
        spec = SandboxSpec.model_validate(given if image is None else {**given, "image": image})
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(f"--sandbox: {said}") from None
    if spec.image != "host" and ":" not in spec.image:
        find_image(spec.image)  # else each program would be tried in vain
    return spec
