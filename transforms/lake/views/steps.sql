-- One row is one step of one trajectory (rollout, execute), in the order it happened: `step` counts from 1.
-- Example: SELECT kind, avg(wall_s) FROM steps WHERE run_id = 'r' GROUP BY kind;
-- Spark SQL: posexplode(steps) in place of the two unnest calls.
SELECT
    trajectory_id, run_id, cycle, purpose, task_id, policy_version, attempt, final, step,
    s['kind'] AS kind,
    s['state'] AS state,
    s['action'] AS action,
    s['observation'] AS observation,
    s['workspace_digest'] AS workspace_digest,
    s['output_digest'] AS output_digest,
    s['wall_s'] AS wall_s,
    s['cpu_s'] AS cpu_s,
    s['peak_memory_bytes'] AS peak_memory_bytes,
    s['started_at'] AS started_at,
    s['ended_at'] AS ended_at
FROM (
    SELECT
        trajectory_id, run_id, cycle, purpose, task_id, policy_version, attempt, final,
        unnest(steps) AS s,
        unnest(range(1, CAST(cardinality(steps) AS BIGINT) + 1)) AS step
    FROM trajectories
    WHERE cardinality(steps) > 0
)
