// The readers of the C SDK, natively, under libFuzzer and the sanitizers.
// scripts/fuzz compiles and runs it:
//
//     clang -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -o fuzz fuzz.c
//     fuzz -dict=json.dict -max_total_time=60 corpus seeds
//
// The first byte of an input says which reader gets the rest. Beside what the
// sanitizers find, it holds the readers to one another: what one of them takes
// is one value of JSON to toold_skip too, text is UTF-8, and what is written of
// what was read is read back the same.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A guest frees nothing, since its memory is as before in the next call. Here
// each input begins with none.
static void **kept;
static size_t n_kept, room_kept;

static void *keep(size_t n, size_t size) {
	void *p = calloc(n, size);
	if (n_kept == room_kept) {
		room_kept = room_kept ? 2 * room_kept : 1024;
		kept = realloc(kept, room_kept * sizeof *kept);
		if (!kept) abort();
	}
	return kept[n_kept++] = p;
}

#define calloc keep
#include "../toold.h"
#undef calloc

#define MUST(x) \
	do { \
		if (!(x)) { \
			fprintf(stderr, "fuzz.c:%d: %s\n", __LINE__, #x); \
			abort(); \
		} \
	} while (0)

static bool is_value(toold_str json) {
	toold_reader r = toold_read(json);
	toold_skip(&r);
	return toold_end(&r);
}

// must_be_text holds s to be UTF-8 that is written and read back.
static void must_be_text(toold_str s) {
	toold_buf b = {0};
	toold_json_string(&b, s);
	toold_str json = toold_done(&b), back = {0, 0};
	MUST(toold_string_of(json, &back));
	MUST(toold_same(s, back));
}

static void must_be_list(toold_list l) {
	for (size_t i = 0; i < l.n; i++) must_be_text(l.v[i]);
}

static void must_be_map(toold_map m) {
	for (size_t i = 0; i < m.n; i++) must_be_text(m.v[i].key), must_be_text(m.v[i].value);
}

static void must_be_call(const toold_call *c) {
	const toold_str texts[] = {c->tool, c->cwd, c->stdin_base64, c->execution_id, c->session, c->caller, c->repo_config.error, c->repo_config.remote_error};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) must_be_text(texts[i]);
	must_be_list(c->args), must_be_list(c->roots);
	must_be_map(c->env), must_be_map(c->repo_config.entries), must_be_map(c->repo_config.submodules);
	must_be_map(c->repo_config.state), must_be_map(c->repo_config.remotes);
	MUST(!c->payload.n || is_value(c->payload));
	MUST(!c->binding.n || is_value(c->binding));
}

static toold_decision policy(const toold_call *c) {
	must_be_call(c);
	toold_decision d = toold_allow();
	d.args = c->args, d.env = c->env, d.rule = c->tool;
	return d;
}

TOOLD_RESTRICT(policy)

static toold_result handler(const toold_call *c) {
	must_be_call(c);
	toold_reader r = toold_read(c->payload);
	int64_t n = 0;
	if (toold_object(&r))
		for (toold_str name; toold_next_member(&r, &name);) {
			if (toold_is(name, "count")) n = toold_read_int(&r);
			else if (toold_is(name, "list") && toold_array(&r))
				while (toold_next_item(&r)) n += toold_read_bool(&r);
			else toold_skip(&r);
		}
	if (!toold_end(&r)) return (toold_result){.failed = toold_why(&r, "payload", c->payload)};
	toold_str in = {0, 0};
	toold_base64_of(c->stdin_base64, &in);
	return (toold_result){.exit_code = (int)(n & 255), .out = c->cwd, .data = c->payload, .stdout_base64 = toold_base64(in)};
}

TOOLD_HANDLE(handler)

static toold_surface discover(const toold_discovery *d) {
	must_be_text(d->tool);
	return (toold_surface){.safety = {.set = true, .read_only = d->read_only, .grants = d->tool}, .ttl_ms = d->deadline_ms};
}

TOOLD_DISCOVER(discover)

static toold_classification classify(const toold_ended *e) {
	must_be_call(&e->call);
	return (toold_classification){.failure = e->exit_code > 1};
}

TOOLD_CLASSIFY(classify)

static toold_reconciliation reconcile(const toold_reconcile *q) {
	must_be_call(&q->call);
	must_be_text(q->key);
	for (size_t i = 0; i < q->n; i++) must_be_text(q->ran[i].error.message);
	toold_reconciliation a = toold_unresolved(q->n ? q->ran[q->n - 1].out : q->stdin_sha256);
	a.run = &q->env, a.n = 1, a.facts = q->facts;
	return a;
}

TOOLD_RECONCILE(reconcile)

static toold_decision wire(const toold_wire *w) {
	must_be_call(&w->call);
	must_be_text(w->remote);
	toold_decision d = toold_deny("wire", "", "");
	for (size_t i = 0; i < w->n; i++) {
		must_be_text(w->refs[i].new_);
		if (w->refs[i].force != TOOLD_NO) d.reason = w->refs[i].name;
	}
	return d;
}

TOOLD_WIRE(wire)

static toold_str answer;

static toold_str exec_hook(toold_str request) {
	MUST(is_value(request));
	return answer;
}

static toold_str http_hook(toold_str request, toold_str body, int *status, toold_str *headers) {
	MUST(is_value(request));
	*status = 200, *headers = answer;
	return body;
}

// export runs one, and holds it to answer JSON or to say why not.
static void export(int32_t (*fn)(void), toold_str in) {
	toold_fake.input = in;
	if (fn() == 0) {
		MUST(is_value(in));
		MUST(is_value(toold_fake.output));
		MUST(!toold_fake.error.n);
	} else {
		MUST(toold_fake.error.n);
		MUST(!toold_fake.output.n);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
	if (!n) return 0;
	// A block of its own, so that reading beyond its end is seen.
	char *copy = malloc(n - 1);
	if (n > 1) memcpy(copy, data + 1, n - 1);
	toold_str in = {copy, n - 1}, out = {0, 0};
	toold_fake = (toold_fake_host){.http = http_hook, .exec = exec_hook};
	answer = in;
	switch (*data) {
	case 'r': export(toold_export_restrict, in); break;
	case 'h': export(toold_export_handle, in); break;
	case 'd': export(toold_export_discover, in); break;
	case 'c': export(toold_export_classify, in); break;
	case 'q': export(toold_export_reconcile, in); break;
	case 'p': export(toold_export_wire, in); break;
	case 'x': {
		toold_exec_request q = {.path = TOOLD_STR("/x"), .in = in};
		if (!toold_exec(&q).error.n) MUST(is_value(in));
		break;
	}
	case 'w': {
		toold_response res = toold_http("GET", TOOLD_STR("https://example.com"), (toold_map){0}, TOOLD_STR(""));
		must_be_map(res.headers);
		break;
	}
	case 'b': // what is base64 is that of what it stands for
		if (toold_base64_of(in, &out)) MUST(toold_base64(out).n == in.n);
		MUST(toold_base64_of(toold_base64(in), &out) && toold_same(in, out));
		break;
	case 'm':
		out = toold_member(in, "a");
		MUST(!out.n || (is_value(in) && is_value(out)));
		break;
	case 's':
		if (toold_string_of(in, &out)) {
			MUST(is_value(in));
			must_be_text(out);
		}
		break;
	}
	free(copy);
	while (n_kept) free(kept[--n_kept]);
	return 0;
}
