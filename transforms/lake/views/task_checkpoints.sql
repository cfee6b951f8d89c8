-- One row is one checkpoint whose weights one task touched: it was trained on answers to the task, or descends from one that was.
-- `own_trajectories` counts answers used in the checkpoint's own cycle (0: by descent only), `trajectories` and `tokens` (in the
-- loss) all that led to it; `first_version` is the first version that the task touched.
-- Example: SELECT run_id, policy_version, checkpoint, own_trajectories FROM task_checkpoints
--          WHERE task_id = 'add' ORDER BY run_id, policy_version;
-- Runs the same in DataFusion and Spark SQL.
SELECT
    task_id, task_hash, run_id, policy_version, checkpoint, weights_hash,
    min(trained_version) AS first_version,
    count(DISTINCT CASE WHEN trained_version = policy_version THEN trajectory_id END) AS own_trajectories,
    count(DISTINCT trajectory_id) AS trajectories,
    sum(tokens) AS tokens
FROM checkpoint_trajectories
WHERE task_id IS NOT NULL
GROUP BY task_id, task_hash, run_id, policy_version, checkpoint, weights_hash
