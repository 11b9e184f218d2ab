// A small guest without any library: what a policy in C looks like, and some
// work to measure metering by.
//
//   clang --target=wasm32 -O2 -nostdlib -msimd128 -mbulk-memory -Wl,--no-entry -o guest.wasm guest.c

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define ENV(n) __attribute__((import_module("extism:host/env"), import_name(#n)))
#define EXPORT(n) __attribute__((export_name(#n)))

ENV(input_length) u64 input_length(void);
ENV(input_load_u8) u32 input_load_u8(u64);
ENV(alloc) u64 kernel_alloc(u64);
ENV(store_u8) void store_u8(u64, u32);
ENV(output_set) void output_set(u64, u64);

static u8 buf[65536];
static int calls;

static void answer(const char *s, u64 n) {
	u64 p = kernel_alloc(n);
	for (u64 i = 0; i < n; i++) store_u8(p + i, s[i]);
	output_set(p, n);
}

EXPORT(check) int check(void) {
	u64 n = input_length();
	if (n > sizeof buf) return 1;
	for (u64 i = 0; i < n; i++) buf[i] = input_load_u8(i);
	calls++;
	int deny = 0;
	for (u64 i = 0; i + 7 < n; i++)
		if (!__builtin_memcmp(buf + i, "--force", 7)) deny = 1;
	if (deny) answer("{\"effect\":\"deny\"}", 17);
	else answer("{\"effect\":\"allow\"}", 18);
	return 0;
}

int memcmp(const void *a, const void *b, unsigned long n) {
	const u8 *x = a, *y = b;
	for (; n; n--, x++, y++)
		if (*x != *y) return *x - *y;
	return 0;
}

// How much there is to do: the first four bytes of the input.
static u32 amount(void) {
	u32 n = 0;
	for (int i = 0; i < 4; i++) n |= input_load_u8(i) << 8 * i;
	return n;
}

static const u32 K[64] = {
	0x428a2f98,0x71374491,0xb5c0fbcf,0xe9b5dba5,0x3956c25b,0x59f111f1,0x923f82a4,0xab1c5ed5,0xd807aa98,0x12835b01,0x243185be,0x550c7dc3,0x72be5d74,0x80deb1fe,0x9bdc06a7,0xc19bf174,
	0xe49b69c1,0xefbe4786,0x0fc19dc6,0x240ca1cc,0x2de92c6f,0x4a7484aa,0x5cb0a9dc,0x76f988da,0x983e5152,0xa831c66d,0xb00327c8,0xbf597fc7,0xc6e00bf3,0xd5a79147,0x06ca6351,0x14292967,
	0x27b70a85,0x2e1b2138,0x4d2c6dfc,0x53380d13,0x650a7354,0x766a0abb,0x81c2c92e,0x92722c85,0xa2bfe8a1,0xa81a664b,0xc24b8b70,0xc76c51a3,0xd192e819,0xd6990624,0xf40e3585,0x106aa070,
	0x19a4c116,0x1e376c08,0x2748774c,0x34b0bcb5,0x391c0cb3,0x4ed8aa4a,0x5b9cca4f,0x682e6ff3,0x748f82ee,0x78a5636f,0x84c87814,0x8cc70208,0x90befffa,0xa4506ceb,0xbef9a3f7,0xc67178f2};

static u32 ror(u32 x, int n) { return x >> n | x << (32 - n); }

static void block(u32 *h, const u8 *p) {
	u32 w[64];
	for (int i = 0; i < 16; i++) w[i] = p[4 * i] << 24 | p[4 * i + 1] << 16 | p[4 * i + 2] << 8 | p[4 * i + 3];
	for (int i = 16; i < 64; i++)
		w[i] = w[i - 16] + (ror(w[i - 15], 7) ^ ror(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] + (ror(w[i - 2], 17) ^ ror(w[i - 2], 19) ^ w[i - 2] >> 10);
	u32 s[8];
	for (int i = 0; i < 8; i++) s[i] = h[i];
	for (int i = 0; i < 64; i++) {
		u32 t1 = s[7] + (ror(s[4], 6) ^ ror(s[4], 11) ^ ror(s[4], 25)) + (s[4] & s[5] ^ ~s[4] & s[6]) + K[i] + w[i];
		u32 t2 = (ror(s[0], 2) ^ ror(s[0], 13) ^ ror(s[0], 22)) + (s[0] & s[1] ^ s[0] & s[2] ^ s[1] & s[2]);
		for (int j = 7; j > 0; j--) s[j] = s[j - 1];
		s[4] += t1;
		s[0] = t1 + t2;
	}
	for (int i = 0; i < 8; i++) h[i] += s[i];
}

EXPORT(sha) int sha(void) {
	u32 h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
	for (u32 n = amount(); n; n--)
		for (u32 i = 0; i < sizeof buf; i += 64) block(h, buf + i);
	buf[0] = h[0];
	return 0;
}

static u32 list[20000];

static void sort(u32 *a, int n) {
	while (n > 16) {
		u32 p = a[n / 2];
		int i = 0, j = n - 1;
		for (;;) {
			while (a[i] < p) i++;
			while (a[j] > p) j--;
			if (i >= j) break;
			u32 t = a[i]; a[i++] = a[j]; a[j--] = t;
		}
		sort(a, i);
		a += i, n -= i;
	}
	for (int i = 1; i < n; i++)
		for (int j = i; j > 0 && a[j - 1] > a[j]; j--) { u32 t = a[j]; a[j] = a[j - 1]; a[j - 1] = t; }
}

EXPORT(qsort) int quick(void) {
	u32 x = 1;
	for (u32 n = amount(); n; n--) {
		for (int i = 0; i < 20000; i++) list[i] = x = x * 1664525 + 1013904223;
		sort(list, 20000);
	}
	return list[0] == 1;
}

static float fa[4096], fb[4096];

EXPORT(simd) int simd(void) {
	for (u32 n = amount(); n; n--)
		for (int i = 0; i < 4096; i++) fa[i] = fa[i] * 0.5f + fb[i] * 1.5f + 1;
	return fa[7] == -1;
}

// Three ways to keep a processor busy for good.

EXPORT(spin) int spin(void) {
	u32 x = 1;
	for (;;) {
		x = x * 1664525 + 1013904223;
		if (x == calls) return 1;
		__asm__ volatile("");
	}
}

static u32 ring[1 << 20];

EXPORT(chase) int chase(void) {
	for (u32 i = 0; i < 1 << 20; i++) ring[i] = i * 2654435761u % (1 << 20);
	u32 x = 0;
	for (;;) {
		x = ring[x] ^ 1;
		__asm__ volatile("");
	}
}

EXPORT(touch) int touch(void) {
	for (;;) {
		u32 at = __builtin_wasm_memory_grow(0, 16) * 65536;
		if ((int)at == -65536) at = 0;
		for (u32 i = 0; i < 16 * 65536; i += 4096) *(volatile u8 *)(at + i + 8) = 1;
	}
}
