package plugins

// Idler is a Guard or an AnswerGuard that may have nothing to do for a caller. Where a guard has something to do, what it cannot
// see is refused: the requests and the answers of a batch, forms, and answers that are sound.
type Idler interface {
	// Idle reports whether the plugin would let pass whatever the caller asks for. c has principal, route and model.
	Idle(c *Call) bool
}
