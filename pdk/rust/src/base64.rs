//! The standard alphabet with padding, read strictly.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes as base64, without line breaks.
pub fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity((bytes.len() + 2) / 3 * 4);
    for c in bytes.chunks(3) {
        let v = (c[0] as u32) << 16 | (*c.get(1).unwrap_or(&0) as u32) << 8 | *c.get(2).unwrap_or(&0) as u32;
        for i in 0..4 {
            let six = ALPHABET[(v >> (18 - 6 * i) & 63) as usize] as char;
            out.push(if i <= c.len() { six } else { '=' });
        }
    }
    out
}

/// Answers None for what is not base64.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let b = text.as_bytes();
    if b.len() % 4 != 0 {
        return None;
    }
    let mut out = Vec::with_capacity(b.len() / 4 * 3);
    for (i, c) in b.chunks(4).enumerate() {
        let last = (i + 1) * 4 == b.len();
        let pad = match (last, c[2], c[3]) {
            (true, b'=', b'=') => 2,
            (true, _, b'=') => 1,
            _ => 0,
        };
        let mut v = 0u32;
        for c in &c[..4 - pad] {
            v = v << 6
                | match c {
                    b'A'..=b'Z' => c - b'A',
                    b'a'..=b'z' => c - b'a' + 26,
                    b'0'..=b'9' => c - b'0' + 52,
                    b'+' => 62,
                    b'/' => 63,
                    _ => return None,
                } as u32;
        }
        v <<= 6 * pad as u32;
        out.extend_from_slice(&v.to_be_bytes()[1..4 - pad]);
    }
    Some(out)
}
