package mcp

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/mcp/translate"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/wire"
)

const (
	// taskAfter is how long a client that knows tasks waits for a call itself.
	taskAfter = 500 * time.Millisecond
	// taskPoll is how often clients are told to look.
	taskPoll = time.Second
)

// taskParams are those of tasks/get, tasks/update and tasks/cancel.
type taskParams struct {
	sdk.ParamsBase
	TaskID string `json:"taskId"`
	// Responses answer what the task asks.
	Responses map[string]json.RawMessage `json:"inputResponses,omitempty"`
}

// task is a job as the extension has it. Result and Error are of one that has ended.
type task struct {
	sdk.ResultBase
	ResultType string              `json:"resultType"`
	ID         string              `json:"taskId,omitempty"`
	Status     string              `json:"status,omitempty"`
	Message    string              `json:"statusMessage,omitempty"`
	Created    string              `json:"createdAt,omitempty"`
	Updated    string              `json:"lastUpdatedAt,omitempty"`
	TTL        *int64              `json:"ttlMs"` // null: as long as the daemon keeps jobs
	Poll       int64               `json:"pollIntervalMs,omitempty"`
	Asks       sdk.InputRequestMap `json:"inputRequests,omitempty"`
	Result     *sdk.CallToolResult `json:"result,omitempty"`
	Error      *jsonrpc.Error      `json:"error,omitempty"`
}

// acknowledged is the result of what only has an effect.
type acknowledged struct {
	sdk.ResultBase
	ResultType string `json:"resultType"`
}

// serveTasks declares the methods of tasks. Middleware answers them, since they have
// no token there.
func serveTasks(server *sdk.Server) error {
	for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
		err := sdk.AddReceivingCustomMethod(server, method, func(context.Context, *sdk.ServerSession, *taskParams) (*task, error) {
			return nil, translate.Error(fault.Errorf(fault.Internal, "a task was asked for past who answers; report this"))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// started returns the answer to a call that became the job.
func started(job string) *task {
	now := time.Now().UTC().Format(time.RFC3339Nano)
	return &task{ResultType: "task", ID: job, Status: "working", Created: now, Updated: now, Poll: taskPoll.Milliseconds()}
}

// serveTask answers tasks/get, tasks/update and tasks/cancel.
func (r *requester) serveTask(ctx context.Context, method string, q *sdk.ServerRequest[*taskParams], token string) (sdk.Result, error) {
	// Without params, what the client declares cannot be asked for: the SDK panics.
	if q.Params == nil || !knowsTasks(q.ClientCapabilities()) {
		return nil, translate.MissingCapability(&sdk.ClientCapabilities{Extensions: map[string]any{tasksExtension: map[string]any{}}}, "declare the extension "+tasksExtension+" to use tasks")
	}
	if q.Params.TaskID == "" {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "taskId is missing"}
	}
	id := q.Params.TaskID
	if q.Extra != nil {
		if name := q.Extra.Header.Get("Mcp-Name"); name != "" && name != id {
			return nil, &jsonrpc.Error{Code: sdk.CodeHeaderMismatch, Message: "the header Mcp-Name names another task than taskId"}
		}
	}
	run, done, refused := r.begin(ctx, q.Session)
	if refused != nil {
		return nil, translate.Error(refused)
	}
	defer done()
	as, refused := r.as(q.Params.Meta, token)
	if refused != nil {
		return nil, translate.Error(refused)
	}
	if method == "tasks/cancel" {
		if _, refused = r.ask(run, as, "session.mutate", map[string]any{"op": "cancel-job", "params": map[string]string{"job": id}}); refused != nil {
			return nil, taskError(id, refused)
		}
		return &acknowledged{ResultType: "complete"}, nil
	}
	job, err := r.job(run, as, id)
	if err != nil {
		return nil, err
	}
	asking := r.dialogs.waits.asking(id)
	if method == "tasks/update" {
		if asking != nil {
			asking.take(responsesOf(q.Params.Responses))
		}
		return &acknowledged{ResultType: "complete"}, nil
	}
	t := job.task()
	if t.Result != nil {
		r.structure(run, as, job.Tool, t.Result, job.Data)
	}
	if asking != nil && t.Status == "working" {
		if open, _ := asking.questions(); len(open) > 0 {
			t.Status, t.Asks = "input_required", open
		}
	}
	return t, nil
}

// responsesOf decodes answers. Those that cannot be decoded are left out.
func responsesOf(raw map[string]json.RawMessage) sdk.InputResponseMap {
	all := sdk.InputResponseMap{}
	for key, answer := range raw {
		var one sdk.InputResponseMap
		object, err := json.Marshal(map[string]json.RawMessage{key: answer})
		if err == nil && json.Unmarshal(object, &one) == nil {
			all[key] = one[key]
		}
	}
	return all
}

// taskError returns the error of a request for a task.
func taskError(id string, e *fault.Error) error {
	if e.Code == fault.NotRunning {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "there is no task " + strconv.Quote(id) + "; the newest that ended are kept, and those of other identities are not shown"}
	}
	return translate.Error(e)
}

// job is a job as a query shows it.
type job struct {
	ID        string          `json:"id"`
	Tool      string          `json:"tool"`
	State     string          `json:"state"` // running or done
	Code      fault.Code      `json:"code"`
	Message   string          `json:"message"`
	ExitCode  int             `json:"exit_code"`
	Started   time.Time       `json:"started"`
	ElapsedMS int64           `json:"elapsed_ms"`
	LastLine  string          `json:"last_line"`
	Progress  json.RawMessage `json:"progress"`
	Data      json.RawMessage `json:"data"`
	Stdout    string          `json:"stdout"`
	Stderr    string          `json:"stderr"`
	Truncated bool            `json:"truncated"`
	Note      string          `json:"output_note"`
}

func (r *requester) job(ctx context.Context, as Caller, id string) (*job, error) {
	// The word stdout in the selector has the output put in.
	data, refused := r.ask(ctx, as, "session.query", map[string]string{"selector": "jobs.filter(j, j.id == " + strconv.Quote(id) + " && j.stdout != null)"})
	if refused != nil {
		return nil, translate.Error(refused)
	}
	var answer struct {
		Value []job `json:"value"`
	}
	if err := strictjson.UnmarshalLenient(data, &answer); err != nil {
		return nil, translate.Error(fault.Errorf(fault.Internal, "read the job: %w", err))
	}
	if len(answer.Value) != 1 || answer.Value[0].ID != id {
		return nil, taskError(id, fault.Errorf(fault.NotRunning, "there is no job %q", id))
	}
	return &answer.Value[0], nil
}

// task returns j in the form of the extension. What the tool itself failed at is a result; what
// the daemon did is an error.
func (j *job) task() *task {
	t := &task{
		ResultType: "complete", ID: j.ID, Status: "working", Poll: taskPoll.Milliseconds(),
		Created: j.Started.UTC().Format(time.RFC3339Nano),
		Updated: j.Started.Add(time.Duration(j.ElapsedMS) * time.Millisecond).UTC().Format(time.RFC3339Nano),
	}
	if j.State == "running" {
		kind, _ := tells(j.Progress)
		if t.Message = j.LastLine; kind == "" && len(j.Progress) > 0 && string(j.Progress) != "null" {
			t.Message = translate.Progress(j.Progress).Message
		}
		return t
	}
	res := &wire.Result{Ran: true, ExecutionID: j.ID, Stdout: []byte(j.Stdout), Stderr: []byte(j.Stderr), Data: j.Data, ExitCode: j.ExitCode, Truncated: j.Truncated}
	if j.Note != "" {
		res.Stderr = append(res.Stderr, "["+j.Note+"]\n"...)
	}
	if j.Code != "" {
		res.Err = fault.Errorf(j.Code, "%s", j.Message)
	}
	switch j.Code {
	case fault.Aborted:
		t.Status, t.Message = "cancelled", j.Message
	case fault.Internal, fault.GuestTrap:
		t.Status, t.Message = "failed", j.Message
		data, _ := json.Marshal(translate.FaultOf(res.Err))
		t.Error = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: res.Err.Error(), Data: data}
	default:
		t.Status, t.Result = "completed", translate.Result(res)
	}
	return t
}
