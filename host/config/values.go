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

// limits are what the schema says of a value.
type limits struct {
	Properties       map[string]*limits
	Items            *limits
	Enum             []string
	Pattern          string
	Minimum, Maximum *float64
	Description      string
}

// checkValues compares the values of a toold.json, whose names and types are known to be
// right, with the schema: an error has the line, and what was meant as far as that can
// be guessed. What values have to do with each other is checked by Complete. A value is
// not repeated that may hold a password.
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
				return "" // a name that has been refused
			}
		}
		return at.fault(value)
	})
}

// fault is why value is none that l admits, or empty.
func (l *limits) fault(value any) string {
	switch v := value.(type) {
	case string:
		if l.Enum != nil && !slices.Contains(l.Enum, v) {
			if near := strictjson.Nearest(v, l.Enum); near != "" {
				return fmt.Sprintf("%q is no value of it; did you mean %q?", v, near)
			}
			last := len(l.Enum) - 1
			return fmt.Sprintf("%q is no value of it; use %s or %s", v, strings.Join(l.Enum[:last], ", "), l.Enum[last])
		}
		if l.Pattern != "" && !regexp.MustCompile(l.Pattern).MatchString(v) {
			return fmt.Sprintf("is none of the values that it can have (%s). %s", l.Pattern, strings.TrimSuffix(l.Description, "."))
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
