// Package governance is the domain: who may call which model, what they may spend, and what they spent.
// It knows no database, no HTTP and no provider's format.
//
// Everything that an admin manages has two identifiers: Num, a row number that meters and ledger rows refer to and that
// never leaves the process, and ID, a random public id such as key_4Tz0aQ9LmX2b that clients see.
package governance
