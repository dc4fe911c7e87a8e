-- How many attempts are open.
SELECT count(*) FROM ledger.reservations WHERE state = 'open';
