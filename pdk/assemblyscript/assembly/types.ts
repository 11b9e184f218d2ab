// What guests are asked and what they answer. `toolctl schema abi` says what
// each field means.

import * as base64 from "./base64";
import { Reader, Writer } from "./json";

/** The version of the guest interface that this SDK speaks. */
export const ABI: i64 = 1;

/** A yes or no that may be left unsaid. */
export enum Opt { Unsaid, No, Yes }

function opt(w: Writer, name: string, v: Opt): void {
  if (v == Opt.Unsaid) return;
  w.name(name);
  w.bool(v == Opt.Yes);
}

/** One line of a RepoConfig. */
export class Entry {
  /** A key and its value. */
  constructor(public key: string, public value: string) {}
}

/** The configuration of the git repository around cwd. */
export class RepoConfig {
  /** Keys and values in the order in which git reads them. Section and name are in lower case. */
  entries: Entry[] = [];
  /** Those of all submodules that the repository keeps. */
  submodules: Entry[] = [];
  /** What else the repository keeps that git acts on: names of files, from the git directory on, and what they hold. HEAD is always there when there is a repository. */
  state: Entry[] = [];
  /** Keys and values of all repositories beneath the roots that remotes, or the call's own arguments, name by a path. */
  remotes: Entry[] = [];
  /** Why one of those cannot be trusted. A policy should then deny what goes to a remote that is a path. */
  remoteError: string = "";
  /** Why it could not be read; empty where it could. A policy should then deny what depends on it. */
  error: string = "";
}

/** What a policy and a handler are asked. */
export class Call {
  /** The name of the tool. */
  tool: string = "";
  /** What the caller asked, without the tool's name. */
  args: string[] = [];
  /** An absolute path beneath one of roots, without symlinks. */
  cwd: string = "";
  /** The folders beneath which this call may work. */
  roots: string[] = [];
  /** JSON of an envelope call as it came, or "": see Reader and member. */
  payload: string = "";
  /** The input that came with the request itself, see stdin(). What is streamed comes through recv. */
  stdinBase64: string = "";
  /** The variables that the caller set and the tool admits. */
  env: Map<string, string> = new Map();
  /** The call's own id, the same in each attempt. */
  executionId: string = "";
  /** Counts from 1. */
  attempt: i64 = 0;
  /** The session, empty without one. */
  session: string = "";
  /** An opaque name of who calls: stable for one identity, never something that the caller wrote. */
  caller: string = "";
  /** The identity may only read. */
  readOnly: bool = false;
  /** JSON as it came, or "". */
  binding: string = "";
  /** How many milliseconds the call has left. */
  deadlineMs: i64 = 0;
  /** The configuration of the git repository around cwd, where Describe.wants asks for it; else null. */
  repoConfig: RepoConfig | null = null;

  /** Fields that it does not know are passed over: a newer host may send some. */
  static read(r: Reader): Call {
    const c = new Call();
    if (!r.object()) {
      r.fail("not an object");
      return c;
    }
    while (r.member()) {
      const name = r.name;
      if (name == "tool") c.tool = r.string();
      else if (name == "args") c.args = r.strings();
      else if (name == "cwd") c.cwd = r.string();
      else if (name == "roots") c.roots = r.strings();
      else if (name == "payload") c.payload = r.raw();
      else if (name == "stdin_base64") c.stdinBase64 = r.string();
      else if (name == "env") c.env = r.map();
      else if (name == "execution_id") c.executionId = r.string();
      else if (name == "attempt") c.attempt = r.int();
      else if (name == "session") c.session = r.string();
      else if (name == "caller") c.caller = r.string();
      else if (name == "read_only") c.readOnly = r.bool();
      else if (name == "binding") c.binding = r.raw();
      else if (name == "deadline_ms") c.deadlineMs = r.int();
      else if (name == "repo_config") c.repoConfig = readRepo(r);
      else r.skip();
    }
    return c;
  }

  /** The input that came with the request, or null where it is not base64. */
  stdin(): Uint8Array | null { return base64.decode(this.stdinBase64); }

  /** Writes the Call as a host does. */
  toString(): string {
    const w = new Writer();
    w.beginObject();
    w.name("tool");
    w.string(this.tool);
    if (this.args.length) w.list("args", this.args);
    w.text("cwd", this.cwd);
    if (this.roots.length) w.list("roots", this.roots);
    w.json("payload", this.payload);
    w.text("stdin_base64", this.stdinBase64);
    if (this.env.size) w.map("env", this.env);
    w.text("execution_id", this.executionId);
    w.number("attempt", this.attempt);
    w.text("session", this.session);
    w.text("caller", this.caller);
    w.yes("read_only", this.readOnly);
    w.json("binding", this.binding);
    w.number("deadline_ms", this.deadlineMs);
    const repo = this.repoConfig;
    if (repo != null) {
      w.name("repo_config");
      w.beginObject();
      writeEntries(w, "entries", repo.entries);
      writeEntries(w, "submodules", repo.submodules);
      writeEntries(w, "state", repo.state);
      writeEntries(w, "remotes", repo.remotes);
      w.text("remote_error", repo.remoteError);
      w.text("error", repo.error);
      w.endObject();
    }
    w.endObject();
    return w.toString();
  }
}

function readRepo(r: Reader): RepoConfig | null {
  if (r.null()) return null;
  const repo = new RepoConfig();
  if (r.object())
    while (r.member()) {
      const name = r.name;
      if (name == "entries") repo.entries = readEntries(r);
      else if (name == "submodules") repo.submodules = readEntries(r);
      else if (name == "state") repo.state = readEntries(r);
      else if (name == "remotes") repo.remotes = readEntries(r);
      else if (name == "remote_error") repo.remoteError = r.string();
      else if (name == "error") repo.error = r.string();
      else r.skip();
    }
  return repo;
}

function readEntries(r: Reader): Entry[] {
  const list: Entry[] = [];
  if (r.array())
    while (r.item()) {
      const e = new Entry("", "");
      if (r.object())
        while (r.member()) {
          const name = r.name;
          if (name == "key") e.key = r.string();
          else if (name == "value") e.value = r.string();
          else r.skip();
        }
      list.push(e);
    }
  return list;
}

function writeEntries(w: Writer, name: string, list: Entry[]): void {
  if (!list.length) return;
  w.name(name);
  w.beginArray();
  for (let i = 0; i < list.length; i++) {
    w.beginObject();
    w.name("key");
    w.string(list[i].key);
    w.name("value");
    w.string(list[i].value);
    w.endObject();
  }
  w.endArray();
}

/** Who may approve a call, beside the operator. */
export class Approval {
  /** "sub:NAME" is the subject of a token, "uid:NUMBER" a user without one, 32 hexadecimal digits the ID of an identity. */
  by: string[] = [];
  /** Lets whoever calls approve it, too. */
  self: bool = false;
  /** How long there is, in milliseconds; 0 is 15 minutes. */
  ttlMs: i64 = 0;
  /** Shown to who decides, and a part of what is approved: what the call would do. */
  text: string = "";
}

/** What a policy answers: begin with allow, ask or deny. */
export class Decision {
  /** "allow", "ask" or "deny". */
  effect: string = "deny";
  /** With "ask", who may approve the call. */
  approval: Approval | null = null;
  /** Names the rule that decided, for logs and for the caller. */
  rule: string = "";
  /** Says why, to the caller of a denied call. */
  reason: string = "";
  /** Says what to do instead, to the caller of a denied call. */
  instead: string = "";
  /** null leaves what was asked, as in env and stdinBase64. */
  args: string[] | null = null;
  /** The variables of what runs; null leaves what was asked. */
  env: Map<string, string> | null = null;
  /** Its input. */
  stdinBase64: string | null = null;
  /** Whether the call changes something; Unsaid leaves what tool.json says. */
  mutating: Opt = Opt.Unsaid;
  /** Whether it may be made twice; Unsaid leaves what tool.json says. */
  idempotent: Opt = Opt.Unsaid;
  /** Calls with the same key are one call. Empty leaves what the caller said. */
  idempotencyKey: string = "";
  /** Narrows the tool's timeout, in milliseconds; 0 leaves it. */
  timeoutMs: i64 = 0;
  /** Whether this call wants the caller's input; Unsaid leaves what tool.json says. */
  stdin: Opt = Opt.Unsaid;
  /** This call cannot do without the shell that capabilities.exec lists. It runs without the tool's secrets then. */
  shell: bool = false;
  /**
   * With shell, the only command lines that the shell is given with -c: what runs must be one of them, or one of them
   * followed by a space and words in single quotes. Empty: any line.
   */
  shellLines: string[] = [];
  /** Not empty: the call fails with this text. */
  failure: string = "";

  /** Lets the call run as it was asked. Set fields to change what runs. */
  static allow(): Decision {
    const d = new Decision();
    d.effect = "allow";
    return d;
  }

  /**
   * Lets the call run, as it was asked, once somebody has approved it. text is shown to who decides. Set fields, those of
   * approval too, to change what runs and who may.
   */
  static ask(rule: string, text: string): Decision {
    const d = new Decision(), a = new Approval();
    a.text = text;
    d.effect = "ask";
    d.rule = rule;
    d.approval = a;
    return d;
  }

  /**
   * Refuses. rule is for logs; reason says which argument is at fault and why,
   * instead what the caller can do: both are shown to the caller.
   */
  static deny(rule: string, reason: string, instead: string = ""): Decision {
    const d = new Decision();
    d.rule = rule;
    d.reason = reason;
    d.instead = instead;
    return d;
  }

  /** An error of the policy: the host refuses the call. */
  static failed(why: string): Decision {
    const d = new Decision();
    d.failure = why;
    return d;
  }

  /** Writes what the export answers. */
  write(w: Writer): void {
    w.beginObject();
    w.text("effect", this.effect);
    w.text("rule", this.rule);
    w.text("reason", this.reason);
    w.text("instead", this.instead);
    const approval = this.approval;
    if (approval != null) {
      w.name("ask");
      w.beginObject();
      if (approval.by.length) w.list("by", approval.by);
      w.yes("self", approval.self);
      w.number("ttl_ms", approval.ttlMs);
      w.text("text", approval.text);
      w.endObject();
    }
    const args = this.args;
    if (args != null) w.list("args", args);
    const env = this.env;
    if (env != null) w.map("env", env);
    const stdin = this.stdinBase64;
    if (stdin != null) {
      w.name("stdin_base64");
      w.string(stdin);
    }
    opt(w, "mutating", this.mutating);
    opt(w, "idempotent", this.idempotent);
    w.text("idempotency_key", this.idempotencyKey);
    w.number("timeout_ms", this.timeoutMs);
    opt(w, "stdin", this.stdin);
    w.yes("shell", this.shell);
    if (this.shellLines.length) w.list("shell_lines", this.shellLines);
    w.endObject();
  }
}

/** A tool's own failure; code is for programs: UPPER_SNAKE_CASE. */
export class Failure {
  /** code is for programs, UPPER_SNAKE_CASE; message for people; retriable says that the same call may succeed when made again. */
  constructor(public code: string, public message: string, public retriable: bool = false) {}
}

/** What an identity may do, as a module's server says it. */
export class Safety {
  /** grants is any text that changes when the grants do. */
  constructor(public readOnly: bool, public grants: string) {}
}

function writeSafety(w: Writer, s: Safety | null): void {
  if (s == null) return;
  w.name("safety");
  w.beginObject();
  w.yes("read_only", s.readOnly);
  w.text("grants", s.grants);
  w.endObject();
}

function writeFailure(w: Writer, e: Failure | null): void {
  if (e == null) return;
  w.name("error");
  w.beginObject();
  w.text("code", e.code);
  w.name("message");
  w.string(e.message);
  w.yes("retriable", e.retriable);
  w.endObject();
}

/** What a handler answers. */
export class Outcome {
  /** 0 for success. */
  exitCode: i32 = 0;
  /** Text for standard output. */
  stdout: string = "";
  /** Text for standard error. */
  stderr: string = "";
  /** Bytes that are not text. */
  stdoutBytes: Uint8Array | null = null;
  /** See stdoutBytes. */
  stderrBytes: Uint8Array | null = null;
  /** One JSON value. */
  data: string = "";
  /** A failure that the tool has a name for. */
  error: Failure | null = null;
  /** What the binding names is no longer there, and nothing was done: the host makes the identity's tools anew. */
  gone: bool = false;
  /** What the call found out about the identity's grants. */
  safety: Safety | null = null;
  /** Not empty: the call fails with this text. */
  failure: string = "";

  /** Text on standard output, and exit code 0. */
  static text(s: string): Outcome {
    const r = new Outcome();
    r.stdout = s;
    return r;
  }

  /** One JSON value. */
  static data(json: string): Outcome {
    const r = new Outcome();
    r.data = json;
    return r;
  }

  /** A failure that the tool has a name for: UPPER_SNAKE_CASE. */
  static fails(code: string, message: string): Outcome {
    const r = new Outcome();
    r.error = new Failure(code, message);
    return r;
  }

  /** The call fails with this text. */
  static failed(why: string): Outcome {
    const r = new Outcome();
    r.failure = why;
    return r;
  }

  /** Writes what the export answers. */
  write(w: Writer): void {
    w.beginObject();
    w.name("exit_code");
    w.int(this.exitCode);
    w.text("stdout", this.stdout);
    w.text("stderr", this.stderr);
    const stdout = this.stdoutBytes;
    if (stdout != null) w.text("stdout_base64", base64.encode(stdout));
    const stderr = this.stderrBytes;
    if (stderr != null) w.text("stderr_base64", base64.encode(stderr));
    w.json("data", this.data);
    writeFailure(w, this.error);
    w.yes("gone", this.gone);
    writeSafety(w, this.safety);
    w.endObject();
  }
}

/** What a tool is like. They inform; they never grant. */
export class Annotations {
  /** For people. */
  title: string = "";
  /** It changes nothing. */
  readOnly: Opt = Opt.Unsaid;
  /** It may destroy something. */
  destructive: Opt = Opt.Unsaid;
  /** To call it twice is to call it once. */
  idempotent: Opt = Opt.Unsaid;
  /** It deals with what is outside, such as the web. */
  openWorld: Opt = Opt.Unsaid;
}

function writeAnnotations(w: Writer, a: Annotations | null): void {
  if (a == null) return;
  w.name("annotations");
  w.beginObject();
  w.text("title", a.title);
  opt(w, "read_only", a.readOnly);
  opt(w, "destructive", a.destructive);
  opt(w, "idempotent", a.idempotent);
  opt(w, "open_world", a.openWorld);
  w.endObject();
}

/** What describe answers. */
export class Describe {
  /** The version of the interface that the module was written for. */
  abi: i64 = ABI;
  /** The name of the tool. */
  name: string = "";
  /** What it is for. */
  description: string = "";
  /** JSON. */
  schema: string = "";
  /** They inform; they never grant. */
  annotations: Annotations | null = null;
  /** What a policy needs in its Call and costs the host something: "repo_config". */
  wants: string[] = [];

  /** Writes what the export answers. */
  write(w: Writer): void {
    w.beginObject();
    w.number("abi", this.abi);
    w.text("name", this.name);
    w.text("description", this.description);
    w.json("schema", this.schema);
    writeAnnotations(w, this.annotations);
    if (this.wants.length) w.list("wants", this.wants);
    w.endObject();
  }
}

/** What discover is asked: which tools the module brings for one identity. */
export class Discovery {
  /** The module's own name. */
  tool: string = "";
  /** The identity may only read; tools that change something would not be shown. */
  readOnly: bool = false;
  /** How many milliseconds the discovery has left. */
  deadlineMs: i64 = 0;

  /** Reads what the export is asked. */
  static read(r: Reader): Discovery {
    const d = new Discovery();
    if (!r.object()) {
      r.fail("not an object");
      return d;
    }
    while (r.member()) {
      const name = r.name;
      if (name == "tool") d.tool = r.string();
      else if (name == "read_only") d.readOnly = r.bool();
      else if (name == "deadline_ms") d.deadlineMs = r.int();
      else r.skip();
    }
    return d;
  }
}

/** A picture of a tool, for people who choose one. */
export class Icon {
  /** For example "image/png". */
  mimeType: string = "";
  /** Such as "48x48" or "any". */
  sizes: string[] = [];
  /** "light" or "dark" where it is for that background. */
  theme: string = "";
  /** src is an https: or data: URL. */
  constructor(public src: string) {}
}

function writeIcons(w: Writer, icons: Icon[]): void {
  if (!icons.length) return;
  w.name("icons");
  w.beginArray();
  for (let i = 0; i < icons.length; i++) {
    w.beginObject();
    w.name("src");
    w.string(icons[i].src);
    w.text("mime_type", icons[i].mimeType);
    if (icons[i].sizes.length) w.list("sizes", icons[i].sizes);
    w.text("theme", icons[i].theme);
    w.endObject();
  }
  w.endArray();
}

/** One tool of a Surface. */
export class SurfaceTool {
  /** For people. */
  title: string = "";
  /** What it is for. */
  description: string = "";
  /** JSON. */
  schema: string = "";
  /** JSON. A call whose data is something else fails. */
  outputSchema: string = "";
  /** For people who choose a tool. The host does not load them. */
  icons: Icon[] = [];
  /** They inform; they never grant. */
  annotations: Annotations | null = null;
  /** A call changes something. A tool without it can make GET and HEAD requests only. */
  mutating: bool = false;
  /** JSON; comes back with each call of the tool. */
  binding: string = "";
  /** name matches ^[a-z0-9][a-z0-9_-]{0,63}$, and no other tool has it. */
  constructor(public name: string) {}
}

/** What discover answers. That the server refuses the identity goes into error, with the code UNAUTHENTICATED. */
export class Surface {
  /** The identity's tools. */
  tools: SurfaceTool[] = [];
  /** What the identity may do, where the server says it. */
  safety: Safety | null = null;
  /** How many milliseconds this is fresh; 0 is the host's 15 minutes. */
  ttlMs: i64 = 0;
  /** Why there are no tools. */
  error: Failure | null = null;
  /** Not empty: the discovery fails with this text; an error of the moment. */
  failure: string = "";

  /** Writes what the export answers. */
  write(w: Writer): void {
    w.beginObject();
    w.name("tools");
    w.beginArray();
    for (let i = 0; i < this.tools.length; i++) {
      const t = this.tools[i];
      w.beginObject();
      w.name("name");
      w.string(t.name);
      w.text("title", t.title);
      w.text("description", t.description);
      w.json("schema", t.schema);
      w.json("output_schema", t.outputSchema);
      writeIcons(w, t.icons);
      writeAnnotations(w, t.annotations);
      w.yes("mutating", t.mutating);
      w.json("binding", t.binding);
      w.endObject();
    }
    w.endArray();
    writeSafety(w, this.safety);
    w.number("ttl_ms", this.ttlMs);
    writeFailure(w, this.error);
    w.endObject();
  }
}

/** What classify is asked, once a binary has ended: the call, its exit code and the ends of its outputs. */
export class Ended {
  /** The call, as it was asked. */
  call: Call = new Call();
  /** What the binary ended with. */
  exitCode: i32 = 0;
  /** The end of its standard output. */
  stdout: Uint8Array = new Uint8Array(0);
  /** The end of its standard error. */
  stderr: Uint8Array = new Uint8Array(0);

  /** Reads what the export is asked. */
  static read(r: Reader): Ended {
    const e = new Ended();
    if (!r.object()) {
      r.fail("not an object");
      return e;
    }
    while (r.member()) {
      if (r.name == "call") {
        e.call = Call.read(r);
        continue;
      }
      if (r.name != "result") {
        r.skip();
        continue;
      }
      if (!r.object()) continue;
      while (r.member()) {
        const name = r.name;
        if (name == "exit_code") e.exitCode = r.int32();
        else if (name == "stdout") e.stdout = Uint8Array.wrap(String.UTF8.encode(r.string()));
        else if (name == "stderr") e.stderr = Uint8Array.wrap(String.UTF8.encode(r.string()));
        else if (name == "stdout_base64") e.stdout = decoded(r);
        else if (name == "stderr_base64") e.stderr = decoded(r);
        else r.skip();
      }
    }
    return e;
  }
}

function decoded(r: Reader): Uint8Array {
  const b = base64.decode(r.string());
  if (b != null) return b;
  r.fail("not base64");
  return new Uint8Array(0);
}

/** What classify answers: whether what the tool works with failed, and whether the same call may succeed when made again. */
export class Classification {
  /** Not empty: the export fails with this text. */
  error: string = "";
  /** failure counts against the tool's circuit breaker; retriable says that the same call may succeed when made again. */
  constructor(public failure: bool, public retriable: bool) {}

  /** Writes what the export answers. */
  write(w: Writer): void {
    w.beginObject();
    w.yes("failure", this.failure);
    w.yes("retriable", this.retriable);
    w.endObject();
  }
}

/** One command that ran for reconcile. */
export class Ran {
  /** The arguments. */
  args: string[] = [];
  /** 0 for success. */
  exitCode: i32 = 0;
  /** Its standard output. */
  stdout: string = "";
  /** Its standard error. */
  stderr: string = "";
  /** Not all of the output is here. */
  truncated: bool = false;
  /** Why it did not run, or not to its end; else null. */
  error: Failure | null = null;

  /** Reads one. */
  static read(r: Reader): Ran {
    const ran = new Ran();
    if (!r.object()) return ran;
    while (r.member()) {
      const name = r.name;
      if (name == "args") ran.args = r.strings();
      else if (name == "exit_code") ran.exitCode = r.int32();
      else if (name == "stdout") ran.stdout = r.string();
      else if (name == "stderr") ran.stderr = r.string();
      else if (name == "truncated") ran.truncated = r.bool();
      else if (name == "error") ran.error = readFailure(r);
      else r.skip();
    }
    return ran;
  }
}

function readFailure(r: Reader): Failure | null {
  if (r.null()) return null;
  const e = new Failure("", "");
  if (r.object())
    while (r.member()) {
      const name = r.name;
      if (name == "code") e.code = r.string();
      else if (name == "message") e.message = r.string();
      else if (name == "retriable") e.retriable = r.bool();
      else r.skip();
    }
  return e;
}

/**
 * What reconcile is asked about a call that changes something and has an idempotency key: with before, which facts it
 * needs to tell later how the call ended; else how it ended. It must change nothing. Times are milliseconds since 1970.
 */
export class Reconcile {
  /** As its caller made it, without the values of variables and the input. */
  call: Call = new Call();
  /** The names of the variables that the caller set. */
  env: string[] = [];
  /** The digest, in hexadecimal, of the input that came with the request. */
  stdinSHA256: string = "";
  /** As the caller wrote it; empty for one that was made of the payload. */
  key: string = "";
  /** The call has not begun: the answer is facts. */
  before: bool = false;
  /** When the call began. */
  beganMs: i64 = 0;
  /** When it was cut off, or found to have been. */
  endedMs: i64 = 0;
  /** Now. */
  nowMs: i64 = 0;
  /** Nothing of the call is left on the host that ran it. Where it is false, the host takes NotDone for Unknown. */
  gone: bool = false;
  /** JSON, as it was answered before the call began, or "". */
  facts: string = "";
  /** What came of the commands of Reconciliation.run, in their order. */
  ran: Ran[] = [];

  /** Reads what the export is asked. */
  static read(r: Reader): Reconcile {
    const q = new Reconcile();
    if (!r.object()) {
      r.fail("not an object");
      return q;
    }
    while (r.member()) {
      const name = r.name;
      if (name == "call") q.call = Call.read(r);
      else if (name == "env") q.env = r.strings();
      else if (name == "stdin_sha256") q.stdinSHA256 = r.string();
      else if (name == "key") q.key = r.string();
      else if (name == "before") q.before = r.bool();
      else if (name == "began_ms") q.beganMs = r.int();
      else if (name == "ended_ms") q.endedMs = r.int();
      else if (name == "now_ms") q.nowMs = r.int();
      else if (name == "gone") q.gone = r.bool();
      else if (name == "facts") q.facts = r.raw();
      else if (name == "ran") {
        q.ran = [];
        if (r.array()) while (r.item()) q.ran.push(Ran.read(r));
      } else r.skip();
    }
    return q;
  }
}

/** Wire.on of a push: what becomes of references. */
export const WirePush = "git-push";
/** Wire.on of an HTTP request. */
export const WireHTTP = "http";

/** One reference that a push changes. */
export class WireRef {
  /** The whole name: refs/heads/main. */
  name: string = "";
  /** An object name in hexadecimal, all zeros where the reference is created. */
  old: string = "";
  /** An object name in hexadecimal, all zeros where the reference is deleted. */
  new: string = "";
  /**
   * Yes for a deletion and for an update that drops commits, No for a new reference and for a fast-forward. Unsaid where
   * the host cannot tell, which a policy should take for Yes: ref.force != Opt.No.
   */
  force: Opt = Opt.Unsaid;

  /** Reads one. */
  static read(r: Reader): WireRef {
    const ref = new WireRef();
    if (!r.object()) {
      r.fail("not an object");
      return ref;
    }
    while (r.member()) {
      const name = r.name;
      if (name == "name") ref.name = r.string();
      else if (name == "old") ref.old = r.string();
      else if (name == "new") ref.new = r.string();
      else if (name == "force") ref.force = r.null() ? Opt.Unsaid : r.bool() ? Opt.Yes : Opt.No;
      else r.skip();
    }
    return ref;
  }
}

/**
 * What wire is asked about what the tool's binary is about to send, before any of it leaves the host and before the host
 * adds a credential. The answer is a Decision that allows or denies; the host refuses one that would change something.
 */
export class Wire {
  /** WirePush or WireHTTP. A policy should deny what it does not know. */
  on: string = "";
  /** The name or address that was connected to, in lower case. */
  host: string = "";
  /** Its port. */
  port: i64 = 0;
  /** That of the repository as the server is asked for it, or of the request, with its query. */
  path: string = "";
  /** That of an HTTP request. */
  method: string = "";
  /** The URL of the repository that is pushed to. */
  remote: string = "";
  /** What becomes of it. */
  refs: WireRef[] = [];
  /** What is said to the hooks there. */
  pushOptions: string[] = [];
  /** As it was decided, without repoConfig and stdinBase64. */
  call: Call = new Call();

  /** Reads what the export is asked. */
  static read(r: Reader): Wire {
    const w = new Wire();
    if (!r.object()) {
      r.fail("not an object");
      return w;
    }
    while (r.member()) {
      const name = r.name;
      if (name == "on") w.on = r.string();
      else if (name == "host") w.host = r.string();
      else if (name == "port") w.port = r.int();
      else if (name == "path") w.path = r.string();
      else if (name == "method") w.method = r.string();
      else if (name == "remote") w.remote = r.string();
      else if (name == "push_options") w.pushOptions = r.strings();
      else if (name == "call") w.call = Call.read(r);
      else if (name == "refs") {
        if (w.refs.length) r.fail("refs twice");
        else if (r.array()) while (r.item()) w.refs.push(WireRef.read(r));
      } else r.skip();
    }
    return w;
  }
}

/** How a call ended: nothing is certain; it has done all that it was to do; it has done nothing and never will. */
export enum Verdict { Unknown, Done, NotDone }

/** What reconcile answers: begin with one of its functions. */
export class Reconciliation {
  /** Arguments to run the tool's binary with, after which the export is asked again. */
  run: string[][] = [];
  /** JSON up to 16 KiB, for before. */
  facts: string = "";
  /** How the call ended. */
  verdict: Verdict = Verdict.Unknown;
  /** What the verdict was made of, for people. */
  evidence: string = "";
  /** That of a call that was done, as it is replayed. */
  result: Outcome | null = null;
  /** Not empty: the export fails with this text. */
  failure: string = "";

  /** The call has done all that it was to do, with this result. */
  static done(evidence: string, result: Outcome): Reconciliation {
    const a = Reconciliation.unresolved(evidence);
    a.verdict = Verdict.Done;
    a.result = result;
    return a;
  }

  /** The call has done nothing and never will. */
  static notDone(evidence: string): Reconciliation {
    const a = Reconciliation.unresolved(evidence);
    a.verdict = Verdict.NotDone;
    return a;
  }

  /** Nothing certain was found out, and why. */
  static unresolved(evidence: string): Reconciliation {
    const a = new Reconciliation();
    a.evidence = evidence;
    return a;
  }

  /** Writes what the export answers. */
  write(w: Writer): void {
    w.beginObject();
    if (this.run.length) {
      w.name("run");
      w.beginArray();
      for (let i = 0; i < this.run.length; i++) {
        const args = this.run[i];
        w.beginArray();
        for (let k = 0; k < args.length; k++) w.string(args[k]);
        w.endArray();
      }
      w.endArray();
    }
    w.json("facts", this.facts);
    if (this.verdict == Verdict.Done) w.text("verdict", "done");
    else if (this.verdict == Verdict.NotDone) w.text("verdict", "not_done");
    else if (this.evidence.length) w.text("verdict", "unknown");
    w.text("evidence", this.evidence);
    const result = this.result;
    if (result != null) {
      w.name("result");
      result.write(w);
    }
    w.endObject();
  }
}
