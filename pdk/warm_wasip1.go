package pdk

import (
	"encoding/json"

	"github.com/toold/toold/pdk/abi"
)

// Each call begins with the state that the module had when it was initialised.
// What encoding/json finds out about a type the first time it sees it would be
// found out anew in every call, at many times the price of the call; so it is
// shown the types of the interface here.
func init() {
	yes, text := true, ""
	raw := json.RawMessage("{}")
	entry := abi.ConfigEntry{Key: "k", Value: "v"}
	for _, v := range []any{
		&abi.Call{
			Tool: "t", Args: []string{"a"}, Cwd: "/", Roots: []string{"/"}, Payload: raw, StdinBase64: "YQ==",
			Env: map[string]string{"a": "b"}, ExecutionID: "i", Attempt: 1, Session: "s", Caller: "c", ReadOnly: true,
			Binding: raw, DeadlineMS: 1, RepoConfig: &abi.RepoConfig{Entries: []abi.ConfigEntry{entry, entry}, Error: "e"},
		},
		&abi.Decision{
			Effect: abi.Allow, Rule: "r", Reason: "r", Instead: "i", Args: []string{"a"}, Env: map[string]string{"a": "b"},
			StdinBase64: &text, Mutating: &yes, Idempotent: &yes, IdempotencyKey: "k", TimeoutMS: 1, Stdin: &yes, Shell: true,
		},
		&abi.Result{
			ExitCode: 1, Stdout: "o", Stderr: "e", StdoutBase64: "YQ==", StderrBase64: "YQ==", Data: raw,
			Error: &abi.Error{Code: "C", Message: "m", Retriable: true}, Gone: true,
		},
	} {
		b, err := json.Marshal(v)
		if err == nil {
			err = json.Unmarshal(b, v)
		}
		if err != nil {
			panic(err) // the module does not load, and says why
		}
	}
}
