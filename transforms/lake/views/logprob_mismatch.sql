-- One row is one optimizer step, on the way to `policy_version`: how far the trainer's log-probabilities were from the sampler's.
-- `k3` is the mean over its tokens of w - 1 - ln w, w = p_trainer / p_sampler, in nats: 0 without mismatch (above 0.01 verl drops
-- a sequence). `effective_share` is (sum w)^2 / (n sum w^2), 1 without mismatch; `largest_difference` the largest |ln w|, in nats.
-- The trainer measures them while it learns, so later steps of a cycle hold the policy's own movement, too: the first
-- step of a cycle (`step_of_cycle` = 1) is the mismatch alone. `worst` is the largest k3 of the cycle's steps.
-- Example: SELECT policy_version, k3, worst FROM logprob_mismatch WHERE run_id = 'r' AND step_of_cycle = 1 ORDER BY 1;
-- Spark SQL: explode(optimizer_steps) in place of unnest(optimizer_steps).
SELECT
    run_id, policy_version,
    s['optimizer_step'] AS optimizer_step,
    row_number() OVER (PARTITION BY run_id, policy_version ORDER BY s['optimizer_step']) AS step_of_cycle,
    s['sampler_kl'] AS k3,
    max(s['sampler_kl']) OVER (PARTITION BY run_id, policy_version) AS worst,
    s['effective_share'] AS effective_share,
    s['largest_logprob_difference'] AS largest_difference,
    s['clip_fraction'] AS clip_fraction,
    s['tokens'] AS tokens
FROM (
    SELECT run_id, policy_version, unnest(optimizer_steps) AS s
    FROM policies
    WHERE cardinality(optimizer_steps) > 0
)
