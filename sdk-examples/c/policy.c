// Policy decides what "greet" may be asked.
#include "toold.h"

static toold_str trimmed(toold_str s) {
	while (s.n && (s.p[0] == ' ' || s.p[0] == '\t')) s.p++, s.n--;
	while (s.n && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t')) s.n--;
	return s;
}

static toold_decision policy(const toold_call *c) {
	toold_decision d = toold_allow();
	d.args.set = true;
	for (size_t i = 0; i < c->args.n; i++) {
		toold_str arg = c->args.v[i];
		if (toold_starts(arg, "-")) {
			toold_buf reason = {0};
			toold_add_text(&reason, "greet has no flag ");
			toold_add(&reason, arg);
			d = toold_deny("greet.flag", 0, "leave it out");
			d.reason = toold_done(&reason);
			return d;
		}
		if (toold_has(arg, '\n') || toold_has(arg, '\r'))
			return toold_deny("greet.line", "a name has one line", "greet one after the other");
		// What the policy returns is what runs.
		toold_push(&d.args, trimmed(arg));
	}
	return d;
}

TOOLD_RESTRICT(policy)
