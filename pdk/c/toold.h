// toold.h: the C SDK for toold guests, policies and tools that run as
// WebAssembly modules. It is this one header; it needs no C library.
//
// A guest exports functions that take nothing and answer 0. What they are
// asked and answer travels as JSON, which TOOLD_RESTRICT, TOOLD_HANDLE and
// TOOLD_DESCRIBE read and write:
//
//     #include "toold.h"
//
//     static toold_decision policy(const toold_call *c) {
//         for (size_t i = 0; i < c->args.n; i++)
//             if (toold_is(c->args.v[i], "--force"))
//                 return toold_deny("force", "--force rewrites what others have", "push without it");
//         return toold_allow();
//     }
//
//     TOOLD_RESTRICT(policy)
//
// and it is built with clang and lld alone:
//
//     clang --target=wasm32 -O2 -nostdlib -Wl,--no-entry -o restricted.wasm policy.c
//
// -O2 is part of it: without it a module is several times as large and slow.
// A trap names functions, unless they are stripped (-Wl,-s); TOOLD_CHECK says
// file and line.
//
// Memory: every call begins with the state that the module had when it was
// loaded, so nothing is ever freed: toold_alloc only moves on, and traps when
// limits.memory is reached. A static variable that a call changes is as before
// in the next; what is to last goes through toold_var_set.
//
// Text is a toold_str: bytes and a length, not ended by a zero, since a zero
// may be among them. All that a guest is told is valid UTF-8, and so must be
// all that it answers; bytes that are not go through toold_stdout_bytes.
//
// What fails says so in its answer: a policy or handler that returns
// toold_failed("why") ends the call, and a host refuses a call whose policy
// fails. A call that cannot be read never reaches the policy.
//
// Only the host functions that are used are imported. With TOOLD_PORTABLE
// defined, input and output move eight bytes at a time through functions that
// every Extism host has, instead of in one copy that only toold does.
//
// Compiled for anything but wasm (cc, for tests), the host is toold_fake, at
// the end of this file.
//
// It is C11, and C++17 for who includes it there.

#ifndef TOOLD_H
#define TOOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef __wasm__
#include <stdlib.h>
#include <string.h>
#endif

#ifdef __cplusplus
extern "C" {
// A value of a type, and one of nothing but zeros, as C++ writes them.
#define TOOLD_A(type) type
#define TOOLD_ZERO {}
#else
#define TOOLD_A(type) (type)
#define TOOLD_ZERO {0}
#endif

// The version of the guest interface that this header speaks.
#define TOOLD_ABI 1

#define TOOLD_FN static __attribute__((unused))
// Not copied into each of its callers: a module stays small, and so quick to
// load.
#define TOOLD_FAR static __attribute__((unused, noinline))

// ---- Text ----

// Bytes of text.
typedef struct {
	const char *p; // 0: absent, where that is told from empty
	size_t n;
} toold_str;

// A literal as a toold_str.
#define TOOLD_STR(literal) (TOOLD_A(toold_str){"" literal, sizeof(literal) - 1})

// ---- Types: see `toolctl schema abi` for what each field means ----

// One entry of a map, or of a git configuration.
typedef struct {
	toold_str key, value;
} toold_pair;

// In a decision, a list or map with set false leaves what was asked; set true
// and n 0 is an empty one.
typedef struct {
	toold_str *v;
	size_t n;
	bool set;
} toold_list;

// Entries in their order, of which the last of a key counts.
typedef struct {
	toold_pair *v;
	size_t n;
	bool set;
} toold_map;

// A yes or no that may be left unsaid.
typedef enum { TOOLD_UNSAID, TOOLD_NO, TOOLD_YES } toold_opt;

// The configuration of the git repository around cwd, in the order of its files.
typedef struct {
	bool set; // the host sent one
	toold_map entries, submodules;
	toold_map state;        // files that git acts on, from the git directory on; HEAD is there when there is a repository
	toold_map remotes;      // entries of repositories that remotes or arguments name by a path
	toold_str remote_error; // not empty: one of those cannot be trusted
	toold_str error;
} toold_repo_config;

// What restrict and handle are asked. payload and binding are JSON as it came;
// read them with toold_member and toold_reader.
typedef struct {
	toold_str tool;
	toold_list args;
	toold_str cwd; // absolute, beneath one of roots
	toold_list roots;
	toold_str payload;      // of an envelope call
	toold_str stdin_base64; // what came with the request itself; see toold_recv
	toold_map env;
	toold_str execution_id;
	int64_t attempt;           // from 1
	toold_str session, caller; // caller: a name that is stable for one identity
	bool read_only;
	toold_str binding;
	int64_t deadline_ms; // what is left
	toold_repo_config repo_config; // where describe wants it
} toold_call;

// Who may approve a call: beside the operator those that by names, "sub:NAME" for the
// subject of a token, "uid:NUMBER" for a user without one, or the ID of an identity.
typedef struct {
	bool set; // with allow false: the call runs once somebody has approved it
	toold_list by;
	bool self;       // the caller may approve it, too
	int64_t ttl_ms;  // how long there is; 0: 15 minutes
	toold_str text;  // shown to who decides, and a part of what is approved
} toold_approval;

// What restrict answers.
typedef struct {
	bool allow;
	toold_approval ask;
	toold_str rule, reason, instead;
	toold_list args;
	toold_map env;
	toold_str stdin_base64; // p 0: as it was asked
	toold_opt mutating, idempotent;
	toold_str idempotency_key;
	int64_t timeout_ms; // narrows the tool's; 0 leaves it
	toold_opt wants_stdin;
	bool shell; // this call needs the shell that capabilities.exec lists
	toold_list shell_lines; // the only lines that it is given with -c, alone or before a space and words in single quotes; none: any
	toold_str failed; // not empty: the call fails with this text
} toold_decision;

// What an identity may do, as a module's server says it.
typedef struct {
	bool set;
	bool read_only;
	toold_str grants; // any text that changes when the grants do
} toold_safety;

// A tool's own failure; counts when it has a message. code is UPPER_SNAKE_CASE.
typedef struct {
	toold_str code, message;
	bool retriable;
} toold_failure;

// What handle answers.
typedef struct {
	int exit_code;
	toold_str out, err;                     // text
	toold_str stdout_base64, stderr_base64; // bytes; see toold_base64
	toold_str data;                         // one JSON value
	toold_failure error;
	bool gone; // what binding names is no longer there, and nothing was done
	toold_safety safety;
	toold_str failed; // not empty: the call fails with this text
} toold_result;

// What a tool is like. They inform; they never grant.
typedef struct {
	bool set;
	toold_str title;
	toold_opt read_only, destructive, idempotent, open_world;
} toold_annotations;

// What describe answers. abi 0 stands for TOOLD_ABI.
typedef struct {
	int abi;
	toold_str name, description;
	toold_str schema; // JSON
	toold_annotations annotations;
	bool wants_repo_config;
} toold_describe;

// What discover is asked: which tools the module brings for one identity.
typedef struct {
	toold_str tool; // the module's own name
	bool read_only; // the identity may only read
	int64_t deadline_ms;
} toold_discovery;

// A picture of a tool, for people who choose one. src is an https: or data: URL,
// sizes are such as "48x48" or "any", theme is "light" or "dark".
typedef struct {
	toold_str src, mime_type;
	toold_list sizes;
	toold_str theme;
} toold_icon;

// One tool of an identity. name matches ^[a-z0-9][a-z0-9_-]{0,63}$.
typedef struct {
	toold_str name, title, description;
	toold_str schema; // JSON
	toold_str output_schema; // JSON; data of a result that is something else makes the call fail
	const toold_icon *icons;
	size_t n_icons;
	toold_annotations annotations;
	bool mutating;
	toold_str binding; // JSON; comes back with each call of the tool
} toold_surface_tool;

// What discover answers. An error of the moment goes into failed, that the
// server refuses the identity into error, with the code UNAUTHENTICATED.
typedef struct {
	const toold_surface_tool *tools;
	size_t n;
	toold_safety safety;
	int64_t ttl_ms; // how long it is fresh; 0 leaves that to the host
	toold_failure error;
	toold_str failed;
} toold_surface;

// What classify is asked, once a binary has ended: the call, its exit code and
// the ends of its outputs (bytes).
typedef struct {
	toold_call call;
	int exit_code;
	toold_str out, err;
} toold_ended;

// What classify answers: whether what the tool works with failed, and whether
// the same call may succeed when made again.
typedef struct {
	bool failure, retriable;
	toold_str failed;
} toold_classification;

// One command that ran for reconcile.
typedef struct {
	toold_list args;
	int exit_code;
	toold_str out, err;  // text
	bool truncated;      // not all of the output is here
	bool stopped;        // it did not run, or not to its end, and error says why
	toold_failure error;
} toold_ran;

// What reconcile is asked about a call that changes something and has an
// idempotency key: with before, which facts it needs to tell later how the call
// ended; else how it ended. It must change nothing. Times are milliseconds since
// 1970.
typedef struct {
	toold_call call; // as its caller made it, without the values of variables and the input
	toold_list env;  // names of the variables that the caller set
	toold_str stdin_sha256;
	toold_str key; // as the caller wrote it; empty for one that was made of the payload
	bool before;   // the call has not begun: answer facts
	int64_t began_ms, ended_ms, now_ms;
	bool gone;       // nothing of the call is left on its host; without it TOOLD_NOT_DONE counts as TOOLD_UNKNOWN
	toold_str facts; // JSON, as it was answered before the call began; p 0: none
	const toold_ran *ran; // what came of run, n of them
	size_t n;
} toold_reconcile;

// How a call ended: nothing is certain; it has done all that it was to do; it has
// done nothing and never will.
typedef enum { TOOLD_UNKNOWN, TOOLD_DONE, TOOLD_NOT_DONE } toold_verdict;

// What reconcile answers; all zeros is nothing.
typedef struct {
	const toold_list *run; // arguments to run the tool's binary with, n of them, after which it is asked again
	size_t n;
	toold_str facts; // JSON up to 16 KiB, for before
	toold_verdict verdict;
	toold_str evidence;  // for people
	toold_result result; // of TOOLD_DONE, as it is replayed
	toold_str failed;    // not empty: the export fails with this text
} toold_reconciliation;

// What a toold_wire is about, in its on.
#define TOOLD_WIRE_PUSH "git-push"
#define TOOLD_WIRE_HTTP "http"

// One reference that a push changes. name is the whole one, refs/heads/main; old and
// new_ are object names in hexadecimal, all zeros for none: old of a reference that is
// created, new_ of one that is deleted.
typedef struct {
	toold_str name, old, new_;
	toold_opt force; // TOOLD_YES: deletes, or drops commits; TOOLD_UNSAID: the host cannot tell, which a policy should take for yes
} toold_wire_ref;

// What wire is asked about what the tool's binary is about to send, before any of it
// leaves the host and before the host adds a credential. The answer is a
// toold_decision that allows or denies; the host refuses one that would change
// something.
typedef struct {
	toold_str on;   // TOOLD_WIRE_PUSH or TOOLD_WIRE_HTTP; deny what you do not know
	toold_str host; // the name or address that was connected to, in lower case
	int64_t port;
	toold_str path;             // of the repository as the server is asked for it, or of the request, with its query
	toold_str method;           // of an HTTP request
	toold_str remote;           // the URL of the repository that is pushed to
	const toold_wire_ref *refs; // what becomes of it, n of them
	size_t n;
	toold_list push_options; // what is said to the hooks there
	toold_call call;         // as it was decided, without repo_config and stdin_base64
} toold_wire;

// ---- Memory ----

#ifdef __wasm__

#define TOOLD_EXPORT(name) __attribute__((export_name(#name)))

#ifndef TOOLD_LIBC
// The compiler calls these by itself. Define TOOLD_LIBC where a C library
// (wasi-libc) brings them.
#ifdef __wasm_bulk_memory__
__attribute__((weak)) void *memcpy(void *d, const void *s, size_t n) { return __builtin_memcpy(d, s, n); }
__attribute__((weak)) void *memmove(void *d, const void *s, size_t n) { return __builtin_memmove(d, s, n); }
__attribute__((weak)) void *memset(void *d, int c, size_t n) { return __builtin_memset(d, c, n); }
#else
__attribute__((weak, no_builtin)) void *memcpy(void *d, const void *s, size_t n) {
	for (size_t i = 0; i < n; i++) ((char *)d)[i] = ((const char *)s)[i];
	return d;
}
__attribute__((weak, no_builtin)) void *memmove(void *d, const void *s, size_t n) {
	if (d <= s) return memcpy(d, s, n);
	while (n--) ((char *)d)[n] = ((const char *)s)[n];
	return d;
}
__attribute__((weak, no_builtin)) void *memset(void *d, int c, size_t n) {
	for (size_t i = 0; i < n; i++) ((char *)d)[i] = (char)c;
	return d;
}
#endif
__attribute__((weak, no_builtin)) int memcmp(const void *a, const void *b, size_t n) {
	for (size_t i = 0; i < n; i++)
		if (((const unsigned char *)a)[i] != ((const unsigned char *)b)[i]) return ((const unsigned char *)a)[i] - ((const unsigned char *)b)[i];
	return 0;
}
__attribute__((weak, no_builtin)) size_t strlen(const char *s) {
	size_t n = 0;
	while (s[n]) n++;
	return n;
}
#endif

extern unsigned char __heap_base; // where the linker's data ends
static size_t toold_top;

// toold_alloc answers n bytes, aligned to 16. It does not return when there
// are none left.
TOOLD_FAR void *toold_alloc(size_t n) {
	size_t at = toold_top ? toold_top : ((size_t)&__heap_base + 15) & ~(size_t)15;
	size_t end = at + ((n + 15) & ~(size_t)15), have = __builtin_wasm_memory_size(0) << 16;
	if (end < at || end < n) __builtin_trap();
	if (end > have) {
		// The double, as long as there is room: growing costs more than memory.
		size_t need = (end - have + 0xffff) >> 16, more = have >> 16;
		if (more < need || __builtin_wasm_memory_grow(0, more) == (size_t)-1)
			if (__builtin_wasm_memory_grow(0, need) == (size_t)-1) __builtin_trap();
	}
	toold_top = end;
	return (void *)at;
}

#else

#define TOOLD_EXPORT(name)

TOOLD_FAR void *toold_alloc(size_t n) {
	void *p = calloc(1, n ? n : 1); // until the process ends, as in a guest until the call does
	if (!p) abort();
	return p;
}

#endif

// ---- Working with text ----

// toold_text is a C string as a toold_str; 0 is absent.
TOOLD_FN toold_str toold_text(const char *s) {
	size_t n = 0;
	while (s && s[n]) n++;
	return TOOLD_A(toold_str){s, n};
}

// toold_same compares bytes.
TOOLD_FN bool toold_same(toold_str a, toold_str b) {
	if (a.n != b.n) return false;
	for (size_t i = 0; i < a.n; i++)
		if (a.p[i] != b.p[i]) return false;
	return true;
}

// toold_is compares with a C string.
TOOLD_FAR bool toold_is(toold_str a, const char *b) {
	size_t i = 0;
	for (; i < a.n; i++)
		if (!b[i] || a.p[i] != b[i]) return false;
	return !b[i];
}

// toold_starts reports whether a begins with a C string.
TOOLD_FN bool toold_starts(toold_str a, const char *with) {
	size_t i = 0;
	for (; with[i]; i++)
		if (i == a.n || a.p[i] != with[i]) return false;
	return true;
}

// toold_has reports whether one byte is among those of a.
TOOLD_FN bool toold_has(toold_str a, char c) {
	for (size_t i = 0; i < a.n; i++)
		if (a.p[i] == c) return true;
	return false;
}

// toold_cut is a without its first n bytes.
TOOLD_FN toold_str toold_cut(toold_str a, size_t n) {
	if (n > a.n) n = a.n;
	return n ? TOOLD_A(toold_str){a.p + n, a.n - n} : a;
}

// toold_int_of reads a whole number in decimal.
TOOLD_FN bool toold_int_of(toold_str a, int64_t *out) {
	size_t i = 0;
	bool minus = a.n && a.p[0] == '-';
	uint64_t v = 0, most = (uint64_t)INT64_MAX + minus;
	if (minus) i++;
	if (i == a.n) return false;
	for (; i < a.n; i++) {
		uint64_t digit = (uint64_t)(unsigned char)a.p[i] - '0';
		if (digit > 9 || v > (most - digit) / 10) return false;
		v = v * 10 + digit;
	}
	*out = minus ? (int64_t)(0 - v) : (int64_t)v;
	return true;
}

// toold_buf is text that grows. Begin with {0}; toold_done answers what is in
// it.
typedef struct {
	char *p;
	size_t n, room;
	bool comma; // in JSON: something stands before
} toold_buf;

// toold_room makes room for more bytes behind what is there.
TOOLD_FAR void toold_room(toold_buf *b, size_t more) {
	if (b->room - b->n >= more && b->p) return;
	size_t room = b->room * 2 > b->n + more ? b->room * 2 : b->n + more;
	if (room < 256) room = 256;
	char *p = (char *)toold_alloc(room);
	if (b->n) __builtin_memcpy(p, b->p, b->n);
	b->p = p, b->room = room;
}

// toold_add, toold_add_text and toold_add_int add bytes, a C string, and a
// number in decimal.
TOOLD_FAR void toold_add(toold_buf *b, toold_str s) {
	toold_room(b, s.n);
	if (s.n) __builtin_memcpy(b->p + b->n, s.p, s.n);
	b->n += s.n;
}

// See toold_add.
TOOLD_FAR void toold_add_text(toold_buf *b, const char *s) { toold_add(b, toold_text(s)); }

// See toold_add.
TOOLD_FAR void toold_add_int(toold_buf *b, int64_t v) {
	char digits[20];
	size_t i = sizeof digits;
	uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
	do digits[--i] = (char)('0' + u % 10);
	while (u /= 10);
	if (v < 0) digits[--i] = '-';
	toold_add(b, TOOLD_A(toold_str){digits + i, sizeof digits - i});
}

// toold_done answers what is in b, with a zero behind it that does not count.
TOOLD_FAR toold_str toold_done(toold_buf *b) {
	toold_room(b, 1);
	b->p[b->n] = 0; // for those who hand it to C
	return TOOLD_A(toold_str){b->p, b->n};
}

// toold_push adds one to a list.
TOOLD_FAR void toold_push(toold_list *l, toold_str s) {
	if ((l->n & (l->n - 1)) == 0) { // 0, 1, 2, 4, 8..: full
		toold_str *v = (toold_str *)toold_alloc((l->n ? 2 * l->n : 1) * sizeof *v);
		for (size_t i = 0; i < l->n; i++) v[i] = l->v[i];
		l->v = v;
	}
	l->v[l->n++] = s;
	l->set = true;
}

// toold_put adds one to a map, without looking for one of that key.
TOOLD_FAR void toold_put(toold_map *m, toold_str key, toold_str value) {
	if ((m->n & (m->n - 1)) == 0) {
		toold_pair *v = (toold_pair *)toold_alloc((m->n ? 2 * m->n : 1) * sizeof *v);
		for (size_t i = 0; i < m->n; i++) v[i] = m->v[i];
		m->v = v;
	}
	m->v[m->n++] = TOOLD_A(toold_pair){key, value};
	m->set = true;
}

// toold_find answers the value of a key, the last one where there are several;
// p is 0 where there is none.
TOOLD_FN toold_str toold_find(toold_map m, const char *key) {
	for (size_t i = m.n; i-- > 0;)
		if (toold_is(m.v[i].key, key)) return m.v[i].value;
	return TOOLD_A(toold_str){0, 0};
}

// ---- Base64, the standard alphabet with padding ----

// toold_add_base64 adds bytes in base64.
TOOLD_FAR void toold_add_base64(toold_buf *b, toold_str s) {
	static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	toold_room(b, (s.n + 2) / 3 * 4);
	const unsigned char *in = (const unsigned char *)s.p;
	char *out = b->p + b->n;
	for (size_t i = 0; i < s.n; i += 3) {
		uint32_t v = (uint32_t)in[i] << 16;
		if (i + 1 < s.n) v |= (uint32_t)in[i + 1] << 8;
		if (i + 2 < s.n) v |= in[i + 2];
		*out++ = alphabet[v >> 18];
		*out++ = alphabet[v >> 12 & 63];
		*out++ = i + 1 < s.n ? alphabet[v >> 6 & 63] : '=';
		*out++ = i + 2 < s.n ? alphabet[v & 63] : '=';
	}
	b->n = (size_t)(out - b->p);
}

// toold_base64 is bytes in base64, without line breaks.
TOOLD_FN toold_str toold_base64(toold_str s) {
	toold_buf b = TOOLD_ZERO;
	toold_add_base64(&b, s);
	return toold_done(&b);
}

// toold_base64_of reads base64. It is strict about padding and what follows.
TOOLD_FAR bool toold_base64_of(toold_str s, toold_str *out) {
	if (s.n % 4) return false;
	char *p = (char *)toold_alloc(s.n / 4 * 3 + 1);
	size_t n = 0;
	for (size_t i = 0; i < s.n; i += 4) {
		uint32_t v = 0;
		int pad = 0;
		for (size_t j = i; j < i + 4; j++) {
			char c = s.p[j];
			uint32_t six;
			if (c >= 'A' && c <= 'Z') six = (uint32_t)(c - 'A');
			else if (c >= 'a' && c <= 'z') six = (uint32_t)(c - 'a' + 26);
			else if (c >= '0' && c <= '9') six = (uint32_t)(c - '0' + 52);
			else if (c == '+') six = 62;
			else if (c == '/') six = 63;
			else if (c == '=' && i + 4 == s.n && j >= i + 2) six = 0, pad++;
			else return false;
			if (pad && c != '=') return false;
			v = v << 6 | six;
		}
		p[n++] = (char)(v >> 16);
		if (pad < 2) p[n++] = (char)(v >> 8);
		if (pad < 1) p[n++] = (char)v;
	}
	p[n] = 0;
	*out = TOOLD_A(toold_str){p, n};
	return true;
}

// ---- Writing JSON: toold_json_* put the commas ----

// toold_json_comma begins a value: each of the following does so itself.
TOOLD_FAR void toold_json_comma(toold_buf *b) {
	if (b->comma) toold_add(b, TOOLD_STR(","));
	b->comma = true;
}

// toold_json_open begins an object or a list, by its bracket.
TOOLD_FN void toold_json_open(toold_buf *b, char bracket) { // '{' or '['
	toold_json_comma(b);
	toold_add(b, TOOLD_A(toold_str){&bracket, 1});
	b->comma = false;
}

// toold_json_close ends it, by its other bracket.
TOOLD_FN void toold_json_close(toold_buf *b, char bracket) {
	toold_add(b, TOOLD_A(toold_str){&bracket, 1});
	b->comma = true;
}

// toold_json_raw writes a value that is JSON already.
TOOLD_FAR void toold_json_raw(toold_buf *b, toold_str json) {
	toold_json_comma(b);
	toold_add(b, json);
}

// toold_json_string writes text, which must be UTF-8.
TOOLD_FAR void toold_json_string(toold_buf *b, toold_str s) {
	static const char hex[] = "0123456789abcdef";
	toold_json_comma(b);
	toold_room(b, s.n + 2);
	b->p[b->n++] = '"';
	size_t from = 0;
	for (size_t i = 0; i < s.n; i++) {
		unsigned char c = (unsigned char)s.p[i];
		if (c >= ' ' && c != '"' && c != '\\') continue;
		toold_add(b, TOOLD_A(toold_str){s.p + from, i - from});
		from = i + 1;
		char e[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
		switch (c) {
		case '\n': e[1] = 'n'; break;
		case '\r': e[1] = 'r'; break;
		case '\t': e[1] = 't'; break;
		case '"': case '\\': e[1] = (char)c; break;
		}
		toold_add(b, TOOLD_A(toold_str){e, (size_t)(e[1] == 'u' ? 6 : 2)});
	}
	if (from < s.n) toold_add(b, TOOLD_A(toold_str){s.p + from, s.n - from});
	toold_add(b, TOOLD_STR("\""));
}

// toold_json_int writes a number.
TOOLD_FN void toold_json_int(toold_buf *b, int64_t v) {
	toold_json_comma(b);
	toold_add_int(b, v);
}

// toold_json_bool writes true or false.
TOOLD_FN void toold_json_bool(toold_buf *b, bool v) { toold_json_raw(b, v ? TOOLD_STR("true") : TOOLD_STR("false")); }

// toold_json_name writes the name of a member; its value comes next.
TOOLD_FAR void toold_json_name(toold_buf *b, const char *name) {
	toold_json_string(b, toold_text(name));
	toold_add(b, TOOLD_STR(":"));
	b->comma = false;
}

// A member that is left out when it has nothing to say.
TOOLD_FAR void toold_json_text(toold_buf *b, const char *name, toold_str s) {
	if (!s.n) return;
	toold_json_name(b, name);
	toold_json_string(b, s);
}

// A number that is left out when it is 0.
TOOLD_FN void toold_json_number(toold_buf *b, const char *name, int64_t v) {
	if (!v) return;
	toold_json_name(b, name);
	toold_json_int(b, v);
}

// A yes that is left out when it is no.
TOOLD_FN void toold_json_yes(toold_buf *b, const char *name, bool v) {
	if (!v) return;
	toold_json_name(b, name);
	toold_json_bool(b, true);
}

// A yes or no that is left out when it is unsaid.
TOOLD_FAR void toold_json_opt(toold_buf *b, const char *name, toold_opt v) {
	if (v == TOOLD_UNSAID) return;
	toold_json_name(b, name);
	toold_json_bool(b, v == TOOLD_YES);
}

// A value that is JSON already, left out when it is empty.
TOOLD_FN void toold_json_value(toold_buf *b, const char *name, toold_str json) {
	if (!json.n) return;
	toold_json_name(b, name);
	toold_json_raw(b, json);
}

// A list of texts, an empty one too.
TOOLD_FAR void toold_json_list(toold_buf *b, const char *name, toold_list l) {
	toold_json_name(b, name);
	toold_json_open(b, '[');
	for (size_t i = 0; i < l.n; i++) toold_json_string(b, l.v[i]);
	toold_json_close(b, ']');
}

// An object of texts, an empty one too.
TOOLD_FAR void toold_json_map(toold_buf *b, const char *name, toold_map m) {
	toold_json_name(b, name);
	toold_json_open(b, '{');
	for (size_t i = 0; i < m.n; i++) {
		toold_json_string(b, m.v[i].key);
		toold_add(b, TOOLD_STR(":"));
		b->comma = false;
		toold_json_string(b, m.v[i].value);
	}
	toold_json_close(b, '}');
}

// ---- Reading JSON ----

// toold_reader goes through JSON from front to end:
//
//     toold_reader r = toold_read(c->payload);
//     if (toold_object(&r))
//         for (toold_str name; toold_next_member(&r, &name);)
//             if (toold_is(name, "count")) count = toold_read_int(&r);
//             else toold_skip(&r);
//     if (!toold_end(&r)) return toold_failed("the payload is wrong");
//
// After an error it is at its end, everything answers nothing, and toold_end
// false. null reads as nothing of any type.
typedef struct {
	const char *p, *end;
	bool first; // of an object or list that was just opened
	int depth;
	const char *wrong; // what is
	const char *at;
} toold_reader;

// toold_read begins to read; the text must stay where it is.
TOOLD_FN toold_reader toold_read(toold_str json) {
	if (!json.n) json.p = "";
	return TOOLD_A(toold_reader){json.p, json.p + json.n, true, 0, 0, 0};
}

// toold_wrong ends reading: what is wrong, which is a literal. The first counts.
TOOLD_FAR void toold_wrong(toold_reader *r, const char *what) {
	if (!r->wrong) r->wrong = what, r->at = r->p;
	r->p = r->end;
}

// Within the reader: white space, one byte, a word, a bracket.
TOOLD_FN void toold_space(toold_reader *r) {
	while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\t' || *r->p == '\r')) r->p++;
}

// See toold_space.
TOOLD_FAR bool toold_next(toold_reader *r, char c) {
	toold_space(r);
	if (r->p == r->end || *r->p != c) return false;
	r->p++;
	return true;
}

// See toold_space.
TOOLD_FAR bool toold_word(toold_reader *r, const char *word) {
	toold_space(r);
	if (!toold_starts(TOOLD_A(toold_str){r->p, (size_t)(r->end - r->p)}, word)) return false;
	r->p += toold_text(word).n;
	return true;
}

// See toold_space. It nests 200 deep at the most.
TOOLD_FAR bool toold_open(toold_reader *r, char bracket) {
	if (toold_word(r, "null")) return false;
	if (!toold_next(r, bracket)) {
		toold_wrong(r, "wrong type");
		return false;
	}
	if (++r->depth > 200) toold_wrong(r, "too deep");
	r->first = true;
	return !r->wrong;
}

// toold_more reports whether another item comes before the bracket.
TOOLD_FAR bool toold_more(toold_reader *r, char bracket) {
	bool first = r->first;
	r->first = false;
	if (r->wrong) return false;
	if (toold_next(r, bracket)) {
		r->depth--;
		return false;
	}
	if (!first && !toold_next(r, ',')) {
		toold_wrong(r, "no comma");
		return false;
	}
	return true;
}

// toold_object enters an object: false for null and for what is none, which is
// wrong. toold_next_member leaves it.
TOOLD_FN bool toold_object(toold_reader *r) { return toold_open(r, '{'); }
// toold_array enters a list, in the same way; toold_next_item leaves it.
TOOLD_FN bool toold_array(toold_reader *r) { return toold_open(r, '['); }
// toold_next_item reports whether a list goes on.
TOOLD_FN bool toold_next_item(toold_reader *r) { return toold_more(r, ']'); }

// toold_hex4 reads the digits of an escape.
TOOLD_FN uint32_t toold_hex4(toold_reader *r) {
	uint32_t v = 0;
	for (int i = 0; i < 4; i++) {
		char c = r->p < r->end ? *r->p : 0;
		if (c >= '0' && c <= '9') v = v << 4 | (uint32_t)(c - '0');
		else if (c >= 'a' && c <= 'f') v = v << 4 | (uint32_t)(c - 'a' + 10);
		else if (c >= 'A' && c <= 'F') v = v << 4 | (uint32_t)(c - 'A' + 10);
		else {
			toold_wrong(r, "unknown escape");
			return 0xfffd;
		}
		r->p++;
	}
	return v;
}

// toold_add_rune adds a code point as UTF-8.
TOOLD_FN void toold_add_rune(toold_buf *b, uint32_t u) {
	char c[4];
	size_t n;
	if (u < 0x80) n = 1, c[0] = (char)u;
	else if (u < 0x800) n = 2, c[0] = (char)(0xc0 | u >> 6), c[1] = (char)(0x80 | (u & 63));
	else if (u < 0x10000) n = 3, c[0] = (char)(0xe0 | u >> 12), c[1] = (char)(0x80 | (u >> 6 & 63)), c[2] = (char)(0x80 | (u & 63));
	else n = 4, c[0] = (char)(0xf0 | u >> 18), c[1] = (char)(0x80 | (u >> 12 & 63)), c[2] = (char)(0x80 | (u >> 6 & 63)), c[3] = (char)(0x80 | (u & 63));
	toold_add(b, TOOLD_A(toold_str){c, n});
}

// toold_utf8 passes over one character beyond ASCII, as RFC 3629 has it.
TOOLD_FAR bool toold_utf8(toold_reader *r) {
	const unsigned char *p = (const unsigned char *)r->p;
	size_t n = 0, left = (size_t)(r->end - r->p);
	unsigned char low = 0x80, high = 0xbf; // what may come second
	if (p[0] >= 0xc2 && p[0] <= 0xdf) n = 2;
	else if (p[0] >= 0xe0 && p[0] <= 0xef) n = 3, low = p[0] == 0xe0 ? 0xa0 : low, high = p[0] == 0xed ? 0x9f : high;
	else if (p[0] >= 0xf0 && p[0] <= 0xf4) n = 4, low = p[0] == 0xf0 ? 0x90 : low, high = p[0] == 0xf4 ? 0x8f : high;
	if (n && n <= left && p[1] >= low && p[1] <= high && (n < 3 || (p[2] & 0xc0) == 0x80) && (n < 4 || (p[3] & 0xc0) == 0x80)) {
		r->p += n;
		return true;
	}
	toold_wrong(r, "not UTF-8");
	return false;
}

// toold_read_string reads a string; one without escapes stays where it is.
TOOLD_FAR toold_str toold_read_string(toold_reader *r) {
	toold_str none = {0, 0};
	if (toold_word(r, "null")) return none;
	if (!toold_next(r, '"')) {
		toold_wrong(r, "wrong type");
		return none;
	}
	const char *from = r->p;
	toold_buf b = TOOLD_ZERO;
	while (r->p < r->end) {
		unsigned char c = (unsigned char)*r->p;
		if (c < ' ') break;
		if (c == '"') {
			toold_str rest = {from, (size_t)(r->p++ - from)};
			if (!b.p) return rest;
			toold_add(&b, rest);
			return toold_done(&b);
		}
		if (c >= 0x80) {
			if (!toold_utf8(r)) return none;
			continue;
		}
		if (c != '\\') {
			r->p++;
			continue;
		}
		toold_add(&b, TOOLD_A(toold_str){from, (size_t)(r->p++ - from)});
		c = r->p < r->end ? (unsigned char)*r->p++ : 0;
		switch (c) {
		case '"': case '\\': case '/': break;
		case 'b': c = '\b'; break;
		case 'f': c = '\f'; break;
		case 'n': c = '\n'; break;
		case 'r': c = '\r'; break;
		case 't': c = '\t'; break;
		case 'u': {
			uint32_t u = toold_hex4(r);
			if (u >= 0xd800 && u < 0xe000) { // half of a pair
				uint32_t low = 0;
				const char *back = r->p;
				if (u < 0xdc00 && r->end - r->p >= 2 && r->p[0] == '\\' && r->p[1] == 'u') {
					r->p += 2;
					low = toold_hex4(r);
				}
				if (low >= 0xdc00 && low < 0xe000) u = 0x10000 + ((u - 0xd800) << 10 | (low - 0xdc00));
				else {
					u = 0xfffd;
					if (!r->wrong) r->p = back;
				}
			}
			toold_add_rune(&b, u);
			from = r->p;
			continue;
		}
		default: toold_wrong(r, "unknown escape"); return none;
		}
		toold_add(&b, TOOLD_A(toold_str){(char *)&c, 1});
		from = r->p;
	}
	toold_wrong(r, "string without an end");
	return none;
}

// toold_next_member reports whether an object goes on, and with which name.
TOOLD_FAR bool toold_next_member(toold_reader *r, toold_str *name) {
	if (!toold_more(r, '}')) return false;
	toold_space(r);
	if (r->p == r->end || *r->p != '"') {
		toold_wrong(r, "no name");
		return false;
	}
	*name = toold_read_string(r);
	if (!r->wrong && !toold_next(r, ':')) toold_wrong(r, "no colon");
	return !r->wrong;
}

// toold_read_bool reads true or false.
TOOLD_FAR bool toold_read_bool(toold_reader *r) {
	if (toold_word(r, "true")) return true;
	if (!toold_word(r, "false") && !toold_word(r, "null")) toold_wrong(r, "wrong type");
	return false;
}

// toold_number passes over a number, as RFC 8259 has it.
TOOLD_FAR toold_str toold_number(toold_reader *r) {
	toold_space(r);
	const char *from = r->p, *p = r->p, *end = r->end;
	if (p < end && *p == '-') p++;
	if (p < end && *p == '0') p++;
	else if (p < end && *p >= '1' && *p <= '9') while (p < end && *p >= '0' && *p <= '9') p++;
	else goto wrong;
	if (p < end && *p == '.') {
		if (++p == end || *p < '0' || *p > '9') goto wrong;
		while (p < end && *p >= '0' && *p <= '9') p++;
	}
	if (p < end && (*p == 'e' || *p == 'E')) {
		p++;
		if (p < end && (*p == '+' || *p == '-')) p++;
		if (p == end || *p < '0' || *p > '9') goto wrong;
		while (p < end && *p >= '0' && *p <= '9') p++;
	}
	r->p = p;
	return TOOLD_A(toold_str){from, (size_t)(p - from)};
wrong:
	toold_wrong(r, "no value");
	return TOOLD_A(toold_str){0, 0};
}

// toold_read_int reads a whole number that 64 bits hold, without a fraction or an
// exponent.
TOOLD_FAR int64_t toold_read_int(toold_reader *r) {
	int64_t v = 0;
	if (toold_word(r, "null")) return 0;
	toold_str s = toold_number(r);
	if (!r->wrong && !toold_int_of(s, &v)) toold_wrong(r, "not a whole number");
	return v;
}

// toold_read_exit reads an exit code: one that no int holds is no other.
TOOLD_FN int toold_read_exit(toold_reader *r) {
	int64_t v = toold_read_int(r);
	if (v < INT32_MIN || v > INT32_MAX) {
		toold_wrong(r, "not an exit code");
		return 0;
	}
	return (int)v;
}

// toold_skip passes over one value of any type.
TOOLD_FAR void toold_skip(toold_reader *r) {
	toold_space(r);
	switch (r->p < r->end ? *r->p : 0) {
	case '{':
		if (toold_object(r))
			for (toold_str name; toold_next_member(r, &name);) toold_skip(r);
		return;
	case '[':
		if (toold_array(r))
			while (toold_next_item(r)) toold_skip(r);
		return;
	case '"': {
		// Checked, and not kept.
		size_t n = 0;
		for (const char *p = r->p + 1; p < r->end && *p != '"' && (unsigned char)*p >= ' '; p++, n++)
			if (*p == '\\' || (unsigned char)*p >= 0x80) {
				toold_read_string(r);
				return;
			}
		if (r->p + 1 + n < r->end && r->p[1 + n] == '"') r->p += n + 2;
		else toold_wrong(r, "string without an end");
		return;
	}
	case 't': case 'f': toold_read_bool(r); return;
	case 'n':
		if (!toold_word(r, "null")) toold_wrong(r, "no value");
		return;
	}
	toold_number(r);
}

// toold_raw takes one value of any type as it stands.
TOOLD_FAR toold_str toold_raw(toold_reader *r) {
	toold_space(r);
	const char *from = r->p;
	toold_skip(r);
	if (r->wrong) return TOOLD_A(toold_str){0, 0};
	return TOOLD_A(toold_str){from, (size_t)(r->p - from)};
}

// toold_end reports whether all was read, and nothing was wrong.
TOOLD_FN bool toold_end(toold_reader *r) {
	toold_space(r);
	if (!r->wrong && r->p != r->end) toold_wrong(r, "data after the end");
	return !r->wrong;
}

// toold_why says what toold_end found wrong, as text for a caller: "what: wrong
// type at byte 12".
TOOLD_FN toold_str toold_why(const toold_reader *r, const char *what, toold_str json) {
	toold_buf b = TOOLD_ZERO;
	toold_add_text(&b, what);
	toold_add_text(&b, ": ");
	toold_add_text(&b, r->wrong ? r->wrong : "nothing is wrong");
	if (r->at) {
		toold_add_text(&b, " at byte ");
		toold_add_int(&b, json.n ? r->at - json.p : 0);
	}
	return toold_done(&b);
}

// toold_member answers a member of an object as it stands; p is 0 where there
// is none, or no object.
TOOLD_FN toold_str toold_member(toold_str object, const char *name) {
	toold_reader r = toold_read(object);
	toold_str found = {0, 0};
	if (toold_object(&r))
		for (toold_str key; toold_next_member(&r, &key);) {
			toold_str v = toold_raw(&r);
			if (toold_is(key, name)) found = v;
		}
	return toold_end(&r) ? found : TOOLD_A(toold_str){0, 0};
}

// toold_string_of reads a value that must be a string.
TOOLD_FN bool toold_string_of(toold_str json, toold_str *out) {
	toold_reader r = toold_read(json);
	toold_space(&r);
	if (r.p == r.end || *r.p != '"') return false;
	*out = toold_read_string(&r);
	return toold_end(&r);
}

// What is read replaces what was there.
TOOLD_FAR void toold_read_strings(toold_reader *r, toold_list *l) {
	*l = TOOLD_A(toold_list){0, 0, false};
	if (!toold_array(r)) return;
	l->set = true;
	while (toold_next_item(r)) toold_push(l, toold_read_string(r));
}

// An object of texts.
TOOLD_FAR void toold_read_map(toold_reader *r, toold_map *m) {
	*m = TOOLD_A(toold_map){0, 0, false};
	if (!toold_object(r)) return;
	m->set = true;
	for (toold_str name; toold_next_member(r, &name);) toold_put(m, name, toold_read_string(r));
}

// A list of objects with key and value.
TOOLD_FAR void toold_read_entries(toold_reader *r, toold_map *m) {
	*m = TOOLD_A(toold_map){0, 0, false};
	if (!toold_array(r)) return;
	m->set = true;
	while (toold_next_item(r)) {
		toold_str key = {0, 0}, value = {0, 0};
		if (toold_object(r))
			for (toold_str name; toold_next_member(r, &name);) {
				if (toold_is(name, "key")) key = toold_read_string(r);
				else if (toold_is(name, "value")) value = toold_read_string(r);
				else toold_skip(r);
			}
		toold_put(m, key, value);
	}
}

// toold_read_call reads a Call. Fields that it does not know are passed over:
// a newer host may send some.
TOOLD_FN void toold_read_call(toold_reader *r, toold_call *c) {
	if (!toold_object(r)) {
		toold_wrong(r, "not an object");
		return;
	}
	for (toold_str name; toold_next_member(r, &name);) {
		if (toold_is(name, "tool")) c->tool = toold_read_string(r);
		else if (toold_is(name, "args")) toold_read_strings(r, &c->args);
		else if (toold_is(name, "cwd")) c->cwd = toold_read_string(r);
		else if (toold_is(name, "roots")) toold_read_strings(r, &c->roots);
		else if (toold_is(name, "payload")) c->payload = toold_raw(r);
		else if (toold_is(name, "stdin_base64")) c->stdin_base64 = toold_read_string(r);
		else if (toold_is(name, "env")) toold_read_map(r, &c->env);
		else if (toold_is(name, "execution_id")) c->execution_id = toold_read_string(r);
		else if (toold_is(name, "attempt")) c->attempt = toold_read_int(r);
		else if (toold_is(name, "session")) c->session = toold_read_string(r);
		else if (toold_is(name, "caller")) c->caller = toold_read_string(r);
		else if (toold_is(name, "read_only")) c->read_only = toold_read_bool(r);
		else if (toold_is(name, "binding")) c->binding = toold_raw(r);
		else if (toold_is(name, "deadline_ms")) c->deadline_ms = toold_read_int(r);
		else if (toold_is(name, "repo_config")) {
			toold_repo_config repo = TOOLD_ZERO;
			if ((repo.set = toold_object(r)))
				for (toold_str field; toold_next_member(r, &field);) {
					if (toold_is(field, "entries")) toold_read_entries(r, &repo.entries);
					else if (toold_is(field, "submodules")) toold_read_entries(r, &repo.submodules);
					else if (toold_is(field, "state")) toold_read_entries(r, &repo.state);
					else if (toold_is(field, "remotes")) toold_read_entries(r, &repo.remotes);
					else if (toold_is(field, "remote_error")) repo.remote_error = toold_read_string(r);
					else if (toold_is(field, "error")) repo.error = toold_read_string(r);
					else toold_skip(r);
				}
			c->repo_config = repo;
		} else toold_skip(r);
	}
}

// ---- Writing what a guest answers ----

// toold_write_decision is the JSON of a decision, as the following are of theirs.
// TOOLD_RESTRICT and the others call them.
TOOLD_FN toold_str toold_write_decision(const toold_decision *d) {
	toold_buf b = TOOLD_ZERO;
	toold_json_open(&b, '{');
	toold_json_text(&b, "effect", d->allow ? TOOLD_STR("allow") : d->ask.set ? TOOLD_STR("ask") : TOOLD_STR("deny"));
	toold_json_text(&b, "rule", d->rule);
	toold_json_text(&b, "reason", d->reason);
	toold_json_text(&b, "instead", d->instead);
	if (d->ask.set && !d->allow) {
		toold_json_name(&b, "ask");
		toold_json_open(&b, '{');
		if (d->ask.by.n) toold_json_list(&b, "by", d->ask.by);
		toold_json_yes(&b, "self", d->ask.self);
		toold_json_number(&b, "ttl_ms", d->ask.ttl_ms);
		toold_json_text(&b, "text", d->ask.text);
		toold_json_close(&b, '}');
	}
	if (d->args.set) toold_json_list(&b, "args", d->args);
	if (d->env.set) toold_json_map(&b, "env", d->env);
	if (d->stdin_base64.p) {
		toold_json_name(&b, "stdin_base64");
		toold_json_string(&b, d->stdin_base64);
	}
	toold_json_opt(&b, "mutating", d->mutating);
	toold_json_opt(&b, "idempotent", d->idempotent);
	toold_json_text(&b, "idempotency_key", d->idempotency_key);
	toold_json_number(&b, "timeout_ms", d->timeout_ms);
	toold_json_opt(&b, "stdin", d->wants_stdin);
	toold_json_yes(&b, "shell", d->shell);
	if (d->shell_lines.n) toold_json_list(&b, "shell_lines", d->shell_lines);
	toold_json_close(&b, '}');
	return toold_done(&b);
}

// Parts of what a guest answers.
TOOLD_FN void toold_json_failure(toold_buf *b, toold_failure e) {
	if (!e.message.n && !e.code.n) return;
	toold_json_name(b, "error");
	toold_json_open(b, '{');
	toold_json_text(b, "code", e.code);
	toold_json_name(b, "message");
	toold_json_string(b, e.message);
	toold_json_yes(b, "retriable", e.retriable);
	toold_json_close(b, '}');
}

// See toold_json_failure.
TOOLD_FN void toold_json_safety(toold_buf *b, toold_safety s) {
	if (!s.set) return;
	toold_json_name(b, "safety");
	toold_json_open(b, '{');
	toold_json_yes(b, "read_only", s.read_only);
	toold_json_text(b, "grants", s.grants);
	toold_json_close(b, '}');
}

// See toold_json_failure.
TOOLD_FN void toold_json_annotations(toold_buf *b, toold_annotations a) {
	if (!a.set) return;
	toold_json_name(b, "annotations");
	toold_json_open(b, '{');
	toold_json_text(b, "title", a.title);
	toold_json_opt(b, "read_only", a.read_only);
	toold_json_opt(b, "destructive", a.destructive);
	toold_json_opt(b, "idempotent", a.idempotent);
	toold_json_opt(b, "open_world", a.open_world);
	toold_json_close(b, '}');
}

// See toold_json_failure.
TOOLD_FN void toold_json_icons(toold_buf *b, const toold_icon *icons, size_t n) {
	if (!n) return;
	toold_json_name(b, "icons");
	toold_json_open(b, '[');
	for (size_t i = 0; i < n; i++) {
		toold_json_open(b, '{');
		toold_json_name(b, "src");
		toold_json_string(b, icons[i].src);
		toold_json_text(b, "mime_type", icons[i].mime_type);
		if (icons[i].sizes.n) toold_json_list(b, "sizes", icons[i].sizes);
		toold_json_text(b, "theme", icons[i].theme);
		toold_json_close(b, '}');
	}
	toold_json_close(b, ']');
}

// See toold_write_decision.
TOOLD_FN toold_str toold_write_result(const toold_result *r) {
	toold_buf b = TOOLD_ZERO;
	toold_json_open(&b, '{');
	toold_json_name(&b, "exit_code");
	toold_json_int(&b, r->exit_code);
	toold_json_text(&b, "stdout", r->out);
	toold_json_text(&b, "stderr", r->err);
	toold_json_text(&b, "stdout_base64", r->stdout_base64);
	toold_json_text(&b, "stderr_base64", r->stderr_base64);
	toold_json_value(&b, "data", r->data);
	toold_json_failure(&b, r->error);
	toold_json_yes(&b, "gone", r->gone);
	toold_json_safety(&b, r->safety);
	toold_json_close(&b, '}');
	return toold_done(&b);
}

// See toold_write_decision.
TOOLD_FN toold_str toold_write_describe(const toold_describe *d) {
	toold_buf b = TOOLD_ZERO;
	toold_json_open(&b, '{');
	toold_json_number(&b, "abi", d->abi ? d->abi : TOOLD_ABI);
	toold_json_text(&b, "name", d->name);
	toold_json_text(&b, "description", d->description);
	toold_json_value(&b, "schema", d->schema);
	toold_json_annotations(&b, d->annotations);
	if (d->wants_repo_config) {
		toold_list wants = TOOLD_ZERO;
		toold_push(&wants, TOOLD_STR("repo_config"));
		toold_json_list(&b, "wants", wants);
	}
	toold_json_close(&b, '}');
	return toold_done(&b);
}

// See toold_write_decision.
TOOLD_FN toold_str toold_write_surface(const toold_surface *s) {
	toold_buf b = TOOLD_ZERO;
	toold_json_open(&b, '{');
	toold_json_name(&b, "tools");
	toold_json_open(&b, '[');
	for (size_t i = 0; i < s->n; i++) {
		const toold_surface_tool *t = &s->tools[i];
		toold_json_open(&b, '{');
		toold_json_name(&b, "name");
		toold_json_string(&b, t->name);
		toold_json_text(&b, "title", t->title);
		toold_json_text(&b, "description", t->description);
		toold_json_value(&b, "schema", t->schema);
		toold_json_value(&b, "output_schema", t->output_schema);
		toold_json_icons(&b, t->icons, t->n_icons);
		toold_json_annotations(&b, t->annotations);
		toold_json_yes(&b, "mutating", t->mutating);
		toold_json_value(&b, "binding", t->binding);
		toold_json_close(&b, '}');
	}
	toold_json_close(&b, ']');
	toold_json_safety(&b, s->safety);
	toold_json_number(&b, "ttl_ms", s->ttl_ms);
	toold_json_failure(&b, s->error);
	toold_json_close(&b, '}');
	return toold_done(&b);
}

// See toold_write_decision.
TOOLD_FN toold_str toold_write_classification(const toold_classification *c) {
	toold_buf b = TOOLD_ZERO;
	toold_json_open(&b, '{');
	toold_json_yes(&b, "failure", c->failure);
	toold_json_yes(&b, "retriable", c->retriable);
	toold_json_close(&b, '}');
	return toold_done(&b);
}

// See toold_write_decision.
TOOLD_FN toold_str toold_write_reconciliation(const toold_reconciliation *a) {
	static const char *const verdicts[] = {"unknown", "done", "not_done"};
	toold_buf b = TOOLD_ZERO;
	toold_json_open(&b, '{');
	if (a->n) {
		toold_json_name(&b, "run");
		toold_json_open(&b, '[');
		for (size_t i = 0; i < a->n; i++) {
			toold_json_open(&b, '[');
			for (size_t k = 0; k < a->run[i].n; k++) toold_json_string(&b, a->run[i].v[k]);
			toold_json_close(&b, ']');
		}
		toold_json_close(&b, ']');
	}
	toold_json_value(&b, "facts", a->facts);
	if (a->verdict != TOOLD_UNKNOWN || a->evidence.n) toold_json_text(&b, "verdict", toold_text(verdicts[a->verdict]));
	toold_json_text(&b, "evidence", a->evidence);
	if (a->verdict == TOOLD_DONE) toold_json_value(&b, "result", toold_write_result(&a->result));
	toold_json_close(&b, '}');
	return toold_done(&b);
}

// toold_read_ran reads one command that ran.
TOOLD_FN void toold_read_ran(toold_reader *r, toold_ran *ran) {
	if (!toold_object(r)) return;
	for (toold_str name; toold_next_member(r, &name);) {
		if (toold_is(name, "args")) toold_read_strings(r, &ran->args);
		else if (toold_is(name, "exit_code")) ran->exit_code = toold_read_exit(r);
		else if (toold_is(name, "stdout")) ran->out = toold_read_string(r);
		else if (toold_is(name, "stderr")) ran->err = toold_read_string(r);
		else if (toold_is(name, "truncated")) ran->truncated = toold_read_bool(r);
		else if (toold_is(name, "error")) {
			toold_failure e = TOOLD_ZERO;
			if ((ran->stopped = toold_object(r)))
				for (toold_str field; toold_next_member(r, &field);) {
					if (toold_is(field, "code")) e.code = toold_read_string(r);
					else if (toold_is(field, "message")) e.message = toold_read_string(r);
					else if (toold_is(field, "retriable")) e.retriable = toold_read_bool(r);
					else toold_skip(r);
				}
			ran->error = e;
		} else toold_skip(r);
	}
}

// toold_read_reconcile reads what reconcile is asked.
TOOLD_FN void toold_read_reconcile(toold_reader *r, toold_reconcile *q) {
	if (!toold_object(r)) {
		toold_wrong(r, "not an object");
		return;
	}
	for (toold_str name; toold_next_member(r, &name);) {
		if (toold_is(name, "call")) {
			toold_call c = TOOLD_ZERO;
			toold_read_call(r, &c);
			q->call = c;
		} else if (toold_is(name, "env")) toold_read_strings(r, &q->env);
		else if (toold_is(name, "stdin_sha256")) q->stdin_sha256 = toold_read_string(r);
		else if (toold_is(name, "key")) q->key = toold_read_string(r);
		else if (toold_is(name, "before")) q->before = toold_read_bool(r);
		else if (toold_is(name, "began_ms")) q->began_ms = toold_read_int(r);
		else if (toold_is(name, "ended_ms")) q->ended_ms = toold_read_int(r);
		else if (toold_is(name, "now_ms")) q->now_ms = toold_read_int(r);
		else if (toold_is(name, "gone")) q->gone = toold_read_bool(r);
		else if (toold_is(name, "facts")) q->facts = toold_raw(r);
		else if (toold_is(name, "ran")) {
			toold_ran *list = 0;
			size_t n = 0;
			if (toold_array(r))
				while (toold_next_item(r)) {
					if ((n & (n - 1)) == 0) { // full
						toold_ran *more = (toold_ran *)toold_alloc((n ? 2 * n : 1) * sizeof *more);
						for (size_t i = 0; i < n; i++) more[i] = list[i];
						list = more;
					}
					toold_ran ran = TOOLD_ZERO;
					toold_read_ran(r, &ran);
					list[n++] = ran;
				}
			q->ran = list, q->n = n;
		} else toold_skip(r);
	}
}

// toold_read_wire_ref reads one reference.
TOOLD_FN void toold_read_wire_ref(toold_reader *r, toold_wire_ref *ref) {
	if (!toold_object(r)) {
		toold_wrong(r, "not an object");
		return;
	}
	for (toold_str name; toold_next_member(r, &name);) {
		if (toold_is(name, "name")) ref->name = toold_read_string(r);
		else if (toold_is(name, "old")) ref->old = toold_read_string(r);
		else if (toold_is(name, "new")) ref->new_ = toold_read_string(r);
		else if (!toold_is(name, "force")) toold_skip(r);
		else if (toold_word(r, "null")) ref->force = TOOLD_UNSAID;
		else ref->force = toold_read_bool(r) ? TOOLD_YES : TOOLD_NO;
	}
}

// toold_read_wire reads what wire is asked.
TOOLD_FN void toold_read_wire(toold_reader *r, toold_wire *w) {
	if (!toold_object(r)) {
		toold_wrong(r, "not an object");
		return;
	}
	for (toold_str name; toold_next_member(r, &name);) {
		if (toold_is(name, "on")) w->on = toold_read_string(r);
		else if (toold_is(name, "host")) w->host = toold_read_string(r);
		else if (toold_is(name, "port")) w->port = toold_read_int(r);
		else if (toold_is(name, "path")) w->path = toold_read_string(r);
		else if (toold_is(name, "method")) w->method = toold_read_string(r);
		else if (toold_is(name, "remote")) w->remote = toold_read_string(r);
		else if (toold_is(name, "push_options")) toold_read_strings(r, &w->push_options);
		else if (toold_is(name, "call")) {
			toold_call c = TOOLD_ZERO;
			toold_read_call(r, &c);
			w->call = c;
		} else if (toold_is(name, "refs")) {
			toold_wire_ref *list = 0;
			size_t n = 0;
			if (w->n) toold_wrong(r, "refs twice");
			if (toold_array(r))
				while (toold_next_item(r)) {
					if ((n & (n - 1)) == 0) { // full
						toold_wire_ref *more = (toold_wire_ref *)toold_alloc((n ? 2 * n : 1) * sizeof *more);
						for (size_t i = 0; i < n; i++) more[i] = list[i];
						list = more;
					}
					toold_wire_ref ref = TOOLD_ZERO;
					toold_read_wire_ref(r, &ref);
					list[n++] = ref;
				}
			w->refs = list, w->n = n;
		} else toold_skip(r);
	}
}

// toold_read_discovery reads what discover is asked.
TOOLD_FN void toold_read_discovery(toold_reader *r, toold_discovery *d) {
	if (!toold_object(r)) {
		toold_wrong(r, "not an object");
		return;
	}
	for (toold_str name; toold_next_member(r, &name);) {
		if (toold_is(name, "tool")) d->tool = toold_read_string(r);
		else if (toold_is(name, "read_only")) d->read_only = toold_read_bool(r);
		else if (toold_is(name, "deadline_ms")) d->deadline_ms = toold_read_int(r);
		else toold_skip(r);
	}
}

// toold_read_ended reads what classify is asked.
TOOLD_FN void toold_read_ended(toold_reader *r, toold_ended *e) {
	if (!toold_object(r)) {
		toold_wrong(r, "not an object");
		return;
	}
	for (toold_str name; toold_next_member(r, &name);) {
		if (toold_is(name, "call")) {
			toold_call c = TOOLD_ZERO;
			toold_read_call(r, &c);
			e->call = c;
		} else if (!toold_is(name, "result")) toold_skip(r);
		else if (toold_object(r))
			for (toold_str field; toold_next_member(r, &field);) {
				bool good = true;
				if (toold_is(field, "exit_code")) e->exit_code = toold_read_exit(r);
				else if (toold_is(field, "stdout")) e->out = toold_read_string(r);
				else if (toold_is(field, "stderr")) e->err = toold_read_string(r);
				else if (toold_is(field, "stdout_base64")) good = toold_base64_of(toold_read_string(r), &e->out);
				else if (toold_is(field, "stderr_base64")) good = toold_base64_of(toold_read_string(r), &e->err);
				else toold_skip(r);
				if (!good) toold_wrong(r, "not base64");
			}
	}
}

// ---- The host ----

// The severity of a line of the log.
typedef enum { TOOLD_DEBUG, TOOLD_INFO, TOOLD_WARN, TOOLD_ERROR } toold_level;

#ifdef __wasm__

// The Extism kernel keeps blocks of memory of its own, named by offsets; 0 is
// no block.
#define TOOLD_ENV(name) __attribute__((import_module("extism:host/env"), import_name(#name))) extern
#define TOOLD_USER(name) __attribute__((import_module("extism:host/user"), import_name(#name))) extern

TOOLD_ENV(input_length) uint64_t toold_k_input_length(void);
TOOLD_ENV(input_load_u8) uint32_t toold_k_input_load_u8(uint64_t at);
TOOLD_ENV(input_load_u64) uint64_t toold_k_input_load_u64(uint64_t at);
TOOLD_ENV(alloc) uint64_t toold_k_alloc(uint64_t n);
TOOLD_ENV(free) void toold_k_free(uint64_t block);
TOOLD_ENV(length) uint64_t toold_k_length(uint64_t block);
TOOLD_ENV(load_u8) uint32_t toold_k_load_u8(uint64_t at);
TOOLD_ENV(load_u64) uint64_t toold_k_load_u64(uint64_t at);
TOOLD_ENV(store_u8) void toold_k_store_u8(uint64_t at, uint32_t v);
TOOLD_ENV(store_u64) void toold_k_store_u64(uint64_t at, uint64_t v);
TOOLD_ENV(output_set) void toold_k_output_set(uint64_t at, uint64_t n);
TOOLD_ENV(error_set) void toold_k_error_set(uint64_t block);
TOOLD_ENV(config_get) uint64_t toold_k_config_get(uint64_t key);
TOOLD_ENV(var_get) uint64_t toold_k_var_get(uint64_t key);
TOOLD_ENV(var_set) void toold_k_var_set(uint64_t key, uint64_t value);
TOOLD_ENV(log_debug) void toold_k_log_debug(uint64_t block);
TOOLD_ENV(log_info) void toold_k_log_info(uint64_t block);
TOOLD_ENV(log_warn) void toold_k_log_warn(uint64_t block);
TOOLD_ENV(log_error) void toold_k_log_error(uint64_t block);
TOOLD_ENV(http_request) uint64_t toold_k_http_request(uint64_t request, uint64_t body);
TOOLD_ENV(http_status_code) uint32_t toold_k_http_status_code(void);
TOOLD_ENV(http_headers) uint64_t toold_k_http_headers(void);
TOOLD_USER(tool_exec) uint64_t toold_k_exec(uint64_t in);
TOOLD_USER(tool_emit) uint64_t toold_k_emit(uint64_t in);
TOOLD_USER(tool_recv) uint64_t toold_k_recv(uint64_t in);
TOOLD_USER(tool_call) uint64_t toold_k_call(uint64_t in);
TOOLD_USER(tool_read) uint32_t toold_k_read(void *to, uint64_t at, uint32_t n);
TOOLD_USER(tool_write) void toold_k_write(const void *from, uint32_t n);

// toold_block copies s into a new block, eight bytes a call.
TOOLD_FAR uint64_t toold_block(toold_str s) {
	if (!s.n) return 0;
	uint64_t block = toold_k_alloc(s.n), word;
	size_t i = 0;
	for (; i + 8 <= s.n; i += 8) {
		__builtin_memcpy(&word, s.p + i, 8);
		toold_k_store_u64(block + i, word);
	}
	for (; i < s.n; i++) toold_k_store_u8(block + i, (unsigned char)s.p[i]);
	return block;
}

// toold_unblock copies a block out and frees it; p is 0 for no block.
TOOLD_FAR toold_str toold_unblock(uint64_t block) {
	if (!block) return TOOLD_A(toold_str){0, 0};
	size_t n = (size_t)toold_k_length(block), i = 0;
	char *p = (char *)toold_alloc(n + 1);
	for (; i + 8 <= n; i += 8) {
		uint64_t word = toold_k_load_u64(block + i);
		__builtin_memcpy(p + i, &word, 8);
	}
	for (; i < n; i++) p[i] = (char)toold_k_load_u8(block + i);
	p[n] = 0;
	toold_k_free(block);
	return TOOLD_A(toold_str){p, n};
}

// toold_input is what the export was asked, as it came.
TOOLD_FN toold_str toold_input(void) {
	size_t n = (size_t)toold_k_input_length(), i = 0;
	char *p = (char *)toold_alloc(n + 1);
#ifdef TOOLD_PORTABLE
	for (; i + 8 <= n; i += 8) {
		uint64_t word = toold_k_input_load_u64(i);
		__builtin_memcpy(p + i, &word, 8);
	}
	for (; i < n; i++) p[i] = (char)toold_k_input_load_u8(i);
#else
	if (n) i = toold_k_read(p, 0, (uint32_t)n);
	n = i;
#endif
	p[n] = 0;
	return TOOLD_A(toold_str){p, n};
}

// toold_output answers. It is called once an export.
TOOLD_FN void toold_output(toold_str s) {
#ifdef TOOLD_PORTABLE
	toold_k_output_set(toold_block(s), s.n);
#else
	if (s.n) toold_k_write(s.p, (uint32_t)s.n);
#endif
}

// toold_error says why the call fails, once the export answers other than 0 or
// traps.
TOOLD_FN void toold_error(toold_str text) { toold_k_error_set(toold_block(text.n ? text : TOOLD_STR("error without a message"))); }

// toold_config answers what tool.json (or the caller's identity) gives a key;
// p is 0 where there is nothing.
TOOLD_FN toold_str toold_config(const char *key) { return toold_unblock(toold_k_config_get(toold_block(toold_text(key)))); }

// toold_var_get answers what toold_var_set stored for this tool, identity and
// session; p is 0 where there is nothing. Needs the capability "state".
TOOLD_FN toold_str toold_var_get(toold_str key) { return toold_unblock(toold_k_var_get(toold_block(key))); }

// toold_var_set stores a value; one with p 0 removes it. (An empty one is not
// stored: the interface knows no empty block.)
TOOLD_FN void toold_var_set(toold_str key, toold_str value) { toold_k_var_set(toold_block(key), toold_block(value)); }

// toold_log writes a line to the host's log, which cuts long ones.
TOOLD_FN void toold_log(toold_level level, toold_str line) {
	uint64_t block = toold_block(line);
	switch (level) {
	case TOOLD_DEBUG: toold_k_log_debug(block); break;
	case TOOLD_INFO: toold_k_log_info(block); break;
	case TOOLD_WARN: toold_k_log_warn(block); break;
	default: toold_k_log_error(block); break;
	}
}

// The functions of the host, as JSON in and out; toold_http and the others call
// them. p is 0 for no answer.
TOOLD_FN toold_str toold_host_http(toold_str request, toold_str body, int *status, toold_str *headers) {
	toold_str out = toold_unblock(toold_k_http_request(toold_block(request), toold_block(body)));
	*status = (int)toold_k_http_status_code();
	*headers = *status ? toold_unblock(toold_k_http_headers()) : TOOLD_A(toold_str){0, 0};
	return out;
}

// See toold_host_http.
TOOLD_FN toold_str toold_host_exec(toold_str in) { return toold_unblock(toold_k_exec(toold_block(in))); }
// See toold_host_http.
TOOLD_FN toold_str toold_host_emit(toold_str in) { return toold_unblock(toold_k_emit(toold_block(in))); }
// See toold_host_http.
TOOLD_FN toold_str toold_host_recv(void) { return toold_unblock(toold_k_recv(0)); }
// See toold_host_http.
TOOLD_FN toold_str toold_host_call(toold_str in) { return toold_unblock(toold_k_call(toold_block(in))); }

#else

// toold_fake is the host of a native test: set what it has, call an export
// (toold_export_restrict, toold_export_handle, toold_export_describe), look at
// output and error. A hook that is 0 answers like a host that grants nothing.
typedef struct {
	toold_str input;
	toold_map config, vars;
	toold_str output, error;
	toold_list logged, emitted; // emitted: what toold_emit sent, piece by piece
	toold_list recv;            // what toold_recv gets, piece by piece
	size_t received;
	toold_str (*http)(toold_str request, toold_str body, int *status, toold_str *headers);
	toold_str (*exec)(toold_str request); // JSON: ExecRequest to ExecResult
	toold_str (*call)(toold_str envelope);
} toold_fake_host;

static toold_fake_host toold_fake;

TOOLD_FN toold_str toold_input(void) { return toold_fake.input; }
TOOLD_FN void toold_output(toold_str s) { toold_fake.output = s; }
TOOLD_FN void toold_error(toold_str text) { toold_fake.error = text.n ? text : TOOLD_STR("error without a message"); }
TOOLD_FN toold_str toold_config(const char *key) { return toold_find(toold_fake.config, key); }

TOOLD_FN toold_str toold_var_get(toold_str key) {
	for (size_t i = toold_fake.vars.n; i-- > 0;)
		if (toold_same(toold_fake.vars.v[i].key, key)) return toold_fake.vars.v[i].value;
	return TOOLD_A(toold_str){0, 0};
}

TOOLD_FN void toold_var_set(toold_str key, toold_str value) { toold_put(&toold_fake.vars, key, value.n ? value : TOOLD_A(toold_str){0, 0}); }
TOOLD_FN void toold_log(toold_level level, toold_str line) { (void)level, toold_push(&toold_fake.logged, line); }

TOOLD_FN toold_str toold_host_http(toold_str request, toold_str body, int *status, toold_str *headers) {
	if (toold_fake.http) return toold_fake.http(request, body, status, headers);
	*status = 0, *headers = TOOLD_A(toold_str){0, 0};
	return TOOLD_STR("this call has no network");
}

TOOLD_FN toold_str toold_host_exec(toold_str in) {
	return toold_fake.exec ? toold_fake.exec(in) : TOOLD_STR("{\"exit_code\":0,\"error\":{\"message\":\"tool_exec: not granted\"}}");
}

TOOLD_FN toold_str toold_host_emit(toold_str in) {
	toold_str data = {0, 0}, text = TOOLD_STR("");
	if (toold_string_of(toold_member(in, "data_base64"), &data)) toold_base64_of(data, &text);
	toold_push(&toold_fake.emitted, text);
	return TOOLD_STR("{}");
}

TOOLD_FN toold_str toold_host_recv(void) {
	if (toold_fake.received == toold_fake.recv.n) return TOOLD_STR("{\"eof\":true}");
	toold_buf b = TOOLD_ZERO;
	toold_json_open(&b, '{');
	toold_json_text(&b, "data_base64", toold_base64(toold_fake.recv.v[toold_fake.received++]));
	toold_json_close(&b, '}');
	return toold_done(&b);
}

TOOLD_FN toold_str toold_host_call(toold_str in) { return toold_fake.call ? toold_fake.call(in) : TOOLD_A(toold_str){0, 0}; }

#endif

// toold_said reads the message of an "error" member; empty where there is none.
TOOLD_FN toold_str toold_said(toold_reader *r) {
	toold_str message = {0, 0};
	if (toold_object(r)) {
		message = TOOLD_STR("error without a message");
		for (toold_str name; toold_next_member(r, &name);)
			if (toold_is(name, "message")) message = toold_read_string(r);
			else toold_skip(r);
	}
	return message;
}

// What came of a request.
typedef struct {
	int status; // 0: there was no answer, and body says why
	toold_map headers; // names in lower case
	toold_str body;
} toold_response;

// toold_http makes a request to a host that the capability "http" lists. Any
// status is an answer.
TOOLD_FN toold_response toold_http(const char *method, toold_str url, toold_map headers, toold_str body) {
	toold_buf b = TOOLD_ZERO;
	toold_json_open(&b, '{');
	toold_json_text(&b, "method", toold_text(method));
	toold_json_text(&b, "url", url);
	if (headers.n) toold_json_map(&b, "headers", headers);
	toold_json_close(&b, '}');
	toold_response res = TOOLD_ZERO;
	toold_str got;
	res.body = toold_host_http(toold_done(&b), body, &res.status, &got);
	if (got.n) {
		toold_reader r = toold_read(got);
		toold_read_map(&r, &res.headers);
		if (!toold_end(&r)) res.status = 0, res.body = TOOLD_STR("http_headers answered what cannot be read");
	}
	return res;
}

// What came of a program.
typedef struct {
	int exit_code;
	toold_str out, err; // bytes
	bool truncated;     // the host kept only the ends of them
	toold_str error; // not empty: nothing ran, for this reason
} toold_exec_result;

// A program to run; path is one that the capability "exec" lists.
typedef struct {
	toold_str path;
	toold_list args;
	toold_str cwd;
	toold_map env;
	toold_str in; // bytes for its standard input
} toold_exec_request;

// toold_exec runs a binary that the capability "exec" lists and waits for it.
TOOLD_FN toold_exec_result toold_exec(const toold_exec_request *q) {
	toold_buf b = TOOLD_ZERO;
	toold_json_open(&b, '{');
	toold_json_text(&b, "path", q->path);
	if (q->args.n) toold_json_list(&b, "args", q->args);
	toold_json_text(&b, "cwd", q->cwd);
	if (q->env.n) toold_json_map(&b, "env", q->env);
	if (q->in.n) toold_json_text(&b, "stdin_base64", toold_base64(q->in));
	toold_json_close(&b, '}');
	toold_exec_result res = TOOLD_ZERO;
	bool good = true;
	toold_reader r = toold_read(toold_host_exec(toold_done(&b)));
	if (toold_object(&r))
		for (toold_str name; toold_next_member(&r, &name);) {
			if (toold_is(name, "exit_code")) res.exit_code = toold_read_exit(&r);
			else if (toold_is(name, "stdout_base64")) good = toold_base64_of(toold_read_string(&r), &res.out) && good;
			else if (toold_is(name, "stderr_base64")) good = toold_base64_of(toold_read_string(&r), &res.err) && good;
			else if (toold_is(name, "truncated")) res.truncated = toold_read_bool(&r);
			else if (toold_is(name, "error")) res.error = toold_said(&r);
			else toold_skip(&r);
		}
	if (!toold_end(&r) || !good) res.error = TOOLD_STR("tool_exec answered what cannot be read");
	return res;
}

// toold_emit sends output while the call runs: to "stdout", "stderr" or
// "progress" (one JSON value). It waits while the caller is slow, and answers
// false when the caller has left: stop then.
TOOLD_FN bool toold_emit(const char *stream, toold_str bytes) {
	toold_buf b = TOOLD_ZERO;
	toold_json_open(&b, '{');
	toold_json_text(&b, "stream", toold_text(stream));
	toold_json_name(&b, "data_base64");
	toold_add(&b, TOOLD_STR("\""));
	toold_add_base64(&b, bytes);
	toold_add(&b, TOOLD_STR("\""));
	b.comma = true;
	toold_json_close(&b, '}');
	toold_str out = toold_host_emit(toold_done(&b));
	return toold_is(out, "{}") || !toold_member(out, "error").p;
}

// toold_recv waits for the next piece of the caller's input, or for a message
// that steers this call. p is 0 at the end, and *why (which may be 0) is then
// empty, or says what went wrong.
TOOLD_FN toold_str toold_recv(toold_str *why) {
	toold_str data = {0, 0}, said = {0, 0}, out = {0, 0};
	bool eof = false;
	toold_reader r = toold_read(toold_host_recv());
	if (toold_object(&r))
		for (toold_str name; toold_next_member(&r, &name);) {
			if (toold_is(name, "data_base64")) data = toold_read_string(&r);
			else if (toold_is(name, "eof")) eof = toold_read_bool(&r);
			else if (toold_is(name, "error")) said = toold_said(&r);
			else toold_skip(&r);
		}
	if (!toold_end(&r) || !toold_base64_of(data, &out)) said = TOOLD_STR("tool_recv answered what cannot be read");
	if (why) *why = said;
	return said.n || eof ? TOOLD_A(toold_str){0, 0} : out;
}

// toold_tool_call makes a call as this session and identity: an envelope in,
// the response out. p is 0 when this call may make none; which tools and session
// calls it may make is said in capabilities.tool_call of tool.json.
TOOLD_FN toold_str toold_tool_call(toold_str envelope) { return toold_host_call(envelope); }

#ifdef __wasm__
#define TOOLD_TRAP() __builtin_trap()
#else
#define TOOLD_TRAP() abort()
#endif

#define TOOLD_QUOTE2(x) #x
#define TOOLD_QUOTE(x) TOOLD_QUOTE2(x)

// TOOLD_CHECK ends the call with a trap that says why, file and line, unless ok.
// why is a literal. It is for what cannot be; what a caller did wrong is an
// answer.
#define TOOLD_CHECK(ok, why) \
	do { \
		if (!(ok)) { \
			toold_error(TOOLD_STR(why " at " __FILE__ ":" TOOLD_QUOTE(__LINE__))); \
			TOOLD_TRAP(); \
		} \
	} while (0)

// ---- Answers ----

// toold_allow lets the call run as it was asked. Set fields to change what runs.
TOOLD_FN toold_decision toold_allow(void) {
	toold_decision d = TOOLD_ZERO;
	d.allow = true;
	return d;
}

// toold_deny refuses. rule is for logs; reason says which argument is at fault
// and why, instead what the caller can do: both are shown to the caller.
TOOLD_FN toold_decision toold_deny(const char *rule, const char *reason, const char *instead) {
	toold_decision d = TOOLD_ZERO;
	d.rule = toold_text(rule), d.reason = toold_text(reason), d.instead = toold_text(instead);
	return d;
}

// toold_ask lets the call run, as it was asked, once somebody has approved it. text is
// shown to who decides. Set fields, those of ask too, to change what runs and who may.
TOOLD_FN toold_decision toold_ask(const char *rule, const char *text) {
	toold_decision d = TOOLD_ZERO;
	d.rule = toold_text(rule), d.ask.set = true, d.ask.text = toold_text(text);
	return d;
}

// toold_says is text on standard output, and exit code 0.
TOOLD_FN toold_result toold_says(toold_str text) {
	toold_result r = TOOLD_ZERO;
	r.out = text;
	return r;
}

// toold_fails is a failure that the tool has a name for: UPPER_SNAKE_CASE.
TOOLD_FN toold_result toold_fails(const char *code, const char *message) {
	toold_result r = TOOLD_ZERO;
	r.error.code = toold_text(code), r.error.message = toold_text(message);
	return r;
}

// toold_unresolved answers reconcile that nothing certain was found out, and why.
TOOLD_FN toold_reconciliation toold_unresolved(toold_str evidence) {
	toold_reconciliation a = TOOLD_ZERO;
	a.evidence = evidence;
	return a;
}

// ---- Exports ----

// toold_end_with ends an export: with a failure, or with its answer.
TOOLD_FN int32_t toold_end_with(toold_str failed, toold_str answer) {
	if (failed.n) {
		toold_error(failed);
		return 1;
	}
	toold_output(answer);
	return 0;
}

// toold_get_call reads the call that an export is asked about; where it cannot be
// read it says why, and the export must fail.
TOOLD_FN bool toold_get_call(toold_call *c) {
	toold_str in = toold_input();
	toold_reader r = toold_read(in);
	toold_read_call(&r, c);
	if (toold_end(&r)) return true;
	toold_error(toold_why(&r, "read call", in));
	return false;
}

// TOOLD_RESTRICT makes fn the policy: toold_decision fn(const toold_call *).
#define TOOLD_RESTRICT(fn) \
	TOOLD_EXPORT(restrict) int32_t toold_export_restrict(void) { \
		toold_call c = TOOLD_ZERO; \
		if (!toold_get_call(&c)) return 1; \
		toold_decision d = fn(&c); \
		return toold_end_with(d.failed, d.failed.n ? d.failed : toold_write_decision(&d)); \
	}

// TOOLD_HANDLE makes fn the tool: toold_result fn(const toold_call *).
#define TOOLD_HANDLE(fn) \
	TOOLD_EXPORT(handle) int32_t toold_export_handle(void) { \
		toold_call c = TOOLD_ZERO; \
		if (!toold_get_call(&c)) return 1; \
		toold_result r = fn(&c); \
		return toold_end_with(r.failed, r.failed.n ? r.failed : toold_write_result(&r)); \
	}

// TOOLD_DESCRIBE makes fn the description: toold_describe fn(void).
#define TOOLD_DESCRIBE(fn) \
	TOOLD_EXPORT(describe) int32_t toold_export_describe(void) { \
		toold_describe d = fn(); \
		return toold_end_with(TOOLD_A(toold_str){0, 0}, toold_write_describe(&d)); \
	}

// TOOLD_DISCOVER makes fn answer the tools of an identity:
// toold_surface fn(const toold_discovery *).
#define TOOLD_DISCOVER(fn) \
	TOOLD_EXPORT(discover) int32_t toold_export_discover(void) { \
		toold_discovery d = TOOLD_ZERO; \
		toold_str in = toold_input(); \
		toold_reader r = toold_read(in); \
		toold_read_discovery(&r, &d); \
		if (!toold_end(&r)) return toold_end_with(toold_why(&r, "read discovery", in), in); \
		toold_surface s = fn(&d); \
		return toold_end_with(s.failed, s.failed.n ? s.failed : toold_write_surface(&s)); \
	}

// TOOLD_CLASSIFY makes fn say what an exit code means:
// toold_classification fn(const toold_ended *).
#define TOOLD_CLASSIFY(fn) \
	TOOLD_EXPORT(classify) int32_t toold_export_classify(void) { \
		toold_ended e = TOOLD_ZERO; \
		toold_str in = toold_input(); \
		toold_reader r = toold_read(in); \
		toold_read_ended(&r, &e); \
		if (!toold_end(&r)) return toold_end_with(toold_why(&r, "read what ended", in), in); \
		toold_classification c = fn(&e); \
		return toold_end_with(c.failed, c.failed.n ? c.failed : toold_write_classification(&c)); \
	}

// TOOLD_RECONCILE makes fn say how a call ended that was cut off:
// toold_reconciliation fn(const toold_reconcile *).
#define TOOLD_RECONCILE(fn) \
	TOOLD_EXPORT(reconcile) int32_t toold_export_reconcile(void) { \
		toold_reconcile q = TOOLD_ZERO; \
		toold_str in = toold_input(); \
		toold_reader r = toold_read(in); \
		toold_read_reconcile(&r, &q); \
		if (!toold_end(&r)) return toold_end_with(toold_why(&r, "read reconcile", in), in); \
		toold_reconciliation a = fn(&q); \
		return toold_end_with(a.failed, a.failed.n ? a.failed : toold_write_reconciliation(&a)); \
	}

// TOOLD_WIRE makes fn the policy of what the tool's binary sends:
// toold_decision fn(const toold_wire *).
#define TOOLD_WIRE(fn) \
	TOOLD_EXPORT(wire) int32_t toold_export_wire(void) { \
		toold_wire w = TOOLD_ZERO; \
		toold_str in = toold_input(); \
		toold_reader r = toold_read(in); \
		toold_read_wire(&r, &w); \
		if (!toold_end(&r)) return toold_end_with(toold_why(&r, "read wire", in), in); \
		toold_decision d = fn(&w); \
		return toold_end_with(d.failed, d.failed.n ? d.failed : toold_write_decision(&d)); \
	}

#ifdef __cplusplus
}
#endif

#endif
