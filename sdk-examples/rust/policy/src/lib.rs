//! Decides what "greet" may be asked.

use toold::{Call, Decision};

fn policy(c: &Call) -> Decision {
    let mut args = Vec::new();
    for arg in &c.args {
        if arg.starts_with('-') {
            return Decision::deny("greet.flag", format!("greet has no flag {}", arg), "leave it out");
        }
        if arg.contains(&['\r', '\n'][..]) {
            return Decision::deny("greet.line", "a name has one line", "greet one after the other");
        }
        args.push(arg.trim().to_string());
    }
    // What the policy returns is what runs.
    Decision { args: Some(args), ..Decision::allow() }
}

toold::restrict!(policy);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_refused() {
        let call = Call { args: vec!["-x".into()], ..Call::default() };
        assert_eq!(policy(&call).rule, "greet.flag");
    }
}
