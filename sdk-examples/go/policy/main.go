// Policy decides what "greet" may be asked.
package main

import (
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

//go:wasmexport restrict
func restrict() int32 { return pdk.Restrict(policy) }

func policy(c *abi.Call) *abi.Decision {
	d := pdk.Allow()
	d.Args = []string{}
	for _, arg := range c.Args {
		if strings.HasPrefix(arg, "-") {
			return pdk.Deny("greet.flag", "greet has no flag "+arg, "leave it out")
		}
		if strings.ContainsAny(arg, "\r\n") {
			return pdk.Deny("greet.line", "a name has one line", "greet one after the other")
		}
		// What the policy returns is what runs.
		d.Args = append(d.Args, strings.TrimSpace(arg))
	}
	return d
}

func main() {}
