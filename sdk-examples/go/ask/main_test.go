package main

import (
	"encoding/base64"
	"testing"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

func TestReleaseAsks(t *testing.T) {
	answers := []string{"what?", "YES\n"}
	host := &pdk.Fake{Recv: func() abi.RecvResult {
		answer := answers[0]
		answers = answers[1:]
		return abi.RecvResult{DataBase64: base64.StdEncoding.EncodeToString([]byte(answer))}
	}}
	r, err := host.Handle(handle, &abi.Call{Tool: "release", Args: []string{"1.2"}})
	if err != nil || r.Stdout != "released 1.2\n" || len(answers) != 0 {
		t.Errorf("%+v, %v, %d answers left", r, err, len(answers))
	}
}
