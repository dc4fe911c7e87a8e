-- Makes the meters that a batch was missing.
SELECT ledger.make_meters($1, $2, $3)
