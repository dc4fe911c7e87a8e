-- Returns when all that was committed before is flushed, and on the synchronous standby.
SELECT pg_logical_emit_message(true, 'chaos', '');
