/*
Package wire is toold's protocol: what goes over a tool socket, byte for byte,
and the types that both ends read it into. This comment is its specification; it
is all that a client in another language needs.

# Compatibility

The protocol has no version number, because it only grows:

  - A frame, a field, a code or an exit code that is described here keeps its
    meaning for good. Codes are never removed or given another exit code, and
    whether a code may be retried never changes.
  - A server may add fields to its frames and types of frames to its streams. A
    client passes over fields and types that it does not know, and treats a
    code that it does not know as INTERNAL.
  - A client may send only the fields described here. A server refuses others by
    name, so that a field that was misspelled, or that the server is too old
    for, is never silently without effect.
  - The four fields exit_code, stdout, stderr and error are in every plain
    response that is not streamed. A client that knows only these works.

# Transport

A tool socket is a Unix domain socket of type SOCK_STREAM, by custom
/run/sockets/tool-INSTANCE.sock with mode 0660; wrappers find its path in the
variable TOOL_SOCKET. The server knows the user, group and process of its peer
from the kernel.

# Frames

Both directions carry frames: a length of 4 bytes, big-endian, and then that many
bytes of JSON, which is one object in UTF-8.

	00 00 00 18 {"tool":"git","cwd":"/"}

The length counts bytes, not characters.

The JSON of a frame has at most 65,536 bytes, either way. A server answers a
greater length with MESSAGE_TOO_LARGE and closes the connection, since it cannot
tell where the next frame begins. It goes on to listen for a moment, so that a
client that is still writing can read the answer: a client whose write fails
should read before it gives up.

The JSON is read strictly. These are refused: bytes that are not UTF-8, escapes
of half a surrogate pair (\ud800), the same name twice in an object, fields that
are not described here (names are case-sensitive), values of another type,
nesting deeper than 64, anything after the object. null is as good as leaving out
args, env, stdin and callerInfo, and is refused elsewhere.

# Connections

A client sends a request and gets a response. A connection may carry many
requests, and a client need not wait for a response before it sends the next
request; they are run and answered in order, one after the other. Up to 16
requests, or 2 MiB of them, may be waiting for their answers; past that the server
reads nothing more until one is answered.

Every request is answered, whatever is wrong with it. A request that is malformed
gets INVALID_ENVELOPE, in its turn, with the path (RFC 6901) of the value at fault
and the byte where it was seen, and the connection lives on as long as frames are
whole. An answer has the form of its request, as far as that can be made out, and
is in plain form where it cannot.

A call belongs to its connection: when the client closes it, the call that runs is
aborted and those that wait are dropped. (A mutating call with an idempotency key
that has begun runs on, and keeps its result for the next use of the key.) Closing
one direction only, with shutdown(SHUT_WR) or as "nc -N -U" does, says that no more
requests and no more input will come; the answers still do.

A server that has no room for a further connection answers it, unasked, with
OVERLOADED in plain form, and closes it. It may do the same with a connection that
was idle, for which that is the answer to a request which it has not read: the call
did not take place. A server that stops lets the calls that it
has finish, answers further ones with OVERLOADED, and closes connections as they
fall idle. A connection that closes without an answer says nothing about whether
the call took place, unless nothing of its request had been sent.

# Plain form

This is what wrappers send:

	{"tool": "git", "args": ["push", "origin", "main"], "cwd": "/workspace"}

	{"exit_code": 0, "stdout": "output", "stderr": "errors", "error": "", …}

Fields of a request; all but tool may be left out:

	tool             string   which tool
	args             strings  its arguments, without its own name
	cwd              string   the folder that it runs in, absolute
	stdin            string   its input, in base64
	env              object   variables that it is to get, strings; the tool admits them by name
	session          string   the session that the call belongs to
	token            string   who calls, where the kernel's word is not enough
	idempotency_key  string   a name for this very call: made again, it is not run again
	retry            boolean  run it again although a stored failure has this key
	timeout_ms       integer  end it after so long; it narrows the tool's own limit. 0 is none
	background       boolean  answer at once; execution_id names the job
	detach           boolean  and let the job outlive its session
	trace            string   a W3C traceparent
	stream           boolean  answer with a stream
	more             boolean  args frames follow; with stream only

base64 is that of RFC 4648, section 4, with padding and without line breaks. No
argument, folder or variable can have a zero byte in it: INVALID_PAYLOAD.

Fields of a response; the first four are always there:

	exit_code     integer  the tool's own, or the one that follows from code
	stdout        string   what the tool wrote
	stderr        string
	error         string   what went wrong, for a person; empty where nothing did
	status        string   "success", "error", "timeout" or "circuit_open"
	code          string   what went wrong, for a program; left out where nothing did
	retriable     boolean  whether the same call may succeed when made again; with code
	duration_ms   integer  how long it took
	execution_id  string   names this execution
	from_cache    boolean  true where an earlier call with this key has this result
	truncated     boolean  true where stdout or stderr is not the whole
	usage         object   what modules took for it, policies' too, where any ran: fuel, in metered
	                       instructions; memory, the most that one held, in bytes; pages of 4 KiB written

A tool that ran and ended with another exit code than 0 has status "error", code
TOOL_FAILED, and an empty error: its own text says what it has to say.

Bytes of stdout and stderr that are not UTF-8 become U+FFFD. A response that would
not fit in a frame is cut, at a character, at the end of each of the two texts;
"toolctl result EXECUTION_ID" has the whole. Streams are neither changed nor cut.
A tool that answers with data instead of text has it, as JSON, for its stdout.

# Envelope form

This is what programs send:

	{"toolId": "resize", "executionId": "7d444840-9dc0-41d1-b245-5ffdce74fad2",
	 "payload": {"width": 640}, "metadata": {"callerInfo": {"name": "indexer"}}}

	{"status": "success", "data": {"bytes": 10240}, "durationMs": 12,
	 "fromCache": false, "executionId": "7d444840-9dc0-41d1-b245-5ffdce74fad2"}

Fields of a request:

	toolId       string  which tool
	executionId  string  a version-4 UUID, made for this execution; one that
	                     another caller's execution has is refused
	payload      object  what the tool takes
	metadata     object  may be left out, and each of:
	  callerInfo         anything, for the log
	  traceId    string  for the log
	  timestamp          when it was sent: a string in RFC 3339, or an integer of
	                     milliseconds since 1970; for the log
	  session    string  as session at the top
	  token      string  as token at the top

and idempotencyKey, session, token, retry, timeoutMs, stdin, env, background,
detach, trace, stream and more, as in the plain form. session, and token, may be
given in both places if they are the same.

A plain call is an envelope call with the payload {"args": […], "cwd": "…",
"stdin": "…"}, and a payload with args, these names and no others calls a command
in just the same way.

Fields of a response:

	status       string   "success", "error", "timeout" or "circuit_open"; there is no fifth
	data         any      what the tool answered; may be left out
	error        object   left out on success: code, message, retriable
	durationMs   integer
	fromCache    boolean
	executionId  string
	usage        object   as in the plain form

The data of a command is {"exit_code": 0, "stdout": "…", "stderr": "…"}, which are
changed and cut as in the plain form, then with "truncated": true. A tool that ran
and ended with another exit code than 0 has the error TOOL_FAILED, and data all the
same; so has one that was ended at its time limit after it wrote something. data
that does not fit in a frame is LIMIT_EXCEEDED in its place.

# Streams

To a request with "stream": true, in either form, the answer is a sequence of
frames with a type:

	{"type": "stdout", "data": "<base64>"}          what the tool writes
	{"type": "stderr", "data": "<base64>"}
	{"type": "progress", "data": <any>}             what it says of its progress
	{"type": "stdin", "open": true}                 it wants input
	{"type": "stdin", "ack": 4096}                  it took so many further bytes of it
	{"type": "result", …}                           the response: the last frame

The response is that of the request's form, without stdout and stderr: in plain form
the four fields are exit_code and error then, in envelope form data is left out or is
{"exit_code": 0} for a command. A frame without a type is a response too, and ends the
stream: an error that was sent before the server knew that a stream was asked for.

While the call runs, the client may send:

	{"type": "stdin", "data": "<base64>"}           the next bytes of its input
	{"type": "stdin", "eof": true}                  that was all; may stand with data
	{"type": "signal", "name": "INT"}               INT, TERM, HUP, QUIT, KILL, USR1 or USR2

These frames belong to the oldest request that was not answered. What is well formed
and comes after the response is passed over. A malformed one ends its call with
INVALID_ENVELOPE, since going on without a part of the input could do something else
than what was asked. Signals may be sent to a call that is not streamed, too.

Input is asked for, not pushed. A client reads its own standard input only when the
server says open: most tools want none, and whoever called the wrapper may want it
back (while read f; do git log "$f"; done < list). At most 262,144 bytes may be on
their way, sent and not acknowledged, so that a signal never waits behind input; a
client that exceeds that has its call ended with INVALID_ENVELOPE. Acks may wait until
65,536 bytes were taken, but never while the tool took all that came. Bytes that a
client has at hand may be sent, within the same limit, before they are asked for; input that
was not asked for is dropped when the call ends.
A tool whose client half closes the connection has reached the end of its input.

Output is never dropped. A client that reads slowly slows its tool down, and nothing
else; it must read while it writes, or the two may wait for each other.

Long arguments: a request with "stream": true and "more": true is followed by frames

	{"type": "args", "args": ["…", "…"], "join": false, "more": true}

which add to its args, up to and including one with "more": false or without it. With
"join": true the first of them is the rest of the last argument so far: an argument may
be longer than a frame. All arguments of a call have at most 2 MiB together, each counted
with a zero byte at its end: MESSAGE_TOO_LARGE past that. In envelope form the payload is
{args, cwd, stdin?}. Nothing runs before the last of them has come.

# Sessions

Every call belongs to a session: the one that it names, else the one that its
connection has in focus, else its caller's own, named "default". Five reserved toolIds,
in envelope form only, are all that there is to ask of sessions. The payload's fields:

	session.query   {id, selector}            data.value: what the CEL expression makes of
	                                          session, sessions and jobs; no selector: session
	session.mutate  {id, op, params}          op: create {cwd, parent, name, labels, tools},
	                                          which answers data.id, rename {name}, label {labels},
	                                          focus, set-tools {tools}, suspend, resume, close,
	                                          cancel-job {job}, flush
	session.prompt  {id, text or envelope, queue}   one turn: a command line, or
	                                          {toolId, payload, …}; answered as the turn's call
	session.abort   {id, execution}           data.aborted: [{execution, tool, kind, outcome}]
	session.steer   {id, text, execution, eof}      data: {execution, delivered, queued}

id may be left out, and is then that of the session that the request belongs to. An id
of another caller is SESSION_NOT_FOUND, as one that never was. mutate takes an
idempotencyKey, and so does the call of a turn. The value of a streamed query comes as
stdout frames: it may be larger than a frame.

A turn's input stays open until it ends or a steer says eof; stdin frames of the
prompt are not read. text is what the tool reads, its line break included. A steer is
answered when the text was read, or after timeoutMs (1000), when it is queued; when the
call ends without reading it, the answer is NOT_RUNNING and says how many bytes were
not delivered.

A call with background true is answered as soon as nothing refuses it any more, with
data.job (in plain form: stdout) and its execution_id, which are the same. It is ended
with its session, unless detach is true.

# Codes

A program decides by code, never by text.

	code                   retriable  exit
	INVALID_ENVELOPE       no         64    the request itself is malformed
	INVALID_PAYLOAD        no         64    it is well formed, its arguments are not; a bad cwd
	MESSAGE_TOO_LARGE      no         64    a frame, or arguments, over the limit
	UNKNOWN_TOOL           no         127   no such tool for this caller
	DENIED                 no         126   a policy refused; the message says what to do instead
	UNAUTHENTICATED        no         77    nobody, or nobody this host admits
	SESSION_NOT_FOUND      no         70    none of that name for this caller
	SESSION_LIMIT          no         70    too many explicit sessions
	SESSION_BUSY           yes        75    a turn is running
	NOT_RUNNING            no         70    nothing there to steer
	ABORTED                no         130   ended on request, or because the caller left
	TIMEOUT                yes        124   ended at its time limit; status "timeout"
	CIRCUIT_OPEN           yes        75    the breaker refuses for now; status "circuit_open"
	IDEMPOTENCY_PENDING    yes        75    a call with this key is still running
	IDEMPOTENCY_KEY_REUSED no         70    the key was used with another payload
	OUTCOME_UNKNOWN        no         70    it began, and nobody knows how it ended
	STORE_UNAVAILABLE      yes        75    the store of results does not answer
	TOOL_FAILED            no         70    the tool ran and said no; a tool may say that it is retriable
	TOOL_NOT_INSTALLED     no         127   defined, but its binary is not on this host
	TOOL_BROKEN            no         70    defined, but some part of it does not load
	GUEST_TRAP             no         70    a module ended by a trap
	LIMIT_EXCEEDED         no         70    fuel, memory, output or another bound
	OVERLOADED             yes        75    no room now
	INTERNAL               no         70    a fault of the host

# Exit codes of a wrapper

A wrapper ends with exit_code: the tool's own where it ran, 128+N where signal N ended it,
and that of the code elsewhere. It ends with 127, too, where nobody listens at TOOL_SOCKET,
with 64 where that is not set, and with 70 where the connection ends before the response.
The error, where there is one, goes to standard error as "tool-client: " and the message.
*/
package wire
