package pipeline

import (
	"fmt"
	"testing"
	"time"

	"github.com/toold/toold/host/wire"
)

func TestResultsAreBounded(t *testing.T) {
	var rs Results
	for i := range maxResults + 10 {
		rs.put("alice", "t", time.Time{}, &wire.Result{ExecutionID: fmt.Sprint(i)})
	}
	if _, err := rs.Get("9"); err == nil {
		t.Error("the tenth oldest is still there")
	}
	if _, err := rs.Get("10"); err != nil {
		t.Errorf("the last thousand: %v", err)
	}
	for i := range 5 {
		rs.put("alice", "t", time.Time{}, &wire.Result{ExecutionID: fmt.Sprint("big", i), Stdout: make([]byte, 16<<20)})
	}
	if _, err := rs.Get("big0"); err == nil || rs.bytes > maxResultBytes {
		t.Errorf("%d bytes kept of %d", rs.bytes, maxResultBytes)
	}
	rs.put("alice", "t", time.Time{}, &wire.Result{ExecutionID: "big4", Stdout: []byte("x")})
	if rs.bytes != 48<<20+1 {
		t.Errorf("a result put twice counts %d bytes", rs.bytes)
	}
}
