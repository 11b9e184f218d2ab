// Traps in a function of this file, in an inlined one of a header, and in
// another file. What stands before them makes the rewriter insert code.
#include "inlined.h"

extern int divide(int, int);

int zero, rounds = 10;

__attribute__((noinline)) int reads(unsigned p) {
	return look((int *)p); // reads
}

__attribute__((export_name("bad_address"))) int bad_address(void) {
	int n = 0;
	for (int i = 0; i < rounds; i++)
		n += reads(0x7fffff00u + i); // bad_address
	return n;
}

__attribute__((export_name("division"))) int division(void) {
	volatile char room[64];
	for (int i = 0; i < rounds; i++)
		room[i] = (char)i;
	return divide(room[3], zero); // division
}

__attribute__((export_name("stop"))) int stop(void) {
	if (!zero)
		__builtin_trap(); // stop
	return 0;
}

__attribute__((noinline)) int deep(int n) {
	return deep(n + 1) + zero; // deep
}

__attribute__((export_name("endless"))) int endless(void) {
	return deep(0); // endless
}
