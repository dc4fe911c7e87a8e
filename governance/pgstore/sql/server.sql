-- name: server
-- What the doctor tells of the server.
SELECT current_setting('server_version') AS version,
       current_setting('server_version_num')::int / 10000 AS major,
       current_setting('fsync')::boolean AND current_setting('full_page_writes')::boolean AS durable;
