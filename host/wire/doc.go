/*
Package wire implements toold's protocol on a tool socket, and the types of both
ends. This comment is the specification of the protocol; it is all that a client in
another language needs.

# Compatibility

The protocol has no version number, because it only grows:

  - A frame, a field, a code or an exit code that is described here keeps its
    meaning for good. Codes are never removed or given another exit code, and
    whether a code may be retried never changes.
  - A server may add fields to its frames and types of frames to its streams. A
    client ignores unknown fields and types, and treats an unknown code as
    INTERNAL.
  - A client may send only the fields described here. A server refuses others by
    name, so that a field that is misspelled, or that the server does not
    support, is never ignored silently. A server from before env_seen refuses it so:
    a client that sends it makes the call anew without it.
  - The four fields exit_code, stdout, stderr and error are in every plain
    response that is not streamed. A client that knows only these works.

# Transport

A tool socket is a Unix domain socket of type SOCK_STREAM, by convention
/run/sockets/tool-INSTANCE.sock with mode 0660; wrappers read its path from the
variable TOOL_SOCKET. The server gets the user, group and process of its peer from
the kernel.

# Frames

Both directions carry frames: a length of 4 bytes, big-endian, and then that many
bytes of JSON, which is one object in UTF-8.

	00 00 00 18 {"tool":"git","cwd":"/"}

The length counts bytes, not characters.

The JSON of a frame has at most 65,536 bytes, in both directions. A server answers a
greater length with MESSAGE_TOO_LARGE and closes the connection, since it cannot
find the next frame. It keeps reading for a moment, so that a
client that is still writing can read the answer: a client whose write fails
should read before it gives up.

The JSON is parsed strictly. These are refused: bytes that are not UTF-8, escapes
of half a surrogate pair (\ud800), duplicate names in an object, fields that
are not described here (names are case-sensitive), values of another type,
nesting deeper than 64, anything after the object. null equals leaving out
args, env, stdin, tty and callerInfo, and is refused elsewhere.

# Connections

A client sends a request and gets a response. A connection may carry many
requests, and a client need not wait for a response before it sends the next
request; they are run and answered in order, one after the other. Up to 16
requests, or 2 MiB of them, may be waiting for their answers; beyond that the server
stops reading until one is answered.

Every request is answered. A malformed request gets INVALID_ENVELOPE, in order, with
the path (RFC 6901) of the invalid value and the byte offset of the fault; the
connection stays open as long as frames are complete. An answer has the form of its
request, or the plain form if that cannot be determined.

A call belongs to its connection: when the client closes it, the call that runs is
aborted and those that wait are dropped. (A mutating call with an idempotency key
that has begun runs on, and keeps its result for the next use of the key.) Closing
one direction only, with shutdown(SHUT_WR) or as "nc -N -U" does, says that no more
requests and no more input will come; the answers still do.

A server at its limit of connections sends OVERLOADED in plain form on a new
connection, without a request, and closes it. It may do the same with an idle
connection; if the client has just sent a request, this is its answer, and the call
did not take place. A server that stops lets running calls
finish, answers further ones with OVERLOADED, and closes connections when they
become idle. If a connection closes without an answer, the call may have taken
place, unless nothing of its request had been sent.

# Plain form

This is what wrappers send:

	{"tool": "git", "args": ["push", "origin", "main"], "cwd": "/workspace"}

	{"exit_code": 0, "stdout": "output", "stderr": "errors", "error": "", …}

Fields of a request; all but tool may be left out:

	tool             string   which tool
	args             strings  its arguments, without its own name
	cwd              string   the folder that it runs in, absolute; left out, or empty, it is
	                          the first root of the socket
	stdin            string   its input, in base64
	env              object   variables that it is to get, strings; the tool admits them by name
	env_seen         strings  names of further variables that the caller has and that the tool would
	                          have found if the caller had run it; at most 64, without values. The
	                          server says which of them matter and were not passed on. A name that
	                          is in env as well is one that the caller passes to all tools: if the
	                          tool does not admit it and another one does, it is left out of env,
	                          with a line on standard error. Every other variable that the tool
	                          does not admit makes the server refuse the call
	session          string   the session that the call belongs to
	token            string   the caller's token, if the peer's uid is not enough
	idempotency_key  string   identifies this call: a repeated call with it is not run again
	retry            boolean  rerun a stored failure of this key
	timeout_ms       integer  time limit; can only shorten the tool's own. 0 is none
	background       boolean  answer at once; execution_id names the job
	detach           boolean  and let the job outlive its session
	trace            string   a W3C traceparent
	stream           boolean  answer with a stream
	more             boolean  args frames follow; with stream only
	tty              object   the terminal that the caller is at; with stream only. See Terminals
	callbacks        strings  programs that the caller runs for its tool where it is asked to, at
	                          most 16; with stream only. See Callbacks

base64 is that of RFC 4648, section 4, with padding and without line breaks. No
argument, folder or variable can have a zero byte in it: INVALID_PAYLOAD.

Fields of a response; the first four are always there:

	exit_code     integer  the tool's own, or the one that follows from code
	stdout        string   what the tool wrote
	stderr        string
	error         string   the error, for a person; empty on success
	status        string   "success", "error", "timeout" or "circuit_open"
	code          string   the error, for a program; left out on success
	retriable     boolean  whether the same call may succeed if retried; with code
	tool_code     string   the tool's own error code, at most 64 bytes; with code, if the tool
	                       gave one. It is from no list: only code means the same for all tools
	duration_ms   integer  duration of the call
	execution_id  string   the id of this execution
	from_cache    boolean  true for the stored result of an earlier call with this key
	truncated     boolean  true if stdout or stderr is incomplete
	usage         object   resource usage of modules, including policies, if any ran: fuel, in metered
	                       instructions; memory, the peak of one module, in bytes; pages of 4 KiB written.
	                       For a call that was retried, or would have been: attempts, the number of
	                       executions; retries_cut, the retries that the tool's limit allowed and the
	                       shared budget did not

A tool that ran and ended with another exit code than 0 has status "error", code
TOOL_FAILED, and an empty error: its own output has the message.

Invalid UTF-8 in stdout and stderr becomes U+FFFD. If a response does not fit in a
frame, both texts are truncated at a character boundary;
"toolctl result EXECUTION_ID" has the whole. Streams are neither changed nor truncated.
If a tool answers with data instead of text, stdout is that data as JSON.

# Envelope form

This is what programs send:

	{"toolId": "resize", "executionId": "7d444840-9dc0-41d1-b245-5ffdce74fad2",
	 "payload": {"width": 640}, "metadata": {"callerInfo": {"name": "indexer"}}}

	{"status": "success", "data": {"bytes": 10240}, "durationMs": 12,
	 "fromCache": false, "executionId": "7d444840-9dc0-41d1-b245-5ffdce74fad2"}

Fields of a request:

	toolId       string  which tool
	executionId  string  a new version-4 UUID; one of another caller's
	                     execution, or of one that runs, is refused
	payload      object  what the tool takes
	metadata     object  may be left out, and each of:
	  callerInfo         anything, for the log
	  traceId    string  for the log, and passed on: 32 hexadecimal digits without a
	                     trace beside them are the trace's, whose parent the server
	                     makes up; else up to 128 visible characters of ASCII are an
	                     attribute of the span, the header X-Trace-Id of what a module
	                     asks and the variable TOOLD_TRACE_ID of what is started
	  timestamp          when it was sent: a string in RFC 3339, or an integer of
	                     milliseconds since 1970; for the log
	  session    string  as session at the top
	  token      string  as token at the top

and idempotencyKey, session, token, retry, timeoutMs, stdin, env, background,
detach, trace, stream, more, tty and callbacks, as in the plain form. session and token may be in
both places if they are equal.

A plain call is an envelope call with the payload {"args": […], "cwd": "…",
"stdin": "…"}, and a payload with args, these names and no others calls a command
in just the same way. A program that is given another payload is not run:
INVALID_PAYLOAD, with the name that it does not know.

Fields of a response:

	status       string   "success", "error", "timeout" or "circuit_open"; the list is complete
	data         any      the tool's answer; may be left out
	error        object   left out on success: code, message, retriable, and tool_code as in
	                      the plain form
	durationMs   integer
	fromCache    boolean
	executionId  string
	usage        object   as in the plain form

The data of a command is {"exit_code": 0, "stdout": "…", "stderr": "…"}, with texts
changed and truncated as in the plain form, then with "truncated": true. A tool that
ran and ended with another exit code than 0 has the error TOOL_FAILED and data; so
has one that reached its time limit after some output. If data does not fit in a
frame, the answer is LIMIT_EXCEEDED.

# Streams

To a request with "stream": true, in either form, the answer is a sequence of
frames with a type:

	{"type": "stdout", "data": "<base64>"}          what the tool writes
	{"type": "stderr", "data": "<base64>"}
	{"type": "progress", "data": <any>}             its progress
	{"type": "stdin", "open": true}                 it reads input
	{"type": "stdin", "ack": 4096}                  it read so many further bytes of it
	{"type": "result", …}                           the response: the last frame

The response is that of the request's form, without stdout and stderr: in plain form
only exit_code and error of the four fields remain, in envelope form data is left out or is
{"exit_code": 0} for a command. A frame without a type is a response too, and ends the
stream: an error that was sent before the server had parsed "stream".

While the call runs, the client may send:

	{"type": "stdin", "data": "<base64>"}           the next bytes of its input
	{"type": "stdin", "eof": true}                  the end of the input; may be combined with data
	{"type": "signal", "name": "INT"}               INT, TERM, HUP, QUIT, KILL, USR1, USR2, TSTP or CONT

These frames belong to the oldest unanswered request. Well-formed ones after the
response are ignored. A malformed one ends its call with
INVALID_ENVELOPE, since continuing without part of the input could have another
effect than intended. Signals may also be sent to a call that is not streamed. TSTP and
CONT stop and continue a tool that is a binary, and mean nothing to others.

Input is requested, not pushed. A client reads its own standard input only after the
server sent open: most tools read none, and other programs may need it
(while read f; do git log "$f"; done < list). At most 262,144 bytes may be in
flight, sent and not acknowledged, so that a signal never waits behind input; the call of a
client that exceeds this is ended with INVALID_ENVELOPE. Acks may be delayed until
65,536 bytes were read, but not once the tool has read everything sent. A client may send
available input, within the same limit, before it is requested; input that
was not requested is dropped when the call ends.
If a client half closes the connection, the tool's input ends.

Output of a call is never dropped. A slow client slows down only its own tool; it must read
while it writes, to avoid a deadlock.

Long arguments: a request with "stream": true and "more": true is followed by frames

	{"type": "args", "args": ["…", "…"], "join": false, "more": true}

which add to its args, up to and including one with "more": false or without it. With
"join": true the first of them continues the last argument so far: an argument may
be longer than a frame. All arguments of a call have at most 2 MiB together, each counted
with a terminating zero byte, else MESSAGE_TOO_LARGE. In envelope form the payload is
{args, cwd, stdin?}. The call begins after the last args frame.

# Terminals

A streamed request without stdin may offer the terminal that its caller is at:

	"tty": {"rows": 24, "cols": 80, "term": "xterm-256color", "colorterm": "truecolor", "stderr": true,
	        "jobs": true}

rows and cols are at most 65535; 0 is unknown. term and colorterm are for the
variables TERM and COLORTERM: at most 64 letters, digits, '.', '_', '+' and '-', not
beginning with '.'. stderr says that standard error is to be the terminal as well as
standard output, jobs that the client has job control. All may be left out.

A tool that gets a terminal has one of its own, whose ends are the call's streams. The
server says so before any output, with

	{"type": "stdin", "open": true, "tty": true}

From then on the client sends each byte that is typed, as input, and each new size:

	{"type": "resize", "rows": 50, "cols": 132}

It puts its own terminal into raw mode: the tool's echoes what is typed, and makes signals
of Ctrl-C and Ctrl-\. What the tool writes to its terminal comes as stdout, with a
carriage return before each line feed. The end of the input is typed as Ctrl-D. When the
client leaves, the terminal is hung up, and the call ended as any.

Ctrl-Z stops the tool, as in a shell. A client with jobs is told so, behind the output
that came before:

	{"type": "stopped"}

It stops itself, and sends the signal CONT when it is continued. Without jobs the tool is
continued at once. The time of the call goes on while its tool is stopped.

Most tools get none; then the answer is as if nothing had been offered, and a resize frame
is ignored. A server that has no terminals refuses the request: INVALID_ENVELOPE with a
message that begins with "/tty:", or "/tty/jobs:" where it has no jobs. The client sends it again without.

# Callbacks

A streamed request may offer to run programs for its tool, in the caller's place, as the
caller's user and with the caller's environment, by their kinds:

	editor           the caller's editor of texts
	sequence-editor  its editor of lists of commits, by default the same
	pager            its pager
	hooks            hooks of the repository

A kind that the server does not know is ignored. While the call runs, the server may ask
for one that was offered, and for up to 8 at a time:

	{"type": "callback", "id": 1, "run": {"kind": "hooks", "path": "/w/.git/hooks/pre-push",
	 "args": ["origin", "https://…"], "cwd": "/w", "env": {"GIT_PREFIX": ""}}}

id is new in each. path is there for hooks only: the client chooses the program of another
kind. args are its arguments: of an editor, one absolute path of a file, of a pager
none. env is added to the client's own environment. What belongs to it has its id:

	{"type": "callback", "id": 1, "stdin": "<base64>"}    what the program reads
	{"type": "callback", "id": 1, "eof": true}            and the end of it
	{"type": "callback", "id": 1, "ack": 4096}            so much of its output was taken
	{"type": "callback", "id": 1, "end": true}            nobody waits for it: end it

and from the client:

	{"type": "callback", "id": 1, "stdout": "<base64>"}   what the program writes
	{"type": "callback", "id": 1, "stderr": "<base64>"}
	{"type": "callback", "id": 1, "ack": 4096}            so much of its input was taken
	{"type": "callback", "id": 1, "exit": 0}              how it ended, 128+N by signal N
	{"type": "callback", "id": 1, "error": "why"}         it did not run

exit or error is the last one of an id. In each direction at most 262,144 bytes of an id may
be in flight, sent and not acknowledged. A client that exceeds this, acknowledges more than
it was sent, or names an id that there was not, has its call ended with INVALID_ENVELOPE.
What comes for an id that is over is ignored. An editor has the client's own streams, a
pager all but its input: they send no output. When the call ends, so do its programs.

A server that has no callbacks refuses the request: INVALID_ENVELOPE with a message that
begins with "/callbacks:". The client sends it again without.

# Listing tools

The reserved toolId tools.list answers the tools that the caller can call, by name:

	tools.list      {after, limit, refresh}   data.tools: [{name, description, schema, …}]; data.next,
	                                          if there are more: after of the next call

In plain form it prints the names, one a line. docs/clients.md has more.

# Sessions

Every call belongs to a session: the one that it names, else the one in its
connection's focus, else its caller's own, named "default". Six reserved toolIds,
in envelope form only, access sessions. The payload's fields:

	session.query   {id, selector}            data.value: a CEL expression over session,
	                                          sessions and jobs; default: session
	session.mutate  {id, op, params}          op: create {cwd, parent, name, labels, tools, persist},
	                                          which answers data.id, rename {name}, label {labels},
	                                          focus, set-tools {tools}, suspend, resume, close,
	                                          cancel-job {job}, flush
	session.prompt  {id, text or envelope, queue}   one turn: a command line, or
	                                          {toolId, payload, …}; answered as the turn's call
	session.abort   {id, execution}           data.aborted: [{execution, tool, kind, outcome}]
	session.steer   {id, text, execution, eof}      data: {execution, delivered, queued}
	session.watch   {session, after}          with stream only: events, in the data of progress
	                                          frames; data.cursor

id defaults to the session that the request belongs to. An id of another caller is
SESSION_NOT_FOUND, like one that never existed. mutate accepts an
idempotencyKey, and so does the call of a turn. The value of a streamed query is sent as
stdout frames: it may be larger than a frame.

A turn's input stays open until the turn ends or a steer has eof; stdin frames of the
prompt are not read. text is the input for the tool, including its line break. A steer is
answered when the text was read, or after timeoutMs (1000), with queued; if the
call ends without reading it, the answer is NOT_RUNNING with the number of bytes that were
not delivered.

session.watch sends what happens in a session, which may be named by id as well, or,
if neither the payload nor the request names one, in all of the caller's. An event
is an object {"event": "begin", "cursor": "...", "at": "...", "session": "...", ...}.
The first one is "ready". after is the cursor of an event; the watch continues after
it, and an event "lost" counts what was missed, or has "reset": true in lost if the
server cannot count it. docs/sessions.md has all events; a client ignores unknown ones
and unknown fields. Output is dropped for a client that reads too slowly, which "lost"
counts; one that falls behind with other events gets the event "cut" and
LIMIT_EXCEEDED, or the end of the connection if it does not read. The watch ends when
its session is closed, and after timeoutMs.

A call with background true is answered as soon as it is accepted, with
data.job (in plain form: stdout) and its execution_id, which are equal. It is ended
with its session, unless detach is true.

# Codes

A program decides by code, never by text.

	code                   retriable  exit
	INVALID_ENVELOPE       no         64    the request itself is malformed
	INVALID_PAYLOAD        no         64    it is well formed, its arguments are not; a bad cwd
	MESSAGE_TOO_LARGE      no         64    a frame, or arguments, over the limit
	UNKNOWN_TOOL           no         127   no such tool for this caller
	DENIED                 no         126   a policy refused; the message says what to do instead
	APPROVAL_REQUIRED      yes        75    somebody has to approve the call first; the message says who
	UNAUTHENTICATED        no         77    no identity, or one that this host does not admit
	SESSION_NOT_FOUND      no         70    no such session for this caller
	SESSION_LIMIT          no         70    too many explicit sessions
	SESSION_BUSY           yes        75    a turn is running
	NOT_RUNNING            no         70    no such running execution
	ABORTED                no         130   ended on request, or because the caller left
	TIMEOUT                yes        124   ended at its time limit; status "timeout"
	CIRCUIT_OPEN           yes        75    the breaker refuses for now; status "circuit_open"
	IDEMPOTENCY_PENDING    yes        75    a call with this key is still running
	IDEMPOTENCY_KEY_REUSED no         70    the key was used with another payload
	OUTCOME_UNKNOWN        no         70    the call began, and its outcome is unknown
	STORE_UNAVAILABLE      yes        75    the store of records does not answer
	TOOL_FAILED            no         70    the tool ran and failed; a tool may mark it as retriable
	TOOL_NOT_INSTALLED     no         127   defined, but its binary is not on this host
	TOOL_BROKEN            no         70    defined, but some part of it does not load
	GUEST_TRAP             no         70    a module ended by a trap
	LIMIT_EXCEEDED         no         70    fuel, memory, output or another bound
	OVERLOADED             yes        75    no capacity now
	INTERNAL               no         70    an error of the host

# Exit codes of a wrapper

A wrapper exits with exit_code: the tool's own if it ran, 128+N if signal N ended it,
otherwise that of the code. It also exits with 127 if no daemon listens at TOOL_SOCKET,
with 64 if TOOL_SOCKET is not set, and with 70 if the connection ends before the response.
An error is printed to standard error as "tool-client: " and the message.
*/
package wire
