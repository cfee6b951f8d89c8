from pathlib import Path

from pipelines.cycle import _provider
from pipelines.spec import RunSpec
from sandboxes.backends.choose import request_of
from sandboxes.host import registry
from sandboxes.host.owner import identity
from sandboxes.limits import SandboxSpec
from sandboxes.pool import Pool
from transforms.async_map import run_async


def test_what_a_pool_holds_at_the_end_of_a_run_is_destroyed():
    spec = RunSpec(name="a", sandbox=SandboxSpec(pool=2))
    with _provider(spec, Path()) as provider:
        assert isinstance(provider, Pool)
        run_async(provider.fill(request_of(spec.sandbox, owner="run"), 2))
        assert len([record for record in registry.live() if record.process == identity()]) >= 2
    assert [record for record in registry.live() if record.process == identity() and record.owner == "pool"] == []
