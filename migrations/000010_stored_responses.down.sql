SET LOCAL lock_timeout = '5s';

DROP TABLE tollgate.stored_responses;
