-- Makes changed settings those in force.
SELECT pg_reload_conf();
