package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

func call(c *abi.Call) (*abi.Result, error) {
	if len(c.Binding) == 0 {
		return nil, errors.New("clickhouse itself is not a tool; tools.list names the tools that it provides")
	}
	var b binding
	if err := json.Unmarshal(c.Binding, &b); err != nil {
		return nil, fmt.Errorf("read the binding: %w", err)
	}
	var arguments map[string]json.RawMessage
	if err := json.Unmarshal(c.Payload, &arguments); err != nil {
		return nil, fmt.Errorf("read the payload: %w", err)
	}
	s, err := connect()
	if err != nil {
		return &abi.Result{Error: asError(err)}, nil
	}
	var r *abi.Result
	switch {
	case b.Insert && c.ReadOnly:
		err = &exception{code: readonly, text: "this identity may only read"}
	case b.Insert:
		r, err = s.insert(&b, arguments, queryID(c))
	default:
		r, err = s.selectRows(&b, arguments)
	}
	var e *exception
	if errors.As(err, &e) {
		r = &abi.Result{Error: asError(err), Gone: e.gone()}
		if e.code == readonly && b.Insert {
			r.Safety = &abi.Safety{ReadOnly: true}
		}
		return r, nil
	}
	return r, err
}

// What is answered of one row that was written.
const (
	insertedText = "1 row inserted\n"
	insertedData = `{"inserted":1}`
)

// tokenSetting is the setting by which a server takes two inserts for one, and the name
// of the argument for it.
const tokenSetting = "insert_deduplication_token"

// tokenOf is the token that an insert was given; empty without one.
func (b *binding) tokenOf(arguments map[string]json.RawMessage) (token string) {
	if b.Token && json.Unmarshal(arguments[tokenSetting], &token) != nil {
		return ""
	}
	return token
}

// into is how every insert by this tool begins.
func (b *binding) into() string {
	return "INSERT INTO " + identifier(b.Database) + "." + identifier(b.Name) + " ("
}

// insert writes one row. id names it in the server's log, where it is not empty. The arguments are the body; the statement holds names
// only.
func (s *server) insert(b *binding, arguments map[string]json.RawMessage, id string) (*abi.Result, error) {
	var names []string
	var row bytes.Buffer
	row.WriteByte('{')
	for i, name := range b.Columns {
		raw, ok := arguments[name]
		if !ok {
			continue
		}
		v, err := newValue(b.Types[i], raw).row()
		if err != nil {
			return nil, fmt.Errorf("argument %s: %w", name, err)
		}
		key, err := encode(name)
		if err != nil {
			return nil, err
		}
		if len(names) > 0 {
			row.WriteByte(',')
		}
		row.Write(key)
		row.WriteByte(':')
		row.Write(v)
		names = append(names, name)
	}
	row.WriteString("}\n")
	if len(names) == 0 {
		return nil, errors.New("no column has a value")
	}
	settings := url.Values{}
	if id != "" {
		settings.Set("query_id", id)
	}
	if token := b.tokenOf(arguments); token != "" {
		settings.Set(tokenSetting, token)
		settings.Set("insert_deduplicate", "1")
	}
	if _, err := s.write(b.into()+identifiers(names)+") FORMAT JSONEachRow", row.Bytes(), settings); err != nil {
		return nil, err
	}
	return &abi.Result{Stdout: insertedText, Data: json.RawMessage(insertedData)}, nil
}

// selectRows reads a view.
func (s *server) selectRows(b *binding, arguments map[string]json.RawMessage) (*abi.Result, error) {
	from := identifier(b.Database) + "." + identifier(b.Name)
	values := url.Values{}
	if len(b.Parameters) > 0 {
		var list []string
		for _, p := range b.Parameters {
			v, err := newValue(p.Type, arguments[p.Name]).parameter()
			if err != nil {
				return nil, fmt.Errorf("argument %s: %w", p.Name, err)
			}
			values.Set("param_"+p.Name, v)
			// Name and type are the view's own.
			list = append(list, p.Name+" = {"+p.Name+":"+p.Type+"}")
		}
		from += "(" + strings.Join(list, ", ") + ")"
	}
	most, err := strconv.Atoi(pdk.Config("max_rows"))
	if err != nil || most < 1 {
		most = 1000
	}
	columns := "*"
	if len(b.Columns) > 0 {
		columns = identifiers(b.Columns)
	}
	body, err := s.read("SELECT "+columns+" FROM "+from+" LIMIT "+strconv.Itoa(most+1)+" FORMAT JSONEachRow", values)
	if err != nil {
		return nil, err
	}
	// The rows are passed on as they are: reading them would cost more than
	// the rest of the call.
	data := bytes.NewBuffer(make([]byte, 0, len(body)+64))
	data.WriteString(`{"rows":[`)
	n, shown := 0, 0
	err = rows(body, func(line []byte) error {
		if n++; n > most {
			return nil
		}
		if n > 1 {
			data.WriteByte(',')
		}
		data.Write(line)
		shown = n
		return nil
	})
	if err != nil {
		return nil, err
	}
	data.WriteString(`],"truncated":` + strconv.FormatBool(n > most) + `}`)
	r := &abi.Result{Data: data.Bytes()}
	// For those who read text.
	end := len(body)
	if n > shown {
		end = bytes.LastIndexByte(bytes.TrimRight(body, "\n"), '\n') + 1
		r.Stderr = fmt.Sprintf("these are the first %d rows; there are more\n", most)
	}
	r.Stdout = string(body[:end])
	return r, nil
}
