-- One row is one sandbox back-end and engine on one machine in one cycle of a run, over every attempt, the retried ones too.
-- `host` is the machine whose sandbox ran the program; where the attempt got none, the machine the run was started on, and
-- `sandbox` is then null. `infra` counts attempts that our machines failed, `infra_rate` (0..1) is their share;
-- `lost` counts episodes whose last attempt was one of them, so that they have no reward.
-- Example: SELECT host, sandbox, sum(infra) AS infra, sum(attempts) AS attempts FROM infra_rate
--          GROUP BY host, sandbox ORDER BY infra DESC;
-- Runs the same in DataFusion and Spark SQL.
SELECT
    run_id, cycle, host, sandbox, engine,
    count(*) AS attempts,
    count(CASE WHEN outcome_class = 'infra' THEN 1 END) AS infra,
    avg(CASE WHEN outcome_class = 'infra' THEN 1e0 ELSE 0e0 END) AS infra_rate,
    count(CASE WHEN outcome_class = 'infra' AND final THEN 1 END) AS lost
FROM (
    SELECT t.run_id, cycle, coalesce(t.host, started_on) AS host, sandbox, engine, outcome_class, final
    FROM trajectories AS t
    LEFT JOIN (SELECT run_id, max(host) AS started_on FROM runs GROUP BY run_id) AS r ON r.run_id = t.run_id
)
GROUP BY run_id, cycle, host, sandbox, engine
