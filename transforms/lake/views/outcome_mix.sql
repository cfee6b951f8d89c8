-- One row is one outcome in one cycle, purpose and policy version of a run, over the last attempt of each episode.
-- `episodes` counts them, quarantined ones too; `share` (0..1) is of all episodes of that cycle, purpose and version.
-- Example: SELECT cycle, outcome, share FROM outcome_mix WHERE run_id = 'r' AND purpose = 'train' ORDER BY cycle, share DESC;
-- Runs the same in DataFusion and Spark SQL.
SELECT
    run_id, cycle, purpose, policy_version, outcome_class, outcome,
    count(*) AS episodes,
    CAST(count(*) AS DOUBLE) / sum(count(*)) OVER (PARTITION BY run_id, cycle, purpose, policy_version) AS share
FROM trajectories
WHERE final
GROUP BY run_id, cycle, purpose, policy_version, outcome_class, outcome
