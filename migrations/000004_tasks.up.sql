-- Whose turn a background task is. A row comes into being with the first claim of its task.
SET LOCAL lock_timeout = '5s';

CREATE TABLE tollgate.tasks (
    name        text PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 100),
    due_at      timestamptz NOT NULL,
    started_at  timestamptz NOT NULL, -- of the last claimed run
    finished_at timestamptz,          -- NULL: running, or its replica died
    failure     text NOT NULL DEFAULT '',
    runs        bigint NOT NULL DEFAULT 1,
    CHECK (octet_length(failure) <= 4000)
);
GRANT SELECT, INSERT, UPDATE ON tollgate.tasks TO tollgate_gateway, tollgate_control;
