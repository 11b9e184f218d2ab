package execute

import (
	"context"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/toold/toold/host/mask"
	"github.com/toold/toold/host/wire/callbacks"
)

// TestMaskedCallbacks: a program of the caller is told no secret, however the run tells
// it.
func TestMaskedCallbacks(t *testing.T) {
	const secret = "s3cr3t-t0ken-0123456789"
	var got callbacks.Request
	var input string
	ask := masking(func(_ context.Context, q callbacks.Request, stdin io.Reader, stdout, _ io.Writer) (int, error) {
		b, err := io.ReadAll(stdin)
		got, input = q, string(b)
		io.WriteString(stdout, "answer")
		return 3, err
	}, [][]byte{[]byte(secret)})
	args, env := []string{"origin", "https://u:" + secret + "@host"}, map[string]string{"GIT_AUTHOR_NAME": secret}
	var out strings.Builder
	text := strings.Repeat("x", 300<<10) + secret + "\n\x00end"
	exit, err := ask(t.Context(), callbacks.Request{Kind: callbacks.Hooks, Args: args, Env: env}, iotest.OneByteReader(strings.NewReader(text)), &out, nil)
	if exit != 3 || err != nil || out.String() != "answer" {
		t.Errorf("%d, %v, %s", exit, err, &out)
	}
	want := callbacks.Request{Kind: callbacks.Hooks, Args: []string{"origin", "https://u:" + mask.Placeholder + "@host"}, Env: map[string]string{"GIT_AUTHOR_NAME": mask.Placeholder}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("asked for %+v, not %+v", got, want)
	}
	if want := strings.ReplaceAll(text, secret, mask.Placeholder); input != want {
		t.Errorf("the input ends with %q", input[max(len(input)-60, 0):])
	}
	if args[1] != "https://u:"+secret+"@host" || env["GIT_AUTHOR_NAME"] != secret {
		t.Error("what was asked is changed")
	}
	script := callbacks.Request{Kind: callbacks.Scripts, Args: []string{"login " + secret}, Env: map[string]string{"npm_package_config_token": secret}}
	if _, err := ask(t.Context(), script, strings.NewReader(""), &out, nil); err != nil || got.Args[0] != "login "+mask.Placeholder || got.Env["npm_package_config_token"] != mask.Placeholder {
		t.Errorf("a script is %+v, %v", got, err)
	}
	if _, err := ask(t.Context(), callbacks.Request{Kind: callbacks.Pager}, strings.NewReader("commit "+secret+"\n"), &out, nil); err != nil || input != "commit "+mask.Placeholder+"\n" {
		t.Errorf("a pager is given %q, %v", input, err)
	}
}
