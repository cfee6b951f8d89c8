-- One row is one expectation in one cycle of a run.
-- Of a batch-level one the newest verdict counts (a resumed run asks the gate again): `observed` is what it measured. Of a
-- row-level one the chunks are added up: `observed` is the share (0..1) of the `checked` rows that broke it. `allowed` is the
-- limit, `held` whether all of it held; `change` is `observed` less that of the run's cycle before, null for the first.
-- Example: SELECT cycle, observed, allowed, held FROM checks_over_time
--          WHERE run_id = 'r' AND expectation = 'truncation_rate' ORDER BY cycle;
-- Runs the same in DataFusion and Spark SQL.
SELECT
    run_id, cycle, suite, expectation, level, observed, allowed, held, checked, last_checked_at,
    observed - lag(observed) OVER (PARTITION BY run_id, suite, expectation, level ORDER BY cycle) AS change
FROM (
    SELECT
        run_id, cycle, suite, expectation, level,
        CASE WHEN level = 'batch' THEN max(observed)
            ELSE sum(observed) / nullif(CAST(sum(c.rows) AS DOUBLE), 0e0) END AS observed,
        max(c.limit) AS allowed,
        min(CASE WHEN success THEN 1 ELSE 0 END) = 1 AS held,
        sum(c.rows) AS checked,
        max(checked_at) AS last_checked_at
    FROM (
        SELECT
            *,
            row_number() OVER (PARTITION BY run_id, cycle, suite, expectation, level ORDER BY checked_at DESC) AS newest
        FROM checks
    ) AS c
    WHERE level <> 'batch' OR newest = 1
    GROUP BY run_id, cycle, suite, expectation, level
)
