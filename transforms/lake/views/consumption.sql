-- One row is one trajectory consumed by one optimizer step, on the way to `policy_version`.
-- Example: SELECT c.optimizer_step, t.task_id, c.advantage, c.tokens FROM consumption AS c
--          JOIN trajectories AS t ON t.trajectory_id = c.trajectory_id WHERE c.policy_version = 1;
-- Spark SQL: explode(consumed) in place of unnest(consumed).
SELECT
    run_id, policy_version,
    c['trajectory_id'] AS trajectory_id,
    c['optimizer_step'] AS optimizer_step,
    c['advantage'] AS advantage,
    c['tokens'] AS tokens
FROM (
    SELECT run_id, policy_version, unnest(consumed) AS c
    FROM policies
    WHERE cardinality(consumed) > 0
)
