//! The tool "greet": it greets whom it is told to.

use toold::json::{object, Value};
use toold::{Call, Failure, Outcome};

fn greet(c: &Call) -> Result<Outcome, Failure> {
    let mut who = c.args.join(" ");
    if let Some(payload) = &c.payload {
        // A program asks with a payload instead of arguments.
        if let Some(name) = Value::parse(payload)?.get("name") {
            who = name.as_str().ok_or("name must be text")?.to_string();
        }
    }
    match who.as_str() {
        "" => who = "world".to_string(),
        "nobody" => return Ok(Outcome::fails("NOBODY", "there is nobody to greet")),
        _ => {}
    }
    let text = format!("{}, {}!", toold::config("greeting").unwrap_or_default(), who);
    let data = object([("greeting", text.as_str().into())]);
    Ok(Outcome { data: Some(data.to_string()), ..Outcome::text(text + "\n") })
}

toold::handle!(greet);

#[cfg(test)]
mod tests {
    use super::*;
    use toold::fake::Host;

    #[test]
    fn greets() {
        let mut host = Host::default();
        host.config.insert("greeting".into(), "Hello".into());
        let call = Call { args: vec!["Ada".into()], ..Call::default() };
        assert_eq!(host.run(|| greet(&call)).unwrap().stdout, b"Hello, Ada!\n");
    }
}
