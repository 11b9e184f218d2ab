//! JSON, as much as guests need: a reader that goes through text from front to
//! end, a writer, and [`Value`] for payloads of unknown shape. Numbers stay as
//! they were written, so that none loses digits.

use std::collections::BTreeMap;
use std::fmt;

/// How deep values may be nested.
const DEEPEST: usize = 200;

/// What is wrong with a text, and at which byte.
#[derive(Debug, Clone, PartialEq)]
pub struct Error {
    /// What is wrong: "wrong type", "no comma".
    pub what: &'static str,
    /// How many bytes stand before it.
    pub at: usize,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} at byte {}", self.what, self.at)
    }
}

impl std::error::Error for Error {}

type Result<T> = std::result::Result<T, Error>;

/// Any JSON value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// As it was written.
    Number(String),
    /// Text, without its escapes.
    String(String),
    /// A list.
    Array(Vec<Value>),
    /// In the order of the text.
    Object(Vec<(String, Value)>),
}

impl Value {
    /// Reads one value, with nothing after it.
    pub fn parse(text: &str) -> Result<Value> {
        let mut r = Reader::new(text);
        let v = r.value()?;
        r.end()?;
        Ok(v)
    }

    /// A member of an object; the last one where there are several.
    pub fn get(&self, name: &str) -> Option<&Value> {
        match self {
            Value::Object(m) => m.iter().rev().find(|(k, _)| k == name).map(|(_, v)| v),
            _ => None,
        }
    }

    /// Text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(s) => Some(s),
            _ => None,
        }
    }

    /// A whole number that an i64 holds.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Value::Number(s) => s.parse().ok(),
            _ => None,
        }
    }

    /// A number, as near as an f64 comes.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Number(s) => s.parse().ok(),
            _ => None,
        }
    }

    /// `true` or `false`.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(b) => Some(*b),
            _ => None,
        }
    }

    /// The items of a list.
    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Value::Array(v) => Some(v),
            _ => None,
        }
    }

    fn write(&self, w: &mut Writer) {
        match self {
            Value::Null => w.raw("null"),
            Value::Bool(b) => w.bool(*b),
            Value::Number(s) => w.raw(s),
            Value::String(s) => w.string(s),
            Value::Array(v) => w.array(|w| v.iter().for_each(|v| v.write(w))),
            Value::Object(m) => w.object(|w| {
                m.iter().for_each(|(k, v)| {
                    w.name(k);
                    v.write(w)
                })
            }),
        }
    }
}

/// Writes JSON without white space.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut w = Writer::new();
        self.write(&mut w);
        f.write_str(&w.done())
    }
}

impl From<&str> for Value {
    fn from(s: &str) -> Value {
        Value::String(s.to_string())
    }
}

impl From<String> for Value {
    fn from(s: String) -> Value {
        Value::String(s)
    }
}

impl From<bool> for Value {
    fn from(b: bool) -> Value {
        Value::Bool(b)
    }
}

impl From<i64> for Value {
    fn from(n: i64) -> Value {
        Value::Number(n.to_string())
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(v: Option<T>) -> Value {
        v.map_or(Value::Null, Into::into)
    }
}

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(v: Vec<T>) -> Value {
        Value::Array(v.into_iter().map(Into::into).collect())
    }
}

/// Makes an object: `object([("name", "Ada".into()), ("age", 36.into())])`.
pub fn object<const N: usize>(members: [(&str, Value); N]) -> Value {
    Value::Object(members.into_iter().map(|(k, v)| (k.to_string(), v)).collect())
}

/// Writes JSON and puts the commas.
#[derive(Default)]
pub struct Writer {
    out: String,
    comma: bool,
}

impl Writer {
    /// Begins with nothing.
    pub fn new() -> Writer {
        Writer { out: String::with_capacity(256), comma: false }
    }

    /// What was written.
    pub fn done(self) -> String {
        self.out
    }

    fn comma(&mut self) {
        if self.comma {
            self.out.push(',');
        }
        self.comma = true;
    }

    /// An object; `members` writes names and values.
    pub fn object(&mut self, members: impl FnOnce(&mut Writer)) {
        self.within('{', '}', members)
    }

    /// A list; `items` writes the values.
    pub fn array(&mut self, items: impl FnOnce(&mut Writer)) {
        self.within('[', ']', items)
    }

    fn within(&mut self, open: char, close: char, inside: impl FnOnce(&mut Writer)) {
        self.comma();
        self.out.push(open);
        self.comma = false;
        inside(self);
        self.out.push(close);
        self.comma = true;
    }

    /// The name of a member; its value comes next.
    pub fn name(&mut self, name: &str) {
        self.string(name);
        self.out.push(':');
        self.comma = false;
    }

    /// A value that is JSON already.
    pub fn raw(&mut self, json: &str) {
        self.comma();
        self.out.push_str(json);
    }

    /// `true` or `false`.
    pub fn bool(&mut self, v: bool) {
        self.raw(if v { "true" } else { "false" })
    }

    /// A number.
    pub fn int(&mut self, v: i64) {
        self.comma();
        if v < 0 {
            self.out.push('-');
        }
        let mut digits = [0u8; 20];
        let mut i = digits.len();
        let mut u = v.unsigned_abs();
        loop {
            i -= 1;
            digits[i] = b'0' + (u % 10) as u8;
            u /= 10;
            if u == 0 {
                break;
            }
        }
        digits[i..].iter().for_each(|d| self.out.push(*d as char));
    }

    /// Text.
    pub fn string(&mut self, s: &str) {
        self.comma();
        self.out.push('"');
        let mut from = 0;
        for (i, c) in s.bytes().enumerate() {
            if c >= b' ' && c != b'"' && c != b'\\' {
                continue;
            }
            self.out.push_str(&s[from..i]);
            from = i + 1;
            match c {
                b'"' => self.out.push_str("\\\""),
                b'\\' => self.out.push_str("\\\\"),
                b'\n' => self.out.push_str("\\n"),
                b'\r' => self.out.push_str("\\r"),
                b'\t' => self.out.push_str("\\t"),
                _ => {
                    const HEX: &[u8; 16] = b"0123456789abcdef";
                    self.out.push_str("\\u00");
                    self.out.push(HEX[(c >> 4) as usize] as char);
                    self.out.push(HEX[(c & 15) as usize] as char);
                }
            }
        }
        self.out.push_str(&s[from..]);
        self.out.push('"');
    }
}

/// Goes through JSON from front to end. `null` reads as nothing of any type.
pub struct Reader<'a> {
    text: &'a str,
    b: &'a [u8],
    at: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    /// Begins at the front.
    pub fn new(text: &'a str) -> Reader<'a> {
        Reader { text, b: text.as_bytes(), at: 0, depth: 0 }
    }

    fn wrong<T>(&self, what: &'static str) -> Result<T> {
        Err(Error { what, at: self.at })
    }

    /// The next byte that is no white space; 0 at the end.
    fn peek(&mut self) -> u8 {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.b.get(self.at) {
            self.at += 1;
        }
        self.b.get(self.at).copied().unwrap_or(0)
    }

    fn next(&mut self, c: u8) -> bool {
        let found = self.peek() == c;
        self.at += found as usize;
        found
    }

    fn word(&mut self, word: &str) -> bool {
        self.peek();
        let found = self.b[self.at..].starts_with(word.as_bytes());
        if found {
            self.at += word.len();
        }
        found
    }

    /// Takes null when it comes next.
    pub fn null(&mut self) -> bool {
        self.word("null")
    }

    /// All was read.
    pub fn end(&mut self) -> Result<()> {
        self.peek();
        if self.at == self.b.len() {
            return Ok(());
        }
        self.wrong("data after the end")
    }

    /// Calls member for each name of an object; it reads the value.
    pub fn object(&mut self, mut member: impl FnMut(&mut Self, &str) -> Result<()>) -> Result<()> {
        self.sequence(b'{', b'}', |r| {
            if r.peek() != b'"' {
                return r.wrong("no name");
            }
            let name = r.string()?;
            if !r.next(b':') {
                return r.wrong("no colon");
            }
            member(r, &name)
        })
    }

    /// Calls item for each item of an array; it reads the value.
    pub fn array(&mut self, item: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.sequence(b'[', b']', item)
    }

    fn sequence(&mut self, open: u8, close: u8, mut item: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        if self.null() {
            return Ok(());
        }
        if !self.next(open) {
            return self.wrong("wrong type");
        }
        self.depth += 1;
        if self.depth > DEEPEST {
            return self.wrong("too deep");
        }
        if !self.next(close) {
            loop {
                item(self)?;
                if self.next(close) {
                    break;
                }
                if !self.next(b',') {
                    return self.wrong("no comma");
                }
            }
        }
        self.depth -= 1;
        Ok(())
    }

    /// A list of texts.
    pub fn strings(&mut self) -> Result<Vec<String>> {
        let mut list = Vec::new();
        self.array(|r| {
            list.push(r.string()?);
            Ok(())
        })?;
        Ok(list)
    }

    /// An object of strings.
    pub fn map(&mut self) -> Result<BTreeMap<String, String>> {
        let mut map = BTreeMap::new();
        self.object(|r, name| {
            map.insert(name.to_string(), r.string()?);
            Ok(())
        })?;
        Ok(map)
    }

    /// `true` or `false`.
    pub fn bool(&mut self) -> Result<bool> {
        if self.word("true") {
            return Ok(true);
        }
        if self.word("false") || self.null() {
            return Ok(false);
        }
        self.wrong("wrong type")
    }

    /// A whole number that an i64 holds.
    pub fn int(&mut self) -> Result<i64> {
        if self.null() {
            return Ok(0);
        }
        let at = self.at;
        let n = self.number()?.parse();
        n.map_err(|_| Error { what: "not a whole number", at })
    }

    /// A whole number that an i32 holds, as exit codes are.
    pub(crate) fn int32(&mut self) -> Result<i32> {
        let at = self.at;
        i32::try_from(self.int()?).map_err(|_| Error { what: "not an exit code", at })
    }

    fn number(&mut self) -> Result<&'a str> {
        self.peek();
        let from = self.at;
        let digits = |r: &mut Self| {
            let from = r.at;
            while let Some(b'0'..=b'9') = r.b.get(r.at) {
                r.at += 1;
            }
            r.at > from
        };
        self.at += (self.b.get(self.at) == Some(&b'-')) as usize;
        let zero = self.b.get(self.at) == Some(&b'0');
        if zero {
            self.at += 1;
        } else if !digits(self) {
            return self.wrong("no value");
        }
        if self.b.get(self.at) == Some(&b'.') {
            self.at += 1;
            if !digits(self) {
                return self.wrong("no value");
            }
        }
        if let Some(b'e' | b'E') = self.b.get(self.at) {
            self.at += 1;
            if let Some(b'+' | b'-') = self.b.get(self.at) {
                self.at += 1;
            }
            if !digits(self) {
                return self.wrong("no value");
            }
        }
        Ok(&self.text[from..self.at])
    }

    /// Text, without its escapes.
    pub fn string(&mut self) -> Result<String> {
        if self.null() {
            return Ok(String::new());
        }
        if !self.next(b'"') {
            return self.wrong("wrong type");
        }
        let mut out = String::new();
        let mut from = self.at;
        loop {
            match self.b.get(self.at) {
                Some(b'"') => {
                    let rest = &self.text[from..self.at];
                    self.at += 1;
                    if out.is_empty() {
                        return Ok(rest.to_string());
                    }
                    out.push_str(rest);
                    return Ok(out);
                }
                Some(b'\\') => {
                    out.push_str(&self.text[from..self.at]);
                    self.at += 1;
                    let c = self.b.get(self.at).copied().unwrap_or(0);
                    if !br#""\/bfnrtu"#.contains(&c) {
                        return self.wrong("unknown escape");
                    }
                    self.at += 1;
                    out.push(match c {
                        b'b' => '\u{8}',
                        b'f' => '\u{c}',
                        b'n' => '\n',
                        b'r' => '\r',
                        b't' => '\t',
                        b'u' => self.escape()?,
                        _ => c as char,
                    });
                    from = self.at;
                }
                Some(c) if *c >= b' ' => self.at += 1,
                _ => return self.wrong("string without an end"),
            }
        }
    }

    /// What follows \u, with the second half of a pair.
    fn escape(&mut self) -> Result<char> {
        let u = self.hex()?;
        if (0xd800..0xdc00).contains(&u) && self.b[self.at..].starts_with(b"\\u") {
            let back = self.at;
            self.at += 2;
            let low = self.hex()?;
            if (0xdc00..0xe000).contains(&low) {
                return Ok(char::from_u32(0x10000 + ((u - 0xd800) << 10 | (low - 0xdc00))).unwrap_or('\u{fffd}'));
            }
            self.at = back; // not a pair: the second stands for itself
        }
        Ok(char::from_u32(u).unwrap_or('\u{fffd}'))
    }

    fn hex(&mut self) -> Result<u32> {
        let mut v = 0;
        for _ in 0..4 {
            let digit = self.b.get(self.at).and_then(|c| (*c as char).to_digit(16));
            match digit {
                Some(d) => v = v << 4 | d,
                None => return self.wrong("unknown escape"),
            }
            self.at += 1;
        }
        Ok(v)
    }

    /// Passes over one value of any type.
    pub fn skip(&mut self) -> Result<()> {
        match self.peek() {
            b'{' => self.object(|r, _| r.skip()),
            b'[' => self.array(|r| r.skip()),
            b'"' => self.string().map(|_| ()),
            b't' | b'f' => self.bool().map(|_| ()),
            b'n' if self.null() => Ok(()),
            _ => self.number().map(|_| ()),
        }
    }

    /// Takes one value of any type as it stands.
    pub fn raw(&mut self) -> Result<String> {
        self.peek();
        let from = self.at;
        self.skip()?;
        Ok(self.text[from..self.at].to_string())
    }

    fn value(&mut self) -> Result<Value> {
        Ok(match self.peek() {
            b'{' => {
                let mut m = Vec::new();
                self.object(|r, name| {
                    m.push((name.to_string(), r.value()?));
                    Ok(())
                })?;
                Value::Object(m)
            }
            b'[' => {
                let mut v = Vec::new();
                self.array(|r| {
                    v.push(r.value()?);
                    Ok(())
                })?;
                Value::Array(v)
            }
            b'"' => Value::String(self.string()?),
            b't' | b'f' => Value::Bool(self.bool()?),
            b'n' if self.null() => Value::Null,
            _ => Value::Number(self.number()?.to_string()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes() {
        for text in [
            "null",
            "[true,false,null]",
            r#"{"a":[1,-2.50e+3,{"b":""}],"":0}"#,
            r#""\"\\\n\r\t\u0000""#,
            "\"ä€😀\"",
            "12345678901234567890",
        ] {
            assert_eq!(Value::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Value::parse(r#" "\u00e4\ud83d\ude00\/\b\f" "#).unwrap().as_str(), Some("ä😀/\u{8}\u{c}"));
        assert_eq!(Value::parse(r#""\ud83dx\ude00\ud83d\u0041""#).unwrap().as_str(), Some("\u{fffd}x\u{fffd}\u{fffd}A"));
        assert_eq!(Value::parse(r#"{"a":1,"a":2}"#).unwrap().get("a").and_then(Value::as_i64), Some(2));
    }

    #[test]
    fn refuses() {
        for text in [
            "",
            "{",
            "[1,]",
            "[1 2]",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "01",
            "1.",
            ".5",
            "1e",
            "-",
            "+1",
            "tru",
            "nul",
            "\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\n\"",
            "1 2",
            "{} {}",
        ] {
            assert!(Value::parse(text).is_err(), "{:?} is read", text);
        }
        assert_eq!(Value::parse(&"[".repeat(1000)).unwrap_err().what, "too deep");
        assert!(Reader::new("1.5").int().is_err());
        assert!(Reader::new("9223372036854775808").int().is_err());
        assert_eq!(Reader::new("-9223372036854775808").int(), Ok(i64::MIN));
    }

    /// What a reader takes of texts with random changes is the same value when it
    /// is written and read again, and no text makes it panic. CASES is how many.
    #[test]
    fn random_texts() {
        let cases = std::env::var("CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(5_000);
        let seeds = [
            r#"{"tool":"git","args":["a","\u00e4\ud83d\ude00\ud800",""],"env":{"A":"b"},"read_only":true,"attempt":-9223372036854775808}"#,
            r#"{"payload":{"a":[1,-2.50e+3,0,null,{"b":"\"\\\/\n"}]},"repo_config":{"entries":[{"key":"k","value":"v"}],"error":""}}"#,
            r#"{"call":{"args":["x"]},"result":{"exit_code":2,"stdout":"ä€😀","stderr_base64":"YWI="}}"#,
            r#"{"on":"git-push","port":22,"refs":[{"name":"refs/heads/a","old":"00","new":"11","force":null}],"push_options":["ä"],"call":{}}"#,
        ];
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = |n: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 33) as usize % n
        };
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..cases {
            let mut text: Vec<char> = seeds[random(seeds.len())].chars().collect();
            for _ in 0..random(4) {
                let (at, n) = (random(text.len()), random(6));
                match random(4) {
                    0 => text.truncate(at),
                    1 => drop(text.drain(at..(at + n).min(text.len()))),
                    2 => text.insert(
                        at,
                        ['"', '\\', '{', '[', ']', '}', ',', ':', 'u', '0', '-', '.', 'e', 'ä', '\u{1f}', '\u{10ffff}'][random(16)],
                    ),
                    _ => text.extend_from_within(at..(at + n).min(text.len())),
                }
                if text.is_empty() {
                    break;
                }
            }
            let text: String = text.into_iter().collect();
            let raw = Reader::new(&text).raw();
            match Value::parse(&text) {
                Ok(v) => {
                    taken += 1;
                    assert_eq!(Value::parse(&v.to_string()), Ok(v), "{:?}", text);
                    assert_eq!(raw.as_deref().map(str::trim), Ok(text.trim()), "{:?}", text);
                }
                Err(e) => {
                    refused += 1;
                    assert!(e.at <= text.len(), "{:?}: {}", text, e);
                    assert!(
                        crate::Call::parse(&text).is_err() && crate::Ended::parse(&text).is_err() && crate::Wire::parse(&text).is_err(),
                        "{:?} is read",
                        text
                    );
                }
            }
            if let Ok(c) = crate::Call::parse(&text) {
                assert_eq!(crate::Call::parse(&c.to_json()), Ok(c), "{:?}", text);
            }
            let mut r = Reader::new(&text);
            for _ in 0..3 {
                let _ = (r.string(), r.int(), r.bool(), r.strings(), r.map(), r.raw());
            }
            if let Some(bytes) = crate::base64::decode(&text) {
                assert_eq!(crate::base64::encode(&bytes).len(), text.len());
            }
            assert_eq!(crate::base64::decode(&crate::base64::encode(text.as_bytes())).as_deref(), Some(text.as_bytes()));
        }
        assert!(taken > cases / 20 && refused > cases / 20, "{} taken, {} refused", taken, refused);
    }

    #[test]
    fn base64() {
        use crate::base64::{decode, encode};
        for (bytes, text) in [("", ""), ("a", "YQ=="), ("ab", "YWI="), ("abc", "YWJj"), ("abcd", "YWJjZA==")] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).unwrap(), bytes.as_bytes());
        }
        for text in ["a", "ab=", "ab=c", "====", "YQ==YQ==", "Y-Q=", "YQ=a"] {
            assert_eq!(decode(text), None, "{:?} is read", text);
        }
    }
}
