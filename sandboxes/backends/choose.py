"""From a declared back-end to a provider, and to what it is asked for."""

import asyncio
from pathlib import Path

from sandboxes.limits import SandboxSpec
from sandboxes.pool import Maker, Pool
from sandboxes.protocol import ProvisionFailed, SandboxProvider, SandboxRequest
from sandboxes.remote.client import Remote, fleet_of


def provider_of(spec: SandboxSpec, folder: Path) -> SandboxProvider:
    """What makes the sandboxes of a spec that lies in `folder`. Whether a back-end works shows at the first sandbox.

    Not from within an event loop if the spec names hosts: they are asked what they have. Raises ProvisionFailed when
    one does not answer or runs another back-end, or the token file cannot be read.
    """
    if spec.hosts:
        try:
            token = (folder / spec.token_file).read_text().strip() if spec.token_file else ""
        except OSError as error:
            raise ProvisionFailed("sandbox.token_file cannot be read", evidence=str(error)) from error
        return asyncio.run(fleet_of([Remote(address, token) for address in spec.hosts], backend=spec.backend))
    made = backend_of(spec)
    return Pool(made, most=spec.pool) if spec.pool else made


def backend_of(spec: SandboxSpec) -> Maker:
    """The back-end a spec names, on this machine."""
    match spec.backend:
        case "bubblewrap":
            from sandboxes.backends.bubblewrap import Bubblewrap

            return Bubblewrap()
        case "docker":
            from sandboxes.backends.containers import Docker

            return Docker()
        case "gvisor":
            from sandboxes.backends.containers import Docker

            return Docker(runtime="runsc")
        case "subprocess":
            from sandboxes.backends.confined import Confined

            return Confined()


def request_of(spec: SandboxSpec, *, owner: str) -> SandboxRequest:
    """What is asked of it for each sandbox of a run."""
    return SandboxRequest(image=spec.image, limits=spec.limits, network=spec.network, owner=owner)
