-- One row is one k (1, 2, 4, 8) over the tasks that one policy answered for one purpose in one cycle of a run.
-- `pass_at_k` and `pass_hat_k` (0..1) are means of `pass_at_k_by_task` over `tasks`: those with k scored answers or more, of
-- `tasks_asked`; a task without them is in no mean, so look at both. Every task counts the same, whatever it drew.
-- `..._low` and `..._high`: 95 % intervals for other tasks of the same kind. Answers to one task are not independent, so the
-- unit is the task (Miller 2024, arXiv 2411.00640). A mean of few tasks, near 0 or 1, is not normal (Bowyer et al. 2025,
-- arXiv 2503.01747), so Wilson's score interval with m = tasks stands in for the standard error: a number in 0..1 with mean
-- p has variance p(1-p) at most (Bhatia and Davis 2000), which makes it wide enough for any k, and wider than need be for most.
-- Example: SELECT policy_version, k, pass_at_k, pass_at_k_low, pass_at_k_high FROM pass_at_k
--          WHERE run_id = 'r' AND purpose = 'eval_sampled' ORDER BY policy_version, k;
-- Runs the same in DataFusion and Spark SQL.
SELECT
    run_id, cycle, purpose, policy_version, k, tasks, tasks_asked,
    some_pass AS pass_at_k,
    CASE WHEN some_pass = 0e0 THEN 0e0 ELSE
        (m * some_pass + 1.920729410347062e0 - 1.959963984540054e0 * sqrt(m * some_pass * (1e0 - some_pass) + 0.960364705173531e0))
        / (m + 3.841458820694124e0) END AS pass_at_k_low,
    CASE WHEN some_pass = 1e0 THEN 1e0 ELSE
        (m * some_pass + 1.920729410347062e0 + 1.959963984540054e0 * sqrt(m * some_pass * (1e0 - some_pass) + 0.960364705173531e0))
        / (m + 3.841458820694124e0) END AS pass_at_k_high,
    all_pass AS pass_hat_k,
    CASE WHEN all_pass = 0e0 THEN 0e0 ELSE
        (m * all_pass + 1.920729410347062e0 - 1.959963984540054e0 * sqrt(m * all_pass * (1e0 - all_pass) + 0.960364705173531e0))
        / (m + 3.841458820694124e0) END AS pass_hat_k_low,
    CASE WHEN all_pass = 1e0 THEN 1e0 ELSE
        (m * all_pass + 1.920729410347062e0 + 1.959963984540054e0 * sqrt(m * all_pass * (1e0 - all_pass) + 0.960364705173531e0))
        / (m + 3.841458820694124e0) END AS pass_hat_k_high
FROM (
    SELECT
        run_id, cycle, purpose, policy_version, k,
        count(pass_at_k) AS tasks,
        max(count(*)) OVER (PARTITION BY run_id, cycle, purpose, policy_version) AS tasks_asked,
        CAST(count(pass_at_k) AS DOUBLE) AS m,
        avg(pass_at_k) AS some_pass,
        avg(pass_hat_k) AS all_pass
    FROM pass_at_k_by_task
    GROUP BY run_id, cycle, purpose, policy_version, k
)
