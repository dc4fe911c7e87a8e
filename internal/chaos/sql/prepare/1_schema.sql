-- What the driver keeps in the database.
CREATE SCHEMA chaos;
