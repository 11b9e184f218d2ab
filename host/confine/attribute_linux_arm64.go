package confine

// archAttributes is empty: arm64 has none of the calls of a time when paths were
// not relative to descriptors.
var archAttributes map[uint32]*attributeCallKind
