package config

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestWrongKeysAndValues: what is wrong in a toold.json is named with its line, and with
// what was probably meant.
func TestWrongKeysAndValues(t *testing.T) {
	for text, want := range map[string]string{
		`"rots": ["/w"]`:                                              "line 2, column 1: /rots: is not a known name; did you mean \"roots\"?",
		`"sessions": {"idel": 3}`:                                     "line 2, column 14: /sessions/idel: is not a known name; did you mean \"idle\"?",
		`"sockets": [{"path": "/s", "categorys": []}]`:                "/sockets/0/categorys: is not a known name; did you mean \"categories\"?",
		`"shutdown_grace": "5"`:                                       "line 2, column 19: /shutdown_grace: must be a number",
		`"confine": "bst"`:                                            "line 2, column 12: /confine: \"bst\" is not a valid value; did you mean \"best\"?",
		`"reliability": "readonly"`:                                   "/reliability: \"readonly\" is not a valid value; did you mean \"read-only\"?",
		`"log_level": "inof"`:                                         "/log_level: \"inof\" is not a valid value; did you mean \"info\"?",
		`"audit": {"mode": "never"}`:                                  "line 2, column 19: /audit/mode: \"never\" is not a valid value; use on or off",
		`"audit": {"max_bytes": 3}`:                                   "/audit/max_bytes: 3 is too little; use at least 1048576",
		`"sockets": [{"path": "/s"}, {"path": "/t", "mode": "0661"}]`: "/sockets/1/mode: \"0661\" is not a valid value; did you mean \"0660\"?",
		`"store": "postgres://op:hunter2@db"`:                         "line 2, column 10: /store: is not one of the values that it can have",
		`"max_connections": -1`:                                       "/max_connections: -1 is negative; use 0 or more",
		`"discovery": {"ttl": 99999999}`:                              "/discovery/ttl: 99999999 cannot be; use 0 to 86400",
		`"dashboard": "0.0.0.0:8418"`:                                 "/dashboard: is not one of the values",
		`"roots": ["relative"]`:                                       "/roots/0: is not one of the values",
	} {
		file := filepath.Join(t.TempDir(), "toold.json")
		write(t, file, "{\n"+text+"\n}")
		_, err := Load(file, env(nil))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestEveryKeyAndItsValue: of each key of the reference a slip of the pen is answered with
// the line and the key, and a value of another kind with the line and what it must be.
func TestEveryKeyAndItsValue(t *testing.T) {
	file := filepath.Join(t.TempDir(), "toold.json")
	for _, key := range reference(t) {
		path := strings.Split(key.name, ".")
		in := func(leaf, value string) string {
			text := "{\n" + `"` + leaf + `": ` + value + "\n}"
			for _, part := range reversed(path[:len(path)-1]) {
				if list, ok := strings.CutSuffix(part, "[]"); ok {
					text = `{"` + list + `": [` + text + `]}`
				} else {
					text = `{"` + part + `": ` + text + `}`
				}
			}
			return text
		}
		refused := func(text string, wants ...string) {
			t.Helper()
			write(t, file, text)
			_, err := Load(file, env(nil))
			for _, want := range wants {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %v, want it to say %q", text, err, want)
				}
			}
		}
		leaf := path[len(path)-1]
		// Two letters in each other's places.
		last := len(leaf) - 1
		slip := leaf[:last-1] + leaf[last:] + leaf[last-1:last]
		if slip == leaf { // socket_..ss
			slip = leaf + "x"
		}
		refused(in(slip, "null"), "line 2, column 1: ", "/"+slip+": is not a known name", `did you mean "`+leaf+`"?`)
		refused(in(leaf, "{}"), "line 2, column "+strconv.Itoa(len(leaf)+5)+": ", "/"+leaf+": must be ")
	}
}

// TestDefaultsAreAdmitted: the schema admits every default that it names.
func TestDefaultsAreAdmitted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "toold.json")
	for _, key := range reference(t) {
		if key.fallback == "" || strings.Contains(key.name, "[]") {
			continue
		}
		text := key.fallback
		for _, part := range reversed(strings.Split(key.name, ".")) {
			text = `{"` + part + `": ` + text + `}`
		}
		write(t, file, text)
		if _, err := Load(file, env(nil)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}
