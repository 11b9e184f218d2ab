// A component that makes requests by wasi:http.
wit_bindgen::generate!({ inline: "
package test:http;

world http {
  record reply { status: u16, headers: list<tuple<string, string>>, body: string }

  // The error is the name of the error-code, and what it says.
  export fetch: func(method: string, scheme: string, authority: string, path: string, headers: list<tuple<string, string>>, body: option<string>) -> result<reply, string>;
  // As fetch, but the body is finished after the request was handed over, and the answer waited for by a pollable.
  export late: func(authority: string, body: string) -> result<reply, string>;
  // What headers refuse, one word each.
  export headers: func() -> list<string>;
  // Drops the body before it is finished.
  export unfinished: func(authority: string) -> result<reply, string>;
  // Waits for an answer that cannot come.
  export deadlock: func(authority: string);
  // Uses handles that it gave away.
  export stale: func() -> u32;
}
" });

use wasip2::http::outgoing_handler;
use wasip2::http::types::*;
use wasip2::io::streams::StreamError;

struct Component;

fn method(name: &str) -> Method {
    match name {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        "DELETE" => Method::Delete,
        other => Method::Other(other.to_string()),
    }
}

fn request(m: &str, scheme: &str, authority: &str, path: &str, headers: &[(String, String)]) -> Result<OutgoingRequest, String> {
    let fields = Fields::new();
    for (k, v) in headers {
        fields.append(k, v.as_bytes()).map_err(|e| format!("header {k}: {e:?}"))?;
    }
    let r = OutgoingRequest::new(fields);
    r.set_method(&method(m)).map_err(|_| "method".to_string())?;
    let s = match scheme { "http" => Scheme::Http, "https" => Scheme::Https, o => Scheme::Other(o.to_string()) };
    r.set_scheme(Some(&s)).map_err(|_| "scheme".to_string())?;
    r.set_authority(Some(authority)).map_err(|_| "authority".to_string())?;
    r.set_path_with_query(Some(path)).map_err(|_| "path".to_string())?;
    Ok(r)
}

fn write(b: OutgoingBody, text: &str) -> Result<(), String> {
    let s = b.write().map_err(|_| "write".to_string())?;
    if b.write().is_ok() { return Err("two streams of one body".into()); }
    for part in text.as_bytes().chunks(4096) {
        s.blocking_write_and_flush(part).map_err(|e| format!("{e:?}"))?;
    }
    drop(s);
    OutgoingBody::finish(b, None).map_err(|e| format!("finish: {e:?}"))
}

fn read(f: FutureIncomingResponse) -> Result<Reply, String> {
    f.subscribe().block();
    let r = f.get().ok_or("not ready")?.map_err(|_| "taken")?.map_err(|e| format!("{e:?}"))?;
    if !matches!(f.get(), Some(Err(()))) { return Err("the answer is there twice".into()); }
    let headers = r.headers().entries().into_iter().map(|(k, v)| (k, String::from_utf8_lossy(&v).into_owned())).collect();
    if !matches!(r.headers().append("x", b"y"), Err(HeaderError::Immutable)) { return Err("headers of an answer change".into()); }
    let status = r.status();
    let b = r.consume().map_err(|_| "consume")?;
    if r.consume().is_ok() { return Err("a body is there twice".into()); }
    let s = b.stream().map_err(|_| "stream")?;
    let mut all = Vec::new();
    loop {
        match s.blocking_read(1 << 16) {
            Ok(p) => all.extend(p),
            Err(StreamError::Closed) => break,
            Err(e) => return Err(format!("{e:?}")),
        }
    }
    drop(s);
    let t = IncomingBody::finish(b);
    t.subscribe().block();
    if !matches!(t.get(), Some(Ok(Ok(None)))) { return Err("trailers".into()); }
    Ok(Reply { status, headers, body: String::from_utf8_lossy(&all).into_owned() })
}

impl Guest for Component {
    fn fetch(m: String, scheme: String, authority: String, path: String, headers: Vec<(String, String)>, body: Option<String>) -> Result<Reply, String> {
        let r = request(&m, &scheme, &authority, &path, &headers)?;
        if let Some(text) = body { write(r.body().map_err(|_| "body".to_string())?, &text)?; }
        let options = RequestOptions::new();
        options.set_connect_timeout(Some(1_000_000_000)).map_err(|_| "timeout".to_string())?;
        read(outgoing_handler::handle(r, Some(options)).map_err(|e| format!("handle: {e:?}"))?)
    }
    fn late(authority: String, body: String) -> Result<Reply, String> {
        let r = request("POST", "http", &authority, "/late", &[])?;
        let b = r.body().map_err(|_| "body".to_string())?;
        let f = outgoing_handler::handle(r, None).map_err(|e| format!("handle: {e:?}"))?;
        if f.get().is_some() || f.subscribe().ready() { return Err("answered before it was asked".into()); }
        write(b, &body)?;
        read(f)
    }
    fn headers() -> Vec<String> {
        let f = Fields::new();
        let mut said = Vec::new();
        for (k, v) in [("Host", "a"), ("transfer-encoding", "chunked"), ("bad name", "a"), ("", "a"), ("x", "a\r\ny: b"), ("x", "a"), ("X", "b")] {
            said.push(format!("{:?}", f.append(&k.to_string(), v.as_bytes())));
        }
        said.push(format!("{:?} {}", f.get("x"), f.has("y")));
        said.push(format!("{:?}", f.set("x", &[b"c".to_vec()])));
        let g = f.clone();
        said.push(format!("{:?}", f.delete("X")));
        said.push(format!("{:?} {:?}", f.entries(), g.entries()));
        let r = OutgoingRequest::new(g);
        said.push(format!("{:?}", r.headers().set("x", &[])));
        said.push(format!("{:?}", Fields::from_list(&[("connection".to_string(), b"x".to_vec())]).err()));
        for a in ["user@host", "host/path", "host?x", "host#x", "", "host:80"] { said.push(format!("{:?}", r.set_authority(Some(a)))); }
        for p in ["x", "/a b", "/a#b", "?q", "/"] { said.push(format!("{:?}", r.set_path_with_query(Some(p)))); }
        said.push(format!("{:?}", r.set_method(&Method::Other("A B".to_string()))));
        said
    }
    fn unfinished(authority: String) -> Result<Reply, String> {
        let r = request("POST", "http", &authority, "/", &[])?;
        let b = r.body().map_err(|_| "body".to_string())?;
        let f = outgoing_handler::handle(r, None).map_err(|e| format!("handle: {e:?}"))?;
        drop(b);
        read(f)
    }
    fn deadlock(authority: String) {
        let r = request("POST", "http", &authority, "/", &[]).unwrap();
        let _b = r.body().unwrap();
        outgoing_handler::handle(r, None).unwrap().subscribe().block();
    }
    fn stale() -> u32 {
        let f = Fields::new();
        let n = f.handle();
        let _r = OutgoingRequest::new(f);
        let again = unsafe { Fields::from_handle(n) };
        again.entries().len() as u32
    }
}

export!(Component);
