-- One row is one trajectory in one optimizer step that shaped the weights of one checkpoint, its own or an ancestor's.
-- `trained_version` is the version whose step it was: equal to `policy_version` for the checkpoint's own cycle, less for the
-- versions it descends from (version n of a run is trained from n - 1). What is known of the trajectory is null if it is not in the lake.
-- Example: SELECT task_id, trajectory_id, reward, advantage, tokens FROM checkpoint_trajectories
--          WHERE run_id = 'r' AND policy_version = 2 AND trained_version = 2 ORDER BY optimizer_step, trajectory_id;
-- Runs the same in DataFusion and Spark SQL.
SELECT
    p.run_id, p.policy_version, p.checkpoint, p.weights_hash,
    c.policy_version AS trained_version, c.optimizer_step, c.trajectory_id, c.advantage, c.tokens,
    t.task_id, t.task_hash, t.cycle, t.outcome, t.reward
FROM policies AS p
JOIN consumption AS c ON c.run_id = p.run_id AND c.policy_version <= p.policy_version
LEFT JOIN trajectories AS t ON t.run_id = c.run_id AND t.trajectory_id = c.trajectory_id
