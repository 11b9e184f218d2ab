// The conformance guest of the C SDK. What each request does is in the
// documentation of package pdktest.

#include "../toold.h"

static toold_describe describe(void) {
	return (toold_describe){
		.name = TOOLD_STR("pdktest"),
		.description = TOOLD_STR("the conformance guest"),
		.schema = TOOLD_STR("{\"type\":\"object\"}"),
		.annotations = {.set = true, .title = TOOLD_STR("Conformance"), .read_only = TOOLD_YES, .destructive = TOOLD_NO},
		.wants_repo_config = true,
	};
}

TOOLD_DESCRIBE(describe)

static toold_str join(toold_list l, size_t from, const char *with) {
	toold_buf b = {0};
	for (size_t i = from; i < l.n; i++) {
		if (i > from) toold_add_text(&b, with);
		toold_add(&b, l.v[i]);
	}
	return toold_done(&b);
}

static toold_str two(const char *a, toold_str b, const char *c) {
	toold_buf buf = {0};
	toold_add_text(&buf, a);
	toold_add(&buf, b);
	toold_add_text(&buf, c);
	return toold_done(&buf);
}

// arg is args[i], empty when there is none.
static toold_str arg(const toold_call *c, size_t i) { return i < c->args.n ? c->args.v[i] : TOOLD_STR(""); }

// c_string is s as C has it.
static const char *c_string(toold_str s) { return two("", s, "").p; }

static toold_decision policy(const toold_call *c) {
	if (!c->args.n) return toold_deny("pdktest.none", "there is no request", 0);
	toold_str request = c->args.v[0];
	if (toold_is(request, "allow")) return toold_allow();
	if (toold_is(request, "deny")) return toold_deny("pdktest.deny", "asked to deny", "ask to allow");
	if (toold_is(request, "ask")) {
		toold_decision d = toold_ask("pdktest.ask", "asked to ask");
		for (size_t i = 1; i < c->args.n; i++) toold_push(&d.ask.by, c->args.v[i]);
		d.ask.self = true, d.ask.ttl_ms = 60000;
		return d;
	}
	if (toold_is(request, "rewrite")) {
		toold_decision d = toold_allow();
		d.rule = TOOLD_STR("pdktest.rewrite");
		d.args.set = true;
		for (size_t i = c->args.n; i-- > 1;) toold_push(&d.args, c->args.v[i]);
		toold_put(&d.env, TOOLD_STR("REWRITTEN"), TOOLD_STR("yes"));
		d.stdin_base64 = toold_base64(TOOLD_STR("rewritten\n"));
		d.mutating = TOOLD_YES, d.idempotent = TOOLD_NO;
		toold_buf key = {0};
		toold_add_text(&key, "key-");
		toold_add_int(&key, (int64_t)d.args.n);
		d.idempotency_key = toold_done(&key);
		d.timeout_ms = 1500;
		d.wants_stdin = TOOLD_NO;
		d.shell = true;
		d.shell_lines = d.args;
		return d;
	}
	if (toold_is(request, "empty")) {
		toold_decision d = toold_allow();
		d.args.set = d.env.set = true;
		d.stdin_base64 = TOOLD_STR("");
		return d;
	}
	if (toold_is(request, "config")) {
		toold_decision d = toold_deny("pdktest.config", "absent", 0);
		toold_str v = toold_config(c_string(arg(c, 1)));
		if (v.n) d.reason = v;
		return d;
	}
	if (toold_is(request, "repo")) {
		toold_decision d = toold_deny("pdktest.repo", "none", 0);
		if (!c->repo_config.set) return d;
		d.reason = c->repo_config.error;
		if (d.reason.n) return d;
		toold_buf b = {0};
		for (size_t i = 0; i < c->repo_config.entries.n; i++) {
			if (i) toold_add_text(&b, ";");
			toold_add(&b, c->repo_config.entries.v[i].key);
			toold_add_text(&b, "=");
			toold_add(&b, c->repo_config.entries.v[i].value);
		}
		d.reason = toold_done(&b);
		return d;
	}
	if (toold_is(request, "fail")) return (toold_decision){.failed = TOOLD_STR("asked to fail")};
	if (toold_is(request, "trap")) __builtin_trap();
	toold_decision d = toold_deny("pdktest.unknown", 0, 0);
	d.reason = two("unknown request: ", request, "");
	return d;
}

TOOLD_RESTRICT(policy)

static void write_entries(toold_buf *b, const char *name, toold_map m) {
	if (!m.n) return;
	toold_json_name(b, name);
	toold_json_open(b, '[');
	for (size_t i = 0; i < m.n; i++) {
		toold_json_open(b, '{');
		toold_json_name(b, "key");
		toold_json_string(b, m.v[i].key);
		toold_json_name(b, "value");
		toold_json_string(b, m.v[i].value);
		toold_json_close(b, '}');
	}
	toold_json_close(b, ']');
}

static toold_result data(toold_buf *b) { return (toold_result){.data = toold_done(b)}; }

// written is the Call, written anew.
static toold_result written(const toold_call *c) {
	toold_buf b = {0};
	toold_json_open(&b, '{');
	toold_json_name(&b, "tool");
	toold_json_string(&b, c->tool);
	if (c->args.n) toold_json_list(&b, "args", c->args);
	toold_json_text(&b, "cwd", c->cwd);
	if (c->roots.n) toold_json_list(&b, "roots", c->roots);
	toold_json_value(&b, "payload", c->payload);
	toold_json_text(&b, "stdin_base64", c->stdin_base64);
	if (c->env.n) toold_json_map(&b, "env", c->env);
	toold_json_text(&b, "execution_id", c->execution_id);
	toold_json_number(&b, "attempt", c->attempt);
	toold_json_text(&b, "session", c->session);
	toold_json_text(&b, "caller", c->caller);
	toold_json_yes(&b, "read_only", c->read_only);
	toold_json_value(&b, "binding", c->binding);
	toold_json_number(&b, "deadline_ms", c->deadline_ms);
	if (c->repo_config.set) {
		toold_json_name(&b, "repo_config");
		toold_json_open(&b, '{');
		write_entries(&b, "entries", c->repo_config.entries);
		write_entries(&b, "submodules", c->repo_config.submodules);
		write_entries(&b, "state", c->repo_config.state);
		write_entries(&b, "remotes", c->repo_config.remotes);
		toold_json_text(&b, "remote_error", c->repo_config.remote_error);
		toold_json_text(&b, "error", c->repo_config.error);
		toold_json_close(&b, '}');
	}
	toold_json_close(&b, '}');
	return data(&b);
}

static int nibble(char c) { return c >= 'a' ? c - 'a' + 10 : c - '0'; }

// value answers {"value": v}, null for an absent one.
static toold_result value(toold_str v) {
	toold_buf b = {0};
	toold_json_open(&b, '{');
	toold_json_name(&b, "value");
	if (v.p) toold_json_string(&b, v);
	else toold_json_raw(&b, TOOLD_STR("null"));
	toold_json_close(&b, '}');
	return data(&b);
}

static int count;

static toold_result answer(const toold_call *c) {
	if (!c->args.n) return (toold_result){.exit_code = 2, .err = TOOLD_STR("there is no request\n")};
	toold_str request = c->args.v[0], a = arg(c, 1), a2 = arg(c, 2);
	toold_result r = {0};
	toold_buf b = {0};
	int64_t n = 0;
	if (toold_is(request, "call")) return written(c);
	if (toold_is(request, "stdout")) return toold_says(join(c->args, 1, " "));
	if (toold_is(request, "stderr")) return (toold_result){.err = join(c->args, 1, " ")};
	if (toold_is(request, "exit")) {
		if (!toold_int_of(a, &n)) return (toold_result){.failed = TOOLD_STR("not a number")};
		return (toold_result){.exit_code = (int)n};
	}
	if (toold_is(request, "bytes")) {
		size_t len = a.n / 2;
		char *to = toold_alloc(len), *back = toold_alloc(len);
		for (size_t i = 0; i < len; i++) to[i] = back[len - 1 - i] = (char)(nibble(a.p[2 * i]) << 4 | nibble(a.p[2 * i + 1]));
		return (toold_result){.stdout_base64 = toold_base64((toold_str){to, len}), .stderr_base64 = toold_base64((toold_str){back, len})};
	}
	if (toold_is(request, "data")) return (toold_result){.data = c->payload};
	if (toold_is(request, "error")) {
		r.error.code = a, r.error.message = a2, r.error.retriable = true;
		return r;
	}
	if (toold_is(request, "safety")) return (toold_result){.safety = {.set = true, .read_only = true, .grants = a}};
	if (toold_is(request, "gone")) return (toold_result){.gone = true};
	if (toold_is(request, "fail")) return (toold_result){.failed = join(c->args, 1, " ")};
	if (toold_is(request, "trap")) __builtin_trap();
	if (toold_is(request, "config")) {
		toold_str v = toold_config(c_string(a));
		return value(v.n ? v : (toold_str){0, 0});
	}
	if (toold_is(request, "var-get")) return value(toold_var_get(a));
	if (toold_is(request, "var-set")) {
		toold_var_set(a, a2);
		return value(toold_var_get(a));
	}
	if (toold_is(request, "var-delete")) {
		toold_var_set(a, (toold_str){0, 0});
		return value(toold_var_get(a));
	}
	if (toold_is(request, "log")) {
		toold_log(toold_is(a, "debug") ? TOOLD_DEBUG : toold_is(a, "info") ? TOOLD_INFO : toold_is(a, "warn") ? TOOLD_WARN : TOOLD_ERROR, a2);
		return r;
	}
	if (toold_is(request, "emit")) {
		for (size_t i = 2; i < c->args.n; i++)
			if (!toold_emit(c_string(a), c->args.v[i])) return (toold_result){.failed = TOOLD_STR("the caller has left")};
		return r;
	}
	if (toold_is(request, "recv")) {
		toold_json_open(&b, '{');
		toold_json_name(&b, "pieces");
		toold_json_open(&b, '[');
		toold_str why;
		for (toold_str piece; (piece = toold_recv(&why)).p;) toold_json_string(&b, piece);
		toold_json_close(&b, ']');
		toold_json_close(&b, '}');
		return why.n ? (toold_result){.failed = why} : data(&b);
	}
	if (toold_is(request, "http")) {
		toold_map headers = {0};
		toold_put(&headers, TOOLD_STR("X-Request"), TOOLD_STR("pdktest"));
		toold_response res = toold_http(c_string(a), a2, headers, arg(c, 3));
		toold_json_open(&b, '{');
		if (!res.status) toold_json_yes(&b, "failed", true);
		else {
			toold_json_name(&b, "status");
			toold_json_int(&b, res.status);
			toold_json_name(&b, "reply");
			toold_json_string(&b, toold_find(res.headers, "x-reply"));
			toold_json_name(&b, "body");
			toold_json_string(&b, res.body);
		}
		toold_json_close(&b, '}');
		return data(&b);
	}
	if (toold_is(request, "exec")) {
		toold_exec_request q = {.path = a, .cwd = c->cwd, .in = TOOLD_STR("in")};
		for (size_t i = 2; i < c->args.n; i++) toold_push(&q.args, c->args.v[i]);
		toold_put(&q.env, TOOLD_STR("A"), TOOLD_STR("b"));
		toold_exec_result res = toold_exec(&q);
		toold_json_open(&b, '{');
		if (res.error.n) toold_json_text(&b, "refused", res.error);
		else {
			toold_json_name(&b, "exit_code");
			toold_json_int(&b, res.exit_code);
			toold_json_name(&b, "stdout");
			toold_json_string(&b, res.out);
			toold_json_name(&b, "stderr");
			toold_json_string(&b, res.err);
		}
		toold_json_close(&b, '}');
		return data(&b);
	}
	if (toold_is(request, "tool-call")) return (toold_result){.data = toold_tool_call(c->payload)};
	if (toold_is(request, "length")) {
		toold_str in;
		if (!toold_base64_of(c->stdin_base64, &in)) return (toold_result){.failed = TOOLD_STR("not base64")};
		toold_json_open(&b, '{');
		toold_json_name(&b, "length");
		toold_json_int(&b, (int64_t)in.n);
		toold_json_close(&b, '}');
		return data(&b);
	}
	if (toold_is(request, "large")) {
		if (!toold_int_of(a, &n)) return (toold_result){.failed = TOOLD_STR("not a number")};
		char *x = toold_alloc((size_t)n);
		__builtin_memset(x, 'x', (size_t)n);
		return toold_says((toold_str){x, (size_t)n});
	}
	if (toold_is(request, "count")) {
		toold_json_open(&b, '{');
		toold_json_number(&b, "count", ++count);
		toold_json_close(&b, '}');
		return data(&b);
	}
	return (toold_result){.exit_code = 2, .err = two("unknown request: ", request, "\n")};
}

TOOLD_HANDLE(answer)

static toold_surface discover(const toold_discovery *d) {
	static toold_str sizes[] = {TOOLD_STR("48x48"), TOOLD_STR("any")};
	static const toold_icon icons[] = {
		{.src = TOOLD_STR("https://pdktest.example/one.png"), .mime_type = TOOLD_STR("image/png"), .sizes = {sizes, 2}, .theme = TOOLD_STR("dark")},
		{.src = TOOLD_STR("data:,")},
	};
	static const toold_surface_tool tools[] = {
		{.name = TOOLD_STR("one"), .title = TOOLD_STR("One"), .description = TOOLD_STR("the first"), .schema = TOOLD_STR("{\"type\":\"object\"}"),
			.output_schema = TOOLD_STR("{\"type\":\"object\",\"required\":[\"ok\"]}"), .icons = icons, .n_icons = 2,
			.annotations = {.set = true, .read_only = TOOLD_YES}, .binding = TOOLD_STR("{\"view\":\"v\"}")},
		{.name = TOOLD_STR("two"), .mutating = true},
	};
	if (toold_is(toold_config("server"), "refuses"))
		return (toold_surface){.error = {.code = TOOLD_STR("UNAUTHENTICATED"), .message = TOOLD_STR("no such user")}};
	if (toold_is(toold_config("server"), "fails")) return (toold_surface){.failed = TOOLD_STR("the server is away")};
	return (toold_surface){.tools = tools, .n = d->read_only ? 1 : 2, .safety = {.set = true, .read_only = d->read_only, .grants = d->tool}, .ttl_ms = 60000};
}

TOOLD_DISCOVER(discover)

static toold_classification classify(const toold_ended *e) {
	if (!e->call.args.n) return (toold_classification){.failed = TOOLD_STR("there is no request")};
	return (toold_classification){.failure = e->exit_code >= 2, .retriable = toold_is(e->err, "try again\xff")};
}

TOOLD_CLASSIFY(classify)

static toold_str joined(toold_list l, const char *with) { return join(l, 0, with); }

static toold_reconciliation reconcile(const toold_reconcile *q) {
	if (!q->call.args.n) return (toold_reconciliation){.failed = TOOLD_STR("there is no request")};
	toold_str request = q->call.args.v[0];
	toold_buf b = {0};
	if (q->before) {
		toold_json_open(&b, '{');
		toold_json_name(&b, "key");
		toold_json_string(&b, q->key);
		toold_json_name(&b, "of");
		toold_json_string(&b, q->call.execution_id);
		toold_json_close(&b, '}');
		return (toold_reconciliation){.facts = toold_done(&b)};
	}
	if (toold_is(request, "run") && !q->n) {
		toold_list *run = toold_alloc(2 * sizeof *run);
		run[0] = run[1] = (toold_list){0};
		for (size_t i = 1; i < q->call.args.n; i++) toold_push(&run[0], q->call.args.v[i]);
		return (toold_reconciliation){.run = run, .n = 2};
	}
	if (toold_is(request, "run")) {
		for (size_t i = 0; i < q->n; i++) {
			const toold_ran *r = &q->ran[i];
			if (i) toold_add_text(&b, ";");
			toold_add(&b, joined(r->args, ","));
			toold_add_text(&b, ">");
			toold_add_int(&b, r->exit_code);
			toold_add_text(&b, ">");
			toold_add(&b, r->out);
			toold_add_text(&b, ">");
			toold_add(&b, r->err);
			toold_add_text(&b, r->truncated ? ">true>" : ">false>");
			if (!r->stopped) {
				toold_add_text(&b, "none");
				continue;
			}
			toold_add(&b, r->error.code);
			toold_add_text(&b, ":");
			toold_add(&b, r->error.message);
			toold_add_text(&b, r->error.retriable ? ":true" : ":false");
		}
		return toold_unresolved(toold_done(&b));
	}
	if (toold_is(request, "asked")) {
		toold_add(&b, q->key);
		toold_add_text(&b, "|");
		toold_add(&b, q->stdin_sha256);
		toold_add_text(&b, "|");
		toold_add(&b, joined(q->env, ","));
		int64_t times[] = {q->began_ms, q->ended_ms, q->now_ms};
		for (size_t i = 0; i < 3; i++) {
			toold_add_text(&b, "|");
			toold_add_int(&b, times[i]);
		}
		toold_add_text(&b, q->gone ? "|true" : "|false");
		return toold_unresolved(toold_done(&b));
	}
	if (toold_is(request, "done")) {
		toold_reconciliation a = {.verdict = TOOLD_DONE, .evidence = TOOLD_STR("it is there")};
		a.result = toold_says(join(q->call.args, 1, " "));
		a.result.data = q->facts;
		return a;
	}
	if (toold_is(request, "not-done")) {
		if (!q->gone) return toold_unresolved(TOOLD_STR("it may still run"));
		return (toold_reconciliation){.verdict = TOOLD_NOT_DONE, .evidence = TOOLD_STR("it is not there")};
	}
	if (toold_is(request, "fail")) return (toold_reconciliation){.failed = TOOLD_STR("asked to fail")};
	return (toold_reconciliation){0};
}

TOOLD_RECONCILE(reconcile)

static toold_decision wire(const toold_wire *w) {
	if (!w->call.args.n) return (toold_decision){.failed = TOOLD_STR("there is no request")};
	toold_str request = w->call.args.v[0];
	if (toold_is(request, "allow")) return toold_allow();
	if (toold_is(request, "fail")) return (toold_decision){.failed = TOOLD_STR("asked to fail")};
	toold_decision d = toold_deny("pdktest.wire", "", "");
	if (!toold_is(request, "asked")) {
		d.rule = TOOLD_STR("pdktest.unknown");
		d.reason = two("unknown request: ", request, "");
		return d;
	}
	static const char *force[] = {":null", ":false", ":true"};
	toold_buf b = {0}, port = {0}, refs = {0};
	toold_add_int(&port, w->port);
	for (size_t i = 0; i < w->n; i++) {
		const toold_wire_ref *r = &w->refs[i];
		if (i) toold_add_text(&refs, ",");
		toold_add(&refs, r->name);
		toold_add_text(&refs, ":");
		toold_add(&refs, r->old);
		toold_add_text(&refs, ":");
		toold_add(&refs, r->new_);
		toold_add_text(&refs, force[r->force]);
	}
	toold_str told[] = {w->on, w->host, toold_done(&port), w->path, w->method, w->remote, toold_done(&refs), joined(w->push_options, ",")};
	for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
		if (i) toold_add_text(&b, "|");
		toold_add(&b, told[i]);
	}
	d.reason = toold_done(&b);
	return d;
}

TOOLD_WIRE(wire)
