package form

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
)

// A form that some server takes for another method is found however it is written,
// and others are not touched.
func TestFormsThatOverride(t *testing.T) {
	for body, bad := range map[string]bool{
		"_method=DELETE": true, "a=b&_method=delete": true, "a=b;_method=put": true, "%5Fmethod=x": true, "_%6Deth%6fd=x": true, "_METHOD=x": true, "+_method=x": true, "a&_method": true, "_method[]=x": true,
		"%00_method=x": true, "_m%00ethod=x": true, "_meth\\od=x": true, "%zz&_method=x": true, "%%5fmethod=x": true,
		".method=x": true, "%2emethod=x": true, "+.method=x": true, "a.method=x": false, "a=.x": false,
		"--b\r\nContent-Disposition: form-data; name=\".method\"\r\n\r\nDELETE\r\n--b--":   true,
		"--b\r\nContent-Disposition: form-data; name=\"_method\"\r\n\r\nDELETE\r\n--b--":   true,
		"--b\r\nContent-Disposition: form-data; name=_method\r\n\r\nDELETE\r\n--b--":       true,
		"--b\r\nContent-Disposition: form-data; name=\"\\_method\"\r\n\r\nDELETE\r\n--b--": true,
		"payment_method=card": false, "a=the_method&method=x": false, "__method=x": false, "a=b": false, "_metho=d": false, "": false, "%5": false,
	} {
		for _, r := range []io.Reader{strings.NewReader(body), iotest.OneByteReader(strings.NewReader(body))} {
			got, err := io.ReadAll(NewReader(io.NopCloser(r)))
			if errors.Is(err, ErrOverridden) != bad || !bad && (string(got) != body || err != nil) {
				t.Errorf("%q: %q, %v", body, got, err)
			}
		}
	}
	for kind, is := range map[string]bool{"application/x-www-form-urlencoded; charset=utf-8": true, "Multipart/Form-Data; boundary=b": true, "": true, "application/json": false, "text/plain": false} {
		if Is([]string{kind}) != is {
			t.Errorf("%q", kind)
		}
	}
}

// A form that a server may read, and this host not, is refused.
func TestUnreadableForms(t *testing.T) {
	for _, x := range []struct {
		kind, encoding string
		bad            bool
	}{
		{"application/x-www-form-urlencoded", "", false}, {"application/x-www-form-urlencoded; charset=UTF-8", "identity", false}, {`multipart/form-data; boundary=b; charset="utf-8"`, "", false},
		{"application/x-www-form-urlencoded", "gzip", true}, {"application/x-www-form-urlencoded; charset=ibm037", "", true}, {"application/x-www-form-urlencoded; charset = utf-16", "", true}, {"application/x-www-form-urlencoded;charset=utf-8;charset=utf-7", "", true},
	} {
		h := http.Header{"Content-Type": {x.kind}}
		if x.encoding != "" {
			h["Content-Encoding"] = []string{x.encoding}
		}
		if why := Unreadable(h); (why != "") != x.bad {
			t.Errorf("%s, %q: %q", x.kind, x.encoding, why)
		}
	}
}

// FuzzForm compares what is found with what a server reads.
func FuzzForm(f *testing.F) {
	for _, s := range []string{"_method=x", "a=b&%5fmethod=x", "a=_method", "%%5f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		_, err := io.ReadAll(NewReader(io.NopCloser(strings.NewReader(body))))
		fields, _ := url.ParseQuery(body)
		if fields.Has(Overridden) && err == nil {
			t.Errorf("%q has the field", body)
		}
	})
}
