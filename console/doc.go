// Package console is the control plane: the admin API by which people and scripts manage what the gateway enforces.
//
// Every operation is a typed function whose input and output are Go structs. Those structs are the only description of
// the API: requests are validated against them, and the OpenAPI document is generated from them.
package console
