-- One row is one test of one trajectory (a case of its task); `test` counts from 1, in the task's order.
-- Example: SELECT task_id, name, count(*) FROM tests WHERE outcome = 'failed_tests' GROUP BY task_id, name;
-- Spark SQL: posexplode(tests) in place of the two unnest calls.
SELECT
    trajectory_id, run_id, cycle, purpose, task_id, policy_version, attempt, final, test,
    t['name'] AS name,
    t['tier'] AS tier,
    t['outcome'] AS outcome,
    t['message'] AS message,
    t['duration_s'] AS duration_s,
    t['milestone'] AS milestone,
    t['got'] AS got,
    t['expected_type'] AS expected_type,
    t['location'] AS location
FROM (
    SELECT
        trajectory_id, run_id, cycle, purpose, task_id, policy_version, attempt, final,
        unnest(tests) AS t,
        unnest(range(1, CAST(cardinality(tests) AS BIGINT) + 1)) AS test
    FROM trajectories
    WHERE cardinality(tests) > 0
)
