//! The conformance guest of the Rust SDK. What each request does is in the
//! documentation of package pdktest.

use std::sync::atomic::{AtomicI64, Ordering};
use toold::json::object;
use toold::{
    Annotations, Approval, Call, Classification, Command, Decision, Describe, Discovery, Ended, Error, Failure, Icon, Level, Outcome,
    Reconcile, Reconciliation, Request, Safety, Stream, Surface, SurfaceTool, Wire,
};

fn describe() -> Describe {
    Describe {
        name: "pdktest".into(),
        description: "the conformance guest".into(),
        schema: Some(r#"{"type":"object"}"#.into()),
        annotations: Some(Annotations {
            title: "Conformance".into(),
            read_only: Some(true),
            destructive: Some(false),
            ..Default::default()
        }),
        wants: vec!["repo_config".into()],
        ..Default::default()
    }
}

toold::describe!(describe);

fn policy(c: &Call) -> Result<Decision, Failure> {
    let request = match c.args.first() {
        Some(r) => r.as_str(),
        None => return Ok(Decision::deny("pdktest.none", "there is no request", "")),
    };
    let rest = &c.args[1..];
    Ok(match request {
        "allow" => Decision::allow(),
        "deny" => Decision::deny("pdktest.deny", "asked to deny", "ask to allow"),
        "ask" => Decision {
            ask: Some(Approval { by: rest.to_vec(), self_: true, ttl_ms: 60000, text: "asked to ask".into() }),
            ..Decision::ask("pdktest.ask", "")
        },
        "rewrite" => Decision {
            rule: "pdktest.rewrite".into(),
            args: Some(rest.iter().rev().cloned().collect()),
            env: Some([("REWRITTEN".to_string(), "yes".to_string())].into_iter().collect()),
            stdin_base64: Some(toold::base64::encode(b"rewritten\n")),
            mutating: Some(true),
            idempotent: Some(false),
            idempotency_key: format!("key-{}", rest.len()),
            timeout_ms: 1500,
            stdin: Some(false),
            shell: true,
            shell_lines: rest.iter().rev().cloned().collect(),
            ..Decision::allow()
        },
        "empty" => Decision { args: Some(vec![]), env: Some(Default::default()), stdin_base64: Some(String::new()), ..Decision::allow() },
        "config" => Decision::deny("pdktest.config", toold::config(&rest[0]).unwrap_or_else(|| "absent".into()), ""),
        "repo" => {
            let reason = match &c.repo_config {
                None => "none".into(),
                Some(r) if !r.error.is_empty() => r.error.clone(),
                Some(r) => r.entries.iter().map(|(k, v)| format!("{}={}", k, v)).collect::<Vec<_>>().join(";"),
            };
            Decision::deny("pdktest.repo", reason, "")
        }
        "fail" => return Err("asked to fail".into()),
        "trap" => panic!("asked to trap"),
        _ => Decision::deny("pdktest.unknown", format!("unknown request: {}", request), ""),
    })
}

toold::restrict!(policy);

static COUNT: AtomicI64 = AtomicI64::new(0);

fn answer(c: &Call) -> Result<Outcome, Failure> {
    let request = match c.args.first() {
        Some(r) => r.as_str(),
        None => return Ok(Outcome { exit_code: 2, stderr: b"there is no request\n".to_vec(), ..Default::default() }),
    };
    let rest = &c.args[1..];
    let text = rest.join(" ");
    Ok(match request {
        "call" => Outcome::data(c.to_json()),
        "stdout" => Outcome::text(text),
        "stderr" => Outcome { stderr: text.into_bytes(), ..Default::default() },
        "exit" => Outcome { exit_code: rest[0].parse()?, ..Default::default() },
        "bytes" => {
            let stdout = hex(&rest[0])?;
            let stderr = stdout.iter().rev().copied().collect();
            Outcome { stdout, stderr, ..Default::default() }
        }
        "data" => Outcome { data: c.payload.clone(), ..Default::default() },
        "error" => {
            Outcome { error: Some(Error { code: rest[0].clone(), message: rest[1].clone(), retriable: true }), ..Default::default() }
        }
        "safety" => Outcome { safety: Some(Safety { read_only: true, grants: rest[0].clone() }), ..Default::default() },
        "gone" => Outcome { gone: true, ..Default::default() },
        "fail" => return Err(text.into()),
        "trap" => panic!("asked to trap"),
        "config" => value(toold::config(&rest[0])),
        "var-get" => variable(&rest[0])?,
        "var-set" => {
            toold::var_set(&rest[0], rest[1].as_bytes());
            variable(&rest[0])?
        }
        "var-delete" => {
            toold::var_delete(&rest[0]);
            variable(&rest[0])?
        }
        "log" => {
            let level = match rest[0].as_str() {
                "debug" => Level::Debug,
                "info" => Level::Info,
                "warn" => Level::Warn,
                _ => Level::Error,
            };
            toold::log(level, &rest[1]);
            Outcome::default()
        }
        "emit" => {
            let stream = match rest[0].as_str() {
                "stdout" => Stream::Stdout,
                "stderr" => Stream::Stderr,
                _ => Stream::Progress,
            };
            for piece in &rest[1..] {
                toold::emit(stream, piece.as_bytes())?;
            }
            Outcome::default()
        }
        "recv" => {
            let mut pieces = Vec::new();
            while let Some(p) = toold::recv()? {
                pieces.push(String::from_utf8(p)?);
            }
            Outcome::data(object([("pieces", pieces.into())]))
        }
        "http" => ask(rest),
        "exec" => run(c, rest)?,
        "tool-call" => Outcome::data(toold::tool_call(c.payload.as_deref().unwrap_or(""))?),
        "length" => Outcome::data(object([("length", (c.stdin().ok_or("not base64")?.len() as i64).into())])),
        "large" => Outcome::text("x".repeat(rest[0].parse()?)),
        "count" => Outcome::data(object([("count", (COUNT.fetch_add(1, Ordering::Relaxed) + 1).into())])),
        _ => Outcome { exit_code: 2, stderr: format!("unknown request: {}\n", request).into_bytes(), ..Default::default() },
    })
}

toold::handle!(answer);

fn discover(d: &Discovery) -> Result<Surface, Failure> {
    match toold::config("server").as_deref() {
        Some("refuses") => {
            let error = Error { code: "UNAUTHENTICATED".into(), message: "no such user".into(), retriable: false };
            return Ok(Surface { error: Some(error), ..Default::default() });
        }
        Some("fails") => return Err("the server is away".into()),
        _ => {}
    }
    let mut tools = vec![
        SurfaceTool {
            name: "one".into(),
            title: "One".into(),
            description: "the first".into(),
            schema: Some(r#"{"type":"object"}"#.into()),
            output_schema: Some(r#"{"type":"object","required":["ok"]}"#.into()),
            icons: vec![
                Icon {
                    src: "https://pdktest.example/one.png".into(),
                    mime_type: "image/png".into(),
                    sizes: vec!["48x48".into(), "any".into()],
                    theme: "dark".into(),
                },
                Icon { src: "data:,".into(), ..Default::default() },
            ],
            annotations: Some(Annotations { read_only: Some(true), ..Default::default() }),
            binding: Some(r#"{"view":"v"}"#.into()),
            ..Default::default()
        },
        SurfaceTool { name: "two".into(), mutating: true, ..Default::default() },
    ];
    if d.read_only {
        tools.truncate(1);
    }
    Ok(Surface { tools, safety: Some(Safety { read_only: d.read_only, grants: d.tool.clone() }), ttl_ms: 60000, error: None })
}

toold::discover!(discover);

fn classify(e: &Ended) -> Result<Classification, Failure> {
    if e.call.args.is_empty() {
        return Err("there is no request".into());
    }
    Ok(Classification { failure: e.exit_code >= 2, retriable: e.stderr == b"try again\xff" })
}

toold::classify!(classify);

fn reconcile(q: &Reconcile) -> Result<Reconciliation, Failure> {
    let args = &q.call.args;
    let request = match args.first() {
        Some(r) => r.as_str(),
        None => return Err("there is no request".into()),
    };
    if q.before {
        return Ok(Reconciliation::facts(object([("key", q.key.clone().into()), ("of", q.call.execution_id.clone().into())])));
    }
    Ok(match request {
        "run" if q.ran.is_empty() => Reconciliation::run(vec![args[1..].to_vec(), vec![]]),
        "run" => {
            let told = q.ran.iter().map(|r| {
                let error = r.error.as_ref().map(|e| format!("{}:{}:{}", e.code, e.message, e.retriable)).unwrap_or_else(|| "none".into());
                format!("{}>{}>{}>{}>{}>{}", r.args.join(","), r.exit_code, r.stdout, r.stderr, r.truncated, error)
            });
            Reconciliation::unresolved(told.collect::<Vec<_>>().join(";"))
        }
        "asked" => Reconciliation::unresolved(format!(
            "{}|{}|{}|{}|{}|{}|{}",
            q.key,
            q.stdin_sha256,
            q.env.join(","),
            q.began_ms,
            q.ended_ms,
            q.now_ms,
            q.gone
        )),
        "done" => {
            let result = Outcome { data: q.facts.clone(), ..Outcome::text(args[1..].join(" ")) };
            Reconciliation::done("it is there", result)
        }
        "not-done" if q.gone => Reconciliation::not_done("it is not there"),
        "not-done" => Reconciliation::unresolved("it may still run"),
        "fail" => return Err("asked to fail".into()),
        _ => Reconciliation::default(),
    })
}

toold::reconcile!(reconcile);

fn wire(w: &Wire) -> Result<Decision, Failure> {
    let request = match w.call.args.first() {
        Some(r) => r.as_str(),
        None => return Err("there is no request".into()),
    };
    Ok(match request {
        "allow" => Decision::allow(),
        "asked" => {
            let refs = w.refs.iter().map(|r| {
                let force = r.force.map(|f| f.to_string()).unwrap_or_else(|| "null".into());
                format!("{}:{}:{}:{}", r.name, r.old, r.new, force)
            });
            let refs = refs.collect::<Vec<_>>().join(",");
            let reason =
                format!("{}|{}|{}|{}|{}|{}|{}|{}", w.on, w.host, w.port, w.path, w.method, w.remote, refs, w.push_options.join(","));
            Decision::deny("pdktest.wire", reason, "")
        }
        "fail" => return Err("asked to fail".into()),
        _ => Decision::deny("pdktest.unknown", format!("unknown request: {}", request), ""),
    })
}

toold::wire!(wire);

fn hex(s: &str) -> Result<Vec<u8>, Failure> {
    (0..s.len() / 2).map(|i| Ok(u8::from_str_radix(&s[2 * i..2 * i + 2], 16)?)).collect()
}

fn value(v: Option<String>) -> Outcome {
    Outcome::data(object([("value", v.into())]))
}

fn variable(key: &str) -> Result<Outcome, Failure> {
    Ok(value(toold::var_get(key).map(String::from_utf8).transpose()?))
}

fn ask(rest: &[String]) -> Outcome {
    let q = Request {
        method: rest[0].clone(),
        url: rest[1].clone(),
        headers: [("X-Request".to_string(), "pdktest".to_string())].into_iter().collect(),
        body: rest[2].clone().into_bytes(),
    };
    Outcome::data(match toold::http(&q) {
        Err(_) => object([("failed", true.into())]),
        Ok(res) => object([
            ("status", (res.status as i64).into()),
            ("reply", res.headers.get("x-reply").cloned().unwrap_or_default().into()),
            ("body", String::from_utf8_lossy(&res.body).into_owned().into()),
        ]),
    })
}

fn run(c: &Call, rest: &[String]) -> Result<Outcome, Failure> {
    let q = Command {
        path: rest[0].clone(),
        args: rest[1..].to_vec(),
        cwd: c.cwd.clone(),
        env: [("A".to_string(), "b".to_string())].into_iter().collect(),
        stdin: b"in".to_vec(),
    };
    Ok(Outcome::data(match toold::exec(&q) {
        Err(why) => object([("refused", why.to_string().into())]),
        Ok(r) => object([
            ("exit_code", (r.exit_code as i64).into()),
            ("stdout", String::from_utf8(r.stdout)?.into()),
            ("stderr", String::from_utf8(r.stderr)?.into()),
        ]),
    }))
}

/// The requests that need no host are made natively as well, as guests are
/// tested: the vectors are those of the suite.
#[cfg(test)]
mod tests {
    use super::*;
    use toold::fake::Host;
    use toold::json::Value;

    fn vectors(name: &str) -> Vec<Value> {
        let path = format!("{}/../../testdata/{}.json", env!("CARGO_MANIFEST_DIR"), name);
        let text = std::fs::read_to_string(path).unwrap();
        Value::parse(&text).unwrap().as_array().unwrap().to_vec()
    }

    fn check(name: &str, export: extern "C" fn() -> i32) {
        let mut tried = 0;
        for v in vectors(name) {
            // A trap is a panic here, which a native export may not pass on.
            let input = v.get("in").map(Value::to_string).unwrap_or_else(|| v.get("input").unwrap().as_str().unwrap().to_string());
            if ["trap", "http", "exec", "tool-call"].iter().any(|r| input.contains(&format!("[\"{}\"", r))) {
                continue;
            }
            let mut host = Host::default();
            if let Some(Value::Object(m)) = v.get("config") {
                host.config = m.iter().map(|(k, v)| (k.clone(), v.as_str().unwrap().to_string())).collect();
            }
            if let Some(Value::Object(m)) = v.get("vars") {
                host.vars = m.iter().map(|(k, v)| (k.clone(), v.as_str().unwrap().as_bytes().to_vec())).collect();
            }
            if let Some(list) = v.get("recv").and_then(Value::as_array) {
                host.recv = list.iter().map(|p| p.as_str().unwrap().as_bytes().to_vec()).collect();
            }
            let got = host.export(export, &input);
            match v.get("out") {
                None => assert!(got.is_err(), "{}: {:?}", v.get("name").unwrap(), got),
                Some(want) => assert_eq!(sorted(&Value::parse(&got.unwrap()).unwrap()), sorted(want), "{}", v.get("name").unwrap()),
            }
            tried += 1;
        }
        assert!(tried > 0);
    }

    /// Objects in order of their names.
    fn sorted(v: &Value) -> Value {
        match v {
            Value::Object(m) => {
                let mut m: Vec<_> = m.iter().map(|(k, v)| (k.clone(), sorted(v))).collect();
                m.sort_by(|a, b| a.0.cmp(&b.0));
                Value::Object(m)
            }
            Value::Array(a) => Value::Array(a.iter().map(sorted).collect()),
            v => v.clone(),
        }
    }

    #[test]
    fn describe_vectors() {
        check("describe", toold_export_describe);
    }

    #[test]
    fn restrict_vectors() {
        check("restrict", toold_export_restrict);
    }

    #[test]
    fn discover_vectors() {
        check("discover", toold_export_discover);
    }

    #[test]
    fn classify_vectors() {
        check("classify", toold_export_classify);
    }

    #[test]
    fn reconcile_vectors() {
        check("reconcile", toold_export_reconcile);
    }

    #[test]
    fn wire_vectors() {
        check("wire", toold_export_wire);
    }

    #[test]
    fn handle_vectors() {
        check("handle", toold_export_handle);
    }
}
