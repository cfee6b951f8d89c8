-- One row is one task, as one policy answered it for one purpose in one cycle of a run; canaries are left out.
-- `verdict`: too_easy (every scored answer passed), too_hard (none did), mixed, or unscored; look at `scored` before you
-- believe it (`pass_at_k_by_task` has intervals). `signal`: whether the rewards differ, so that the group can teach
-- something; a task that is too hard may, by partial rewards.
-- Example: SELECT task_id, verdict, scored, pass_rate, signal FROM task_difficulty
--          WHERE run_id = 'r' AND purpose = 'train' AND verdict <> 'mixed' ORDER BY verdict, task_id;
-- Runs the same in DataFusion and Spark SQL.
SELECT
    run_id, cycle, purpose, policy_version, task_id, task_hash, episodes, scored, passed,
    CASE WHEN scored > 0 THEN CAST(passed AS DOUBLE) / scored END AS pass_rate,
    lowest_reward, mean_reward, highest_reward,
    coalesce(lowest_reward < highest_reward, false) AS signal,
    CASE WHEN scored = 0 THEN 'unscored' WHEN passed = scored THEN 'too_easy'
        WHEN passed = 0 THEN 'too_hard' ELSE 'mixed' END AS verdict
FROM (
    SELECT
        run_id, cycle, purpose, policy_version, task_id, task_hash,
        count(*) AS episodes,
        count(valid_reward) AS scored,
        count(CASE WHEN valid_reward IS NOT NULL AND outcome = 'passed' THEN 1 END) AS passed,
        min(valid_reward) AS lowest_reward,
        avg(valid_reward) AS mean_reward,
        max(valid_reward) AS highest_reward
    FROM (SELECT *, CASE WHEN cardinality(quarantine_reasons) = 0 THEN reward END AS valid_reward FROM trajectories)
    WHERE final AND NOT coalesce(impossible, false)
    GROUP BY run_id, cycle, purpose, policy_version, task_id, task_hash
)
