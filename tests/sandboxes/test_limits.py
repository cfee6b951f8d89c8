import pytest
from pydantic import ValidationError

from sandboxes.limits import SandboxSpec


def test_containers_have_an_image_of_their_own_by_default():
    assert SandboxSpec().image == "host"
    assert SandboxSpec(backend="docker").image == "base"
    assert SandboxSpec.model_validate_json('{"backend": "gvisor"}', strict=True).image == "base"
    assert SandboxSpec(backend="docker", image="toolchains").image == "toolchains"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"backend": "docker", "image": "host"}, "use `base`"),
        ({"backend": "subprocess", "image": "base"}, "runs on `host` only"),
        ({"hosts": ("nonsense",)}, "'nonsense' is no address"),
        ({"network": {"allow": ("pypi.org",)}}, "host:port"),
    ],
)
def test_what_cannot_run_is_refused_when_it_is_read(given: dict[str, object], told: str):
    with pytest.raises(ValidationError, match=told):
        SandboxSpec.model_validate(given)


def test_workers_may_be_named_by_path_and_by_port():
    assert SandboxSpec(hosts=("unix:/run/h.sock", "10.0.0.5:7070", "gpu-1.local:7070")).hosts[1] == "10.0.0.5:7070"
