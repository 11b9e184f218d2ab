package execute

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/mask"
	"github.com/toold/toold/host/observe"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/pdk/abi"
)

// wirePatience is how long a policy may take to decide about a request.
const wirePatience = 10 * time.Second

// onWire asks the policies of one run about what its binaries are about to send.
type onWire struct {
	*Executor
	ctx      context.Context // the run's
	decided  *call.Decided
	attempt  int
	trace    string
	stderr   io.Writer
	policies []int // of decided.Tool.Policies, those with the export
	places   chan struct{}

	mu   sync.Mutex
	said map[string]bool // refusals that were written to stderr
}

// maxAsking bounds how many requests of one run are being decided at a time.
const maxAsking = 4

// maxSaidRefusals bounds how many refusals of one run are written to its standard
// error.
const maxSaidRefusals = 64

// asker returns the function that asks the policies of d's tool, or nil if none of
// them exports wire. Its error is why nothing may be sent: DENIED if a policy denies
// it, else why a policy did not answer. The caller of the function leaves Call of the
// facts empty, and Force of a WireRef if it is not known. It is safe for concurrent
// use.
func (e *Executor) asker(ctx context.Context, d *call.Decided, attempt int, trace string, stderr io.Writer) func(context.Context, *abi.Wire) error {
	w := &onWire{Executor: e, ctx: ctx, decided: d, attempt: attempt, trace: trace, stderr: stderr, said: map[string]bool{}, places: make(chan struct{}, maxAsking)}
	for i, policy := range d.Tool.Policies {
		if policy.Has("wire") {
			w.policies = append(w.policies, i)
		}
	}
	if w.policies == nil {
		return nil
	}
	return w.ask
}

func (w *onWire) ask(ctx context.Context, facts *abi.Wire) error {
	select {
	case w.places <- struct{}{}:
		defer func() { <-w.places }()
	case <-ctx.Done():
		return fault.Errorf(fault.Aborted, "%s is refused: the call is over", subject(facts))
	}
	// ctx ends with the connection, w.ctx with the run's deadline.
	ctx, cancel := context.WithTimeout(ctx, wirePatience)
	defer cancel()
	defer context.AfterFunc(w.ctx, cancel)()
	w.judgeForce(ctx, w.decided, facts.Refs)
	rule, err := "", error(nil)
	for _, i := range w.policies {
		var by string
		if by, err = w.one(ctx, w.decided.Tool.Policies[i], ShortName(w.decided.Tool.PolicyFiles[i]), facts); by != "" {
			rule = by
		}
		if err != nil {
			break
		}
	}
	if err == nil && (ctx.Err() != nil || w.ctx.Err() != nil) {
		err = fault.Errorf(fault.Aborted, "%s is refused: the call is over", subject(facts))
	}
	w.record(ctx, facts, rule, err)
	return err
}

// one asks one policy, and returns the rule that it named.
func (w *onWire) one(ctx context.Context, policy *guest.Module, name string, facts *abi.Wire) (rule string, err error) {
	d := w.decided
	asked := *facts
	asked.Call = *abiCall(w.ctx, d, w.attempt)
	asked.Call.StdinBase64 = ""
	in, err := json.Marshal(asked)
	if err != nil {
		return "", fault.Errorf(fault.Internal, "ask the policy about %s: %w", subject(facts), err)
	}
	reply, err := w.Ask(ctx, Question{Call: &d.Pinned, Module: policy, Export: "wire", Input: in, Trace: w.trace, Looks: true})
	if err != nil {
		w.Metrics.Decision(d.Tool.Name, observe.PolicyError)
		e := call.AsError(ctx, err)
		return "", &fault.Error{Code: fault.ToolBroken, Message: fmt.Sprintf("policy %s did not decide about %s, which is refused: %s", name, subject(facts), e.Message), Cause: err}
	}
	var said abi.Decision
	if err := strictjson.Unmarshal(reply.Output, &said); err != nil {
		w.Metrics.Decision(d.Tool.Name, observe.PolicyError)
		return "", fault.Errorf(fault.ToolBroken, "policy %s answered no decision about %s, which is refused: %w", name, subject(facts), err)
	}
	if said.Effect == abi.Allow {
		// Nothing can be changed at this point. A policy that tries to has not
		// decided about what would be sent.
		if field := changes(reply.Output); field != "" {
			w.Metrics.Decision(d.Tool.Name, observe.PolicyError)
			return "", fault.Errorf(fault.ToolBroken, "policy %s answered %s about %s, which is refused: a decision on the wire has effect, rule, reason and instead only", name, field, subject(facts))
		}
		w.Metrics.Decision(d.Tool.Name, observe.PolicyAllow)
		return said.Rule, nil
	}
	w.Metrics.Decision(d.Tool.Name, observe.PolicyDeny)
	msg := "denied by " + name
	if said.Rule != "" {
		msg = "denied by rule " + said.Rule
	}
	msg += ": " + subject(facts)
	if said.Effect != abi.Deny {
		msg += fmt.Sprintf(": effect %q is neither allow nor deny", said.Effect)
	}
	if said.Reason != "" {
		msg += ": " + said.Reason
	}
	if said.Instead != "" {
		msg += "; instead: " + said.Instead
	} else {
		msg += "; ask the operator, who writes the policy " + name
	}
	return said.Rule, &fault.Error{Code: fault.Denied, Message: msg}
}

// changes returns a member of a decision that is for restrict only, or an empty text.
func changes(decision []byte) string {
	var members map[string]json.RawMessage
	if err := strictjson.Unmarshal(decision, &members); err != nil {
		return "malformed JSON"
	}
	for name := range members {
		switch name {
		case "effect", "rule", "reason", "instead":
		default:
			return name
		}
	}
	return ""
}

// record journals the decision, and reports a refusal to the operator and the caller.
func (w *onWire) record(ctx context.Context, facts *abi.Wire, rule string, err error) {
	hidden := w.hidden(&w.decided.Pinned) // the binary chose the text of the request
	c := session.Connection{Host: net.JoinHostPort(facts.Host, strconv.Itoa(facts.Port)), On: mask.Text(subject(facts), hidden), Rule: printable(rule)}
	if err != nil {
		c.Refused = mask.Text(printable(call.AsError(ctx, err).Message), hidden)
	}
	if w.decided.Execution != nil {
		w.decided.Execution.AddConnection(c)
	}
	if err == nil {
		return
	}
	w.Log.Warn("refused on the wire", "tool", w.decided.Tool.Name, "execution_id", w.decided.ExecutionID, "host", c.Host, "on", c.On, "reason", c.Refused)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stderr == nil || w.said[c.Refused] || len(w.said) >= maxSaidRefusals {
		return
	}
	w.said[c.Refused] = true
	fmt.Fprintf(w.stderr, "toold: %s\n", c.Refused)
}

// maxSubject bounds the description of a request, in bytes: the binary chose its
// text.
const maxSubject = 200

// subject describes in a few words what facts are about.
func subject(facts *abi.Wire) string {
	var text string
	switch at := net.JoinHostPort(facts.Host, strconv.Itoa(facts.Port)); facts.On {
	case abi.WirePush:
		names := make([]string, 0, len(facts.Refs))
		for _, ref := range facts.Refs {
			names = append(names, ref.Name)
		}
		text = "the push to " + at + facts.Path + " of " + strings.Join(names, ", ")
	default:
		path, _, _ := strings.Cut(facts.Path, "?") // the query may hold a key
		text = "the request " + facts.Method + " " + at + path
	}
	if len(text) > maxSubject {
		text = strings.ToValidUTF8(text[:maxSubject], "") + "..."
	}
	return printable(text)
}

// printable returns text without characters that a terminal could interpret.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text)
}
