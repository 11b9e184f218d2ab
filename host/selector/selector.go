// Package selector evaluates the selectors of queries: CEL expressions over JSON
// values, written by callers that are not trusted. Each evaluation is bounded in
// the length of its text, in its cost, in its time and in the size of what it makes: a
// hundred MiB or so, of which a user that evaluates several at a time has as many. It can read the variables
// that it is given and nothing else.
//
// host/session is its only user.
package selector

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/ext"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/toold/toold/host/fault"
)

const (
	// MaxLength bounds a selector, in bytes.
	MaxLength = 4 << 10
	// maxCost bounds its evaluation, in CEL's units: about one for each step, and
	// one for each ten characters of a string that it builds.
	maxCost = 2_000_000
	maxTime = time.Second
)

// Evaluator evaluates selectors. Its zero value is ready, and it is safe for
// concurrent use.
type Evaluator struct {
	once sync.Once
	env  *cel.Env
	err  error
}

// environment creates the CEL environment on first use: it is slow to create,
// and many daemons are never queried.
func (e *Evaluator) environment() (*cel.Env, error) {
	e.once.Do(func() {
		e.env, e.err = cel.NewEnv(
			cel.Variable("session", cel.DynType),
			cel.Variable("sessions", cel.DynType),
			cel.Variable("jobs", cel.DynType),
			ext.Strings(), ext.Lists(), ext.Math(), cel.Lib(bounded{}),
		)
	})
	return e.env, e.err
}

// Eval evaluates a selector over vars, which are session, sessions and jobs, and
// returns its value as JSON. Errors are INVALID_PAYLOAD for an expression that does
// not compile or fails, and LIMIT_EXCEEDED for one that costs too much.
func (e *Evaluator) Eval(ctx context.Context, selector string, vars map[string]any) (json.RawMessage, error) {
	if selector == "" {
		selector = "session"
	}
	if len(selector) > MaxLength {
		return nil, fault.Errorf(fault.LimitExceeded, "the selector has %d bytes, and %d are the limit; ask for more and pick from the answer", len(selector), MaxLength)
	}
	env, err := e.environment()
	if err != nil {
		return nil, fmt.Errorf("create the CEL environment: %w", err)
	}
	parsed, issues := env.Parse(selector)
	if err := issues.Err(); err != nil {
		return nil, unclear(err)
	}
	budget, comprehensions := newSizeBudget(parsed.NativeRep().Expr())
	if comprehensions > maxComprehensions {
		return nil, fault.Errorf(fault.LimitExceeded, "the selector has %d of map, filter, exists and the like, and %d are the limit; ask for more and pick from the answer", comprehensions, maxComprehensions)
	}
	expression, issues := env.Check(parsed)
	if err := issues.Err(); err != nil {
		return nil, unclear(err)
	}
	program, err := env.Program(expression, cel.CostLimit(maxCost), cel.InterruptCheckFrequency(10), cel.CustomDecoratorV2(budget.decorate))
	if err != nil {
		return nil, fault.Errorf(fault.InvalidPayload, "/selector: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	out, _, err := program.ContextEval(ctx, vars)
	if err != nil {
		if ctx.Err() != nil || isLimit(err) {
			return nil, fault.Errorf(fault.LimitExceeded, "/selector: %w; ask for less at once", err)
		}
		return nil, fault.Errorf(fault.InvalidPayload, "/selector: %w", err)
	}
	value, err := out.ConvertToNative(reflect.TypeFor[*structpb.Value]())
	if err != nil {
		return nil, fault.Errorf(fault.InvalidPayload, "/selector: the value is not JSON: %w", err)
	}
	data, err := json.Marshal(value.(*structpb.Value).AsInterface())
	if err != nil {
		return nil, fault.Errorf(fault.InvalidPayload, "/selector: the value is not JSON: %w", err)
	}
	return data, nil
}

// unclear is the error of a selector that does not compile.
func unclear(err error) *fault.Error {
	return fault.Errorf(fault.InvalidPayload, "/selector: %w; it is a CEL expression over session, sessions and jobs", err)
}

// isLimit reports whether an evaluation ended at its limit of cost or size.
func isLimit(err error) bool {
	return strings.Contains(err.Error(), "cost limit exceeded") || strings.Contains(err.Error(), "size limit exceeded")
}
