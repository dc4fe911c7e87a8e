-- Commits wait for nobody.
ALTER SYSTEM RESET synchronous_standby_names;
