static inline __attribute__((always_inline)) int get(volatile int *p) {
	return *p; // get
}

static inline __attribute__((always_inline)) int look(volatile int *p) {
	return get(p) + 1; // look
}
