// The conformance guest of the AssemblyScript SDK. What each request does is in
// the documentation of package pdktest.

import {
  Classification, Discovery, Ended, Reconcile, Reconciliation, Safety, Surface, SurfaceTool, onClassify, onDiscover, onReconcile, onWire, Wire,
  Annotations, Call, Command, Decision, Describe, Failure, Icon, Level, Opt, Outcome, Request, Writer, base64, bytes, config, emit, exec, http, log,
  onDescribe, onHandle, onRestrict, recv, text, toolCall, varDelete, varGet, varSet,
} from "../assembly/index";

export function describe(): i32 {
  const d = new Describe();
  d.name = "pdktest";
  d.description = "the conformance guest";
  d.schema = '{"type":"object"}';
  const a = new Annotations();
  a.title = "Conformance";
  a.readOnly = Opt.Yes;
  a.destructive = Opt.No;
  d.annotations = a;
  d.wants = ["repo_config"];
  return onDescribe(d);
}

export function restrict(): i32 { return onRestrict(policy); }
export function handle(): i32 { return onHandle(answer); }

function policy(c: Call): Decision {
  if (!c.args.length) return Decision.deny("pdktest.none", "there is no request");
  const request = c.args[0];
  if (request == "allow") return Decision.allow();
  if (request == "ask") {
    const d = Decision.ask("pdktest.ask", "asked to ask");
    const by = d.approval!;
    by.by = c.args.slice(1);
    by.self = true;
    by.ttlMs = 60000;
    return d;
  }
  if (request == "deny") return Decision.deny("pdktest.deny", "asked to deny", "ask to allow");
  if (request == "rewrite") {
    const d = Decision.allow();
    d.rule = "pdktest.rewrite";
    const args = c.args.slice(1).reverse();
    d.args = args;
    const env = new Map<string, string>();
    env.set("REWRITTEN", "yes");
    d.env = env;
    d.stdinBase64 = base64.encode(bytes("rewritten\n"));
    d.mutating = Opt.Yes;
    d.idempotent = Opt.No;
    d.idempotencyKey = "key-" + args.length.toString();
    d.timeoutMs = 1500;
    d.stdin = Opt.No;
    d.shell = true;
    d.shellLines = args;
    return d;
  }
  if (request == "empty") {
    const d = Decision.allow();
    d.args = [];
    d.env = new Map<string, string>();
    d.stdinBase64 = "";
    return d;
  }
  if (request == "config") {
    const v = config(c.args[1]);
    return Decision.deny("pdktest.config", v.length ? v : "absent");
  }
  if (request == "repo") {
    const repo = c.repoConfig;
    if (repo == null) return Decision.deny("pdktest.repo", "none");
    if (repo.error.length) return Decision.deny("pdktest.repo", repo.error);
    return Decision.deny("pdktest.repo", repo.entries.map<string>((e) => e.key + "=" + e.value).join(";"));
  }
  if (request == "fail") return Decision.failed("asked to fail");
  if (request == "trap") throw new Error("asked to trap");
  return Decision.deny("pdktest.unknown", "unknown request: " + request);
}

function ends(exitCode: i32, stderr: string): Outcome {
  const r = new Outcome();
  r.exitCode = exitCode;
  r.stderr = stderr;
  return r;
}

function object(name: string, json: string): Outcome {
  const w = new Writer();
  w.beginObject();
  w.name(name);
  w.raw(json);
  w.endObject();
  return Outcome.data(w.toString());
}

function quoted(s: string): string {
  const w = new Writer();
  w.string(s);
  return w.toString();
}

function variable(key: string): Outcome {
  const v = varGet(key);
  return object("value", v == null ? "null" : quoted(text(v)));
}

let count = 0;

function answer(c: Call): Outcome {
  if (!c.args.length) return ends(2, "there is no request\n");
  const request = c.args[0];
  const rest = c.args.slice(1);
  if (request == "call") return Outcome.data(c.toString());
  if (request == "stdout") return Outcome.text(rest.join(" "));
  if (request == "stderr") return ends(0, rest.join(" "));
  if (request == "exit") return ends(i32.parse(rest[0]), "");
  if (request == "bytes") {
    const n = rest[0].length / 2;
    const out = new Uint8Array(n);
    for (let i = 0; i < n; i++) out[i] = <u8>I32.parseInt(rest[0].substring(2 * i, 2 * i + 2), 16);
    const r = new Outcome();
    r.stdoutBytes = out;
    r.stderrBytes = out.slice().reverse();
    return r;
  }
  if (request == "data") return Outcome.data(c.payload);
  if (request == "error") {
    const r = new Outcome();
    r.error = new Failure(rest[0], rest[1], true);
    return r;
  }
  if (request == "safety") {
    const r = new Outcome();
    r.safety = new Safety(true, rest[0]);
    return r;
  }
  if (request == "gone") {
    const r = new Outcome();
    r.gone = true;
    return r;
  }
  if (request == "fail") return Outcome.failed(rest.join(" "));
  if (request == "trap") throw new Error("asked to trap");
  if (request == "config") {
    const v = config(rest[0]);
    return object("value", v.length ? quoted(v) : "null");
  }
  if (request == "var-get") return variable(rest[0]);
  if (request == "var-set") {
    varSet(rest[0], bytes(rest[1]));
    return variable(rest[0]);
  }
  if (request == "var-delete") {
    varDelete(rest[0]);
    return variable(rest[0]);
  }
  if (request == "log") {
    let level = Level.Error;
    if (rest[0] == "debug") level = Level.Debug;
    if (rest[0] == "info") level = Level.Info;
    if (rest[0] == "warn") level = Level.Warn;
    log(level, rest[1]);
    return new Outcome();
  }
  if (request == "emit") {
    for (let i = 1; i < rest.length; i++) {
      const why = emit(rest[0], bytes(rest[i]));
      if (why.length) return Outcome.failed(why);
    }
    return new Outcome();
  }
  if (request == "recv") {
    const pieces: string[] = [];
    while (true) {
      const got = recv();
      if (got.error.length) return Outcome.failed(got.error);
      const data = got.data;
      if (data == null) break;
      pieces.push(quoted(text(data)));
    }
    return object("pieces", "[" + pieces.join(",") + "]");
  }
  if (request == "http") {
    const q = new Request();
    q.method = rest[0];
    q.url = rest[1];
    q.headers.set("X-Request", "pdktest");
    q.body = bytes(rest[2]);
    const res = http(q);
    if (!res.status) return object("failed", "true");
    const w = new Writer();
    w.beginObject();
    w.number("status", res.status);
    w.name("reply");
    w.string(res.headers.has("x-reply") ? res.headers.get("x-reply") : "");
    w.name("body");
    w.string(text(res.body));
    w.endObject();
    return Outcome.data(w.toString());
  }
  if (request == "exec") {
    const q = new Command();
    q.path = rest[0];
    q.args = rest.slice(1);
    q.cwd = c.cwd;
    q.env.set("A", "b");
    q.stdin = bytes("in");
    const res = exec(q);
    if (res.error.length) return object("refused", quoted(res.error));
    const w = new Writer();
    w.beginObject();
    w.name("exit_code");
    w.int(res.exitCode);
    w.name("stdout");
    w.string(text(res.stdout));
    w.name("stderr");
    w.string(text(res.stderr));
    w.endObject();
    return Outcome.data(w.toString());
  }
  if (request == "tool-call") return Outcome.data(toolCall(c.payload));
  if (request == "length") {
    const b = c.stdin();
    if (b == null) return Outcome.failed("not base64");
    return object("length", b.length.toString());
  }
  if (request == "large") return Outcome.text("x".repeat(i32.parse(rest[0])));
  if (request == "count") return object("count", (++count).toString());
  return ends(2, "unknown request: " + request + "\n");
}

export function discover(): i32 { return onDiscover(surface); }
export function classify(): i32 { return onClassify(means); }
export function reconcile(): i32 { return onReconcile(ended); }

function surface(d: Discovery): Surface {
  const s = new Surface();
  if (config("server") == "refuses") {
    s.error = new Failure("UNAUTHENTICATED", "no such user");
    return s;
  }
  if (config("server") == "fails") {
    s.failure = "the server is away";
    return s;
  }
  const one = new SurfaceTool("one");
  one.title = "One";
  one.description = "the first";
  one.schema = '{"type":"object"}';
  one.outputSchema = '{"type":"object","required":["ok"]}';
  const icon = new Icon("https://pdktest.example/one.png");
  icon.mimeType = "image/png";
  icon.sizes = ["48x48", "any"];
  icon.theme = "dark";
  one.icons = [icon, new Icon("data:,")];
  const a = new Annotations();
  a.readOnly = Opt.Yes;
  one.annotations = a;
  one.binding = '{"view":"v"}';
  s.tools.push(one);
  if (!d.readOnly) {
    const two = new SurfaceTool("two");
    two.mutating = true;
    s.tools.push(two);
  }
  s.safety = new Safety(d.readOnly, d.tool);
  s.ttlMs = 60000;
  return s;
}

function means(e: Ended): Classification {
  const again = bytes("try again?");
  again[again.length - 1] = 0xff;
  let same = e.stderr.length == again.length;
  for (let i = 0; same && i < again.length; i++) same = e.stderr[i] == again[i];
  const c = new Classification(e.exitCode >= 2, same);
  if (!e.call.args.length) c.error = "there is no request";
  return c;
}

function ended(q: Reconcile): Reconciliation {
  const a = new Reconciliation();
  const args = q.call.args;
  if (!args.length) {
    a.failure = "there is no request";
    return a;
  }
  if (q.before) {
    const w = new Writer();
    w.beginObject();
    w.name("key");
    w.string(q.key);
    w.name("of");
    w.string(q.call.executionId);
    w.endObject();
    a.facts = w.toString();
    return a;
  }
  const request = args[0];
  if (request == "run" && !q.ran.length) {
    a.run = [args.slice(1), []];
    return a;
  }
  if (request == "run")
    return Reconciliation.unresolved(q.ran.map<string>((r) => {
      const e = r.error;
      const error = e == null ? "none" : [e.code, e.message, e.retriable ? "true" : "false"].join(":");
      return [r.args.join(","), r.exitCode.toString(), r.stdout, r.stderr, r.truncated ? "true" : "false", error].join(">");
    }).join(";"));
  if (request == "asked")
    return Reconciliation.unresolved([
      q.key, q.stdinSHA256, q.env.join(","), q.beganMs.toString(), q.endedMs.toString(), q.nowMs.toString(), q.gone ? "true" : "false",
    ].join("|"));
  if (request == "done") {
    const result = Outcome.text(args.slice(1).join(" "));
    result.data = q.facts;
    return Reconciliation.done("it is there", result);
  }
  if (request == "not-done") return q.gone ? Reconciliation.notDone("it is not there") : Reconciliation.unresolved("it may still run");
  if (request == "fail") a.failure = "asked to fail";
  return a;
}

export function wire(): i32 { return onWire(sent); }

function sent(w: Wire): Decision {
  const args = w.call.args;
  if (!args.length) return Decision.failed("there is no request");
  const request = args[0];
  if (request == "allow") return Decision.allow();
  if (request == "fail") return Decision.failed("asked to fail");
  if (request != "asked") return Decision.deny("pdktest.unknown", "unknown request: " + request);
  const refs = w.refs.map<string>((r) => {
    const force = r.force == Opt.Unsaid ? "null" : r.force == Opt.Yes ? "true" : "false";
    return [r.name, r.old, r.new, force].join(":");
  }).join(",");
  const told = [w.on, w.host, w.port.toString(), w.path, w.method, w.remote, refs, w.pushOptions.join(",")];
  return Decision.deny("pdktest.wire", told.join("|"));
}
