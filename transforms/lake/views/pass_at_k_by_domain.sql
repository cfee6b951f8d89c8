-- One row is one k (1, 2, 4, 8) over the tasks of one source, kind and language, else as in `pass_at_k`.
-- The three name the domain; null where the table `tasks` has no such task (and `language` for an answer in prose).
-- Intervals as in `pass_at_k`.
-- Example: SELECT kind, language, pass_at_k, pass_at_k_low, pass_at_k_high, tasks FROM pass_at_k_by_domain
--          WHERE run_id = 'r' AND policy_version = 2 AND purpose = 'eval_sampled' AND k = 1 ORDER BY pass_at_k;
-- Runs the same in DataFusion and Spark SQL.
SELECT
    run_id, cycle, purpose, policy_version, source, kind, language, k, tasks, tasks_asked,
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
        run_id, cycle, purpose, policy_version, source, kind, language, k,
        count(pass_at_k) AS tasks,
        max(count(*)) OVER (PARTITION BY run_id, cycle, purpose, policy_version, source, kind, language) AS tasks_asked,
        CAST(count(pass_at_k) AS DOUBLE) AS m,
        avg(pass_at_k) AS some_pass,
        avg(pass_hat_k) AS all_pass
    FROM pass_at_k_by_task AS t
    LEFT JOIN (SELECT DISTINCT task_hash AS hash, source, kind, language FROM tasks) AS d ON d.hash = t.task_hash
    GROUP BY run_id, cycle, purpose, policy_version, source, kind, language, k
)
