-- One row is one sandbox back-end and engine in one cycle of a run, over every attempt, the retried ones too.
-- `started_on` is the machine the run was started on: rows do not say which machine a sandbox stood on. `sandbox` is null
-- where the attempt got none. `infra` counts attempts that our machines failed, `infra_rate` (0..1) is their share;
-- `lost` counts episodes whose last attempt was one of them, so that they have no reward.
-- Example: SELECT started_on, sandbox, sum(infra) AS infra, sum(attempts) AS attempts FROM infra_rate
--          GROUP BY started_on, sandbox ORDER BY infra DESC;
-- Runs the same in DataFusion and Spark SQL.
SELECT
    t.run_id, cycle, started_on, sandbox, engine,
    count(*) AS attempts,
    count(CASE WHEN outcome_class = 'infra' THEN 1 END) AS infra,
    avg(CASE WHEN outcome_class = 'infra' THEN 1e0 ELSE 0e0 END) AS infra_rate,
    count(CASE WHEN outcome_class = 'infra' AND final THEN 1 END) AS lost
FROM trajectories AS t
LEFT JOIN (SELECT run_id, max(host) AS started_on FROM runs GROUP BY run_id) AS r ON r.run_id = t.run_id
GROUP BY t.run_id, cycle, started_on, sandbox, engine
