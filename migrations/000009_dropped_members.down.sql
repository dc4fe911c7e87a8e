SET LOCAL lock_timeout = '5s';

ALTER TABLE tollgate.targets DROP COLUMN dropped_members;
