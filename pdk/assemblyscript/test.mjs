// node test.mjs MODULE: the conformance guest against the vectors of
// pdk/testdata, in a host of a hundred lines. The suite proper is pdk/pdktest;
// this one needs no more than npm test.
import { readFileSync } from "node:fs";
import { deepStrictEqual } from "node:assert";

const module = new WebAssembly.Module(readFileSync(process.argv[2]));
const utf8 = new TextEncoder(), utf16 = new TextDecoder();

function run(v) {
  const input = utf8.encode("in" in v ? JSON.stringify(v.in) : v.input);
  const blocks = new Map();
  let top = 8n, output = new Uint8Array(0), error = "", memory, httpStatus = 0;
  const told = { log: [], emitted: [], vars: { ...v.vars } };
  const recv = [...(v.recv ?? [])];

  const alloc = (n) => { const at = top; top += n + 8n; blocks.set(at, new Uint8Array(Number(n))); return at; };
  const place = (at) => { for (const [from, b] of blocks) if (at >= from && at < from + BigInt(b.length)) return [b, Number(at - from)]; throw new Error("no block at " + at); };
  const bytes = (at) => at ? blocks.get(at) : new Uint8Array(0);
  const text = (at) => utf16.decode(bytes(at));
  const put = (s) => { const b = typeof s == "string" ? utf8.encode(s) : s; if (!b.length) return 0n; const at = alloc(BigInt(b.length)); blocks.get(at).set(b); return at; };
  const view = (b) => new DataView(b.buffer, b.byteOffset, b.byteLength);
  const same = (asked, want) => deepStrictEqual(asked, want);

  const env = {
    alloc, free: (at) => { blocks.delete(at); }, length: (at) => BigInt(bytes(at).length),
    load_u8: (at) => { const [b, i] = place(at); return b[i]; },
    load_u64: (at) => { const [b, i] = place(at); return view(b).getBigUint64(i, true); },
    store_u8: (at, c) => { const [b, i] = place(at); b[i] = c; },
    store_u64: (at, w) => { const [b, i] = place(at); view(b).setBigUint64(i, w, true); },
    input_length: () => BigInt(input.length),
    input_load_u8: (i) => input[Number(i)], input_load_u64: (i) => view(input).getBigUint64(Number(i), true),
    output_set: (at, n) => { output = n ? bytes(at).slice(0, Number(n)) : new Uint8Array(0); },
    error_set: (at) => { error = text(at); },
    config_get: (key) => put(v.config?.[text(key)] ?? ""),
    var_get: (key) => text(key) in told.vars ? put(told.vars[text(key)]) : 0n,
    var_set: (key, value) => { if (value) told.vars[text(key)] = text(value); else delete told.vars[text(key)]; },
    http_request: (q, body) => {
      const asked = JSON.parse(text(q));
      asked.headers = Object.fromEntries(Object.entries(asked.headers ?? {}).map(([k, x]) => [k.toLowerCase(), x]));
      if (body) asked.body = text(body);
      same(asked, v.asked_http);
      httpStatus = v.http.status ?? 0;
      return put(v.http.error ?? v.http.body ?? "");
    },
    http_status_code: () => httpStatus,
    http_headers: () => put(JSON.stringify(v.http.headers ?? {})),
  };
  for (const level of ["debug", "info", "warn", "error"]) env["log_" + level] = (at) => { told.log.push({ level, text: text(at) }); };
  const user = {
    tool_exec: (q) => { same(JSON.parse(text(q)), v.asked_exec); return put(JSON.stringify(v.exec)); },
    tool_emit: (q) => { const e = JSON.parse(text(q)); told.emitted.push({ stream: e.stream, text: Buffer.from(e.data_base64, "base64").toString() }); return put("{}"); },
    tool_recv: () => put(JSON.stringify(recv.length ? { data_base64: Buffer.from(recv.shift()).toString("base64") } : { eof: true })),
    tool_call: (q) => { same(JSON.parse(text(q)), v.asked_tool_call); return put(JSON.stringify(v.tool_call)); },
    tool_read: (to, at, n) => { const p = input.subarray(Number(at), Number(at) + n); new Uint8Array(memory.buffer).set(p, to); return p.length; },
    tool_write: (from, n) => { output = new Uint8Array(memory.buffer).slice(from, from + n); },
  };

  const guest = new WebAssembly.Instance(module, { "extism:host/env": env, "extism:host/user": user });
  memory = guest.exports.memory;
  let code;
  try {
    code = guest.exports[v.export]();
  } catch (trap) {
    if (!(trap instanceof WebAssembly.RuntimeError)) throw trap;
    code = 1;
  }
  if (!("out" in v)) {
    if (code === 0) throw new Error("answered " + utf16.decode(output) + ", must fail");
    if (v.message && !error.includes(v.message)) throw new Error(`failed with ${error}, must say ${v.message}`);
    return;
  }
  if (code !== 0) throw new Error("failed: " + error);
  same(JSON.parse(utf16.decode(output)), v.out);
  same(told, { log: v.log ?? [], emitted: v.emitted ?? [], vars: v.vars_after ?? v.vars ?? {} });
}

let failed = 0, tried = 0;
for (const file of ["describe", "restrict", "handle", "discover", "classify", "reconcile", "wire"]) {
  for (const v of JSON.parse(readFileSync(new URL(`../testdata/${file}.json`, import.meta.url)))) {
    tried++;
    try {
      run(v);
    } catch (e) {
      failed++;
      console.error(`${v.export}/${v.name}: ${e.message}`);
    }
  }
}
console.log(`${tried} vectors, ${failed} failed`);
process.exit(failed || !tried ? 1 : 0);
