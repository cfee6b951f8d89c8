-- One row is one reason why one trajectory is quarantined, that is, never trained on.
-- Example: SELECT reason, count(*) AS broken FROM quarantine GROUP BY reason ORDER BY broken DESC;
-- Spark SQL: explode(quarantine_reasons) in place of unnest(quarantine_reasons).
SELECT
    trajectory_id, run_id, cycle, purpose, task_id, policy_version, outcome,
    unnest(quarantine_reasons) AS reason
FROM trajectories
WHERE cardinality(quarantine_reasons) > 0
