package main

import (
	"errors"
	"hash/fnv"
	"sort"
	"strconv"
	"strings"
)

// rights are what the user may do, as the server says it.
type rights struct {
	// readonly: the profile allows no change at all.
	readonly bool
	// grants are nil on a server that has none: then what is visible may be
	// read and, unless readonly, written to.
	grants []grant
	raw    []string
}

// grant is one line of SHOW GRANTS.
type grant struct {
	revoke          bool
	privileges      map[string][]string // name -> columns, nil for all
	database, table string              // "*" for all
}

// rights asks the server. reads says that the caller may only read anyhow;
// then the server is not asked in a way that could change something.
func (s *server) rights(reads bool) (*rights, error) {
	r := &rights{}
	body, err := s.read("SHOW GRANTS", nil)
	var e *exception
	switch {
	case errors.As(err, &e) && e.code == syntaxError: // before 20.4
	case err != nil:
		return nil, err
	default:
		r.grants = []grant{}
		if err := s.grants(r, string(body), 0); err != nil {
			return nil, err
		}
	}
	if reads {
		r.readonly = true
		return r, nil
	}
	// A GET is always readonly there, so that this one is a POST.
	body, err = s.write("SELECT value FROM system.settings WHERE name = 'readonly' FORMAT TSV", []byte("\n"), nil)
	if err != nil {
		return nil, err
	}
	r.readonly = strings.TrimSpace(string(body)) != "0"
	return r, nil
}

// grants reads the lines of SHOW GRANTS, with those of the roles.
func (s *server) grants(r *rights, text string, depth int) error {
	for _, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(strings.NewReplacer(`\'`, `'`, `\\`, `\`).Replace(line))
		if line == "" {
			continue
		}
		r.raw = append(r.raw, line)
		g, role, ok := readGrant(line)
		switch {
		case !ok:
		case role != "" && depth < 8:
			body, err := s.read("SHOW GRANTS FOR "+identifier(role), nil)
			if err != nil {
				var e *exception
				if errors.As(err, &e) && e.code == accessDenied {
					continue // what nobody tells, nobody may
				}
				return err
			}
			if err := s.grants(r, string(body), depth+1); err != nil {
				return err
			}
		case role == "":
			r.grants = append(r.grants, g)
		}
	}
	return nil
}

// readGrant reads "GRANT SELECT, INSERT(a, b) ON db.* TO user" or "GRANT role TO
// user". What it does not understand grants nothing.
func readGrant(line string) (g grant, role string, ok bool) {
	rest, ok := strings.CutPrefix(line, "GRANT ")
	if !ok {
		if rest, ok = strings.CutPrefix(line, "REVOKE "); !ok {
			return g, "", false
		}
		g.revoke = true
	}
	what, where, ok := cutOutside(rest, " ON ")
	if !ok {
		name, _, ok := cutOutside(rest, " TO ")
		if !ok || g.revoke || strings.ContainsAny(name, ",(") {
			return g, "", false
		}
		return g, unquote(name), true
	}
	end := " TO "
	if g.revoke {
		end = " FROM "
	}
	where, _, ok = cutOutside(where, end)
	if !ok {
		return g, "", false
	}
	database, table, ok := cutOutside(strings.TrimSpace(where), ".")
	if !ok {
		return g, "", false
	}
	g.database, g.table = unquote(database), unquote(table)
	g.privileges = map[string][]string{}
	for what != "" {
		var one string
		one, what, _ = cutOutside(what, ",")
		name, columns, some := strings.Cut(strings.TrimSpace(one), "(")
		name = strings.TrimSpace(name)
		if !some {
			g.privileges[name] = nil
			continue
		}
		list := []string{}
		for _, c := range strings.Split(strings.TrimSuffix(strings.TrimSpace(columns), ")"), ",") {
			list = append(list, unquote(strings.TrimSpace(c)))
		}
		g.privileges[name] = list
	}
	return g, "", true
}

// cutOutside is strings.Cut at the first sep that stands in no quotes and no
// parentheses.
func cutOutside(s, sep string) (before, after string, found bool) {
	depth := 0
	for i := 0; i < len(s); {
		switch c := s[i]; {
		case c == '`' || c == '\'' || c == '"':
			i = endOfQuote(s, i)
			continue
		case c == '(':
			depth++
		case c == ')':
			depth--
		case depth == 0 && strings.HasPrefix(s[i:], sep):
			return s[:i], s[i+len(sep):], true
		}
		i++
	}
	return s, "", false
}

func unquote(s string) string {
	s = strings.TrimSpace(s)
	if len(s) >= 2 && (s[0] == '`' || s[0] == '"') && s[len(s)-1] == s[0] {
		return strings.NewReplacer(`\\`, `\`, "\\`", "`", "``", "`").Replace(s[1 : len(s)-1])
	}
	return s
}

func (g *grant) covers(r *relation) bool {
	match := func(pattern, name string) bool {
		if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
			return strings.HasPrefix(name, prefix)
		}
		return pattern == name
	}
	return match(g.database, r.Database) && match(g.table, r.Name)
}

func (g *grant) names(privilege string) (columns []string, ok bool) {
	if columns, ok = g.privileges[privilege]; ok {
		return columns, true
	}
	_, all := g.privileges["ALL"]
	_, too := g.privileges["ALL PRIVILEGES"]
	return nil, all || too
}

// may reports whether the user may do that to some columns at least.
func (r *rights) may(privilege string, to *relation) bool {
	c := r.columns(privilege, to)
	return c == nil || len(c) > 0
}

// columns are those that the user may do that to; nil stands for all.
func (r *rights) columns(privilege string, to *relation) map[string]bool {
	if r.grants == nil {
		return nil
	}
	allowed := map[string]bool{}
	for _, revoke := range []bool{false, true} {
		for i := range r.grants {
			g := &r.grants[i]
			columns, ok := g.names(privilege)
			if !ok || g.revoke != revoke || !g.covers(to) {
				continue
			}
			if columns == nil {
				for _, c := range to.columns {
					columns = append(columns, c.Name)
				}
			}
			for _, c := range columns {
				if revoke {
					delete(allowed, c)
				} else {
					allowed[c] = true
				}
			}
		}
	}
	return allowed
}

// digest changes when the rights do.
func (r *rights) digest() string {
	lines := append([]string{strconv.FormatBool(r.readonly)}, r.raw...)
	sort.Strings(lines)
	h := fnv.New64a()
	for _, l := range lines {
		h.Write([]byte(l))
		h.Write([]byte{0})
	}
	return strconv.FormatUint(h.Sum64(), 16)
}
