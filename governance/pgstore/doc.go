// Package pgstore keeps in PostgreSQL everything that an admin manages, and gives gateways their picture of it.
//
// Each store takes a pool and keeps one aggregate. Changes go through one place (change.go), which serialises them by the
// row of the configuration version, so that before-images are exact and versions commit in order, and which writes audit
// rows, list of changed rows and notification in the change's own transaction.
//
// All statements stand in sql/*.sql; what several of them say alike stands there once, as a part that is put in when the
// program starts. They are sent in pgx's exec mode: one round trip and no named statement, so that pools may lead through a
// transaction pooler, and each call is planned for its own arguments.
package pgstore
