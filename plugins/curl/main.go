// Curl is the policy of the tool "curl": http and https to the hosts that the
// operator names, files beneath the roots of the call, and the flags that it
// understands. README.md has the table of what is allowed and refused.
//
// The policy rewrites what it allows. What runs begins with pins that curl
// itself enforces (no ~/.curlrc, no other protocol, no other host, not even
// by a redirect), so that a reading of a URL in which curl and the policy
// differ reaches nobody.
package main

import (
	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

//lint:file-ignore U1000 the host calls the exports

//go:wasmexport describe
func describe() int32 {
	return pdk.Describe(abi.Describe{Name: "curl", Description: "HTTP and HTTPS requests to the hosts that the operator allows"})
}

//go:wasmexport restrict
func restrict() int32 { return pdk.Restrict(decide) }

func decide(c *abi.Call) *abi.Decision {
	p, err := newPolicy(pdk.Config)
	if err != nil {
		return pdk.Deny("curl.config", "the configuration of this policy is broken: "+err.Error(), "the operator corrects config in tools.d/curl/tool.json")
	}
	return p.decide(c)
}

func main() {}
