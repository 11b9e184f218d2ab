package host_test

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// botocore is the signature that AWS's own library makes of a request, in JSON.
const botocore = `
import json, sys
try:
    import awscli.botocore as botocore  # of later versions
except ImportError:
    import botocore
from importlib import import_module
of = lambda module, name: getattr(import_module(botocore.__name__ + "." + module), name)
S3SigV4Auth, SigV4Auth = of("auth", "S3SigV4Auth"), of("auth", "SigV4Auth")
AWSRequest, Credentials = of("awsrequest", "AWSRequest"), of("credentials", "Credentials")
q = json.load(sys.stdin)
auth = (S3SigV4Auth if q["service"] == "s3" else SigV4Auth)(Credentials("AKIDEXAMPLE", q["secret"]), q["service"], "eu-central-1")
r = AWSRequest(method=q["method"], url=q["url"], headers=q["headers"])
r.context["timestamp"] = q["headers"]["X-Amz-Date"]
print(auth.signature(auth.string_to_sign(r, auth.canonical_request(r)), r), end="")
`

// The real aws, which has no key, works with services that verify signatures as AWS's
// own library makes them.
func TestAWSWithoutKey(t *testing.T) {
	program := os.Getenv("TOOLD_TEST_AWS")
	if program == "" {
		t.Skip("takes half a minute: run make aws, or set TOOLD_TEST_AWS to the aws of a venv with awscli")
	}
	needJudged(t)
	python := filepath.Join(filepath.Dir(program), "python3")
	real, err := filepath.EvalSymlinks(python)
	if err != nil {
		t.Fatal(err)
	}
	const secret = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"
	watch := &watched{t: t, secrets: []string{secret}}
	var mu sync.Mutex
	objects := map[string][]byte{}
	var asked []string
	server := hosttest.NewSite(t, "127.0.0.1:0", &tls.Config{}, watch.handler(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		service := "s3"
		said := r.Header.Get("Authorization")
		if strings.Contains(said, "/dynamodb/") {
			service = "dynamodb"
		}
		_, names, _ := strings.Cut(said, "SignedHeaders=")
		names, signature, _ := strings.Cut(names, ", Signature=")
		headers := map[string]string{}
		for name := range strings.SplitSeq(names, ";") {
			headers[http.CanonicalHeaderKey(name)] = strings.Join(r.Header.Values(name), ",")
		}
		headers["Host"] = r.Host
		asked = append(asked, r.Method+" "+r.RequestURI)
		in, _ := json.Marshal(map[string]any{"service": service, "secret": secret, "method": r.Method, "url": "https://" + r.Host + r.RequestURI, "headers": headers})
		check := exec.Command(python, "-c", botocore)
		check.Stdin = bytes.NewReader(in)
		want, err := check.Output()
		if sum := fmt.Sprintf("%x", sha256.Sum256(body)); service != "s3" && headers["X-Amz-Content-Sha256"] != sum {
			t.Errorf("the body's hash is said to be %s", headers["X-Amz-Content-Sha256"])
		}
		if err != nil || string(want) != signature || len(want) != 64 {
			t.Errorf("%s %s: the signature is %q, botocore's %q, %v", r.Method, r.RequestURI, signature, want, err)
			w.WriteHeader(http.StatusForbidden)
			return
		}
		switch {
		case service == "dynamodb":
			w.Header().Set("Content-Type", "application/x-amz-json-1.0")
			fmt.Fprintf(w, `{"TableNames":[%q]}`, fmt.Sprint(len(body)))
		case r.Method == "PUT":
			objects[r.URL.Path] = body
		case r.URL.Query().Has("list-type"):
			w.Header().Set("Content-Type", "application/xml")
			fmt.Fprint(w, `<ListBucketResult><Name>bucket</Name><KeyCount>1</KeyCount><IsTruncated>false</IsTruncated><Contents><Key>a b+c</Key><Size>9</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>`)
		default:
			w.Write(objects[r.URL.Path])
		}
	}))
	host := "127.0.0.1:" + server.Port()
	d := hosttest.Start(t, config.Config{})
	for _, service := range []string{"s3", "dynamodb"} {
		d.Tool(t, "aws-"+service, M{
			"binary":       program,
			"capabilities": M{"network": []string{host}, "exec": []string{python, real}},
			"environment":  M{"AWS_DEFAULT_REGION": "eu-central-1", "AWS_EC2_METADATA_DISABLED": "true", "AWS_PAGER": "", "CANARY": songbird, "PYTHONDONTWRITEBYTECODE": "1"},
			"secrets": M{
				"aws": M{"from": "file:" + secretFile(t, "AKIDEXAMPLE:"+secret), "sigv4": M{"service": service, "region": "eu-central-1"}, "host": host},
				"ca":  M{"from": "file:" + authorityFile(t, server), "tls": "ca", "host": host},
			},
		}, nil)
	}
	if err := os.WriteFile(d.Root+"/file", []byte("all of it"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"s3api", "put-object", "--bucket", "bucket", "--key", "a b+c/ü!(1)", "--body", "file"}, ""},
		{[]string{"s3", "cp", "s3://bucket/a b+c/ü!(1)", "-"}, "all of it"},
		{[]string{"s3", "ls", "s3://bucket/a b"}, "a b+c"},
		{[]string{"dynamodb", "list-tables", "--limit", "7"}, `"12"`},
	} {
		tool := "aws-s3"
		if tt.args[0] == "dynamodb" {
			tool = "aws-dynamodb"
		}
		args := append(slices.Clone(tt.args), "--endpoint-url", server.URL, "--no-sign-request")
		a := ask(t, d.Socket, M{"tool": tool, "cwd": d.Root, "args": args})
		if a.ExitCode != 0 || !strings.Contains(a.Stdout, tt.want) {
			t.Errorf("%q: %s", tt.args, a.raw)
		}
	}
	if len(asked) < 4 {
		t.Errorf("%q", asked)
	}
	t.Logf("%q", asked)
	watch.files(d.Root, d.Config.State)
}
