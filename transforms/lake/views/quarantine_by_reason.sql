-- One row is one reason for quarantine in one cycle and purpose of a run, over every attempt.
-- `quarantined` counts trajectories with the reason (one may have several), `share` (0..1) is of all attempts there;
-- `example` names one. The view `quarantine` has them one by one.
-- Example: SELECT cycle, reason, quarantined, share, example FROM quarantine_by_reason
--          WHERE run_id = 'r' AND purpose = 'train' ORDER BY quarantined DESC;
-- Runs the same in DataFusion and Spark SQL.
SELECT
    q.run_id, q.cycle, q.purpose, q.reason,
    count(*) AS quarantined,
    CAST(count(*) AS DOUBLE) / max(a.attempts) AS share,
    count(DISTINCT q.task_id) AS tasks,
    min(q.trajectory_id) AS example
FROM quarantine AS q
JOIN (
    SELECT run_id, cycle, purpose, count(*) AS attempts FROM trajectories GROUP BY run_id, cycle, purpose
) AS a ON a.run_id = q.run_id AND a.cycle = q.cycle AND a.purpose = q.purpose
GROUP BY q.run_id, q.cycle, q.purpose, q.reason
