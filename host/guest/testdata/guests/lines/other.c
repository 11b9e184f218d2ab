int divide(int a, int b) {
	int n = 0;
	while (a > 100) {
		a -= b;
		n++;
	}
	return n + a / b; // divide
}
