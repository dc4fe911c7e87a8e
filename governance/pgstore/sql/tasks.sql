-- name: task_claim
-- One replica gets a due run, by the database's clock. The row is locked by the update alone, so a replica that comes too
-- early writes nothing. The first claim makes the row. A due time further ahead than a period and five minutes is what a
-- clock jump or a longer period has left behind.
WITH moved AS (
    UPDATE tollgate.tasks
    SET due_at = clock_timestamp() + @every::interval, started_at = clock_timestamp(), finished_at = NULL, failure = '',
        runs = runs + 1
    WHERE name = @name::text
      AND (due_at <= clock_timestamp() OR due_at > clock_timestamp() + @every::interval + interval '5 minutes')
    RETURNING due_at
), made AS (
    INSERT INTO tollgate.tasks (name, due_at, started_at)
    SELECT @name::text, clock_timestamp() + @every::interval, clock_timestamp()
    WHERE NOT EXISTS (SELECT FROM tollgate.tasks WHERE name = @name::text)
    ON CONFLICT (name) DO NOTHING
    RETURNING due_at
), mine AS (
    SELECT due_at FROM moved UNION ALL SELECT due_at FROM made
)
SELECT EXISTS (SELECT FROM mine) AS mine,
       least(@every::interval, -- who has lost to another replica may still see the old due time
             coalesce((SELECT due_at FROM mine), (SELECT due_at FROM tollgate.tasks WHERE name = @name::text), clock_timestamp())
                 - clock_timestamp()) AS next;

-- name: task_finish
UPDATE tollgate.tasks
SET finished_at = clock_timestamp(), failure = @failure::text
WHERE name = @name::text;

-- name: task_list
SELECT name, due_at, started_at, finished_at, failure, runs FROM tollgate.tasks ORDER BY name;
