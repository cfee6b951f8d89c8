-- One row is one answer that a group gave more than once, over the last attempt of each episode.
-- `copies` counts it, every copy, of the group's `answers`; `share` (0..1) is one over the other. Copies are compared by the
-- SHA-256 of the last answer's text. `rewards` counts its distinct rewards: more than one means that grading was not steady.
-- Example: SELECT task_id, copies, answers, example FROM duplicate_completions
--          WHERE run_id = 'r' AND cycle = 3 AND purpose = 'train' ORDER BY share DESC;
-- Runs the same in DataFusion and Spark SQL.
SELECT
    run_id, cycle, purpose, policy_version, task_id, group_id, completion_hash, copies, answers,
    CAST(copies AS DOUBLE) / answers AS share,
    passed, rewards, example
FROM (
    SELECT
        run_id, cycle, purpose, policy_version, task_id, group_id, completion_hash,
        count(*) AS copies,
        sum(count(*)) OVER (PARTITION BY run_id, cycle, purpose, policy_version, task_id, group_id) AS answers,
        count(CASE WHEN outcome = 'passed' THEN 1 END) AS passed,
        count(DISTINCT reward) AS rewards,
        min(trajectory_id) AS example
    FROM trajectories
    WHERE final AND completion_hash IS NOT NULL
    GROUP BY run_id, cycle, purpose, policy_version, task_id, group_id, completion_hash
)
WHERE copies > 1
