//! The Rust SDK for toold guests: policies and tools that run as WebAssembly
//! modules.
//!
//! A guest is a library of the crate type `cdylib` that names its functions:
//!
//! ```
//! use toold::{Call, Decision};
//!
//! fn policy(c: &Call) -> Decision {
//!     if c.args.iter().any(|a| a == "--force") {
//!         return Decision::deny("force", "--force rewrites what others have", "push without it");
//!     }
//!     Decision::allow()
//! }
//!
//! toold::restrict!(policy);
//! # fn main() {}
//! ```
//!
//! It is built with `cargo build --release --target wasm32-unknown-unknown`, and
//! needs no other crate. A module imports only the host functions that it uses.
//! With the feature `portable` input and output move eight bytes at a time,
//! through functions that every Extism host has.
//!
//! A policy fails closed: a call that cannot be read, an error and a panic are
//! errors of the guest, and a host refuses a call whose policy fails. A panic
//! says its message and place.
//!
//! Every call begins with the state that the module had when it was loaded: a
//! `static` that a call changes is as before in the next. What is to last goes
//! through [`var_set`].
//!
//! Natively, [`fake::Host`] is in the place of the host, so that guests are
//! tested with `cargo test`.

#![deny(missing_docs)]

pub mod base64;
#[cfg(not(target_arch = "wasm32"))]
pub mod fake;
mod host;
pub mod json;
mod types;

pub use types::{
    Annotations, Approval, Call, Classification, Decision, Describe, Discovery, Ended, Error, Icon, Outcome, Ran, Reconcile,
    Reconciliation, RepoConfig, Safety, Surface, SurfaceTool, Verdict, Wire, WireRef, WIRE_HTTP, WIRE_PUSH,
};

use json::{Reader, Writer};
use std::collections::BTreeMap;

/// The version of the guest interface that this crate speaks.
pub const ABI: i64 = 1;

/// Why a policy or a handler failed. `?` makes one of any error, and `.into()`
/// of text.
pub type Failure = Box<dyn std::error::Error>;

// ---- What the host does for a guest ----

/// What `tool.json` (or the caller's identity) gives a key. An empty value is
/// None: the interface makes no difference.
pub fn config(key: &str) -> Option<String> {
    host::config(key).filter(|v| !v.is_empty())
}

/// What [`var_set`] stored for this tool, identity and session. Needs the
/// capability `state`.
pub fn var_get(key: &str) -> Option<Vec<u8>> {
    host::var_get(key)
}

/// Stores a value. One beyond the tool's `state` ends the call.
pub fn var_set(key: &str, value: &[u8]) {
    host::var_set(key, Some(value))
}

/// Removes what [`var_set`] stored.
pub fn var_delete(key: &str) {
    host::var_set(key, None)
}

/// The severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// For who looks for a fault.
    Debug,
    /// What happens.
    Info,
    /// What somebody should look at.
    Warn,
    /// What failed.
    Error,
}

/// Writes one line to the host's log, which cuts long ones.
pub fn log(level: Level, line: &str) {
    host::log(level, line)
}

/// A request that the host makes. `Request { url: .., ..Default::default() }`
/// is a GET.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Request {
    /// GET when empty.
    pub method: String,
    /// Its host must be one that the capability `http` lists.
    pub url: String,
    /// Those that `secrets` add are not among them.
    pub headers: BTreeMap<String, String>,
    /// Empty for none.
    pub body: Vec<u8>,
}

/// The answer to a [`Request`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    /// As it came, bounded by the host.
    pub body: Vec<u8>,
}

/// Makes a request to a host that the capability `http` lists. Any status is an
/// answer; an error says why there was none.
pub fn http(q: &Request) -> Result<Response, Failure> {
    let mut w = Writer::new();
    w.object(|w| {
        w.name("method");
        w.string(if q.method.is_empty() { "GET" } else { &q.method });
        w.name("url");
        w.string(&q.url);
        if !q.headers.is_empty() {
            w.name("headers");
            types::map(w, &q.headers);
        }
    });
    let (status, headers, body) = host::http(&w.done(), &q.body);
    if status == 0 {
        return Err(format!("http request: {}", String::from_utf8_lossy(&body)).into());
    }
    let mut res = Response { status, body, ..Response::default() };
    if !headers.is_empty() {
        let text = text(headers, "http_headers")?;
        let mut r = Reader::new(&text);
        res.headers = r.map()?;
        r.end()?;
    }
    Ok(res)
}

/// A binary to run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Command {
    /// One of the paths in the capability `exec`.
    pub path: String,
    /// Without the program's name.
    pub args: Vec<String>,
    /// Beneath one of the call's roots.
    pub cwd: String,
    /// Its variables, beside those that the host sets.
    pub env: BTreeMap<String, String>,
    /// Its input.
    pub stdin: Vec<u8>,
}

/// What came of a [`Command`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Exited {
    /// 0 for success.
    pub exit_code: i32,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
    /// The host kept only the ends of them.
    pub truncated: bool,
}

/// Runs a binary and waits for it. One that ran and failed is an exit code; an
/// error says why nothing ran.
pub fn exec(q: &Command) -> Result<Exited, Failure> {
    let mut w = Writer::new();
    w.object(|w| {
        w.name("path");
        w.string(&q.path);
        if !q.args.is_empty() {
            w.name("args");
            w.array(|w| q.args.iter().for_each(|a| w.string(a)));
        }
        if !q.cwd.is_empty() {
            w.name("cwd");
            w.string(&q.cwd);
        }
        if !q.env.is_empty() {
            w.name("env");
            types::map(w, &q.env);
        }
        if !q.stdin.is_empty() {
            w.name("stdin_base64");
            w.string(&base64::encode(&q.stdin));
        }
    });
    let answer = text(host::exec(&w.done()), "tool_exec")?;
    let mut res = Exited::default();
    let mut refused = None;
    answered(&answer, |r, name| {
        match name {
            "exit_code" => res.exit_code = r.int32()?,
            "stdout_base64" => res.stdout = bytes(r)?,
            "stderr_base64" => res.stderr = bytes(r)?,
            "truncated" => res.truncated = r.bool()?,
            "error" => refused = message(r)?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    match refused {
        Some(why) => Err(why.into()),
        None => Ok(res),
    }
}

/// Where [`emit`] sends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// One JSON value that tells how far the call is.
    Progress,
}

/// Sends output while the call runs. It waits while the caller is slow, and
/// fails when the caller has left.
pub fn emit(stream: Stream, bytes: &[u8]) -> Result<(), Failure> {
    let stream = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
        Stream::Progress => "progress",
    };
    let mut w = Writer::new();
    w.object(|w| {
        w.name("stream");
        w.string(stream);
        w.name("data_base64");
        w.string(&base64::encode(bytes));
    });
    let answer = text(host::emit(&w.done()), "tool_emit")?;
    match only_error(&answer)? {
        Some(why) => Err(why.into()),
        None => Ok(()),
    }
}

/// Waits for the next piece of the caller's input, or for a message that steers
/// this call. None is the end of the input.
pub fn recv() -> Result<Option<Vec<u8>>, Failure> {
    let answer = text(host::recv(), "tool_recv")?;
    let (mut data, mut eof, mut failed) = (Vec::new(), false, None);
    answered(&answer, |r, name| {
        match name {
            "data_base64" => data = bytes(r)?,
            "eof" => eof = r.bool()?,
            "error" => failed = message(r)?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    match failed {
        Some(why) => Err(why.into()),
        None if eof => Ok(None),
        None => Ok(Some(data)),
    }
}

/// Makes a call as this session and identity: an envelope in, the response out. Which
/// tools and session calls it may make is said in `capabilities.tool_call` of `tool.json`.
pub fn tool_call(envelope: &str) -> Result<String, Failure> {
    let answer = text(host::call(envelope), "tool_call")?;
    if answer.is_empty() {
        return Err("tool_call answered nothing".into());
    }
    Ok(answer)
}

/// Reads all of what a host function answered.
fn answered(answer: &str, member: impl FnMut(&mut Reader, &str) -> Result<(), json::Error>) -> Result<(), json::Error> {
    let mut r = Reader::new(answer);
    r.object(member)?;
    r.end()
}

fn text(answer: Vec<u8>, from: &str) -> Result<String, Failure> {
    String::from_utf8(answer).map_err(|_| format!("{} answered what is not text", from).into())
}

fn bytes(r: &mut Reader) -> Result<Vec<u8>, json::Error> {
    base64::decode(&r.string()?).ok_or(json::Error { what: "not base64", at: 0 })
}

fn only_error(answer: &str) -> Result<Option<String>, Failure> {
    let mut failed = None;
    answered(answer, |r, name| {
        match name {
            "error" => failed = message(r)?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok(failed)
}

/// Reads the message of an error; None for null.
fn message(r: &mut Reader) -> Result<Option<String>, json::Error> {
    if r.null() {
        return Ok(None);
    }
    let mut message = String::from("error without a message");
    r.object(|r, name| {
        match name {
            "message" => message = r.string()?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok(Some(message))
}

// ---- Exports ----

/// What a policy may answer: a [`Decision`], or a `Result` with one.
pub trait Decides {
    /// The decision, or why there is none.
    fn decision(self) -> Result<Decision, Failure>;
}

impl Decides for Decision {
    fn decision(self) -> Result<Decision, Failure> {
        Ok(self)
    }
}

impl<E: Into<Failure>> Decides for Result<Decision, E> {
    fn decision(self) -> Result<Decision, Failure> {
        self.map_err(Into::into)
    }
}

/// What a handler may answer: an [`Outcome`], or a `Result` with one.
pub trait Answers {
    /// The outcome, or why there is none.
    fn outcome(self) -> Result<Outcome, Failure>;
}

impl Answers for Outcome {
    fn outcome(self) -> Result<Outcome, Failure> {
        Ok(self)
    }
}

impl<E: Into<Failure>> Answers for Result<Outcome, E> {
    fn outcome(self) -> Result<Outcome, Failure> {
        self.map_err(Into::into)
    }
}

/// Makes a function the policy: `fn(&Call) -> impl Decides`.
#[macro_export]
macro_rules! restrict {
    ($policy:path) => {
        #[export_name = "restrict"]
        pub extern "C" fn toold_export_restrict() -> i32 {
            $crate::export(|input| $crate::Decides::decision($policy(&$crate::read_call(&input)?)).map(|d| d.to_json()))
        }
    };
}

/// Makes a function the tool: `fn(&Call) -> impl Answers`.
#[macro_export]
macro_rules! handle {
    ($handler:path) => {
        #[export_name = "handle"]
        pub extern "C" fn toold_export_handle() -> i32 {
            $crate::export(|input| $crate::Answers::outcome($handler(&$crate::read_call(&input)?)).map(|r| r.to_json()))
        }
    };
}

/// Makes a function the description: `fn() -> Describe`.
#[macro_export]
macro_rules! describe {
    ($describe:path) => {
        #[export_name = "describe"]
        pub extern "C" fn toold_export_describe() -> i32 {
            $crate::export(|_| Ok($describe().to_json()))
        }
    };
}

/// Makes a function answer the tools of an identity:
/// `fn(&Discovery) -> Result<Surface, Failure>`.
#[macro_export]
macro_rules! discover {
    ($discover:path) => {
        #[export_name = "discover"]
        pub extern "C" fn toold_export_discover() -> i32 {
            $crate::export(|input| {
                let d = $crate::Discovery::parse(&input).map_err(|e| format!("read discovery: {}", e))?;
                $discover(&d).map(|s| s.to_json())
            })
        }
    };
}

/// Makes a function say what an exit code means:
/// `fn(&Ended) -> Result<Classification, Failure>`.
#[macro_export]
macro_rules! classify {
    ($classify:path) => {
        #[export_name = "classify"]
        pub extern "C" fn toold_export_classify() -> i32 {
            $crate::export(|input| {
                let e = $crate::Ended::parse(&input).map_err(|e| format!("read what ended: {}", e))?;
                $classify(&e).map(|c| c.to_json())
            })
        }
    };
}

/// Makes a function say how a call ended that was cut off:
/// `fn(&Reconcile) -> Result<Reconciliation, Failure>`.
#[macro_export]
macro_rules! reconcile {
    ($reconcile:path) => {
        #[export_name = "reconcile"]
        pub extern "C" fn toold_export_reconcile() -> i32 {
            $crate::export(|input| {
                let q = $crate::Reconcile::parse(&input).map_err(|e| format!("read reconcile: {}", e))?;
                $reconcile(&q).map(|a| a.to_json())
            })
        }
    };
}

/// Makes a function the policy of what the tool's binary sends: `fn(&Wire) -> impl Decides`.
#[macro_export]
macro_rules! wire {
    ($wire:path) => {
        #[export_name = "wire"]
        pub extern "C" fn toold_export_wire() -> i32 {
            $crate::export(|input| {
                let q = $crate::Wire::parse(&input).map_err(|e| format!("read wire: {}", e))?;
                $crate::Decides::decision($wire(&q)).map(|d| d.to_json())
            })
        }
    };
}

/// Reads the Call that an export was asked about.
pub fn read_call(input: &str) -> Result<Call, Failure> {
    Call::parse(input).map_err(|e| format!("read call: {}", e).into())
}

/// The body of an export: f gets the input and answers the output. An error
/// ends the call with its text.
pub fn export(f: impl FnOnce(String) -> Result<String, Failure>) -> i32 {
    host::tell_panics();
    let answer = String::from_utf8(host::input()).map_err(|_| Failure::from("read input: it is not UTF-8")).and_then(f);
    match answer {
        Ok(output) => {
            host::output(output.as_bytes());
            0
        }
        Err(e) => {
            let why = e.to_string();
            host::error(if why.is_empty() { "error without a message" } else { &why });
            1
        }
    }
}
