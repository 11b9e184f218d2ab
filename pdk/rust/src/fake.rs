//! A host for native tests:
//!
//! ```
//! use toold::{fake::Host, Call, Outcome};
//!
//! fn greet(c: &Call) -> Outcome {
//!     Outcome::text(format!("{}, {}!", toold::config("greeting").unwrap_or_default(), c.args[0]))
//! }
//!
//! let mut host = Host::default();
//! host.config.insert("greeting".into(), "Hello".into());
//! let call = Call { args: vec!["Ada".into()], ..Call::default() };
//! assert_eq!(host.run(|| greet(&call)).stdout, b"Hello, Ada!");
//! ```

use crate::{Command, Exited, Level, Request, Response};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

#[allow(clippy::type_complexity)]
/// What the host has, and what it was told. A hook that is None answers like a
/// host that grants nothing.
#[derive(Default)]
pub struct Host {
    /// What [`crate::config`] answers.
    pub config: BTreeMap<String, String>,
    /// What [`crate::var_get`] answers and [`crate::var_set`] changes.
    pub vars: BTreeMap<String, Vec<u8>>,
    /// The pieces that [`crate::recv`] answers, until its end.
    pub recv: VecDeque<Vec<u8>>,
    /// What [`crate::http`] asks.
    pub http: Option<Box<dyn Fn(&Request) -> Result<Response, String>>>,
    /// What [`crate::exec`] runs.
    pub exec: Option<Box<dyn Fn(&Command) -> Result<Exited, String>>>,
    /// What [`crate::tool_call`] asks.
    pub tool_call: Option<Box<dyn Fn(&str) -> String>>,

    /// Pieces that were sent while the call ran, each with its stream.
    pub emitted: Vec<(String, Vec<u8>)>,
    /// The lines of the log.
    pub logged: Vec<(Level, String)>,

    input: Vec<u8>,
    output: Vec<u8>,
    error: String,
}

thread_local! {
    static CURRENT: RefCell<Host> = RefCell::new(Host::default());
}

impl Host {
    /// Runs f with this host in place. Each thread has a host of its own.
    pub fn run<T>(&mut self, f: impl FnOnce() -> T) -> T {
        CURRENT.with(|c| std::mem::swap(self, &mut c.borrow_mut()));
        let out = f();
        CURRENT.with(|c| std::mem::swap(self, &mut c.borrow_mut()));
        out
    }

    /// Calls an export, such as `toold_export_handle`, and answers its output
    /// or the error that it set.
    pub fn export(&mut self, export: extern "C" fn() -> i32, input: &str) -> Result<String, String> {
        self.input = input.as_bytes().to_vec();
        self.output.clear();
        self.error.clear();
        match self.run(|| export()) {
            0 => Ok(String::from_utf8_lossy(&self.output).into_owned()),
            _ => Err(self.error.clone()),
        }
    }
}

pub(crate) mod functions {
    use super::*;
    use crate::base64;
    use crate::json::{object, Value};

    fn with<T>(f: impl FnOnce(&mut Host) -> T) -> T {
        CURRENT.with(|c| f(&mut c.borrow_mut()))
    }

    pub fn input() -> Vec<u8> {
        with(|h| h.input.clone())
    }

    pub fn output(b: &[u8]) {
        with(|h| h.output = b.to_vec())
    }

    pub fn error(text: &str) {
        with(|h| h.error = text.to_string())
    }

    pub fn tell_panics() {}

    pub fn config(key: &str) -> Option<String> {
        with(|h| h.config.get(key).cloned())
    }

    pub fn var_get(key: &str) -> Option<Vec<u8>> {
        with(|h| h.vars.get(key).cloned())
    }

    pub fn var_set(key: &str, value: Option<&[u8]>) {
        with(|h| match value {
            Some(v) if !v.is_empty() => h.vars.insert(key.to_string(), v.to_vec()),
            _ => h.vars.remove(key),
        });
    }

    pub fn log(level: Level, line: &str) {
        with(|h| h.logged.push((level, line.to_string())))
    }

    fn strings(v: Option<&Value>) -> BTreeMap<String, String> {
        match v {
            Some(Value::Object(m)) => m.iter().map(|(k, v)| (k.clone(), v.as_str().unwrap_or("").to_string())).collect(),
            _ => BTreeMap::new(),
        }
    }

    fn text(v: &Value, name: &str) -> String {
        v.get(name).and_then(Value::as_str).unwrap_or("").to_string()
    }

    pub fn http(request: &str, body: &[u8]) -> (u16, Vec<u8>, Vec<u8>) {
        let v = Value::parse(request).expect("the SDK writes JSON");
        let q = Request { method: text(&v, "method"), url: text(&v, "url"), headers: strings(v.get("headers")), body: body.to_vec() };
        let hook = with(|h| h.http.take());
        let res = hook.as_ref().map_or(Err("this call has no network".to_string()), |f| f(&q));
        with(|h| h.http = hook);
        match res {
            Ok(res) => {
                let headers = Value::Object(res.headers.into_iter().map(|(k, v)| (k.to_lowercase(), v.into())).collect());
                (res.status, headers.to_string().into_bytes(), res.body)
            }
            Err(why) => (0, Vec::new(), why.into_bytes()),
        }
    }

    pub fn exec(q: &str) -> Vec<u8> {
        let v = Value::parse(q).expect("the SDK writes JSON");
        let args = v.get("args").and_then(Value::as_array).unwrap_or(&[]);
        let q = Command {
            path: text(&v, "path"),
            args: args.iter().filter_map(|a| a.as_str().map(str::to_string)).collect(),
            cwd: text(&v, "cwd"),
            env: strings(v.get("env")),
            stdin: base64::decode(&text(&v, "stdin_base64")).unwrap_or_default(),
        };
        let hook = with(|h| h.exec.take());
        let res = hook.as_ref().map_or(Err("tool_exec: not granted".to_string()), |f| f(&q));
        with(|h| h.exec = hook);
        let answer = match res {
            Ok(r) => object([
                ("exit_code", (r.exit_code as i64).into()),
                ("stdout_base64", base64::encode(&r.stdout).into()),
                ("stderr_base64", base64::encode(&r.stderr).into()),
                ("truncated", r.truncated.into()),
            ]),
            Err(why) => object([("exit_code", 0.into()), ("error", object([("message", why.into())]))]),
        };
        answer.to_string().into_bytes()
    }

    pub fn emit(q: &str) -> Vec<u8> {
        let v = Value::parse(q).expect("the SDK writes JSON");
        let data = base64::decode(&text(&v, "data_base64")).expect("the SDK writes base64");
        with(|h| h.emitted.push((text(&v, "stream"), data)));
        b"{}".to_vec()
    }

    pub fn recv() -> Vec<u8> {
        match with(|h| h.recv.pop_front()) {
            Some(p) => object([("data_base64", base64::encode(&p).into())]),
            None => object([("eof", true.into())]),
        }
        .to_string()
        .into_bytes()
    }

    pub fn call(q: &str) -> Vec<u8> {
        let hook = with(|h| h.tool_call.take());
        let res = hook.as_ref().map_or(String::new(), |f| f(q));
        with(|h| h.tool_call = hook);
        res.into_bytes()
    }
}
