// Handler is the tool "greet": it greets whom it is told to.
#include "toold.h"

static toold_result greet(const toold_call *c) {
	toold_buf words = {0};
	for (size_t i = 0; i < c->args.n; i++) {
		if (i) toold_add_text(&words, " ");
		toold_add(&words, c->args.v[i]);
	}
	toold_str who = toold_done(&words);
	if (c->payload.n) {
		// A program asks with a payload instead of arguments.
		toold_str name = toold_member(c->payload, "name");
		if (name.p && !toold_string_of(name, &who)) return (toold_result){.failed = TOOLD_STR("name must be text")};
	}
	if (!who.n) who = TOOLD_STR("world");
	if (toold_is(who, "nobody")) return toold_fails("NOBODY", "there is nobody to greet");

	toold_buf text = {0};
	toold_add(&text, toold_config("greeting"));
	toold_add_text(&text, ", ");
	toold_add(&text, who);
	toold_add_text(&text, "!\n");
	toold_str line = toold_done(&text);

	toold_buf data = {0};
	toold_json_open(&data, '{');
	toold_json_text(&data, "greeting", (toold_str){line.p, line.n - 1});
	toold_json_close(&data, '}');
	return (toold_result){.out = line, .data = toold_done(&data)};
}

TOOLD_HANDLE(greet)
