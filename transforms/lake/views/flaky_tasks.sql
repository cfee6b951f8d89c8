-- One row is one task that gave the very same program different outcomes under one grader, back-end and image.
-- Over all runs and attempts whose outcome is the program's (class policy). `repeated` counts its programs that were graded
-- more than once, `flaky` those with more than one outcome, `flips` those that both passed and did not;
-- `passed_in` and `failed_in` are a trajectory of each kind of the flips (null without one), to be compared.
-- Example: SELECT task_id, flaky, repeated, passed_in, failed_in FROM flaky_tasks ORDER BY flips DESC, flaky DESC;
-- Runs the same in DataFusion and Spark SQL.
SELECT
    task_id, task_hash,
    count(*) AS repeated,
    count(CASE WHEN outcomes > 1 THEN 1 END) AS flaky,
    count(CASE WHEN passed > 0 AND passed < graded THEN 1 END) AS flips,
    min(CASE WHEN passed > 0 AND passed < graded THEN passed_in END) AS passed_in,
    min(CASE WHEN passed > 0 AND passed < graded THEN failed_in END) AS failed_in
FROM (
    SELECT
        task_id, task_hash,
        count(*) AS graded,
        count(DISTINCT outcome) AS outcomes,
        count(CASE WHEN outcome = 'passed' THEN 1 END) AS passed,
        min(CASE WHEN outcome = 'passed' THEN trajectory_id END) AS passed_in,
        min(CASE WHEN outcome <> 'passed' THEN trajectory_id END) AS failed_in
    FROM trajectories
    WHERE outcome_class = 'policy' AND program IS NOT NULL
    GROUP BY task_id, task_hash, program, grader_version, sandbox, image_digest
)
WHERE graded > 1
GROUP BY task_id, task_hash
HAVING count(CASE WHEN outcomes > 1 THEN 1 END) > 0
