package job

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzOutput: whatever a file has, it is read as what was written, or not at all.
func FuzzOutput(f *testing.F) {
	h := outputHeader{Version: outputVersion, Owner: "me", Session: "s", Execution: "e", Stdout: 3, StdoutTotal: 5, Stderr: 1, StderrTotal: 1, Data: json.RawMessage(`{"a":1}`)}
	f.Add(h.encode([]byte("out"), []byte("e")))
	f.Add([]byte("{}\n00000000"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, stdout, stderr, err := decodeOutput(b)
		if err != nil {
			return
		}
		again, out, errs, err := decodeOutput(h.encode(stdout, stderr))
		if err != nil || !bytes.Equal(out, stdout) || !bytes.Equal(errs, stderr) || again.Execution != h.Execution {
			t.Errorf("%v: %q", err, b)
		}
	})
}
