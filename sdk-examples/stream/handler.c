// Handler is the tool "countdown": it says each number when it is its turn, and
// how far it is.
#include "toold.h"

static toold_result countdown(const toold_call *c) {
	int64_t from = 3;
	if (c->args.n && (!toold_int_of(c->args.v[0], &from) || from < 0 || from > 1000))
		return toold_fails("NOT_A_NUMBER", "count down from a number between 0 and 1000");
	for (int64_t i = from; i > 0; i--) {
		toold_buf progress = {0}, line = {0};
		toold_json_open(&progress, '{');
		toold_json_name(&progress, "done");
		toold_json_int(&progress, from - i);
		toold_json_name(&progress, "of");
		toold_json_int(&progress, from);
		toold_json_close(&progress, '}');
		toold_emit("progress", toold_done(&progress));
		toold_add_int(&line, i);
		toold_add_text(&line, "\n");
		// It waits while the caller is slow; when the caller has left, so do we.
		if (!toold_emit("stdout", toold_done(&line))) return (toold_result){.exit_code = 1};
	}
	return toold_says(TOOLD_STR("lift-off\n"));
}

TOOLD_HANDLE(countdown)
