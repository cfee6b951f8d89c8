"""The engines a run can name."""

from pathlib import Path

from transforms.rollout.policy import EngineService, EngineSpec


def make_service(spec: EngineSpec, *, log: Path) -> EngineService:
    """The service of the engine that the spec names; `log` is where a child service writes."""
    if spec.kind == "transformers":
        from transforms.rollout.transformers_engine import TransformersService

        return TransformersService(spec)
    from transforms.rollout.vllm_service import VllmService

    return VllmService(spec, log=log)
