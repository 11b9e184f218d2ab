package host_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
)

// reliable has every call of a daemon go through the reliability layer.
func reliable(hc *config.Config) { hc.Reliability = "all" }

// TestRefusedRequestIsNotRetried: a request that tool.json does not grant is
// refused in every attempt alike, so that there is one, whatever the module says.
func TestRefusedRequestIsNotRetried(t *testing.T) {
	var away string
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, away, http.StatusFound)
		case "/busy":
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer service.Close()
	away = "http://elsewhere.test/"
	c := newCounter(t, service, nil, reliable)
	token := c.token(t, nil)
	for _, tt := range []struct {
		name, urls string
		again      bool
	}{
		{"a host that is not granted", away, false},
		{"a redirect to one", service.URL + "/away", false},
		{"a scheme that is not granted", "ftp://127.0.0.1/", false},
		{"refused, and then another that asks to come back", away + " " + service.URL + "/busy", false},
		{"one that asks to come back", service.URL + "/busy", true},
	} {
		for _, method := range []string{"", "silent"} {
			before := strings.Count(c.Logs(), `"message":"attempt `)
			r := c.call(t, token, "look", M{"do": "insist " + tt.urls, "method": method})
			attempts := strings.Count(c.Logs(), `"message":"attempt `) - before
			if resultCode(r) != fault.ToolFailed || r.Err.Retriable() != tt.again || (attempts > 1) != tt.again {
				t.Errorf("%s (%s): %d attempts, retriable %v: %v", tt.name, method, attempts, r.Err.Retriable(), r.Err)
			}
		}
	}
}

// TestRefusedDiscoveryIsNotRetriable: who lists or calls the tools of a module that
// may not go where its configuration leads is not told to try again.
func TestRefusedDiscoveryIsNotRetriable(t *testing.T) {
	c := newCounter(t, nil, M{"url": "http://elsewhere.test"})
	token := c.token(t, nil)
	l := c.list(t, token, M{})
	if len(l.Missing) != 1 || l.Missing[0].Retriable || !strings.Contains(l.Missing[0].Message, "not granted") {
		t.Errorf("%+v", l)
	}
	if r := c.call(t, token, "look", M{}); resultCode(r) != fault.ToolFailed || r.Err.Retriable() {
		t.Errorf("a call: %v", r.Err)
	}
}
