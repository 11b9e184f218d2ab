package mcp

//lint:file-ignore SA1019 sampling, roots and logging go on until clients have gone over

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/mcp/translate"
	"github.com/toold/toold/host/strictjson"
)

// What a module tells of its progress may be a message to its client instead: an
// object with one of these members.
const (
	// tellInput asks the client: requests of the protocol by keys of the module's.
	// What is read next by tool_recv are the answers, by the same keys, as one line.
	tellInput = "io.toold/input"
	// tellNeeds names the capabilities of the client the call cannot do without.
	tellNeeds = "io.toold/needs"
	// tellLog is a message for the client's log.
	tellLog = "io.toold/log"
	// tellReconnect has the client come back later for the rest of the stream.
	tellReconnect = "io.toold/reconnect"
)

const (
	// maxQuestions is how many questions a module asks at a time.
	maxQuestions = 8
	// answerPatience is how long a client has to answer.
	answerPatience = 5 * time.Minute
	// maxPiece is how much of an answer tool_recv gives at once, in bytes.
	maxPiece = 64 << 10
	// plainKey names the question of a module that reads without having asked.
	plainKey = "input"
)

// tells returns the message to the client that progress is, if it is one.
func tells(progress json.RawMessage) (kind string, message json.RawMessage) {
	if !bytes.Contains(progress, []byte(`"io.toold/`)) {
		return "", nil
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(progress, &members) != nil || len(members) != 1 {
		return "", nil
	}
	for kind, message = range members {
	}
	if !slices.Contains([]string{tellInput, tellNeeds, tellLog, tellReconnect}, kind) {
		return "", nil
	}
	return kind, message
}

// progress implements wire.Streams.Progress of the call.
func (d *dialog) progress(data json.RawMessage) error {
	to := d.listener()
	kind, message := tells(data)
	switch kind {
	case tellInput:
		return d.ask(message)
	case tellNeeds:
		var needs struct {
			Sampling    *sdk.SamplingCapabilities    `json:"sampling"`
			Elicitation *sdk.ElicitationCapabilities `json:"elicitation"`
			Roots       *sdk.RootCapabilities        `json:"roots"`
			Extensions  map[string]any               `json:"extensions"`
		}
		if err := strictjson.Unmarshal(message, &needs); err != nil {
			return fault.Errorf(fault.InvalidPayload, "%s: %w", tellNeeds, err)
		}
		return d.need(&sdk.ClientCapabilities{Sampling: needs.Sampling, Elicitation: needs.Elicitation, RootsV2: needs.Roots, Extensions: needs.Extensions})
	case tellLog:
		return to.log(message)
	case tellReconnect:
		var after struct {
			MS int64 `json:"after_ms"`
		}
		if err := strictjson.Unmarshal(message, &after); err != nil {
			return fault.Errorf(fault.InvalidPayload, "%s: %w", tellReconnect, err)
		}
		if to != nil && to.extra != nil && to.extra.CloseSSEStream != nil {
			to.extra.CloseSSEStream(sdk.CloseSSEStreamArgs{RetryAfter: time.Duration(min(max(after.MS, 1), 60_000)) * time.Millisecond})
		}
		return nil
	}
	if to == nil || to.token == nil {
		return nil
	}
	told := translate.Progress(data)
	told.ProgressToken = to.token
	if told.Progress == 0 && told.Total == 0 {
		d.mu.Lock()
		d.reported++
		told.Progress = float64(d.reported)
		d.mu.Unlock()
	}
	return to.session.NotifyProgress(to.ctx, told)
}

// levels lists those of messages for the client's log.
var levels = []sdk.LoggingLevel{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// log sends the client a message for its log, where it wants any of that level.
func (to *listening) log(message json.RawMessage) error {
	var m struct {
		Level  sdk.LoggingLevel `json:"level"`
		Logger string           `json:"logger"`
		Data   json.RawMessage  `json:"data"`
	}
	if err := strictjson.Unmarshal(message, &m); err != nil {
		return fault.Errorf(fault.InvalidPayload, "%s: %w", tellLog, err)
	}
	if !slices.Contains(levels, m.Level) || len(m.Data) == 0 {
		return fault.Errorf(fault.InvalidPayload, "%s: it has no data, or level is not one of %q", tellLog, levels)
	}
	if to == nil {
		return nil
	}
	return to.session.Log(to.ctx, &sdk.LoggingMessageParams{Level: m.Level, Logger: m.Logger, Data: m.Data})
}

// ask keeps questions of the module until it reads the answers.
func (d *dialog) ask(message json.RawMessage) error {
	// The SDK panics at a request that is null.
	var requests map[string]*struct{}
	var asked sdk.InputRequestMap
	err := json.Unmarshal(message, &requests)
	for key, q := range requests {
		if q == nil {
			err = fmt.Errorf("%q is null", key)
		}
	}
	if err == nil {
		err = json.Unmarshal(message, &asked)
	}
	if err != nil || len(asked) == 0 || len(asked) > maxQuestions {
		return fault.Errorf(fault.InvalidPayload, "%s: it has to be 1 to %d requests, each {method, params} with elicitation/create, sampling/createMessage or roots/list: %v", tellInput, maxQuestions, err)
	}
	needs := &sdk.ClientCapabilities{}
	for key, q := range asked {
		if strings.HasPrefix(key, "io.toold/") {
			return fault.Errorf(fault.InvalidPayload, "%s: the key %s is the daemon's", tellInput, key)
		}
		switch q := q.(type) {
		case *sdk.ElicitParams:
			if q.Mode != "" && q.Mode != "form" || q.URL != "" || q.ElicitationID != "" {
				return fault.Errorf(fault.InvalidPayload, "%s: %s asks for a URL to be opened; ask by a form", tellInput, key)
			}
			q.Message = d.byTool(q.Message)
			needs.Elicitation = &sdk.ElicitationCapabilities{}
		case *sdk.ListRootsParams:
			needs.RootsV2 = &sdk.RootCapabilities{}
		default:
			needs.Sampling = &sdk.SamplingCapabilities{}
		}
	}
	if err := d.need(needs); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = asked
	return nil
}

// byTool returns a text of a module for people, with the name of the tool, and without
// characters that are not seen or reorder a line.
func (d *dialog) byTool(text string) string {
	return "The tool " + strconv.Quote(d.tool) + " asks:\n" + strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsGraphic(r) || unicode.Is(unicode.Bidi_Control, r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// need returns the error of a call whose client lacks a capability.
func (d *dialog) need(needs *sdk.ClientCapabilities) error {
	can := d.can
	if can == nil {
		can = &sdk.ClientCapabilities{}
	}
	lacking, names := &sdk.ClientCapabilities{}, []string(nil)
	if needs.Elicitation != nil && !formsOf(can) {
		lacking.Elicitation = needs.Elicitation
		names = append(names, "elicitation")
	}
	if needs.Sampling != nil && can.Sampling == nil {
		lacking.Sampling = needs.Sampling
		names = append(names, "sampling")
	}
	if needs.RootsV2 != nil && can.RootsV2 == nil {
		lacking.RootsV2 = needs.RootsV2
		names = append(names, "roots")
	}
	for _, name := range slices.Sorted(maps.Keys(needs.Extensions)) {
		if _, ok := can.Extensions[name]; !ok {
			lacking.AddExtension(name, nil)
			names = append(names, name)
		}
	}
	if names == nil {
		return nil
	}
	d.mu.Lock()
	d.lacking = lacking
	d.mu.Unlock()
	return fault.Errorf(fault.Denied, "denied by rule client: the client does not declare %s; use one that does", strings.Join(names, ", "))
}

// lacks returns the error of a call that failed since its client lacks a capability; nil
// where it did not.
func (d *dialog) lacks(o call.Outcome) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.direct || d.lacking == nil || o.Err() == nil && o.Result.ExitCode == 0 {
		return nil
	}
	return translate.MissingCapability(d.lacking, "the tool "+strconv.Quote(d.tool)+" needs a capability that the client does not declare")
}

// receive implements wire.Streams.Receive of the call: the answers to what was asked, or a line
// of the user's where nothing was.
func (d *dialog) receive(ctx context.Context) ([]byte, error) {
	if len(d.rest) == 0 {
		answer, err := d.answer(ctx)
		if err != nil {
			return nil, err
		}
		d.rest = answer
	}
	piece := d.rest[:min(len(d.rest), maxPiece)]
	d.rest = d.rest[len(piece):]
	return piece, nil
}

func (d *dialog) answer(ctx context.Context) ([]byte, error) {
	d.mu.Lock()
	asked := d.asked
	d.asked = nil
	d.mu.Unlock()
	if asked != nil {
		answers, err := d.put(ctx, asked)
		if err != nil {
			return nil, err
		}
		line, err := json.Marshal(answers)
		return append(line, '\n'), err
	}
	if !formsOf(d.can) {
		return nil, io.EOF
	}
	answers, err := d.put(ctx, sdk.InputRequestMap{plainKey: &sdk.ElicitParams{
		Mode: "form", Message: d.byTool(d.lastLine(ctx)),
		RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{plainKey: map[string]any{"type": "string"}}, "required": []string{plainKey}},
	}})
	if err != nil {
		return nil, err
	}
	var said struct {
		Action  string            `json:"action"`
		Content map[string]string `json:"content"`
	}
	if err := json.Unmarshal(answers[plainKey], &said); err != nil || said.Action != "accept" {
		return nil, io.EOF // the user's end of it
	}
	return []byte(said.Content[plainKey] + "\n"), nil
}

// lastLine returns the last line that the tool wrote.
func (d *dialog) lastLine(ctx context.Context) string {
	const otherwise = "It waits for a line of input."
	data, refused := d.of.client.ask(ctx, d.as, "session.query", map[string]string{"selector": "session.running.filter(x, x.execution == " + strconv.Quote(d.id) + ").map(x, x.last_line)"})
	if refused != nil {
		return otherwise
	}
	var lines struct {
		Value []string `json:"value"`
	}
	if json.Unmarshal(data, &lines) != nil || len(lines.Value) == 0 || lines.Value[0] == "" {
		return otherwise
	}
	return lines.Value[0]
}

// put puts questions to the client and waits for the answer to each.
func (d *dialog) put(ctx context.Context, asked sdk.InputRequestMap) (map[string]json.RawMessage, error) {
	d.mu.Lock()
	answers, open := map[string]json.RawMessage{}, sdk.InputRequestMap{}
	for key, q := range asked {
		if answer, ok := answerTo(q, d.given[key]); ok {
			answers[key] = answer
		} else {
			open[key] = q
		}
	}
	d.given = nil
	to := d.client
	d.mu.Unlock()
	if len(open) == 0 {
		return answers, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, answerPatience, fault.Errorf(fault.Aborted, "the client has not answered what was asked within %v", answerPatience))
	defer cancel()
	if d.direct && to != nil {
		for _, key := range slices.Sorted(maps.Keys(open)) {
			answer, err := to.request(ctx, open[key])
			if err != nil {
				if ctx.Err() != nil {
					err = context.Cause(ctx)
				}
				return nil, fault.Errorf(fault.ToolFailed, "ask the client: %w", err)
			}
			b, ok := answerTo(open[key], answer)
			if !ok {
				return nil, fault.Errorf(fault.ToolFailed, "the client answered something else than it was asked")
			}
			answers[key] = b
		}
		return answers, nil
	}
	return d.wait(ctx, open, answers)
}

// request asks the client by a request of the server.
func (to *listening) request(ctx context.Context, q sdk.InputRequest) (sdk.InputResponse, error) {
	// The stream of the request that waits is in its context.
	of, cancel := context.WithCancelCause(to.ctx)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	defer cancel(nil)
	switch q := q.(type) {
	case *sdk.ElicitParams:
		return to.session.Elicit(of, q)
	case *sdk.CreateMessageWithToolsParams:
		return to.session.CreateMessageWithTools(of, q)
	case *sdk.ListRootsParams:
		return to.session.ListRoots(of, q)
	}
	return nil, errors.New("the daemon does not know what was asked; report this")
}

// wait waits until further requests of the client answer the questions.
func (d *dialog) wait(ctx context.Context, open sdk.InputRequestMap, answers map[string]json.RawMessage) (map[string]json.RawMessage, error) {
	state, err := d.of.remember(d)
	if err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	d.mu.Lock()
	d.open, d.answers, d.ready, d.state = open, answers, ready, state
	close(d.news)
	d.mu.Unlock()
	d.of.waits.note(d, true)
	defer func() {
		d.of.waits.note(d, false)
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.open != nil { // not all was answered
			d.news = make(chan struct{})
		}
		d.open, d.state = nil, ""
	}()
	select {
	case <-ready:
		return answers, nil
	case <-d.of.waits.stopped:
		return nil, fault.Errorf(fault.Aborted, "the daemon is stopping, and nobody has answered; make the call again when it is back")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
