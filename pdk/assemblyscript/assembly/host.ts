// What the host does for a guest.

import * as base64 from "./base64";
import { Buffer, Reader, Writer, utf8 } from "./json";

// The Extism kernel keeps blocks of memory of its own, named by offsets; 0 is
// no block. Only those functions that are used become imports.

@external("extism:host/env", "alloc")
declare function kAlloc(n: u64): u64;
@external("extism:host/env", "free")
declare function kFree(block: u64): void;
@external("extism:host/env", "length")
declare function kLength(block: u64): u64;
@external("extism:host/env", "load_u8")
declare function kLoad8(at: u64): u32;
@external("extism:host/env", "load_u64")
declare function kLoad64(at: u64): u64;
@external("extism:host/env", "store_u8")
declare function kStore8(at: u64, v: u32): void;
@external("extism:host/env", "store_u64")
declare function kStore64(at: u64, v: u64): void;
@external("extism:host/env", "input_length")
declare function kInputLength(): u64;
@external("extism:host/env", "input_load_u8")
declare function kInputLoad8(at: u64): u32;
@external("extism:host/env", "input_load_u64")
declare function kInputLoad64(at: u64): u64;
@external("extism:host/env", "output_set")
declare function kOutputSet(at: u64, n: u64): void;
@external("extism:host/env", "error_set")
declare function kErrorSet(block: u64): void;
@external("extism:host/env", "config_get")
declare function kConfigGet(key: u64): u64;
@external("extism:host/env", "var_get")
declare function kVarGet(key: u64): u64;
@external("extism:host/env", "var_set")
declare function kVarSet(key: u64, value: u64): void;
@external("extism:host/env", "log_debug")
declare function kLogDebug(block: u64): void;
@external("extism:host/env", "log_info")
declare function kLogInfo(block: u64): void;
@external("extism:host/env", "log_warn")
declare function kLogWarn(block: u64): void;
@external("extism:host/env", "log_error")
declare function kLogError(block: u64): void;
@external("extism:host/env", "http_request")
declare function kHttpRequest(request: u64, body: u64): u64;
@external("extism:host/env", "http_status_code")
declare function kHttpStatus(): u32;
@external("extism:host/env", "http_headers")
declare function kHttpHeaders(): u64;
@external("extism:host/user", "tool_exec")
declare function kExec(block: u64): u64;
@external("extism:host/user", "tool_emit")
declare function kEmit(block: u64): u64;
@external("extism:host/user", "tool_recv")
declare function kRecv(block: u64): u64;
@external("extism:host/user", "tool_call")
declare function kCall(block: u64): u64;
@external("extism:host/user", "tool_read")
declare function kRead(to: usize, at: u64, n: u32): u32;
@external("extism:host/user", "tool_write")
declare function kWrite(from: usize, n: u32): void;

/** Copies bytes into a new block, eight a call. */
function put(at: usize, n: i32): u64 {
  if (!n) return 0;
  const block = kAlloc(<u64>n);
  let i = 0;
  for (; i + 8 <= n; i += 8) kStore64(block + i, load<u64>(at + i));
  for (; i < n; i++) kStore8(block + i, load<u8>(at + i));
  return block;
}

function putText(s: string): u64 {
  const b = new Buffer();
  b.text(s);
  return put(b.at, b.length);
}

function putBytes(b: Uint8Array): u64 { return put(b.dataStart, b.length); }

/** Copies a block out and frees it; nothing for no block. */
function take(block: u64): Uint8Array {
  if (!block) return new Uint8Array(0);
  const n = <i32>kLength(block);
  const b = new Uint8Array(n);
  const at = b.dataStart;
  let i = 0;
  for (; i + 8 <= n; i += 8) store<u64>(at + i, kLoad64(block + i));
  for (; i < n; i++) store<u8>(at + i, <u8>kLoad8(block + i));
  kFree(block);
  return b;
}

function reader(b: Uint8Array): Reader { return new Reader(b.dataStart, b.length); }

/** Bytes as text; each that is not UTF-8 becomes U+FFFD. */
export function text(b: Uint8Array): string {
  const stop = b.dataStart + <usize>b.length;
  let good: Buffer | null = null; // from the first byte that is not
  let from = b.dataStart;
  for (let p = from; p < stop;) {
    const n = utf8(p, stop);
    if (n) {
      p += n;
      continue;
    }
    if (good == null) good = new Buffer();
    good.bytes(from, <i32>(p - from));
    good.rune(0xfffd);
    from = ++p;
  }
  if (good == null) return String.UTF8.decodeUnsafe(from, stop - from);
  good.bytes(from, <i32>(stop - from));
  return good.toString();
}

/** Text as bytes. */
export function bytes(s: string): Uint8Array { return Uint8Array.wrap(String.UTF8.encode(s)); }

// Compile with --use TOOLD_PORTABLE=ASC_TARGET to move input and output eight
// bytes at a time through functions that every Extism host has.

/** The input of the export, as JSON. */
export function input(): Reader {
  const n = <i32>kInputLength();
  const at = heap.alloc(<usize>n + 8);
  // @ts-ignore: defined or not
  if (isDefined(TOOLD_PORTABLE)) {
    let i = 0;
    for (; i + 8 <= n; i += 8) store<u64>(at + i, kInputLoad64(i));
    for (; i < n; i++) store<u8>(at + i, <u8>kInputLoad8(i));
    return new Reader(at, n);
  }
  return new Reader(at, n ? <i32>kRead(at, 0, n) : 0);
}

/** What the export answers. */
export function output(w: Writer): void {
  // @ts-ignore: defined or not
  if (isDefined(TOOLD_PORTABLE)) kOutputSet(put(w.out.at, w.out.length), w.out.length);
  else kWrite(w.out.at, w.out.length);
}

/** Ends the call with a text, once the export answers 1. */
export function setError(why: string): void { kErrorSet(putText(why.length ? why : "error without a message")); }

/**
 * What a throw does (asconfig.json: "use": ["abort=.../host/abort"]): a trap, of
 * which the host shows this text.
 */
export function abort(message: string | null, file: string | null, line: u32, column: u32): void {
  let why = message != null ? message : "aborted";
  if (file != null) why += " at " + file + ":" + line.toString() + ":" + column.toString();
  setError(why);
  unreachable();
}

/** What tool.json (or the caller's identity) gives a key; "" for nothing. */
export function config(key: string): string { return text(take(kConfigGet(putText(key)))); }

/** What varSet stored for this tool, identity and session, or null. Needs the capability "state". */
export function varGet(key: string): Uint8Array | null {
  const v = kVarGet(putText(key));
  return v ? take(v) : null;
}

/** Stores a value. One beyond the tool's "state" ends the call. */
export function varSet(key: string, value: Uint8Array): void { kVarSet(putText(key), putBytes(value)); }

/** Removes what varSet stored. */
export function varDelete(key: string): void { kVarSet(putText(key), 0); }

/** The severity of a line of the log. */
export enum Level { Debug, Info, Warn, Error }

/** Writes one line to the host's log, which cuts long ones. */
export function log(level: Level, line: string): void {
  const block = putText(line);
  if (level == Level.Debug) kLogDebug(block);
  else if (level == Level.Info) kLogInfo(block);
  else if (level == Level.Warn) kLogWarn(block);
  else kLogError(block);
}

/** A request that the host makes. */
export class Request {
  /** In upper case. */
  method: string = "GET";
  /** Its host must be one that the capability http lists. */
  url: string = "";
  /** Those that secrets add are not among them. */
  headers: Map<string, string> = new Map();
  /** Empty for none. */
  body: Uint8Array = new Uint8Array(0);
}

/** The answer to a Request. */
export class Response {
  /** 0: there was no answer, and body says why. Any other status is an answer. */
  status: i32 = 0;
  /** Names in lower case. */
  headers: Map<string, string> = new Map();
  /** As it came, bounded by the host. */
  body: Uint8Array = new Uint8Array(0);
}

/** Makes a request to a host that the capability "http" lists. */
export function http(q: Request): Response {
  const w = new Writer();
  w.beginObject();
  w.text("method", q.method);
  w.text("url", q.url);
  if (q.headers.size) w.map("headers", q.headers);
  w.endObject();
  const res = new Response();
  res.body = take(kHttpRequest(put(w.out.at, w.out.length), putBytes(q.body)));
  res.status = kHttpStatus();
  if (res.status) {
    const headers = take(kHttpHeaders());
    if (headers.length) {
      const r = reader(headers);
      res.headers = r.map();
      if (!r.end()) {
        res.status = 0;
        res.body = bytes("read answer of http_headers: " + r.wrong);
      }
    }
  }
  return res;
}

/** A binary to run. */
export class Command {
  /** One of the paths in the capability "exec". */
  path: string = "";
  /** Without the program's name. */
  args: string[] = [];
  /** Beneath one of the call's roots. */
  cwd: string = "";
  /** Its variables, beside those that the host sets. */
  env: Map<string, string> = new Map();
  /** Its input. */
  stdin: Uint8Array = new Uint8Array(0);
}

/** What came of a Command. */
export class Exited {
  /** 0 for success. */
  exitCode: i32 = 0;
  /** Its standard output. */
  stdout: Uint8Array = new Uint8Array(0);
  /** Its standard error. */
  stderr: Uint8Array = new Uint8Array(0);
  /** The host kept only the ends of them. */
  truncated: bool = false;
  /** Not empty: nothing ran, for this reason. */
  error: string = "";
}

/** Runs a binary and waits for it. One that ran and failed is an exit code. */
export function exec(q: Command): Exited {
  const w = new Writer();
  w.beginObject();
  w.text("path", q.path);
  if (q.args.length) w.list("args", q.args);
  w.text("cwd", q.cwd);
  if (q.env.size) w.map("env", q.env);
  if (q.stdin.length) w.text("stdin_base64", base64.encode(q.stdin));
  w.endObject();
  const res = new Exited();
  const r = reader(take(kExec(put(w.out.at, w.out.length))));
  if (r.object())
    while (r.member()) {
      const name = r.name;
      if (name == "exit_code") res.exitCode = r.int32();
      else if (name == "stdout_base64") res.stdout = data(r);
      else if (name == "stderr_base64") res.stderr = data(r);
      else if (name == "truncated") res.truncated = r.bool();
      else if (name == "error") res.error = message(r);
      else r.skip();
    }
  if (!r.end()) res.error = "read answer of tool_exec: " + r.wrong;
  return res;
}

function data(r: Reader): Uint8Array {
  const b = base64.decode(r.string());
  if (b != null) return b;
  r.fail("not base64");
  return new Uint8Array(0);
}

/** Reads the message of an error; "" for null. */
function message(r: Reader): string {
  if (!r.object()) return "";
  let message = "error without a message";
  while (r.member()) {
    if (r.name == "message") message = r.string();
    else r.skip();
  }
  return message;
}

/**
 * Sends output while the call runs: to "stdout", "stderr" or "progress" (one
 * JSON value). It waits while the caller is slow. It answers why not, or "" when
 * it was sent: stop when the caller has left.
 */
export function emit(stream: string, bytes: Uint8Array): string {
  const w = new Writer();
  w.beginObject();
  w.text("stream", stream);
  w.name("data_base64");
  w.string(base64.encode(bytes));
  w.endObject();
  const r = reader(take(kEmit(put(w.out.at, w.out.length))));
  let why = "";
  if (r.object())
    while (r.member()) {
      if (r.name == "error") why = message(r);
      else r.skip();
    }
  return r.end() ? why : "read answer of tool_emit: " + r.wrong;
}

/** What recv answers. */
export class Received {
  /** The next piece of the caller's input; null at its end, or where error says why. */
  data: Uint8Array | null = null;
  /** Not empty: nothing was received, for this reason. */
  error: string = "";
}

/** Waits for the next piece of the caller's input, or for a message that steers this call. */
export function recv(): Received {
  const got = new Received();
  const r = reader(take(kRecv(0)));
  let eof = false;
  got.data = new Uint8Array(0);
  if (r.object())
    while (r.member()) {
      const name = r.name;
      if (name == "data_base64") got.data = data(r);
      else if (name == "eof") eof = r.bool();
      else if (name == "error") got.error = message(r);
      else r.skip();
    }
  if (!r.end()) got.error = "read answer of tool_recv: " + r.wrong;
  if (eof || got.error.length) got.data = null;
  return got;
}

/** Makes a call as this session and identity: an envelope in, the response out; "" when this call may make none. Which tools and session calls it may make is said in capabilities.tool_call of tool.json. */
export function toolCall(envelope: string): string { return text(take(kCall(putText(envelope)))); }
