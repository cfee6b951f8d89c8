"""The views give the same rows in Spark SQL, with the few replacements that their comments name."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.lake.view_rows import write_lake
from transforms.lake.schemas import TABLES
from transforms.lake.sql import query, views
from transforms.lake.table import Lake

pytestmark = pytest.mark.slow


def spark_text(view: str) -> str:
    """A view's SQL for Spark: generators that number their elements, and regexp_replace, have other forms there."""
    numbered = re.sub(
        r"unnest\((\w+)\) AS (\w+),\s+unnest\(range\(1, .*\)\) AS (\w+)", r"posexplode(\1) AS (\3, \2)", views()[view]
    )
    counted_from_1 = re.sub(r"final, (test|step),\n", r"final, \1 + 1 AS \1,\n", numbered)
    return counted_from_1.replace("unnest(", "explode(").replace(", 'g')", ")")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lake = Lake(tmp_path_factory.mktemp("spark"))
    write_lake(lake, seed=13)
    return lake.work


@pytest.fixture(scope="module")
def spark(home: Path) -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.codegen.wholeStage", "false")  # compiling takes longer than these few rows
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .getOrCreate()
    )
    for table in TABLES:
        file = home / f"{table}.parquet"
        pq.write_table(query(home, f"SELECT * FROM {table}"), file)
        session.read.parquet(str(file)).createOrReplaceTempView(table)
    waiting = list(views())
    while waiting:  # a view that is made of another must come behind it
        view = waiting.pop(0)
        below = re.findall(r"(?:FROM|JOIN) (\w+)", re.sub("--.*", "", views()[view]))
        if set(below) & set(waiting):
            waiting.append(view)
        else:
            session.sql(f"CREATE TEMPORARY VIEW {view} AS\n{spark_text(view)}")
    yield session
    session.stop()


def plain(value: Any) -> Any:
    """For comparison: doubles to 9 digits, times without their zone."""
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else str(value)
    return value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value


@pytest.mark.parametrize("view", views())
def test_spark_gives_the_same_rows(home: Path, spark: SparkSession, view: str):
    ours = query(home, f"SELECT * FROM {view}")
    theirs = spark.sql(f"SELECT * FROM {view}")
    assert theirs.columns == ours.column_names
    wanted = [[plain(value) for value in row.values()] for row in ours.to_pylist()]
    found = [[plain(value) for value in row] for row in theirs.collect()]
    assert wanted
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
