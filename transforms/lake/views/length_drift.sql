-- One row is one purpose of one cycle of a run, over the last attempts that hold an answer (`answers`).
-- Lengths are sampled tokens of all turns; `truncated` counts answers cut at max_tokens, `truncation_rate` is their share
-- (0..1). `length_change` is the mean over the one of the run's cycle before (same purpose) less 1, `truncation_change` the
-- difference of the rates; null for the first.
-- Example: SELECT cycle, mean_tokens, length_change, truncation_rate FROM length_drift
--          WHERE run_id = 'r' AND purpose = 'train' ORDER BY cycle;
-- Runs the same in DataFusion and Spark SQL.
SELECT
    run_id, cycle, purpose, answers, mean_tokens, median_tokens, deviation, longest, truncated, truncation_rate,
    mean_tokens / nullif(lag(mean_tokens) OVER (PARTITION BY run_id, purpose ORDER BY cycle), 0e0) - 1e0 AS length_change,
    truncation_rate - lag(truncation_rate) OVER (PARTITION BY run_id, purpose ORDER BY cycle) AS truncation_change
FROM (
    SELECT
        run_id, cycle, purpose,
        count(*) AS answers,
        avg(completion_tokens) AS mean_tokens,
        median(CAST(completion_tokens AS DOUBLE)) AS median_tokens,
        stddev_samp(completion_tokens) AS deviation,
        max(completion_tokens) AS longest,
        count(CASE WHEN finish_reason = 'length' THEN 1 END) AS truncated,
        avg(CASE WHEN finish_reason = 'length' THEN 1e0 ELSE 0e0 END) AS truncation_rate
    FROM trajectories
    WHERE final AND completion_tokens IS NOT NULL
    GROUP BY run_id, cycle, purpose
)
