// Package storetest has one conformance suite for each store interface and for the ledger. Every implementation runs them,
// fakes included, so that what one promises the others do.
package storetest
