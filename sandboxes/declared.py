"""The base of every part of a declared run.

It lives in the lowest package so that each package can describe its own part of the YAML file; `pipelines/spec.py`
puts the parts together.
"""

from pydantic import BaseModel, ConfigDict


class Declared(BaseModel):
    """A frozen record of settings: unknown keys are refused, attribute docstrings are the field's documentation."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)
