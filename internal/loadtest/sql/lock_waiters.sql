-- How many sessions of the product's database wait for a lock at this moment.
SELECT count(*)
FROM pg_stat_activity
WHERE datname = current_database()
    AND wait_event_type = 'Lock';
