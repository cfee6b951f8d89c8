"""The expectation that Great Expectations does not have: rows, whole, held against a rule in code.

Importing this module registers it: a suite's file can then name it by its type, `expect_rows_to_follow`.
"""

from typing import Any, ClassVar

from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.execution_engine import PandasExecutionEngine
from great_expectations.expectations.expectation import BatchExpectation
from great_expectations.expectations.metrics.metric_provider import metric_value
from great_expectations.expectations.metrics.table_metric_provider import TableMetricProvider
from great_expectations.validator.metric_configuration import MetricConfiguration

from transforms.quality.rules import RULES
from transforms.quality.table_rules import TABLE_RULES

MAX_SHOWN = 200
"""Rows of a broken rule whose finding is handed back; their positions are, of all."""


class TableRows(TableMetricProvider):
    """The batch as a list of dicts. Great Expectations works it out once for all rules of a suite."""

    metric_name = "table.rows_as_dicts"

    @metric_value(engine=PandasExecutionEngine)
    def _pandas(cls, execution_engine: Any, metric_domain_kwargs: Any, **_: Any) -> list[dict[str, Any]]:
        frame, _, _ = execution_engine.get_compute_domain(metric_domain_kwargs, domain_type=MetricDomainTypes.TABLE)
        return frame.to_dict("records")


class TableRuleTold(TableMetricProvider):
    """What a rule says of each row: what is wrong, or None. Raises ValueError where it cannot read one."""

    metric_name = "table.rule_told"
    value_keys = ("rule",)

    @metric_value(engine=PandasExecutionEngine)
    def _pandas(cls, metric_value_kwargs: Any, metrics: Any, **_: Any) -> list[str | None]:
        name = metric_value_kwargs["rule"]
        rule = RULES.get(name) or TABLE_RULES[name]
        told = []
        for place, row in enumerate(metrics["table.rows_as_dicts"]):
            try:
                told.append(rule(row))
            except (TypeError, KeyError, ValueError, AttributeError) as error:
                what = f"trajectory {row['trajectory_id']}" if row.get("trajectory_id") else f"row {place}"
                raise ValueError(f"rule {name} cannot read {what}: {type(error).__name__}: {error}") from error
        return told

    @classmethod
    def _get_evaluation_dependencies(cls, metric: MetricConfiguration, *args: Any, **kwargs: Any) -> dict[str, Any]:
        rows = MetricConfiguration("table.rows_as_dicts", metric.metric_domain_kwargs)
        return {**super()._get_evaluation_dependencies(metric, *args, **kwargs), "table.rows_as_dicts": rows}


class ExpectRowsToFollow(BatchExpectation):
    """Each row satisfies the rule of this name, a function of `RULES` or `TABLE_RULES`.

    The result names the positions of all rows that do not, and what is wrong with the first `MAX_SHOWN`.
    """

    rule: str
    metric_dependencies: ClassVar[tuple[str, ...]] = ("table.rule_told",)
    success_keys: ClassVar[tuple[str, ...]] = ("rule",)
    args_keys: ClassVar[tuple[str, ...]] = ("rule",)

    def _validate(self, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
        told = metrics["table.rule_told"]
        broken = [place for place, what in enumerate(told) if what]
        result = {
            "element_count": len(told),
            "unexpected_count": len(broken),
            "unexpected_index_list": broken,
            "unexpected_list": [told[place] for place in broken[:MAX_SHOWN]],
        }
        return {"success": not broken, "result": result}
