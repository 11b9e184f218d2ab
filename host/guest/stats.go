package guest

// Memory is how many bytes all instances hold together, running and kept for
// the next calls, and how many they may.
func (e *Engine) Memory() (held, limit int64) { return e.memory.held(), e.memory.limit }
