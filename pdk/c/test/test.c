// The C SDK, natively: what it reads and writes, and the host of native tests.
// scripts/sdk compiles it with the sanitizers and runs it.

#include <stdio.h>

#include "../toold.h"

static int failed;

static void check_at(int line, bool ok, const char *what) {
	if (ok) return;
	failed++;
	printf("test.c:%d: %s\n", line, what);
}

#define CHECK(x) check_at(__LINE__, x, #x)
#define TEXT(s) toold_text(s)

static void numbers(void) {
	int64_t v;
	CHECK(toold_int_of(TEXT("9223372036854775807"), &v) && v == INT64_MAX);
	CHECK(toold_int_of(TEXT("-9223372036854775808"), &v) && v == INT64_MIN);
	CHECK(toold_int_of(TEXT("-0"), &v) && v == 0);
	const char *bad[] = {"", "-", "1x", "9223372036854775808", "-9223372036854775809", "99999999999999999999", "1.0", " 1"};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) CHECK(!toold_int_of(TEXT(bad[i]), &v));
	toold_buf b = {0};
	toold_add_int(&b, INT64_MIN);
	CHECK(toold_is(toold_done(&b), "-9223372036854775808"));
}

static void base64(void) {
	const char *pairs[][2] = {{"", ""}, {"a", "YQ=="}, {"ab", "YWI="}, {"abc", "YWJj"}, {"abcd", "YWJjZA=="}};
	toold_str out;
	for (size_t i = 0; i < 5; i++) {
		CHECK(toold_is(toold_base64(TEXT(pairs[i][0])), pairs[i][1]));
		CHECK(toold_base64_of(TEXT(pairs[i][1]), &out) && toold_is(out, pairs[i][0]));
	}
	const char *bad[] = {"a", "ab=", "ab=c", "====", "YQ==YQ==", "Y-Q=", "YQ=a"};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) CHECK(!toold_base64_of(TEXT(bad[i]), &out));
}

// good reports whether json is one whole value.
static bool good(const char *json) {
	toold_reader r = toold_read(TEXT(json));
	toold_skip(&r);
	return toold_end(&r);
}

static void json(void) {
	const char *right[] = {"null", " [true , false,null] ", "{\"a\":[1,-2.50e+3,{\"b\":\"\"}],\"\":0}", "\"\\u00e4\\ud83d\\ude00\\/\\b\\f\"", "12345678901234567890", "-0.5E-1"};
	for (size_t i = 0; i < sizeof right / sizeof *right; i++) CHECK(good(right[i]));
	const char *wrong[] = {"", "{", "[1,]", "[,1]", "[1 2]", "[1}", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{a:1}", "01", "1.", ".5", "1e", "-", "+1", "tru", "nul", "\"", "\"\\x\"", "\"\\u12\"", "\"\n\"", "1 2", "{} {}"};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) check_at(__LINE__, !good(wrong[i]), wrong[i]);
	char deep[2000];
	memset(deep, '[', sizeof deep - 1);
	deep[sizeof deep - 1] = 0;
	CHECK(!good(deep));

	toold_str s;
	CHECK(toold_string_of(TEXT("\"\\u00e4\\ud83d\\ude00\\/\\b\\f\\u0041\""), &s) && toold_is(s, "ä😀/\b\fA"));
	CHECK(toold_string_of(TEXT("\"\\ud83dx\\ude00\\ud83d\\u0041\""), &s) && toold_is(s, "\xef\xbf\xbdx\xef\xbf\xbd\xef\xbf\xbd" "A"));
	CHECK(toold_string_of(TEXT("\"a\\u0000b\""), &s) && s.n == 3 && s.p[1] == 0);
	CHECK(!toold_string_of(TEXT("1"), &s) && !toold_string_of(TEXT("null"), &s));
	CHECK(toold_is(toold_member(TEXT("{\"a\":1,\"b\":{\"a\":2},\"a\":[3]}"), "a"), "[3]"));
	CHECK(!toold_member(TEXT("[1]"), "a").p && !toold_member(TEXT("{\"a\":1"), "a").p);

	toold_buf b = {0};
	toold_json_string(&b, (toold_str){"\"\\\n\r\t\x01ä\0", 9});
	CHECK(toold_is(toold_done(&b), "\"\\\"\\\\\\n\\r\\t\\u0001ä\\u0000\""));
}

static toold_decision policy(const toold_call *c) {
	if (c->args.n && toold_is(c->args.v[0], "fail")) return (toold_decision){.failed = TOOLD_STR("asked to")};
	if (c->args.n && toold_starts(c->args.v[0], "-")) return toold_deny("flag", "no flags", "leave it out");
	return toold_allow();
}

TOOLD_RESTRICT(policy)

static toold_result handler(const toold_call *c) {
	(void)c;
	toold_str why, piece;
	while ((piece = toold_recv(&why)).p) toold_emit("stdout", piece);
	toold_var_set(TOOLD_STR("k"), TOOLD_STR("v"));
	toold_log(TOOLD_INFO, toold_config("greeting"));
	toold_exec_request q = {.path = TOOLD_STR("/bin/x")};
	toold_result r = toold_says(toold_var_get(TOOLD_STR("k")));
	r.err = toold_exec(&q).error;
	toold_response res = toold_http("GET", TOOLD_STR("https://x"), (toold_map){0}, TOOLD_STR(""));
	r.exit_code = res.status;
	return r;
}

TOOLD_HANDLE(handler)

static void exports(void) {
	const char *calls[][2] = {
		{"{\"tool\":\"t\"}", "{\"effect\":\"allow\"}"},
		{"{\"tool\":\"t\",\"args\":[\"-x\"],\"later\":{\"a\":[1]}}", "{\"effect\":\"deny\",\"rule\":\"flag\",\"reason\":\"no flags\",\"instead\":\"leave it out\"}"},
	};
	for (size_t i = 0; i < 2; i++) {
		toold_fake = (toold_fake_host){.input = TEXT(calls[i][0])};
		CHECK(toold_export_restrict() == 0 && toold_is(toold_fake.output, calls[i][1]));
	}
	const char *refused[] = {"", "null", "[]", "{\"tool\":", "{\"args\":\"x\"}", "{\"args\":[1]}", "{} {}", "{\"args\":[\"fail\"]}"};
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		toold_fake = (toold_fake_host){.input = TEXT(refused[i])};
		CHECK(toold_export_restrict() == 1 && toold_fake.error.n && !toold_fake.output.p);
	}

	toold_fake = (toold_fake_host){.input = TEXT("{\"tool\":\"t\"}")};
	toold_put(&toold_fake.config, TOOLD_STR("greeting"), TOOLD_STR("Hello"));
	toold_push(&toold_fake.recv, TOOLD_STR("one"));
	toold_push(&toold_fake.recv, TOOLD_STR("two"));
	CHECK(toold_export_handle() == 0);
	CHECK(toold_is(toold_fake.output, "{\"exit_code\":0,\"stdout\":\"v\",\"stderr\":\"tool_exec: not granted\"}"));
	CHECK(toold_fake.emitted.n == 2 && toold_is(toold_fake.emitted.v[1], "two"));
	CHECK(toold_fake.logged.n == 1 && toold_is(toold_fake.logged.v[0], "Hello"));
}

int main(void) {
	numbers();
	base64();
	json();
	exports();
	if (!failed) puts("ok");
	return failed != 0;
}
