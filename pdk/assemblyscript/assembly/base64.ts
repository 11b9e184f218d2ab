// The standard alphabet with padding, read strictly.

const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/** Bytes as base64, without line breaks. */
export function encode(b: Uint8Array): string {
  const n = b.length;
  const out = new Uint8Array((n + 2) / 3 * 4);
  let o = 0;
  for (let i = 0; i < n; i += 3) {
    let v = <u32>b[i] << 16;
    if (i + 1 < n) v |= <u32>b[i + 1] << 8;
    if (i + 2 < n) v |= <u32>b[i + 2];
    out[o++] = <u8>ALPHABET.charCodeAt(v >> 18);
    out[o++] = <u8>ALPHABET.charCodeAt((v >> 12) & 63);
    out[o++] = i + 1 < n ? <u8>ALPHABET.charCodeAt((v >> 6) & 63) : 0x3d;
    out[o++] = i + 2 < n ? <u8>ALPHABET.charCodeAt(v & 63) : 0x3d;
  }
  return String.UTF8.decodeUnsafe(out.dataStart, <usize>o);
}

function six(c: i32): i32 {
  if (c >= 0x41 && c <= 0x5a) return c - 0x41;
  if (c >= 0x61 && c <= 0x7a) return c - 0x61 + 26;
  if (c >= 0x30 && c <= 0x39) return c - 0x30 + 52;
  if (c == 0x2b) return 62;
  if (c == 0x2f) return 63;
  return -1;
}

/** Answers null for what is not base64. */
export function decode(s: string): Uint8Array | null {
  const n = s.length;
  if (n % 4) return null;
  let pad = 0;
  if (n && s.charCodeAt(n - 1) == 0x3d) pad = s.charCodeAt(n - 2) == 0x3d ? 2 : 1;
  const out = new Uint8Array(n / 4 * 3 - pad);
  let o = 0;
  for (let i = 0; i < n; i += 4) {
    let v = 0;
    for (let j = i; j < i + 4; j++) {
      const x = j >= n - pad ? 0 : six(s.charCodeAt(j));
      if (x < 0) return null;
      v = (v << 6) | x;
    }
    if (o < out.length) out[o++] = <u8>(v >> 16);
    if (o < out.length) out[o++] = <u8>(v >> 8);
    if (o < out.length) out[o++] = <u8>v;
  }
  return out;
}
