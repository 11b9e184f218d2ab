//! The tool "weather": it asks a service, with a secret that it never sees.

use toold::json::Value;
use toold::{Call, Failure, Outcome, Request};

fn weather(c: &Call) -> Result<Outcome, Failure> {
    let city = c.args.first().ok_or("name a city")?;
    if !city.chars().all(|c| c.is_ascii_alphabetic() || c == '-') {
        return Ok(Outcome::fails("NOT_A_CITY", "a city has letters and dashes"));
    }
    let api = toold::config("api").ok_or("config.api is not set in tool.json")?;
    // The host adds the header Authorization, since tool.json says so.
    let res = toold::http(&Request { url: format!("{}/now/{}", api, city), ..Request::default() })?;
    match res.status {
        200 => {
            let body = String::from_utf8(res.body)?;
            let sky = Value::parse(&body)?;
            let sky = sky.get("sky").and_then(Value::as_str).ok_or("the service did not say")?.to_string();
            Ok(Outcome { data: Some(body), ..Outcome::text(format!("{}: {}\n", city, sky)) })
        }
        404 => Ok(Outcome::fails("NO_SUCH_CITY", format!("the service does not know {}", city))),
        // Whoever calls may try again, and the host does, where it retries.
        status => Ok(Outcome {
            error: Some(toold::Error {
                code: "SERVICE".into(),
                message: format!("the service answered {}", status),
                retriable: status >= 500,
            }),
            ..Outcome::default()
        }),
    }
}

toold::handle!(weather);

#[cfg(test)]
mod tests {
    use super::*;
    use toold::{fake::Host, Response};

    #[test]
    fn sunny() {
        let mut host = Host::default();
        host.config.insert("api".into(), "https://api.example.com".into());
        host.http = Some(Box::new(|q| {
            assert_eq!(q.url, "https://api.example.com/now/Oslo");
            Ok(Response { status: 200, body: br#"{"sky":"clear"}"#.to_vec(), ..Response::default() })
        }));
        let call = Call { args: vec!["Oslo".into()], ..Call::default() };
        assert_eq!(host.run(|| weather(&call)).unwrap().stdout, b"Oslo: clear\n");
    }
}
