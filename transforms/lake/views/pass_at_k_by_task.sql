-- One row is one k (1, 2, 4, 8) of one task, as one policy answered it for one purpose in one cycle of a run.
-- Of the last attempts (`episodes`) those that count (`scored`) have a reward and are not quarantined; canaries are left
-- out. A k above `scored` has no row, but k = 1 always has one: all null where nothing was scored.
-- `pass_at_k`: the chance that one of k answers passes, 1 - C(n-c,k)/C(n,k) (Chen et al. 2021, arXiv 2107.03374);
-- `pass_hat_k` (pass^k): that all k pass, C(c,k)/C(n,k) (Yao et al. 2024, arXiv 2406.12045). Both unbiased, 0..1.
-- `..._low` and `..._high`: 95 % intervals over the draws of this task. For k = 1 Wilson's; for more, Wilson's bounds p of
-- the pass rate carried over by 1 - (1-p)^k and p^k, which only rise with p, so that the level stays; widened to the
-- estimate where that lies outside, as for n = k it can only be 0 or 1.
-- Example: SELECT task_id, pass_at_k, pass_at_k_low, pass_at_k_high FROM pass_at_k_by_task
--          WHERE run_id = 'r' AND cycle = 3 AND purpose = 'train' AND k = 4 ORDER BY pass_at_k;
-- Runs the same in DataFusion and Spark SQL (1e0 is a double in both; 1.0 would be a decimal in Spark).
SELECT
    run_id, cycle, purpose, policy_version, task_id, task_hash, k, episodes, scored, passed,
    some_pass AS pass_at_k,
    least(some_pass, 1e0 - power(1e0 - rate_low, k)) AS pass_at_k_low,
    greatest(some_pass, 1e0 - power(1e0 - rate_high, k)) AS pass_at_k_high,
    all_pass AS pass_hat_k,
    least(all_pass, power(rate_low, k)) AS pass_hat_k_low,
    greatest(all_pass, power(rate_high, k)) AS pass_hat_k_high
FROM (
    SELECT
        run_id, cycle, purpose, policy_version, task_id, task_hash, k, episodes, scored, passed,
        1e0 - (n - c) / n
        * CASE WHEN k >= 2 THEN greatest(n - c - 1e0, 0e0) / (n - 1e0) ELSE 1e0 END
        * CASE WHEN k >= 4 THEN greatest(n - c - 2e0, 0e0) / (n - 2e0) * greatest(n - c - 3e0, 0e0) / (n - 3e0) ELSE 1e0 END
        * CASE WHEN k >= 8 THEN greatest(n - c - 4e0, 0e0) / (n - 4e0) * greatest(n - c - 5e0, 0e0) / (n - 5e0)
            * greatest(n - c - 6e0, 0e0) / (n - 6e0) * greatest(n - c - 7e0, 0e0) / (n - 7e0) ELSE 1e0 END AS some_pass,
        c / n
        * CASE WHEN k >= 2 THEN greatest(c - 1e0, 0e0) / (n - 1e0) ELSE 1e0 END
        * CASE WHEN k >= 4 THEN greatest(c - 2e0, 0e0) / (n - 2e0) * greatest(c - 3e0, 0e0) / (n - 3e0) ELSE 1e0 END
        * CASE WHEN k >= 8 THEN greatest(c - 4e0, 0e0) / (n - 4e0) * greatest(c - 5e0, 0e0) / (n - 5e0)
            * greatest(c - 6e0, 0e0) / (n - 6e0) * greatest(c - 7e0, 0e0) / (n - 7e0) ELSE 1e0 END AS all_pass,
        -- Wilson's, times n: z = 1.95996, z^2 / 2 = 1.92073, z^2 / 4 = 0.96036, z^2 = 3.84146.
        CASE WHEN c = 0e0 THEN 0e0 ELSE
            (c + 1.920729410347062e0 - 1.959963984540054e0 * sqrt(c * (n - c) / n + 0.960364705173531e0))
            / (n + 3.841458820694124e0) END AS rate_low,
        CASE WHEN c = n THEN 1e0 ELSE
            (c + 1.920729410347062e0 + 1.959963984540054e0 * sqrt(c * (n - c) / n + 0.960364705173531e0))
            / (n + 3.841458820694124e0) END AS rate_high
    FROM (
        SELECT
            run_id, cycle, purpose, policy_version, task_id, task_hash,
            count(*) AS episodes,
            count(valid_reward) AS scored,
            count(CASE WHEN valid_reward IS NOT NULL AND outcome = 'passed' THEN 1 END) AS passed,
            nullif(CAST(count(valid_reward) AS DOUBLE), 0e0) AS n,
            CASE WHEN count(valid_reward) > 0 THEN
                CAST(count(CASE WHEN valid_reward IS NOT NULL AND outcome = 'passed' THEN 1 END) AS DOUBLE) END AS c
        FROM (SELECT *, CASE WHEN cardinality(quarantine_reasons) = 0 THEN reward END AS valid_reward FROM trajectories)
        WHERE final AND NOT coalesce(impossible, false)
        GROUP BY run_id, cycle, purpose, policy_version, task_id, task_hash
    ) CROSS JOIN (VALUES (1), (2), (4), (8)) AS ks (k)
    WHERE k = 1 OR k <= scored
)
