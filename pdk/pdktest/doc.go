// Package pdktest is the conformance suite of the guest interface: one set of
// checks that a guest passes in whatever language it is written, and that an
// SDK is finished when its guest passes.
//
// To test an SDK, write the guest described here with it, compile it to one
// module, and run
//
//	func TestConformance(t *testing.T) {
//		wasm, err := os.ReadFile("conformance.wasm")
//		if err != nil {
//			t.Fatal(err)
//		}
//		pdktest.Run(t, wasm)
//	}
//
// The guest of the Go SDK is in pdk/pdktest/guest and is the reference. The
// cases are vectors, files of JSON in pdk/testdata, so that an SDK can also
// read them in its own language: what goes in, what the host answers when it
// is asked, what must come out. What comes out is read strictly and compared
// byte for byte in canonical form: fields that are absent and fields that have
// their zero value are the same, the order of keys does not matter, and
// everything else does.
//
// # The guest
//
// One module with the exports describe, restrict, handle, discover, classify,
// reconcile and wire. restrict and handle look at args[0] of its Call, the request, and does what the tables say; the other
// arguments are A, B and so on. It reads its Call as abi.Call has it, ignores
// unknown fields, and keeps nothing from one call to the next.
//
// # describe
//
// Answers, whatever its input:
//
//	{"abi": 1, "name": "pdktest", "description": "the conformance guest", "schema": {"type": "object"},
//	 "annotations": {"title": "Conformance", "read_only": true, "destructive": false}, "wants": ["repo_config"]}
//
// # restrict
//
//	request       Decision
//	(none)        deny, rule "pdktest.none", reason "there is no request"
//	allow         allow, and nothing else
//	deny          deny, rule "pdktest.deny", reason "asked to deny", instead "ask to allow"
//	ask A..       ask, rule "pdktest.ask", ask {"by": the rest, "self": true, "ttl_ms": 60000, "text": "asked to ask"}
//	rewrite A..   allow, rule "pdktest.rewrite", args the rest in reverse order, env {"REWRITTEN": "yes"},
//	              stdin_base64 of "rewritten\n", mutating true, idempotent false, idempotency_key "key-N" for N
//	              arguments, timeout_ms 1500, stdin false, shell true, shell_lines as args
//	empty         allow with args [], env {} and stdin_base64 "": which are not the same as absent
//	config KEY    deny, rule "pdktest.config", reason the configuration's value, "absent" when there is none or
//	              it is empty, between which Extism makes no difference
//	repo          deny, rule "pdktest.repo", reason "KEY=VALUE" of all entries of repo_config joined by ";",
//	              its error when it has one, "none" without repo_config
//	fail          fails (error_set) with the text "asked to fail"
//	trap          ends by a trap, or fails
//	anything else deny, rule "pdktest.unknown", reason "unknown request: " and the request
//
// A Call that cannot be read is a failure, never a Decision that allows.
//
// # handle
//
//	request              Result
//	(none)               exit_code 2, stderr "there is no request\n"
//	call                 data: the Call, written anew from what was read
//	stdout A..           stdout the rest joined by spaces
//	stderr A..           stderr the rest joined by spaces
//	exit N               exit_code N
//	bytes HEX            stdout_base64 of those bytes; stderr_base64 of them in reverse order
//	data                 data: the payload, as it came
//	error CODE TEXT      error {code CODE, message TEXT, retriable true}
//	gone                 gone true
//	safety GRANTS        safety {read_only true, grants GRANTS}
//	fail TEXT            fails (error_set) with TEXT
//	trap                 ends by a trap, or fails
//	config KEY           data {"value": VALUE}, null when there is none
//	var-get KEY          data {"value": VALUE}, null when there is none
//	var-set KEY VALUE    stores it, then as var-get KEY
//	var-delete KEY       removes it, then as var-get KEY
//	log LEVEL TEXT       logs TEXT at debug, info, warn or error
//	emit STREAM A..      sends each of the rest to STREAM, in turn
//	recv                 data {"pieces": [..]}: the input as text, piece by piece, until its end
//	http METHOD URL BODY asks with header "X-Request: pdktest"; data {"status": .., "reply": the header
//	                     "x-reply" of the answer, "body": ..}; no answer: data {"failed": true}
//	exec PATH A..        runs PATH with the rest as args, cwd that of the Call, env {"A": "b"} and stdin "in";
//	                     data {"exit_code": .., "stdout": .., "stderr": ..}; refused: data {"refused": the message}
//	tool-call            calls with the payload as envelope; data: the answer
//	length               data {"length": how many bytes stdin_base64 stands for}
//	large N              stdout of N times "x"
//	count                adds one to a variable of the module that begins at 0; data {"count": the variable}
//	anything else        exit_code 2, stderr "unknown request: " and the request and "\n"
//
// # discover
//
// Answers two tools, and of who only reads the first alone:
//
//	{"name": "one", "title": "One", "description": "the first", "schema": {"type": "object"}, "output_schema": {"type": "object", "required": ["ok"]},
//	 "icons": [{"src": "https://pdktest.example/one.png", "mime_type": "image/png", "sizes": ["48x48", "any"], "theme": "dark"}, {"src": "data:,"}],
//	 "annotations": {"read_only": true}, "binding": {"view": "v"}}
//	{"name": "two", "mutating": true}
//
// with ttl_ms 60000 and a safety whose read_only is that of the Discovery and
// whose grants are its tool. When the configuration "server" is "refuses" it
// answers no tools and the error UNAUTHENTICATED, "no such user"; when it is
// "fails", it fails with "the server is away".
//
// # classify
//
// Answers failure for an exit code from 2 on, and retriable when the standard
// error is "try again" and the byte 0xff. Without args it fails with "there is
// no request".
//
// # reconcile
//
// Without args it fails with "there is no request". With before it answers the
// facts {"key": KEY, "of": EXECUTION_ID}. Else args[0] is the request:
//
//	run       with nothing in ran: run, the other args and an empty list.
//	          Else unknown; the evidence is ARGS>EXIT>STDOUT>STDERR>TRUNCATED>ERROR
//	          of each, with ";" between: args with "," between, the error as
//	          CODE:MESSAGE:RETRIABLE, or none
//	asked     unknown; the evidence is key, stdin_sha256, env with "," between,
//	          began_ms, ended_ms, now_ms and gone, with "|" between
//	done      done, "it is there"; the result's stdout are the other args with
//	          spaces between, its data the facts
//	not-done  not_done, "it is not there", with gone; else unknown, "it may still run"
//	fail      fails with "asked to fail"
//	others    answers nothing
//
// # wire
//
// Without args it fails with "there is no request". Else args[0] of its Call is
// the request:
//
//	allow   allow
//	asked   deny, rule "pdktest.wire", reason on, host, port, path, method, remote, the
//	        refs and the push_options, with "|" between: a ref is NAME:OLD:NEW:FORCE,
//	        FORCE is true, false or null, refs and options have "," between
//	fail    fails with "asked to fail"
//	others  deny, rule "pdktest.unknown", reason "unknown request: " and the request
//
// An error of a host function that the table does not mention is a failure.
//
// # Reading
//
// A Call, a Discovery, a Wire and what has ended are read alike in every language, which
// fuzz targets beside the Go guest compare: what one SDK refuses, all refuse,
// with a message and without a trap. A name that is there twice counts as it was
// the last time; null is nothing of any type, but no whole Call and no
// reference of a Wire, whose refs cannot be there twice; \ud800 without
// its other half is U+FFFD; a whole number has no fraction and no exponent, and
// is within 64 bits. An SDK may differ in what no host sends:
//
//   - bytes that are not UTF-8: Go puts U+FFFD in their place, the others refuse
//   - nesting deeper than 200, which Go takes to 1000 (a host takes 64)
//   - an exit code beyond 32 bits, which only Go's int holds; the others refuse
//   - line breaks within base64, which Go passes over and the others refuse
//   - the type of fields of a Result that classify has no use for, which Go looks at
package pdktest
