DROP SCHEMA tollgate CASCADE;
-- The roles stay: they are the cluster's and another database may use them.
