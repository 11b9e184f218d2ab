// Work of several kinds for the metering benchmarks, without a C library.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define EXPORT(name) __attribute__((export_name(#name)))

static const u32 K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static u32 rotr(u32 x, int n) { return x >> n | x << (32 - n); }

static void block(u32 h[8], const u8 *p) {
  u32 w[64];
  for (int i = 0; i < 16; i++)
    w[i] = (u32)p[4 * i] << 24 | (u32)p[4 * i + 1] << 16 | (u32)p[4 * i + 2] << 8 | p[4 * i + 3];
  for (int i = 16; i < 64; i++) {
    u32 s0 = rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
    u32 s1 = rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  u32 a = h[0], b = h[1], c = h[2], d = h[3], e = h[4], f = h[5], g = h[6], k = h[7];
  for (int i = 0; i < 64; i++) {
    u32 t1 = k + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i];
    u32 t2 = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    k = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e, h[5] += f, h[6] += g, h[7] += k;
}

static u8 buffer[65536];

EXPORT(sha) u32 sha(u32 n) {
  u32 h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  for (; n > 0; n--) {
    for (u32 i = 0; i < sizeof buffer; i += 64)
      block(h, buffer + i);
    buffer[0] = h[0];
  }
  return h[0];
}

static u32 numbers[20000];

typedef int (*compare)(const void *, const void *);

static int less(const void *a, const void *b) {
  u32 x = *(const u32 *)a, y = *(const u32 *)b;
  return x < y ? -1 : x > y;
}

// The comparison goes through a pointer, as in a C library.
__attribute__((noinline)) static void sort(u32 *a, int n, compare cmp) {
  while (n > 12) {
    u32 pivot = a[n / 2];
    int i = 0, j = n - 1;
    for (;;) {
      while (cmp(&a[i], &pivot) < 0) i++;
      while (cmp(&a[j], &pivot) > 0) j--;
      if (i >= j) break;
      u32 t = a[i];
      a[i++] = a[j], a[j--] = t;
    }
    sort(a, i, cmp);
    a += i, n -= i;
  }
  for (int i = 1; i < n; i++) {
    u32 t = a[i];
    int j = i;
    for (; j > 0 && cmp(&a[j - 1], &t) > 0; j--) a[j] = a[j - 1];
    a[j] = t;
  }
}

static volatile compare by = less;

EXPORT(qsort) u32 quick(u32 n) {
  for (; n > 0; n--) {
    u32 s = 12345;
    for (int i = 0; i < 20000; i++) {
      s = s * 1664525 + 1013904223;
      numbers[i] = s >> 8;
    }
    sort(numbers, 20000, by);
  }
  return numbers[0] ^ numbers[19999];
}

static double m1[96][96], m2[96][96], m3[96][96];

EXPORT(matrix) double matrix(u32 n) {
  for (int i = 0; i < 96; i++)
    for (int j = 0; j < 96; j++) m1[i][j] = i + j, m2[i][j] = i - j;
  for (; n > 0; n--)
    for (int i = 0; i < 96; i++)
      for (int j = 0; j < 96; j++) {
        double s = 0;
        for (int k = 0; k < 96; k++) s += m1[i][k] * m2[k][j];
        m3[i][j] = s;
      }
  return m3[17][23];
}

typedef float vec __attribute__((vector_size(16)));

static vec points[1024];

EXPORT(simd) float simd(u32 n) {
  vec v = {1, 1.5f, 2, 2.5f};
  for (int i = 0; i < 1024; i++) points[i] = v * (float)i;
  vec sum = {0};
  for (n *= 64; n > 0; n--)
    for (int i = 0; i < 1024; i++) sum = sum * 0.5f + points[i];
  return sum[0] + sum[1] + sum[2] + sum[3];
}
