DROP TABLE tollgate.tasks;
