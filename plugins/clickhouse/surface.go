package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/plugins/internal/offer"
)

// binding is what a tool stands for. The host gives it back with each call.
type binding struct {
	Insert   bool     `json:"insert,omitempty"`
	Database string   `json:"database"`
	Name     string   `json:"name"`
	Columns  []string `json:"columns"`
	// Parameters are those of a view; Types those of a table's columns.
	Parameters []parameter `json:"parameters,omitempty"`
	Types      []string    `json:"types,omitempty"`
	// Token says that an insert may have a token.
	Token bool `json:"token,omitempty"`
}

// relation is one view or table as the server describes it.
type relation struct {
	Database string `json:"database"`
	Name     string `json:"name"`
	Engine   string `json:"engine"`
	Query    string `json:"create_table_query"`
	Comment  string `json:"comment"`

	columns []column
}

type column struct {
	Database string `json:"database"`
	Table    string `json:"table"`
	Name     string `json:"name"`
	Type     string `json:"type"`
	Default  string `json:"default_kind"`
	Comment  string `json:"comment"`
}

// note is what a COMMENT says when it is JSON.
type note struct {
	Title       string            `json:"title"`
	Description string            `json:"description"`
	Parameters  map[string]string `json:"parameters"`
	// OpenWorld and ReadOnly can only say less for a tool than what is found of it.
	OpenWorld *bool `json:"openWorld"`
	ReadOnly  *bool `json:"readOnly"`
}

const ownDatabases = "('system', 'INFORMATION_SCHEMA', 'information_schema')"

func surface(d *abi.Discovery) (*abi.Surface, error) {
	s, err := connect()
	if errors.Is(err, errNobody) {
		return &abi.Surface{Error: &abi.Error{Code: abi.Unauthenticated, Message: err.Error()}}, nil
	}
	if err != nil {
		return nil, err
	}
	out, err := s.surface(d)
	if err != nil {
		return &abi.Surface{Error: asError(err)}, nil
	}
	return out, nil
}

func (s *server) surface(d *abi.Discovery) (*abi.Surface, error) {
	relations, err := s.relations()
	if err != nil {
		return nil, err
	}
	rights, err := s.rights(d.ReadOnly)
	if err != nil {
		return nil, err
	}
	world, err := s.world(relations)
	if err != nil {
		return nil, err
	}
	tokens, err := s.knowsTokens(relations)
	if err != nil {
		return nil, err
	}
	out := &abi.Surface{Safety: &abi.Safety{ReadOnly: rights.readonly, Grants: rights.digest()}}
	named := map[string]string{}
	for _, r := range relations {
		full := r.Database + "." + r.Name
		var t *abi.SurfaceTool
		switch {
		case isView(r.Engine) && rights.may("SELECT", r):
			t, err = viewTool(r, world.reading(r))
		case takesRows(r.Engine) && !rights.readonly && rights.may("INSERT", r):
			t, err = tableTool(r, rights, world.inserting(r), tokens)
		default:
			continue
		}
		if err != nil {
			pdk.Log(pdk.LevelWarn, full+" is left out: "+err.Error())
			continue
		}
		t.Name = offer.ToolName(pdk.Config("prefix") + full)
		if other, double := named[t.Name]; double {
			return nil, fmt.Errorf("%s and %s would both be the tool %s; rename one, or give one identity one database", other, full, t.Name)
		}
		named[t.Name] = full
		out.Tools = append(out.Tools, *t)
	}
	return out, nil
}

// relations are the views and tables that the user can see.
func (s *server) relations() ([]*relation, error) {
	const from = " FROM system.tables WHERE database NOT IN " + ownDatabases + " ORDER BY database, name FORMAT JSONEachRow"
	body, err := s.read("SELECT database, name, engine, create_table_query, comment"+from, nil)
	var e *exception
	if errors.As(err, &e) && e.code == unknownIdentifier { // before tables had comments
		body, err = s.read("SELECT database, name, engine, create_table_query"+from, nil)
	}
	if err != nil {
		return nil, err
	}
	var list []*relation
	byName := map[[2]string]*relation{}
	only := pdk.Config("database")
	err = rows(body, func(line []byte) error {
		r := &relation{}
		if err := json.Unmarshal(line, r); err != nil {
			return err
		}
		if (only == "" || only == r.Database) && !strings.HasPrefix(r.Name, ".inner") {
			list = append(list, r)
			byName[[2]string{r.Database, r.Name}] = r
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	body, err = s.read("SELECT database, table, name, type, default_kind, comment FROM system.columns WHERE database NOT IN "+ownDatabases+" FORMAT JSONEachRow", nil)
	if err != nil {
		return nil, err
	}
	return list, rows(body, func(line []byte) error {
		var c column
		if err := json.Unmarshal(line, &c); err != nil {
			return err
		}
		if r := byName[[2]string{c.Database, c.Table}]; r != nil {
			r.columns = append(r.columns, c)
		}
		return nil
	})
}

// rows calls fn for each line of an answer. A line that is no object is an
// exception that came after the first rows.
func rows(body []byte, fn func([]byte) error) error {
	for line := range bytes.Lines(body) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		if line[0] != '{' {
			return readException(line)
		}
		if err := fn(line); err != nil {
			return err
		}
	}
	return nil
}

func isView(engine string) bool {
	return engine == "View" || engine == "MaterializedView" || engine == "LiveView"
}

func takesRows(engine string) bool {
	switch engine {
	case "Log", "TinyLog", "StripeLog", "Memory", "Buffer", "Distributed", "Null":
		return true
	}
	return strings.HasSuffix(engine, "MergeTree")
}

func viewTool(r *relation, touches reach) (*abi.SurfaceTool, error) {
	n := readNote(r.Comment)
	b := binding{Database: r.Database, Name: r.Name, Parameters: parameters(r.Query)}
	properties, required := map[string]any{}, []string{}
	for _, p := range b.Parameters {
		schema, ok := schemaOf(p.Type)
		if !ok {
			return nil, fmt.Errorf("its parameter %s is of type %s, which no argument is taken for", p.Name, p.Type)
		}
		if text := n.Parameters[p.Name]; text != "" {
			schema["description"] = text
		}
		properties[p.Name] = schema
		required = append(required, p.Name)
	}
	var texts []string
	for _, c := range r.columns {
		b.Columns = append(b.Columns, c.Name)
		texts = append(texts, c.Name+" "+c.Type)
	}
	if n.Description == "" {
		n.Description = "Rows of the view " + r.Database + "." + r.Name + "."
	}
	// What is not known to read is not said to, and what changes something is a tool
	// that does.
	a := &abi.Annotations{}
	changes := touches.changes || n.ReadOnly != nil && !*n.ReadOnly
	if reads := !changes; changes || !touches.unknown {
		a.ReadOnly, a.Destructive = &reads, &changes
	}
	t, err := newTool(n, "Columns: "+strings.Join(texts, ", ")+".", properties, required, b, a, touches.open)
	if err == nil {
		t.Mutating = changes
	}
	return t, err
}

// settingsClause is the end of the statement of a table: its settings, before its
// comment.
var settingsClause = regexp.MustCompile(` SETTINGS (\w+ = (?:'(?:[^'\\]|\\.)*'|[^,' ]+)(?:, \w+ = (?:'(?:[^'\\]|\\.)*'|[^,' ]+))*)(?: COMMENT '(?:[^'\\]|\\.)*')?$`)

// deduplicates reports whether the server keeps one of two inserts into r with the same
// token, and surely so.
func deduplicates(r *relation) bool {
	if !strings.HasSuffix(r.Engine, "MergeTree") {
		return false
	}
	replicated := strings.HasPrefix(r.Engine, "Replicated") || strings.HasPrefix(r.Engine, "Shared")
	window := "non_replicated_deduplication_window"
	if replicated {
		window = "replicated_deduplication_window"
	}
	if m := settingsClause.FindStringSubmatch(r.Query); m != nil {
		for s := range strings.SplitSeq(m[1], ", ") {
			if name, value, _ := strings.Cut(s, " = "); name == window {
				return value != "0"
			}
		}
	}
	return replicated // whose window has a default
}

// knowsTokens reports whether the server takes tokens. It is not asked where no table
// would be different by that.
func (s *server) knowsTokens(relations []*relation) (bool, error) {
	if !slices.ContainsFunc(relations, deduplicates) {
		return false, nil
	}
	n, err := s.number("SELECT count() AS n FROM system.settings WHERE name = "+sqlText(tokenSetting)+" FORMAT JSONEachRow", "n")
	return n > 0, err
}

func tableTool(r *relation, rights *rights, touches reach, tokens bool) (*abi.SurfaceTool, error) {
	n := readNote(r.Comment)
	b := binding{Insert: true, Database: r.Database, Name: r.Name}
	properties, required := map[string]any{}, []string{}
	granted := rights.columns("INSERT", r)
	for _, c := range r.columns {
		schema, ok := schemaOf(c.Type)
		if !ok || c.Default == "MATERIALIZED" || c.Default == "ALIAS" || c.Default == "EPHEMERAL" || granted != nil && !granted[c.Name] {
			continue
		}
		text := c.Comment
		if t := n.Parameters[c.Name]; t != "" {
			text = t
		}
		if text != "" {
			schema["description"] = text
		}
		properties[c.Name] = schema
		b.Columns, b.Types = append(b.Columns, c.Name), append(b.Types, c.Type)
		if _, null := base(c.Type); !null && c.Default == "" {
			required = append(required, c.Name)
		}
	}
	if len(b.Columns) == 0 {
		return nil, errors.New("it has no column that an argument is taken for")
	}
	if properties[tokenSetting] == nil && tokens && deduplicates(r) {
		b.Token = true
		properties[tokenSetting] = map[string]any{
			"type": "string", "pattern": "^[!-~]{1,128}$",
			"description": "Of inserts with the same token the server keeps one.",
		}
	}
	if n.Description == "" {
		n.Description = "Insert one row into the table " + r.Database + "." + r.Name + "."
	}
	yes, no := true, false
	t, err := newTool(n, "", properties, required, b, &abi.Annotations{ReadOnly: &no, Destructive: &yes}, touches.open)
	if err == nil {
		t.Mutating = true
	}
	return t, err
}

func newTool(n note, more string, properties map[string]any, required []string, b binding, a *abi.Annotations, open bool) (*abi.SurfaceTool, error) {
	schema := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		schema["required"] = required
	}
	s, err := encode(schema)
	if err != nil {
		return nil, err
	}
	bound, err := encode(b)
	if err != nil {
		return nil, err
	}
	a.Title = offer.Clip(n.Title, 200)
	open = open || n.OpenWorld != nil && *n.OpenWorld
	a.OpenWorld = &open
	text := strings.TrimSpace(n.Description + " " + more)
	return &abi.SurfaceTool{Title: offer.Clip(n.Title, 200), Description: offer.Clip(text, 4000), Schema: s, Binding: bound, Annotations: a}, nil
}

func readNote(comment string) (n note) {
	if c := strings.TrimSpace(comment); strings.HasPrefix(c, "{") && json.Unmarshal([]byte(c), &n) == nil {
		return n
	}
	return note{Description: comment}
}
