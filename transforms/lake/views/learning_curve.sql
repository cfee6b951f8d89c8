-- One row is one purpose (train, eval_greedy, eval_sampled) of one cycle of a run, over the last attempt of each episode.
-- `episodes` counts them, `scored` those with a reward; `mean_reward` and `pass_rate` (0..1) are over the scored ones
-- and null without any; a quarantined row counts as an episode and not as a scored one; `infra_rate` (0..1) is over all; `completion_tokens` is their sum.
-- Example: SELECT cycle, pass_rate FROM learning_curve WHERE run_id = 'r' AND purpose = 'train' ORDER BY cycle;
-- Runs the same in DataFusion and Spark SQL (1e0 is a double in both; 1.0 would be a decimal in Spark).
SELECT
    run_id, cycle, purpose,
    count(*) AS episodes,
    count(valid_reward) AS scored,
    avg(valid_reward) AS mean_reward,
    avg(CASE WHEN valid_reward IS NULL THEN NULL WHEN outcome = 'passed' THEN 1e0 ELSE 0e0 END) AS pass_rate,
    avg(CASE WHEN outcome_class = 'infra' THEN 1e0 ELSE 0e0 END) AS infra_rate,
    sum(completion_tokens) AS completion_tokens
FROM (
    SELECT *, CASE WHEN cardinality(quarantine_reasons) = 0 THEN reward END AS valid_reward FROM trajectories
)
WHERE final
GROUP BY run_id, cycle, purpose
