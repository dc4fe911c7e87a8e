// Package gateway is the data plane: it takes calls in the providers' own formats, runs the governance chain, forwards
// what was admitted and settles what was used.
//
// The life of a call is in one place: serve in call.go. Stages return values and the chain owns their effects (chain.go);
// attempts are reserved, sent and closed by forward.go; answers pass byte for byte through relay.go; whatever happens,
// finish.go closes the account once. Nothing after admission depends on the client staying.
package gateway
