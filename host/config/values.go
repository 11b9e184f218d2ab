package config

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/toold/toold/host/strictjson"
)

// Schema is the JSON Schema of toold.json.
//
//go:embed schema.json
var Schema []byte

// limits are the schema's limits for a value.
type limits struct {
	Properties       map[string]*limits
	Items            *limits
	Enum             []string
	Pattern          string
	Minimum, Maximum *float64
	Description      string
}

// checkValues validates the values of a toold.json, whose names and types are already checked, against the schema: an
// error has the line, and a suggestion if one can be guessed. Complete checks how values relate to each other. A value
// that may contain a password is not repeated.
func checkValues(data []byte) error {
	var schema limits
	if err := json.Unmarshal(Schema, &schema); err != nil {
		return fmt.Errorf("read the schema of this program: %w", err)
	}
	return strictjson.Judge(data, func(pointer string, value any) string {
		at := &schema
		for name := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
			if at.Items != nil {
				at = at.Items
			} else {
				at = at.Properties[name]
			}
			if at == nil {
				return "" // a name that has already been refused
			}
		}
		return at.fault(value)
	})
}

// fault returns why l does not admit value, or "".
func (l *limits) fault(value any) string {
	switch v := value.(type) {
	case string:
		if l.Enum != nil && !slices.Contains(l.Enum, v) {
			if near := strictjson.Nearest(v, l.Enum); near != "" {
				return fmt.Sprintf("%q is not a valid value; did you mean %q?", v, near)
			}
			last := len(l.Enum) - 1
			return fmt.Sprintf("%q is not a valid value; use %s or %s", v, strings.Join(l.Enum[:last], ", "), l.Enum[last])
		}
		if l.Pattern != "" && !regexp.MustCompile(l.Pattern).MatchString(v) {
			return fmt.Sprintf("is not one of the values that it can have (%s). %s", l.Pattern, strings.TrimSuffix(l.Description, "."))
		}
	case float64:
		if (l.Minimum == nil || v >= *l.Minimum) && (l.Maximum == nil || v <= *l.Maximum) {
			return ""
		}
		switch {
		case l.Minimum == nil:
			return fmt.Sprintf("%.0f is too much; use at most %.0f", v, *l.Maximum)
		case l.Maximum != nil:
			return fmt.Sprintf("%.0f cannot be; use %.0f to %.0f", v, *l.Minimum, *l.Maximum)
		case *l.Minimum == 0:
			return fmt.Sprintf("%.0f is negative; use 0 or more", v)
		}
		return fmt.Sprintf("%.0f is too little; use at least %.0f", v, *l.Minimum)
	}
	return ""
}
