package translate

import (
	"encoding/json"
	"strconv"
	"strings"
)

// maxApproval bounds what is shown of a call, in bytes: people would not see all of
// what is longer.
const maxApproval = 8 << 10

// Approval returns the text of a request for approval: exactly what would run, one word per
// line, with everything unprintable escaped. It is empty if that is too much.
func Approval(shown json.RawMessage) string {
	var a struct {
		Text  string `json:"text"`
		Steps []struct {
			Tool string          `json:"tool"`
			Plan json.RawMessage `json:"plan"`
		} `json:"steps"`
	}
	if json.Unmarshal(shown, &a) != nil || len(a.Steps) == 0 {
		return ""
	}
	var b strings.Builder
	for _, s := range a.Steps {
		var plan map[string]json.RawMessage
		if json.Unmarshal(s.Plan, &plan) != nil {
			return ""
		}
		b.WriteString("Run " + strconv.QuoteToASCII(s.Tool) + "?\n")
		for _, name := range []string{"args", "payload", "cwd", "env", "stdin", "stdin_base64", "shell", "shell_lines", "callbacks"} {
			if value, ok := plan[name]; ok {
				quoted := strconv.QuoteToASCII(string(value))
				b.WriteString(name + ": " + strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`) + "\n")
			}
		}
	}
	if a.Text != "" {
		b.WriteString("The policy says: " + strconv.QuoteToASCII(a.Text) + "\n")
	}
	if b.Len() > maxApproval {
		return ""
	}
	return b.String()
}
