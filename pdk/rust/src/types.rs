//! What guests are asked and what they answer. `toolctl schema abi` says what
//! each field means.

use crate::base64;
use crate::json::{self, Reader, Writer};
use std::collections::BTreeMap;

/// What a policy and a handler are asked.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Call {
    /// The name of the tool.
    pub tool: String,
    /// What the caller asked, without the tool's name.
    pub args: Vec<String>,
    /// An absolute path beneath one of `roots`, without symlinks.
    pub cwd: String,
    /// The folders beneath which this call may work.
    pub roots: Vec<String>,
    /// JSON of an envelope call, as it came: see [`crate::json::Value::parse`].
    pub payload: Option<String>,
    /// The input that came with the request itself, see [`Call::stdin`]. What is
    /// streamed comes through [`crate::recv`].
    pub stdin_base64: String,
    /// The variables that the caller set and the tool admits.
    pub env: BTreeMap<String, String>,
    /// The call's own id, the same in each attempt.
    pub execution_id: String,
    /// Counts from 1.
    pub attempt: i64,
    /// The session, empty without one.
    pub session: String,
    /// An opaque name of who calls: stable for one identity, never something that
    /// the caller wrote.
    pub caller: String,
    /// The identity may only read.
    pub read_only: bool,
    /// JSON as it came.
    pub binding: Option<String>,
    /// How many milliseconds the call has left.
    pub deadline_ms: i64,
    /// The configuration of the git repository around `cwd`, where
    /// [`Describe::wants`] asks for it.
    pub repo_config: Option<RepoConfig>,
}

/// The configuration of the git repository around `cwd`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RepoConfig {
    /// Keys and values in the order in which git reads them. Section and name are in
    /// lower case.
    pub entries: Vec<(String, String)>,
    /// Those of all submodules that the repository keeps.
    pub submodules: Vec<(String, String)>,
    /// What else the repository keeps that git acts on: names of files, from the git
    /// directory on, and what they hold. `HEAD` is always there when there is a repository.
    pub state: Vec<(String, String)>,
    /// Keys and values of all repositories beneath the roots that remotes, or the call's
    /// own arguments, name by a path.
    pub remotes: Vec<(String, String)>,
    /// Why one of those cannot be trusted. A policy should then deny what goes to a remote
    /// that is a path.
    pub remote_error: String,
    /// Why it could not be read; empty where it could. A policy should then deny what
    /// depends on it.
    pub error: String,
}

/// Who may approve a call, beside the operator.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Approval {
    /// `sub:NAME` is the subject of a token, `uid:NUMBER` a user without one, 32
    /// hexadecimal digits the ID of an identity.
    pub by: Vec<String>,
    /// Lets whoever calls approve it, too.
    pub self_: bool,
    /// How long there is, in milliseconds; 0 is 15 minutes.
    pub ttl_ms: i64,
    /// Shown to who decides, and a part of what is approved: what the call would do.
    pub text: String,
}

/// What a policy answers: begin with [`Decision::allow`] or [`Decision::deny`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    /// Whether the call may run.
    pub allow: bool,
    /// With `allow` false: the call runs once somebody has approved it.
    pub ask: Option<Approval>,
    /// Names the rule that decided, for logs and for the caller.
    pub rule: String,
    /// Says why, to the caller of a denied call.
    pub reason: String,
    /// Says what to do instead, to the caller of a denied call.
    pub instead: String,
    /// None leaves what was asked, as in `env` and `stdin_base64`.
    pub args: Option<Vec<String>>,
    /// The variables of what runs.
    pub env: Option<BTreeMap<String, String>>,
    /// Its input.
    pub stdin_base64: Option<String>,
    /// Whether the call changes something; None leaves what `tool.json` says.
    pub mutating: Option<bool>,
    /// Whether it may be made twice; None leaves what `tool.json` says.
    pub idempotent: Option<bool>,
    /// Calls with the same key are one call. Empty leaves what the caller said.
    pub idempotency_key: String,
    /// Narrows the tool's timeout, in milliseconds; 0 leaves it.
    pub timeout_ms: i64,
    /// Whether this call wants the caller's input; None leaves what `tool.json` says.
    pub stdin: Option<bool>,
    /// This call cannot do without the shell that `capabilities.exec` lists. It runs
    /// without the tool's secrets then.
    pub shell: bool,
    /// With `shell`, the only command lines that the shell is given with -c: what runs must
    /// be one of them, or one of them followed by a space and words in single quotes.
    /// Empty: any line.
    pub shell_lines: Vec<String>,
}

/// What a handler answers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// 0 for success.
    pub exit_code: i32,
    /// Text or bytes for standard output.
    pub stdout: Vec<u8>,
    /// Text or bytes for standard error.
    pub stderr: Vec<u8>,
    /// One JSON value.
    pub data: Option<String>,
    /// A failure that the tool has a name for.
    pub error: Option<Error>,
    /// What the binding names is no longer there, and nothing was done: the host makes
    /// the identity's tools anew.
    pub gone: bool,
    /// What the call found out about the identity's grants.
    pub safety: Option<Safety>,
}

/// What an identity may do, as a module's server says it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Safety {
    /// It may only read.
    pub read_only: bool,
    /// Any text that changes when the grants do.
    pub grants: String,
}

/// What `discover` is asked: which tools the module brings for one identity.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Discovery {
    /// The module's own name.
    pub tool: String,
    /// The identity may only read; tools that change something would not be shown.
    pub read_only: bool,
    /// How many milliseconds the discovery has left.
    pub deadline_ms: i64,
}

/// What `discover` answers. That the server refuses the identity goes into
/// `error`, with the code UNAUTHENTICATED; an error of the moment is an `Err`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Surface {
    /// The identity's tools.
    pub tools: Vec<SurfaceTool>,
    /// What the identity may do, where the server says it.
    pub safety: Option<Safety>,
    /// How many milliseconds this is fresh; 0 is the host's 15 minutes.
    pub ttl_ms: i64,
    /// Why there are no tools.
    pub error: Option<Error>,
}

/// A picture of a tool, for people who choose one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Icon {
    /// An https: or data: URL.
    pub src: String,
    /// For example "image/png".
    pub mime_type: String,
    /// Such as "48x48" or "any".
    pub sizes: Vec<String>,
    /// "light" or "dark" where it is for that background.
    pub theme: String,
}

/// One tool of a [`Surface`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SurfaceTool {
    /// Matches `^[a-z0-9][a-z0-9_-]{0,63}$`, and no other tool has it.
    pub name: String,
    /// For people.
    pub title: String,
    /// What it is for.
    pub description: String,
    /// JSON.
    pub schema: Option<String>,
    /// JSON. A call whose data is something else fails.
    pub output_schema: Option<String>,
    /// For people who choose a tool. The host does not load them.
    pub icons: Vec<Icon>,
    /// They inform; they never grant.
    pub annotations: Option<Annotations>,
    /// A call changes something. A tool without it can make GET and HEAD requests only.
    pub mutating: bool,
    /// JSON; comes back with each call of the tool.
    pub binding: Option<String>,
}

/// What `classify` is asked, once a binary has ended: the call, its exit code
/// and the ends of its outputs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ended {
    /// The call, as it was asked.
    pub call: Call,
    /// What the binary ended with.
    pub exit_code: i32,
    /// The end of its standard output.
    pub stdout: Vec<u8>,
    /// The end of its standard error.
    pub stderr: Vec<u8>,
}

/// What `classify` answers: whether what the tool works with failed, and whether
/// the same call may succeed when made again.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Classification {
    /// It failed: counts against the tool's circuit breaker.
    pub failure: bool,
    /// The same call may succeed when it is made again.
    pub retriable: bool,
}

/// What `reconcile` is asked about a call that changes something and has an idempotency
/// key: with `before`, which facts it needs to tell later how the call ended; else how
/// it ended. It must change nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reconcile {
    /// As its caller made it, without the values of variables and the input.
    pub call: Call,
    /// The names of the variables that the caller set.
    pub env: Vec<String>,
    /// The digest, in hexadecimal, of the input that came with the request.
    pub stdin_sha256: String,
    /// As the caller wrote it; empty for one that was made of the payload.
    pub key: String,
    /// The call has not begun: the answer is [`Reconciliation::facts`].
    pub before: bool,
    /// When the call began, in milliseconds since 1970 as the two that follow.
    pub began_ms: i64,
    /// When it was cut off, or found to have been.
    pub ended_ms: i64,
    /// Now.
    pub now_ms: i64,
    /// No process and no request of the call is left on the host that ran it. Where it is
    /// false the host takes [`Verdict::NotDone`] for [`Verdict::Unknown`].
    pub gone: bool,
    /// JSON, as it was answered before the call began.
    pub facts: Option<String>,
    /// What came of the commands of [`Reconciliation::run`], in their order.
    pub ran: Vec<Ran>,
}

/// One command that ran for `reconcile`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ran {
    /// The arguments.
    pub args: Vec<String>,
    /// 0 for success.
    pub exit_code: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// Not all of the output is here.
    pub truncated: bool,
    /// Why it did not run, or not to its end.
    pub error: Option<Error>,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is certain.
    #[default]
    Unknown,
    /// It has done all that it was to do.
    Done,
    /// It has done nothing and never will.
    NotDone,
}

/// What `reconcile` answers: begin with one of its functions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reconciliation {
    /// Arguments to run the tool's binary with, after which the export is asked again.
    pub run: Vec<Vec<String>>,
    /// JSON up to 16 KiB, for `before`.
    pub facts: Option<String>,
    /// How the call ended.
    pub verdict: Verdict,
    /// What the verdict was made of, for people.
    pub evidence: String,
    /// That of a call that was done, as it is replayed.
    pub result: Option<Outcome>,
}

/// [`Wire::on`] of a push: what becomes of references.
pub const WIRE_PUSH: &str = "git-push";
/// [`Wire::on`] of an HTTP request.
pub const WIRE_HTTP: &str = "http";

/// What `wire` is asked about what the tool's binary is about to send, before any of it
/// leaves the host and before the host adds a credential. The answer is a [`Decision`]
/// that is allowed or denied; the host refuses one that would change something.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Wire {
    /// [`WIRE_PUSH`] or [`WIRE_HTTP`]. A policy should deny what it does not know.
    pub on: String,
    /// The name or address that was connected to, in lower case.
    pub host: String,
    /// Its port.
    pub port: i64,
    /// That of the repository as the server is asked for it, or of the request, with its
    /// query.
    pub path: String,
    /// That of an HTTP request.
    pub method: String,
    /// The URL of the repository that is pushed to.
    pub remote: String,
    /// What becomes of it.
    pub refs: Vec<WireRef>,
    /// What is said to the hooks there.
    pub push_options: Vec<String>,
    /// As it was decided, without `repo_config` and `stdin_base64`.
    pub call: Call,
}

/// One reference that a push changes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WireRef {
    /// The whole name: refs/heads/main.
    pub name: String,
    /// An object name in hexadecimal, all zeros where the reference is created.
    pub old: String,
    /// An object name in hexadecimal, all zeros where the reference is deleted.
    pub new: String,
    /// `Some(true)` for a deletion and for an update that drops commits, `Some(false)` for
    /// a new reference and for a fast-forward. None where the host cannot tell, which a
    /// policy should take for true: `r.force != Some(false)`.
    pub force: Option<bool>,
}

/// A tool's own failure.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Error {
    /// For programs: UPPER_SNAKE_CASE.
    pub code: String,
    /// For people.
    pub message: String,
    /// The same call may succeed when it is made again.
    pub retriable: bool,
}

/// What `describe` answers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Describe {
    /// 0 stands for the version that this crate was written for.
    pub abi: i64,
    /// The name of the tool.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// JSON.
    pub schema: Option<String>,
    /// They inform; they never grant.
    pub annotations: Option<Annotations>,
    /// What a policy needs in its Call and costs the host something: "repo_config".
    pub wants: Vec<String>,
}

/// What a tool is like. None leaves it unsaid.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Annotations {
    /// For people.
    pub title: String,
    /// It changes nothing.
    pub read_only: Option<bool>,
    /// It may destroy something.
    pub destructive: Option<bool>,
    /// To call it twice is to call it once.
    pub idempotent: Option<bool>,
    /// It deals with what is outside, such as the web.
    pub open_world: Option<bool>,
}

impl Call {
    /// Reads a Call. Fields that it does not know are passed over: a newer host
    /// may send some.
    pub fn parse(text: &str) -> Result<Call, json::Error> {
        let mut r = Reader::new(text);
        let c = Call::read(&mut r)?;
        r.end()?;
        Ok(c)
    }

    fn read(r: &mut Reader) -> Result<Call, json::Error> {
        let mut c = Call::default();
        if r.null() {
            return Err(json::Error { what: "not an object", at: 0 });
        }
        r.object(|r, name| {
            match name {
                "tool" => c.tool = r.string()?,
                "args" => c.args = r.strings()?,
                "cwd" => c.cwd = r.string()?,
                "roots" => c.roots = r.strings()?,
                "payload" => c.payload = Some(r.raw()?),
                "stdin_base64" => c.stdin_base64 = r.string()?,
                "env" => c.env = r.map()?,
                "execution_id" => c.execution_id = r.string()?,
                "attempt" => c.attempt = r.int()?,
                "session" => c.session = r.string()?,
                "caller" => c.caller = r.string()?,
                "read_only" => c.read_only = r.bool()?,
                "binding" => c.binding = Some(r.raw()?),
                "deadline_ms" => c.deadline_ms = r.int()?,
                "repo_config" if r.null() => c.repo_config = None,
                "repo_config" => {
                    let mut repo = RepoConfig::default();
                    r.object(|r, name| {
                        match name {
                            "entries" => repo.entries = entries(r)?,
                            "submodules" => repo.submodules = entries(r)?,
                            "state" => repo.state = entries(r)?,
                            "remotes" => repo.remotes = entries(r)?,
                            "remote_error" => repo.remote_error = r.string()?,
                            "error" => repo.error = r.string()?,
                            _ => r.skip()?,
                        }
                        Ok(())
                    })?;
                    c.repo_config = Some(repo)
                }
                _ => r.skip()?,
            }
            Ok(())
        })?;
        Ok(c)
    }

    /// Writes the Call as a host does.
    pub fn to_json(&self) -> String {
        let mut w = Writer::new();
        w.object(|w| {
            w.name("tool");
            w.string(&self.tool);
            list(w, "args", &self.args);
            text(w, "cwd", &self.cwd);
            list(w, "roots", &self.roots);
            raw(w, "payload", &self.payload);
            text(w, "stdin_base64", &self.stdin_base64);
            if !self.env.is_empty() {
                w.name("env");
                map(w, &self.env);
            }
            text(w, "execution_id", &self.execution_id);
            number(w, "attempt", self.attempt);
            text(w, "session", &self.session);
            text(w, "caller", &self.caller);
            yes(w, "read_only", self.read_only);
            raw(w, "binding", &self.binding);
            number(w, "deadline_ms", self.deadline_ms);
            if let Some(repo) = &self.repo_config {
                w.name("repo_config");
                w.object(|w| {
                    for (name, list) in
                        [("entries", &repo.entries), ("submodules", &repo.submodules), ("state", &repo.state), ("remotes", &repo.remotes)]
                    {
                        if list.is_empty() {
                            continue;
                        }
                        w.name(name);
                        w.array(|w| {
                            for (key, value) in list {
                                w.object(|w| {
                                    w.name("key");
                                    w.string(key);
                                    w.name("value");
                                    w.string(value);
                                })
                            }
                        })
                    }
                    text(w, "remote_error", &repo.remote_error);
                    text(w, "error", &repo.error);
                })
            }
        });
        w.done()
    }

    /// The input that came with the request, or None where it is not base64.
    pub fn stdin(&self) -> Option<Vec<u8>> {
        base64::decode(&self.stdin_base64)
    }
}

fn entries(r: &mut Reader) -> Result<Vec<(String, String)>, json::Error> {
    let mut list = Vec::new();
    r.array(|r| {
        let (mut key, mut value) = (String::new(), String::new());
        r.object(|r, name| {
            match name {
                "key" => key = r.string()?,
                "value" => value = r.string()?,
                _ => r.skip()?,
            }
            Ok(())
        })?;
        list.push((key, value));
        Ok(())
    })?;
    Ok(list)
}

impl Decision {
    /// Lets the call run as it was asked. Set fields to change what runs.
    pub fn allow() -> Decision {
        Decision { allow: true, ..Decision::default() }
    }

    /// Lets the call run, as it was asked, once somebody has approved it. `text` is
    /// shown to who decides. Set fields to change what runs, and those of `ask` for
    /// who may.
    pub fn ask(rule: &str, text: impl Into<String>) -> Decision {
        let ask = Approval { text: text.into(), ..Approval::default() };
        Decision { rule: rule.to_string(), ask: Some(ask), ..Decision::default() }
    }

    /// Refuses. `rule` is for logs; `reason` says which argument is at fault and
    /// why, `instead` what the caller can do: both are shown to the caller.
    pub fn deny(rule: &str, reason: impl Into<String>, instead: impl Into<String>) -> Decision {
        Decision { rule: rule.to_string(), reason: reason.into(), instead: instead.into(), ..Decision::default() }
    }

    /// What the export answers.
    pub fn to_json(&self) -> String {
        let mut w = Writer::new();
        w.object(|w| {
            let ask = self.ask.as_ref().filter(|_| !self.allow);
            text(
                w,
                "effect",
                if self.allow {
                    "allow"
                } else if ask.is_some() {
                    "ask"
                } else {
                    "deny"
                },
            );
            text(w, "rule", &self.rule);
            text(w, "reason", &self.reason);
            text(w, "instead", &self.instead);
            if let Some(a) = ask {
                w.name("ask");
                w.object(|w| {
                    list(w, "by", &a.by);
                    yes(w, "self", a.self_);
                    number(w, "ttl_ms", a.ttl_ms);
                    text(w, "text", &a.text);
                });
            }
            if let Some(args) = &self.args {
                w.name("args");
                w.array(|w| args.iter().for_each(|a| w.string(a)));
            }
            if let Some(env) = &self.env {
                w.name("env");
                map(w, env);
            }
            if let Some(s) = &self.stdin_base64 {
                w.name("stdin_base64");
                w.string(s);
            }
            opt(w, "mutating", self.mutating);
            opt(w, "idempotent", self.idempotent);
            text(w, "idempotency_key", &self.idempotency_key);
            number(w, "timeout_ms", self.timeout_ms);
            opt(w, "stdin", self.stdin);
            yes(w, "shell", self.shell);
            list(w, "shell_lines", &self.shell_lines);
        });
        w.done()
    }
}

impl Outcome {
    /// Text on standard output, and exit code 0.
    pub fn text(text: impl Into<String>) -> Outcome {
        Outcome { stdout: text.into().into_bytes(), ..Outcome::default() }
    }

    /// One JSON value, such as a [`crate::json::Value`].
    pub fn data(json: impl ToString) -> Outcome {
        Outcome { data: Some(json.to_string()), ..Outcome::default() }
    }

    /// A failure that the tool has a name for: UPPER_SNAKE_CASE.
    pub fn fails(code: &str, message: impl Into<String>) -> Outcome {
        Outcome { error: Some(Error { code: code.to_string(), message: message.into(), retriable: false }), ..Outcome::default() }
    }

    /// What the export answers.
    pub fn to_json(&self) -> String {
        let mut w = Writer::new();
        w.object(|w| {
            w.name("exit_code");
            w.int(self.exit_code.into());
            output(w, "stdout", "stdout_base64", &self.stdout);
            output(w, "stderr", "stderr_base64", &self.stderr);
            raw(w, "data", &self.data);
            error(w, &self.error);
            yes(w, "gone", self.gone);
            safety(w, &self.safety);
        });
        w.done()
    }
}

impl Describe {
    /// What the export answers.
    pub fn to_json(&self) -> String {
        let mut w = Writer::new();
        w.object(|w| {
            number(w, "abi", if self.abi == 0 { crate::ABI } else { self.abi });
            text(w, "name", &self.name);
            text(w, "description", &self.description);
            raw(w, "schema", &self.schema);
            annotations(w, &self.annotations);
            list(w, "wants", &self.wants);
        });
        w.done()
    }
}

impl Discovery {
    /// Reads what `discover` is asked.
    pub fn parse(text: &str) -> Result<Discovery, json::Error> {
        let mut r = Reader::new(text);
        let mut d = Discovery::default();
        if r.null() {
            return Err(json::Error { what: "not an object", at: 0 });
        }
        r.object(|r, name| {
            match name {
                "tool" => d.tool = r.string()?,
                "read_only" => d.read_only = r.bool()?,
                "deadline_ms" => d.deadline_ms = r.int()?,
                _ => r.skip()?,
            }
            Ok(())
        })?;
        r.end()?;
        Ok(d)
    }
}

impl Surface {
    /// What the export answers.
    pub fn to_json(&self) -> String {
        let mut w = Writer::new();
        w.object(|w| {
            w.name("tools");
            w.array(|w| {
                for t in &self.tools {
                    w.object(|w| {
                        w.name("name");
                        w.string(&t.name);
                        text(w, "title", &t.title);
                        text(w, "description", &t.description);
                        raw(w, "schema", &t.schema);
                        raw(w, "output_schema", &t.output_schema);
                        icons(w, &t.icons);
                        annotations(w, &t.annotations);
                        yes(w, "mutating", t.mutating);
                        raw(w, "binding", &t.binding);
                    })
                }
            });
            safety(w, &self.safety);
            number(w, "ttl_ms", self.ttl_ms);
            error(w, &self.error);
        });
        w.done()
    }
}

impl Ended {
    /// Reads what `classify` is asked.
    pub fn parse(text: &str) -> Result<Ended, json::Error> {
        let bytes = |r: &mut Reader| base64::decode(&r.string()?).ok_or(json::Error { what: "not base64", at: 0 });
        let mut r = Reader::new(text);
        let mut e = Ended::default();
        if r.null() {
            return Err(json::Error { what: "not an object", at: 0 });
        }
        r.object(|r, name| {
            match name {
                "call" => e.call = Call::read(r)?,
                "result" => r.object(|r, name| {
                    match name {
                        "exit_code" => e.exit_code = r.int32()?,
                        "stdout" => e.stdout = r.string()?.into_bytes(),
                        "stderr" => e.stderr = r.string()?.into_bytes(),
                        "stdout_base64" => e.stdout = bytes(r)?,
                        "stderr_base64" => e.stderr = bytes(r)?,
                        _ => r.skip()?,
                    }
                    Ok(())
                })?,
                _ => r.skip()?,
            }
            Ok(())
        })?;
        r.end()?;
        Ok(e)
    }
}

impl Classification {
    /// What the export answers.
    pub fn to_json(&self) -> String {
        let mut w = Writer::new();
        w.object(|w| {
            yes(w, "failure", self.failure);
            yes(w, "retriable", self.retriable);
        });
        w.done()
    }
}

impl Reconcile {
    /// Reads what `reconcile` is asked.
    pub fn parse(text: &str) -> Result<Reconcile, json::Error> {
        let mut r = Reader::new(text);
        let mut q = Reconcile::default();
        if r.null() {
            return Err(json::Error { what: "not an object", at: 0 });
        }
        r.object(|r, name| {
            match name {
                "call" => q.call = Call::read(r)?,
                "env" => q.env = r.strings()?,
                "stdin_sha256" => q.stdin_sha256 = r.string()?,
                "key" => q.key = r.string()?,
                "before" => q.before = r.bool()?,
                "began_ms" => q.began_ms = r.int()?,
                "ended_ms" => q.ended_ms = r.int()?,
                "now_ms" => q.now_ms = r.int()?,
                "gone" => q.gone = r.bool()?,
                "facts" => q.facts = Some(r.raw()?),
                "ran" => {
                    q.ran = Vec::new();
                    r.array(|r| {
                        q.ran.push(Ran::read(r)?);
                        Ok(())
                    })?
                }
                _ => r.skip()?,
            }
            Ok(())
        })?;
        r.end()?;
        Ok(q)
    }
}

impl Ran {
    fn read(r: &mut Reader) -> Result<Ran, json::Error> {
        let mut ran = Ran::default();
        r.object(|r, name| {
            match name {
                "args" => ran.args = r.strings()?,
                "exit_code" => ran.exit_code = r.int32()?,
                "stdout" => ran.stdout = r.string()?,
                "stderr" => ran.stderr = r.string()?,
                "truncated" => ran.truncated = r.bool()?,
                "error" if r.null() => ran.error = None,
                "error" => {
                    let mut e = Error::default();
                    r.object(|r, name| {
                        match name {
                            "code" => e.code = r.string()?,
                            "message" => e.message = r.string()?,
                            "retriable" => e.retriable = r.bool()?,
                            _ => r.skip()?,
                        }
                        Ok(())
                    })?;
                    ran.error = Some(e)
                }
                _ => r.skip()?,
            }
            Ok(())
        })?;
        Ok(ran)
    }
}

impl Wire {
    /// Reads what `wire` is asked.
    pub fn parse(text: &str) -> Result<Wire, json::Error> {
        let mut r = Reader::new(text);
        let mut q = Wire::default();
        if r.null() {
            return Err(json::Error { what: "not an object", at: 0 });
        }
        r.object(|r, name| {
            match name {
                "on" => q.on = r.string()?,
                "host" => q.host = r.string()?,
                "port" => q.port = r.int()?,
                "path" => q.path = r.string()?,
                "method" => q.method = r.string()?,
                "remote" => q.remote = r.string()?,
                "refs" if !q.refs.is_empty() => return Err(json::Error { what: "refs twice", at: 0 }),
                "refs" => r.array(|r| {
                    q.refs.push(WireRef::read(r)?);
                    Ok(())
                })?,
                "push_options" => q.push_options = r.strings()?,
                "call" => q.call = Call::read(r)?,
                _ => r.skip()?,
            }
            Ok(())
        })?;
        r.end()?;
        Ok(q)
    }
}

impl WireRef {
    fn read(r: &mut Reader) -> Result<WireRef, json::Error> {
        let mut q = WireRef::default();
        if r.null() {
            return Err(json::Error { what: "not an object", at: 0 });
        }
        r.object(|r, name| {
            match name {
                "name" => q.name = r.string()?,
                "old" => q.old = r.string()?,
                "new" => q.new = r.string()?,
                "force" if r.null() => q.force = None,
                "force" => q.force = Some(r.bool()?),
                _ => r.skip()?,
            }
            Ok(())
        })?;
        Ok(q)
    }
}

impl Reconciliation {
    /// What will be needed to tell how the call ended: JSON, such as a
    /// [`crate::json::Value`].
    pub fn facts(json: impl ToString) -> Reconciliation {
        Reconciliation { facts: Some(json.to_string()), ..Reconciliation::default() }
    }

    /// Has the tool's binary run with each of these arguments, and asks again.
    pub fn run(commands: Vec<Vec<String>>) -> Reconciliation {
        Reconciliation { run: commands, ..Reconciliation::default() }
    }

    /// The call has done all that it was to do, with this result.
    pub fn done(evidence: impl Into<String>, result: Outcome) -> Reconciliation {
        Reconciliation { verdict: Verdict::Done, evidence: evidence.into(), result: Some(result), ..Reconciliation::default() }
    }

    /// The call has done nothing and never will.
    pub fn not_done(evidence: impl Into<String>) -> Reconciliation {
        Reconciliation { verdict: Verdict::NotDone, evidence: evidence.into(), ..Reconciliation::default() }
    }

    /// Nothing certain was found out, and why.
    pub fn unresolved(evidence: impl Into<String>) -> Reconciliation {
        Reconciliation { evidence: evidence.into(), ..Reconciliation::default() }
    }

    /// What the export answers.
    pub fn to_json(&self) -> String {
        let mut w = Writer::new();
        w.object(|w| {
            if !self.run.is_empty() {
                w.name("run");
                w.array(|w| self.run.iter().for_each(|args| w.array(|w| args.iter().for_each(|a| w.string(a)))));
            }
            raw(w, "facts", &self.facts);
            match self.verdict {
                Verdict::Done => text(w, "verdict", "done"),
                Verdict::NotDone => text(w, "verdict", "not_done"),
                Verdict::Unknown if !self.evidence.is_empty() => text(w, "verdict", "unknown"),
                Verdict::Unknown => {}
            }
            text(w, "evidence", &self.evidence);
            if let Some(result) = &self.result {
                w.name("result");
                w.raw(&result.to_json());
            }
        });
        w.done()
    }
}

fn error(w: &mut Writer, e: &Option<Error>) {
    if let Some(e) = e {
        w.name("error");
        w.object(|w| {
            text(w, "code", &e.code);
            w.name("message");
            w.string(&e.message);
            yes(w, "retriable", e.retriable);
        })
    }
}

fn safety(w: &mut Writer, s: &Option<Safety>) {
    if let Some(s) = s {
        w.name("safety");
        w.object(|w| {
            yes(w, "read_only", s.read_only);
            text(w, "grants", &s.grants);
        })
    }
}

fn annotations(w: &mut Writer, a: &Option<Annotations>) {
    if let Some(a) = a {
        w.name("annotations");
        w.object(|w| {
            text(w, "title", &a.title);
            opt(w, "read_only", a.read_only);
            opt(w, "destructive", a.destructive);
            opt(w, "idempotent", a.idempotent);
            opt(w, "open_world", a.open_world);
        })
    }
}

fn icons(w: &mut Writer, all: &[Icon]) {
    if all.is_empty() {
        return;
    }
    w.name("icons");
    w.array(|w| {
        for i in all {
            w.object(|w| {
                w.name("src");
                w.string(&i.src);
                text(w, "mime_type", &i.mime_type);
                list(w, "sizes", &i.sizes);
                text(w, "theme", &i.theme);
            })
        }
    });
}

// Members that are left out when they have nothing to say.

fn text(w: &mut Writer, name: &str, s: &str) {
    if !s.is_empty() {
        w.name(name);
        w.string(s);
    }
}

fn number(w: &mut Writer, name: &str, v: i64) {
    if v != 0 {
        w.name(name);
        w.int(v);
    }
}

fn yes(w: &mut Writer, name: &str, v: bool) {
    opt(w, name, if v { Some(true) } else { None })
}

fn opt(w: &mut Writer, name: &str, v: Option<bool>) {
    if let Some(v) = v {
        w.name(name);
        w.bool(v);
    }
}

fn raw(w: &mut Writer, name: &str, json: &Option<String>) {
    if let Some(json) = json {
        w.name(name);
        w.raw(json);
    }
}

fn list(w: &mut Writer, name: &str, list: &[String]) {
    if !list.is_empty() {
        w.name(name);
        w.array(|w| list.iter().for_each(|s| w.string(s)));
    }
}

pub(crate) fn map(w: &mut Writer, m: &BTreeMap<String, String>) {
    w.object(|w| {
        for (k, v) in m {
            w.name(k);
            w.string(v);
        }
    })
}

/// Output goes as text where it is text.
fn output(w: &mut Writer, name: &str, name64: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(s) => text(w, name, s),
        Err(_) => text(w, name64, &base64::encode(bytes)),
    }
}
