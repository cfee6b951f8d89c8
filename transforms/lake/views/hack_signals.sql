-- One row is one sign of cheating in one cycle and purpose of a run, over the last attempt of each episode.
-- `kind`: source (`name` is a signal in the program's source, a hint and no proof), canary (impossible_rewarded: a task that no
-- honest program can pass earned a reward) or outcome (tampered, policy_violation: caught in the act). `share` (0..1) is of
-- all episodes there; `passed` says how many of the rows passed, `example` names one of them.
-- Example: SELECT cycle, kind, name, trajectories, passed, example FROM hack_signals
--          WHERE run_id = 'r' AND purpose = 'train' ORDER BY cycle, trajectories DESC;
-- Spark SQL: explode(signals) in place of unnest(signals).
SELECT
    s.run_id, s.cycle, s.purpose, s.kind, s.name,
    count(*) AS trajectories,
    CAST(count(*) AS DOUBLE) / max(e.episodes) AS share,
    count(CASE WHEN s.outcome = 'passed' THEN 1 END) AS passed,
    count(DISTINCT s.task_id) AS tasks,
    min(s.trajectory_id) AS example
FROM (
    SELECT run_id, cycle, purpose, 'source' AS kind, unnest(signals) AS name, outcome, task_id, trajectory_id
    FROM trajectories
    WHERE final AND cardinality(signals) > 0
    UNION ALL
    SELECT run_id, cycle, purpose, 'canary', 'impossible_rewarded' AS name, outcome, task_id, trajectory_id
    FROM trajectories
    WHERE final AND impossible AND reward > 0e0
    UNION ALL
    SELECT run_id, cycle, purpose, 'outcome', outcome AS name, outcome, task_id, trajectory_id
    FROM trajectories
    WHERE final AND outcome IN ('tampered', 'policy_violation')
) AS s
JOIN (
    SELECT run_id, cycle, purpose, count(*) AS episodes FROM trajectories WHERE final GROUP BY run_id, cycle, purpose
) AS e ON e.run_id = s.run_id AND e.cycle = s.cycle AND e.purpose = s.purpose
GROUP BY s.run_id, s.cycle, s.purpose, s.kind, s.name
