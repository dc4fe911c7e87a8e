DROP SCHEMA audit CASCADE;
DROP FUNCTION ledger.credit, ledger.correct, ledger.resolve, ledger.adjust, ledger.used;
DROP INDEX ledger.rows_provisional;
