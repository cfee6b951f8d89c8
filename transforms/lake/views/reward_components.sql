-- One row is one reward component in one cycle, purpose and policy version of a run.
-- Over the last attempts that have the component, a reward and no quarantine (`scored`): its mean, sample deviation (null for
-- one), least and largest value, and the shares of rows where it is 0 and 1 (all 0..1).
-- Example: SELECT cycle, name, mean, share_at_one FROM reward_components
--          WHERE run_id = 'r' AND purpose = 'train' ORDER BY name, cycle;
-- Spark SQL: explode(reward_components) in place of unnest(reward_components).
SELECT
    run_id, cycle, purpose, policy_version,
    c['name'] AS name,
    count(*) AS scored,
    avg(c['value']) AS mean,
    stddev_samp(c['value']) AS deviation,
    min(c['value']) AS least,
    max(c['value']) AS largest,
    avg(CASE WHEN c['value'] = 0e0 THEN 1e0 ELSE 0e0 END) AS share_at_zero,
    avg(CASE WHEN c['value'] = 1e0 THEN 1e0 ELSE 0e0 END) AS share_at_one
FROM (
    SELECT run_id, cycle, purpose, policy_version, unnest(reward_components) AS c
    FROM trajectories
    WHERE final AND reward IS NOT NULL AND cardinality(quarantine_reasons) = 0 AND cardinality(reward_components) > 0
)
WHERE c['value'] IS NOT NULL
GROUP BY run_id, cycle, purpose, policy_version, c['name']
