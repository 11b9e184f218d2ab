// Hash is the tool "hash": the digest of a text or of the caller's input.
//
//	hash [-a ALGORITHM] [TEXT...]
//
// or, as a program asks, {"algorithm": "sha256", "text": "..."}. It shows a
// handler with flags, a payload schema and errors of its own.
package main

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"errors"
	stdhash "hash"
	"io"
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/argv"
)

//lint:file-ignore U1000 the host calls the exports

//go:wasmexport describe
func describe() int32 {
	yes := true
	return pdk.Describe(abi.Describe{
		Name:        "hash",
		Description: "digest of a text, or of the input: md5, sha1, sha256, sha384, sha512",
		Annotations: &abi.Annotations{ReadOnly: &yes, Idempotent: &yes},
		Schema:      json.RawMessage(schema),
	})
}

// schema also admits what a command line is as a payload.
const schema = `{
	"type": "object",
	"properties": {
		"algorithm": {"enum": ["md5", "sha1", "sha256", "sha384", "sha512"], "default": "sha256"},
		"text": {"type": "string", "description": "what the digest is of; the input when it is left out"},
		"args": {"type": "array", "items": {"type": "string"}},
		"cwd": {"type": "string"},
		"stdin": {"type": "string"}
	}
}`

//go:wasmexport handle
func handle() int32 { return pdk.Handle(answer) }

var grammar = argv.New(argv.Style{}, []argv.Flag{
	{Names: "-a --algorithm", Value: argv.OneOf("md5", "sha1", "sha256", "sha384", "sha512"), Once: true},
})

type payload struct {
	Algorithm string  `json:"algorithm"`
	Text      *string `json:"text"`
}

func answer(c *abi.Call) (*abi.Result, error) {
	asked := payload{Algorithm: "sha256"}
	line, err := grammar.Parse(c.Args, argv.Scope{})
	if err != nil {
		return &abi.Result{ExitCode: 2, Stderr: "hash: " + err.Error() + "\n"}, nil
	}
	if a, ok := line.Get("--algorithm"); ok {
		asked.Algorithm = a
	}
	if words := line.Operands(); len(words) > 0 {
		text := strings.Join(words, " ")
		asked.Text = &text
	}
	if len(c.Payload) > 0 {
		if err := json.Unmarshal(c.Payload, &asked); err != nil {
			return nil, err
		}
	}
	sum := newHash(asked.Algorithm)
	if sum == nil {
		return nil, errors.New("algorithm " + argv.Quote(asked.Algorithm) + " is not one that hash knows")
	}
	if asked.Text != nil {
		io.WriteString(sum, *asked.Text)
	} else if err := input(sum); err != nil {
		return nil, err
	}
	digest := hex.EncodeToString(sum.Sum(nil))
	data, err := json.Marshal(map[string]string{"algorithm": asked.Algorithm, "hex": digest})
	if err != nil {
		return nil, err
	}
	return &abi.Result{Stdout: digest + "\n", Data: data}, nil
}

func newHash(name string) stdhash.Hash {
	switch name {
	case "md5":
		return md5.New()
	case "sha1":
		return sha1.New()
	case "sha256":
		return sha256.New()
	case "sha384":
		return sha512.New384()
	case "sha512":
		return sha512.New()
	}
	return nil
}

// input takes the caller's input piece by piece, however long it is.
func input(w io.Writer) error {
	for {
		p, err := pdk.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		w.Write(p)
	}
}

func main() {}
