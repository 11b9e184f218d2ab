package guest

// Memory returns the bytes that all instances hold together, running or kept for the
// next calls, and their limit.
func (e *Engine) Memory() (held, limit int64) { return e.memory.held(), e.memory.limit }
