-- Commits wait for whatever standby there is.
ALTER SYSTEM SET synchronous_standby_names = '*';
