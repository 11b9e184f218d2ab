// JSON, as much as guests need: a Reader that goes through UTF-8 from front to
// end, a Writer, and Value for payloads of unknown shape. Numbers stay as they
// were written, so that none loses digits.

/** How deep values may be nested. */
const DEEPEST = 200;

/** How many bytes the character at p has, as RFC 3629 has it; 0 for what is none. */
export function utf8(p: usize, stop: usize): i32 {
  const c = load<u8>(p);
  if (c < 0x80) return 1;
  let low: u8 = 0x80, high: u8 = 0xbf, n = 0; // low and high: what may come second
  if (c >= 0xc2 && c <= 0xdf) {
    n = 2;
  } else if (c >= 0xe0 && c <= 0xef) {
    n = 3;
    if (c == 0xe0) low = 0xa0;
    if (c == 0xed) high = 0x9f;
  } else if (c >= 0xf0 && c <= 0xf4) {
    n = 4;
    if (c == 0xf0) low = 0x90;
    if (c == 0xf4) high = 0x8f;
  }
  if (!n || stop - p < <usize>n || load<u8>(p, 1) < low || load<u8>(p, 1) > high) return 0;
  if (n > 2 && (load<u8>(p, 2) & 0xc0) != 0x80) return 0;
  if (n > 3 && (load<u8>(p, 3) & 0xc0) != 0x80) return 0;
  return n;
}

/** Bytes that grow. */
export class Buffer {
  private room: i32 = 256;
  /** Where they are. Nothing is ever freed, so it stays good until the call ends. */
  at: usize = heap.alloc(256);
  /** How many there are. */
  length: i32 = 0;

  private reserve(more: i32): void {
    if (this.length + more <= this.room) return;
    const room = max(this.room * 2, this.length + more);
    const at = heap.alloc(<usize>room);
    memory.copy(at, this.at, <usize>this.length);
    this.at = at;
    this.room = room;
  }

  /** One byte. */
  byte(c: i32): void {
    this.reserve(1);
    store<u8>(this.at + <usize>(this.length++), <u8>c);
  }

  /** n bytes from memory. */
  bytes(at: usize, n: i32): void {
    this.reserve(n);
    memory.copy(this.at + <usize>this.length, at, <usize>n);
    this.length += n;
  }

  /** One code point. */
  rune(u: u32): void {
    if (u < 0x80) {
      this.byte(u);
    } else if (u < 0x800) {
      this.byte(0xc0 | (u >> 6));
      this.byte(0x80 | (u & 63));
    } else if (u < 0x10000) {
      this.byte(0xe0 | (u >> 12));
      this.byte(0x80 | ((u >> 6) & 63));
      this.byte(0x80 | (u & 63));
    } else {
      this.byte(0xf0 | (u >> 18));
      this.byte(0x80 | ((u >> 12) & 63));
      this.byte(0x80 | ((u >> 6) & 63));
      this.byte(0x80 | (u & 63));
    }
  }

  /** Text, as UTF-8; half of a pair becomes U+FFFD. */
  text(s: string): void {
    const n = s.length;
    this.reserve(3 * n);
    for (let i = 0; i < n; i++) {
      const c = <u32>s.charCodeAt(i);
      if (c < 0x80) {
        store<u8>(this.at + <usize>(this.length++), <u8>c);
        continue;
      }
      if (c < 0xd800 || c > 0xdfff) {
        this.rune(c);
        continue;
      }
      const low = i + 1 < n ? <u32>s.charCodeAt(i + 1) : 0;
      if (c < 0xdc00 && low >= 0xdc00 && low < 0xe000) {
        this.rune(0x10000 + (((c - 0xd800) << 10) | (low - 0xdc00)));
        i++;
      } else {
        this.rune(0xfffd);
      }
    }
  }

  /** The bytes as text; they must be UTF-8. */
  toString(): string {
    return String.UTF8.decodeUnsafe(this.at, <usize>this.length);
  }
}

/** Writes JSON as UTF-8 and puts the commas. */
export class Writer {
  /** What was written. */
  out: Buffer = new Buffer();
  private comma: bool = false;

  private next(): void {
    if (this.comma) this.out.byte(0x2c);
    this.comma = true;
  }

  private open(c: i32): void {
    this.next();
    this.out.byte(c);
    this.comma = false;
  }

  private close(c: i32): void {
    this.out.byte(c);
    this.comma = true;
  }

  /** An object; names and values come next. */
  beginObject(): void { this.open(0x7b); }
  /** Ends an object. */
  endObject(): void { this.close(0x7d); }
  /** An array; values come next. */
  beginArray(): void { this.open(0x5b); }
  /** Ends an array. */
  endArray(): void { this.close(0x5d); }

  /** The name of a member; its value comes next. */
  name(s: string): void {
    this.string(s);
    this.out.byte(0x3a);
    this.comma = false;
  }

  /** A value that is JSON already. */
  raw(json: string): void {
    this.next();
    this.out.text(json);
  }

  /** true or false. */
  bool(v: bool): void { this.raw(v ? "true" : "false"); }
  /** A number. */
  int(v: i64): void { this.raw(v.toString()); }

  /** Text. */
  string(s: string): void {
    this.next();
    const out = this.out;
    out.byte(0x22);
    let from = 0;
    for (let i = 0, n = s.length; i < n; i++) {
      const c = s.charCodeAt(i);
      if (c >= 0x20 && c != 0x22 && c != 0x5c) continue;
      out.text(s.substring(from, i));
      from = i + 1;
      out.byte(0x5c);
      if (c == 0x22 || c == 0x5c) out.byte(c);
      else if (c == 0x0a) out.byte(0x6e);
      else if (c == 0x0d) out.byte(0x72);
      else if (c == 0x09) out.byte(0x74);
      else {
        out.text("u00");
        out.byte("0123456789abcdef".charCodeAt(c >> 4));
        out.byte("0123456789abcdef".charCodeAt(c & 15));
      }
    }
    out.text(from ? s.substring(from) : s);
    out.byte(0x22);
  }

  // Members that are left out when they have nothing to say.

  /** Text. */
  text(name: string, s: string): void {
    if (!s.length) return;
    this.name(name);
    this.string(s);
  }

  /** A number. */
  number(name: string, v: i64): void {
    if (!v) return;
    this.name(name);
    this.int(v);
  }

  /** A yes. */
  yes(name: string, v: bool): void {
    if (!v) return;
    this.name(name);
    this.bool(true);
  }

  /** A value that is JSON already. */
  json(name: string, json: string): void {
    if (!json.length) return;
    this.name(name);
    this.raw(json);
  }

  /** A list of texts, an empty one too. */
  list(name: string, list: string[]): void {
    this.name(name);
    this.beginArray();
    for (let i = 0; i < list.length; i++) this.string(list[i]);
    this.endArray();
  }

  /** An object of texts, an empty one too. */
  map(name: string, map: Map<string, string>): void {
    this.name(name);
    this.beginObject();
    const keys = map.keys();
    for (let i = 0; i < keys.length; i++) {
      this.name(keys[i]);
      this.string(map.get(keys[i]));
    }
    this.endObject();
  }

  /** What was written, as text. */
  toString(): string { return this.out.toString(); }
}

/**
 * Goes through JSON from front to end:
 *
 *     const r = Reader.of(call.payload);
 *     r.object();
 *     while (r.member())
 *       if (r.name == "count") count = r.int();
 *       else r.skip();
 *     if (!r.end()) return Outcome.failed("payload: " + r.wrong);
 *
 * After an error it is at its end, everything answers nothing, and end() false.
 * null reads as nothing of any type.
 */
export class Reader {
  private start: usize;
  private p: usize;
  private stop: usize;
  private first: bool = true;
  private depth: i32 = 0;
  /** The member that next() came to. */
  name: string = "";
  /** What is wrong, and at which byte; "" for nothing. */
  wrong: string = "";

  /** Reads n bytes at a place of memory, which must stay as they are. */
  constructor(at: usize, n: i32) {
    this.start = this.p = at;
    this.stop = at + <usize>n;
  }

  /** Reads JSON that is text. */
  static of(json: string): Reader {
    const b = new Buffer();
    b.text(json);
    return new Reader(b.at, b.length);
  }

  /** Ends reading with what is wrong. The first counts. */
  fail(what: string): void {
    if (!this.wrong.length) this.wrong = what + " at byte " + (this.p - this.start).toString();
    this.p = this.stop;
  }

  /** The next byte that is no white space; 0 at the end. */
  private peek(): i32 {
    while (this.p < this.stop) {
      const c = <i32>load<u8>(this.p);
      if (c != 0x20 && c != 0x0a && c != 0x09 && c != 0x0d) return c;
      this.p++;
    }
    return 0;
  }

  private next(c: i32): bool {
    if (this.peek() != c) return false;
    this.p++;
    return true;
  }

  private word(word: string): bool {
    this.peek();
    const n = <usize>word.length;
    if (this.stop - this.p < n) return false;
    for (let i: usize = 0; i < n; i++) if (<i32>load<u8>(this.p + i) != word.charCodeAt(<i32>i)) return false;
    this.p += n;
    return true;
  }

  /** Takes null when it comes next. */
  null(): bool { return this.peek() == 0x6e && this.word("null"); }

  /** Whether all was read, and nothing was wrong. */
  end(): bool {
    this.peek();
    if (!this.wrong.length && this.p != this.stop) this.fail("data after the end");
    return !this.wrong.length;
  }

  private open(c: i32): bool {
    if (this.null()) return false;
    if (!this.next(c)) {
      this.fail("wrong type");
      return false;
    }
    if (++this.depth > DEEPEST) this.fail("too deep");
    this.first = true;
    return !this.wrong.length;
  }

  private more(c: i32): bool {
    const first = this.first;
    this.first = false;
    if (this.wrong.length) return false;
    if (this.next(c)) {
      this.depth--;
      return false;
    }
    if (!first && !this.next(0x2c)) {
      this.fail("no comma");
      return false;
    }
    return true;
  }

  /** Enters an object; false for null, or what is none. */
  object(): bool { return this.open(0x7b); }
  /** Enters an array; false for null, or what is none. */
  array(): bool { return this.open(0x5b); }
  /** Whether an array goes on. */
  item(): bool { return this.more(0x5d); }

  /** Whether an object goes on: with the member name. */
  member(): bool {
    if (!this.more(0x7d)) return false;
    if (this.peek() != 0x22) {
      this.fail("no name");
      return false;
    }
    this.name = this.string();
    if (!this.wrong.length && !this.next(0x3a)) this.fail("no colon");
    return !this.wrong.length;
  }

  /** true or false. */
  bool(): bool {
    if (this.word("true")) return true;
    if (!this.word("false") && !this.null()) this.fail("wrong type");
    return false;
  }

  private digits(): bool {
    const from = this.p;
    while (this.p < this.stop && load<u8>(this.p) >= 0x30 && load<u8>(this.p) <= 0x39) this.p++;
    return this.p > from;
  }

  private at(c: i32): bool { return this.p < this.stop && <i32>load<u8>(this.p) == c; }

  /** A number as it was written. */
  number(): string {
    this.peek();
    const from = this.p;
    if (this.at(0x2d)) this.p++;
    let good = true;
    if (this.at(0x30)) this.p++;
    else good = this.digits();
    if (good && this.at(0x2e)) {
      this.p++;
      good = this.digits();
    }
    if (good && (this.at(0x65) || this.at(0x45))) {
      this.p++;
      if (this.at(0x2b) || this.at(0x2d)) this.p++;
      good = this.digits();
    }
    if (!good) {
      this.fail("no value");
      return "";
    }
    return String.UTF8.decodeUnsafe(from, this.p - from);
  }

  /** A whole number that an i64 holds, without a fraction or an exponent. */
  int(): i64 {
    if (this.null()) return 0;
    const s = this.number();
    if (this.wrong.length) return 0;
    const minus = s.charCodeAt(0) == 0x2d;
    const most: u64 = <u64>i64.MAX_VALUE + (minus ? 1 : 0);
    let v: u64 = 0;
    for (let i = minus ? 1 : 0; i < s.length; i++) {
      const digit = <u64>(s.charCodeAt(i) - 0x30);
      if (digit > 9 || v > (most - digit) / 10) {
        this.fail("not a whole number");
        return 0;
      }
      v = v * 10 + digit;
    }
    return minus ? -(<i64>v) : <i64>v;
  }

  /** A whole number that an i32 holds, as exit codes are. */
  int32(): i32 {
    const v = this.int();
    if (v >= i32.MIN_VALUE && v <= i32.MAX_VALUE) return <i32>v;
    this.fail("not an exit code");
    return 0;
  }

  /** Text, without its escapes. */
  string(): string {
    if (this.null()) return "";
    if (!this.next(0x22)) {
      this.fail("wrong type");
      return "";
    }
    let from = this.p;
    let b: Buffer | null = null;
    while (this.p < this.stop) {
      const c = load<u8>(this.p);
      if (c < 0x20) break;
      if (c == 0x22) {
        const n = this.p++ - from;
        if (b == null) return String.UTF8.decodeUnsafe(from, n);
        b.bytes(from, <i32>n);
        return b.toString();
      }
      if (c != 0x5c) {
        const n = utf8(this.p, this.stop);
        if (!n) {
          this.fail("not UTF-8");
          return "";
        }
        this.p += n;
        continue;
      }
      if (b == null) b = new Buffer();
      b.bytes(from, <i32>(this.p++ - from));
      this.escape(b);
      if (this.wrong.length) return "";
      from = this.p;
    }
    this.fail("string without an end");
    return "";
  }

  private escape(b: Buffer): void {
    const c = this.p < this.stop ? <i32>load<u8>(this.p++) : 0;
    switch (c) {
      case 0x22: case 0x5c: case 0x2f: b.byte(c); return;
      case 0x62: b.byte(8); return;
      case 0x66: b.byte(12); return;
      case 0x6e: b.byte(10); return;
      case 0x72: b.byte(13); return;
      case 0x74: b.byte(9); return;
      case 0x75: break;
      default: this.fail("unknown escape"); return;
    }
    let u = this.hex();
    if (u >= 0xd800 && u < 0xe000) { // half of a pair
      const back = this.p;
      let low: u32 = 0;
      if (u < 0xdc00 && this.at(0x5c) && this.p + 1 < this.stop && load<u8>(this.p + 1) == 0x75) {
        this.p += 2;
        low = this.hex();
      }
      if (low >= 0xdc00 && low < 0xe000) {
        u = 0x10000 + (((u - 0xd800) << 10) | (low - 0xdc00));
      } else {
        u = 0xfffd;
        if (!this.wrong.length) this.p = back;
      }
    }
    b.rune(u);
  }

  private hex(): u32 {
    let v: u32 = 0;
    for (let i = 0; i < 4; i++) {
      const c = this.p < this.stop ? <u32>load<u8>(this.p) : 0;
      if (c >= 0x30 && c <= 0x39) v = (v << 4) | (c - 0x30);
      else if (c >= 0x61 && c <= 0x66) v = (v << 4) | (c - 0x61 + 10);
      else if (c >= 0x41 && c <= 0x46) v = (v << 4) | (c - 0x41 + 10);
      else {
        this.fail("unknown escape");
        return 0xfffd;
      }
      this.p++;
    }
    return v;
  }

  /** Passes over one value of any type. */
  skip(): void {
    switch (this.peek()) {
      case 0x7b:
        if (this.object()) while (this.member()) this.skip();
        return;
      case 0x5b:
        if (this.array()) while (this.item()) this.skip();
        return;
      case 0x22: this.string(); return;
      case 0x74: case 0x66: this.bool(); return;
      case 0x6e:
        if (!this.null()) this.fail("no value");
        return;
    }
    this.number();
  }

  /** Takes one value of any type as it stands. */
  raw(): string {
    this.peek();
    const from = this.p;
    this.skip();
    return this.wrong.length ? "" : String.UTF8.decodeUnsafe(from, this.p - from);
  }

  /** A list of texts. */
  strings(): string[] {
    const list: string[] = [];
    if (this.array()) while (this.item()) list.push(this.string());
    return list;
  }

  /** An object of texts, of which the last of a name counts. */
  map(): Map<string, string> {
    const m = new Map<string, string>();
    if (this.object())
      while (this.member()) {
        const key = this.name;
        m.set(key, this.string());
      }
    return m;
  }
}

/** A member of a JSON object as it stands; "" where there is none, or no object. */
export function member(json: string, name: string): string {
  const r = Reader.of(json);
  let found = "";
  if (r.object())
    while (r.member()) {
      if (r.name == name) found = r.raw();
      else r.skip();
    }
  return r.end() ? found : "";
}

/** Whether a JSON value is text. */
export function isText(json: string): bool {
  return json.length > 0 && json.charCodeAt(0) == 0x22;
}

/** A JSON value as text; "" where it is none. */
export function textOf(json: string): string {
  const r = Reader.of(json);
  const s = isText(json) ? r.string() : "";
  return r.end() ? s : "";
}

/** JSON of text. */
export function quote(s: string): string {
  const w = new Writer();
  w.string(s);
  return w.toString();
}
