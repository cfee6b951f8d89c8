-- One row is one kind of error message in one cycle and purpose of a run, from one origin: test, compiler or failure (ours).
-- In `message` line breaks are blanks; what stands in quotes is <name>, a path <path>, a number or hexadecimal address <n>, a list of
-- numbers one <n>; 200 characters are kept. Every attempt counts. `messages` counts them, `trajectories` and `tasks` where they
-- stood; `example` is one of these trajectories.
-- Example: SELECT outcome, message, messages, tasks, example FROM error_clusters
--          WHERE run_id = 'r' AND origin = 'test' ORDER BY messages DESC LIMIT 10;
-- Spark SQL: the same without the last argument of regexp_replace, 'g'.
SELECT
    run_id, cycle, purpose, origin, outcome, message,
    count(*) AS messages,
    count(DISTINCT trajectory_id) AS trajectories,
    count(DISTINCT task_id) AS tasks,
    min(trajectory_id) AS example
FROM (
    SELECT run_id, cycle, purpose, origin, outcome, trajectory_id, task_id, left(
        regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(
            -- An apostrophe within a word is no quotation mark: can't, doesn't.
            replace(replace(text, chr(13), ' '), chr(10), ' '),
            '"[^"]*"|`[^`]*`|‘[^’]*’', '<name>', 'g'),
            '(^|[^A-Za-z0-9])''[^'']*''', '$1<name>', 'g'),
            '[A-Za-z0-9_.~@+-]*(/[A-Za-z0-9_.~@+-]+)+/?', '<path>', 'g'),
            '0x[0-9A-Fa-f]+|-?[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?', '<n>', 'g'),
            '<n>(, ?<n>)+', '<n>', 'g'),
            ' +', ' ', 'g'), 200) AS message
    FROM (
        SELECT run_id, cycle, purpose, 'test' AS origin, outcome, trajectory_id, task_id, message AS text FROM tests
        WHERE outcome <> 'passed'
        UNION ALL
        SELECT run_id, cycle, purpose, 'compiler', outcome, trajectory_id, task_id, compiler_message FROM trajectories
        UNION ALL
        SELECT run_id, cycle, purpose, 'failure', outcome, trajectory_id, task_id, failure FROM trajectories
    ) AS said
    WHERE text <> ''
) AS clustered
GROUP BY run_id, cycle, purpose, origin, outcome, message
