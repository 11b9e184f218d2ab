// A policy for tests of the host. Its first argument says how it behaves.
package main

import (
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

// version is found in the compiled module and overwritten by tests that need
// many versions of it.
const version = "version-000000"

//go:wasmexport restrict
func restrict() int32 { return pdk.Restrict(decide) }

//go:wasmexport classify
func classify() int32 {
	return pdk.Classify(func(c *abi.Call, r *abi.Result) abi.Classification {
		switch {
		case r.ExitCode == 90 && strings.Contains(r.Stderr, "said-90") && c.Tool != "":
			return abi.Classification{Failure: true, Retriable: true}
		case r.ExitCode == 91:
			return abi.Classification{Failure: true}
		}
		return abi.Classification{}
	})
}

func decide(c *abi.Call) *abi.Decision {
	d := pdk.Allow()
	if strings.Contains(string(c.Binding), "/animals") {
		return pdk.Deny("test.binding", "the test says so", "ask for /pets")
	}
	if len(c.Args) == 0 {
		return d
	}
	switch c.Args[0] {
	case "deny":
		return pdk.Deny("test.deny", "the test says so", "do not ask")
	case "rewrite":
		d.Args = []string{"%s|", "rewritten", c.Caller[:1] + "…", c.Cwd}
	case "policy-version":
		d.Args = append(append([]string{}, c.Args...), version)
	case "policy-writes": // args, env and stdin, each with its version
		s := base64.StdEncoding.EncodeToString([]byte(version))
		d.Args = append(append([]string{}, c.Args[1:]...), version)
		d.Env, d.StdinBase64 = map[string]string{"POLICY_VERSION": version}, &s
	case "env":
		d.Args = []string{"-c", "env"}
		d.Env = map[string]string{"FROM_POLICY": "yes"}
	case "stdin":
		s := "ZnJvbSBwb2xpY3k=" // "from policy"
		d.Args, d.StdinBase64 = []string{}, &s
	case "no-stdin":
		no := false
		d.Args, d.Stdin = []string{}, &no
	case "brief":
		d.Args, d.TimeoutMS = []string{"60"}, 100
	case "trap":
		panic("a policy that panics")
	case "loop":
		for i := 0; ; i++ {
			sink = i
		}
	case "ask": // an approval, as JSON, and the command
		d.Effect, d.Rule, d.Ask = abi.Ask, "test.ask", &abi.Approval{}
		if err := json.Unmarshal([]byte(c.Args[1]), d.Ask); err != nil {
			panic(err)
		}
		d.Args = c.Args[2:]
		if c.Callbacks != nil {
			for _, kind := range c.Callbacks.Kinds {
				d.Callbacks = append(d.Callbacks, abi.Callback{Kind: kind, Name: kind})
			}
		}
	case "callbacks": // those that the call may ask for, as JSON, and the command
		if err := json.Unmarshal([]byte(c.Args[1]), &d.Callbacks); err != nil {
			panic(err)
		}
		d.Args, d.Env = c.Args[2:], map[string]string{"ROOT": c.Cwd}
		if c.Callbacks != nil {
			d.Env["FOLDER"] = c.Callbacks.Folder
		}
	case "ask-in": // an approval in folders of that name, and the command
		if d.Args = c.Args[2:]; strings.HasSuffix(c.Cwd, "/"+c.Args[1]) {
			d.Effect, d.Rule, d.Ask = abi.Ask, "test.ask", &abi.Approval{}
		}
	case "ask-nobody": // how is left out
		d.Effect = abi.Ask
	case "odd-effect":
		d.Effect = "perhaps"
	case "no-effect":
		return &abi.Decision{}
	case "nil":
		return nil
	}
	return d
}

var sink int

func main() {}
