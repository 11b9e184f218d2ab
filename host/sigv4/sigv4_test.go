package sigv4_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/sigv4"
)

// Examples of AWS's documentation: "Signature Calculations for the Authorization
// Header: Transferring Payload in a Single Chunk".
func TestSignatureOfAWS(t *testing.T) {
	s, err := sigv4.New("s3", "us-east-1", "AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
	if err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]string{
		"/?lifecycle":           "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
		"/?prefix=J&max-keys=2": "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
	} {
		r, err := http.NewRequest("GET", "https://examplebucket.s3.amazonaws.com"+target, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Body = http.NoBody
		payload, why := s.Prepare(r)
		got, err := s.Sign(r, payload, time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC))
		if got != want || why != "" || err != nil {
			t.Errorf("%s: %s, %s, %v, want %s", target, got, why, err, want)
		}
	}
	for _, value := range []string{"", "AKIA", "AKIA:", ":secret", "AKIA/x:secret", "AKIA:sec ret", "AKIA:secret\nmore", "AKIA:se\x00cret", "AKIA:sécret"} {
		if _, err := sigv4.New("s3", "us-east-1", value); err == nil || value != "" && strings.Contains(err.Error(), value) {
			t.Errorf("%q: %v", value, err)
		}
	}
}
