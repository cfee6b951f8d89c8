-- One row is one stage (setup, engine, rollout, quality, train, evaluate) of one cycle of a run.
-- `seconds` is the time of all its sessions together, null where none ended the stage; `prompt_tokens` and `tokens` are what
-- the engine was given and sampled (rollout, evaluate; a retry samples none), or `tokens` those in the loss (train); null for
-- other stages. `tokens_per_second` is null where either is missing.
-- Example: SELECT stage, sum(seconds) AS seconds, sum(tokens) AS tokens FROM stage_costs WHERE run_id = 'r' GROUP BY stage;
-- Runs the same in DataFusion and Spark SQL.
SELECT
    run_id, cycle, stage,
    sum(seconds) AS seconds,
    sum(given) AS prompt_tokens,
    sum(used) AS tokens,
    CASE WHEN sum(seconds) > 0e0 THEN sum(used) / sum(seconds) END AS tokens_per_second
FROM (
    SELECT run_id, cycle, stage, seconds, CAST(NULL AS BIGINT) AS given, CAST(NULL AS BIGINT) AS used
    FROM events
    WHERE event = 'stage'
    UNION ALL
    SELECT
        run_id, cycle, CASE WHEN purpose = 'train' THEN 'rollout' ELSE 'evaluate' END, CAST(NULL AS DOUBLE),
        CAST(prompt_tokens AS BIGINT), CAST(completion_tokens AS BIGINT)
    FROM trajectories
    WHERE attempt = 1
    UNION ALL
    SELECT run_id, policy_version, 'train', CAST(NULL AS DOUBLE), CAST(NULL AS BIGINT), CAST(tokens AS BIGINT)
    FROM consumption
) AS parts
GROUP BY run_id, cycle, stage
