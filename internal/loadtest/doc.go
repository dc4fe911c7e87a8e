// Package loadtest measures a running Tollgate and judges what it saw. It offers calls to gateways that are processes of
// their own, open loop: a call's time counts from the moment at which it was due, so that a system which falls behind
// cannot hide it. What a run saw is a Sample; Judge, which is pure, decides from the Sample alone whether it passes.
package loadtest
