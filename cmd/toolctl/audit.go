package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/audit"
	"github.com/toold/toold/host/client"
)

func auditVerb(s *state) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Say who called what, under which policy, and why it was allowed",
		Long: `Read the audit log: every call with who made it, what it was to do, which version
of the tool and of its policies decided, what they answered, and how it ended.

It is read from the daemon's state folder, also while no daemon runs; whoever
reads it needs the rights of the daemon's user.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(auditLog(s), auditShow(s), auditVerify(s))
	return cmd
}

// auditDir returns the folder of the log. Unless flags or variables set it, this is the folder of the selected daemon,
// wherever that reports its state to be.
func (s *state) auditDir(cmd *cobra.Command) (string, error) {
	p := s.places()
	state := p.State
	if s.flags.State == "" && os.Getenv("TOOLD_STATE_DIR") == "" {
		if status, err := client.NewAdmin(p.Admin).Status(cmd.Context()); err == nil {
			state = status.State
		}
	}
	dir := filepath.Join(state, "audit")
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("there is no audit log in %s: the daemon has another state folder (--state), has never run, or has audit.mode off", state)
	} else if errors.Is(err, fs.ErrPermission) {
		return "", fmt.Errorf("read the audit log: %w; run toolctl as the daemon's user", err)
	}
	return dir, nil
}

// auditFilter holds the filters that the flags of log set.
type auditFilter struct {
	since, until, tool, caller, session, rule, effect, code string
	mutating, readOnly                                      bool
}

func auditLog(s *state) *cobra.Command {
	var f auditFilter
	var limit int
	var oldest, asJSON bool
	cmd := &cobra.Command{
		Use:   "log",
		Short: "List calls, the newest first",
		Long: `List the calls of the audit log, the newest first. Flags narrow it to the calls that
match all of them.

A time is 15:04 (of today), 2006-01-02, both with a space between them, as RFC 3339
has it, or how long ago: 90m, 2h, 3d.`,
		Example: `  toolctl audit log --tool git --mutating --since 13:55 --until 14:05
  toolctl audit log --effect deny --caller alice@example.com
  toolctl audit log --rule push --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			q := audit.Query{Match: f.match, Limit: limit, Oldest: oldest}
			now := time.Now()
			var err error
			if q.Since, err = moment("--since", f.since, now); err != nil {
				return err
			}
			if q.Until, err = moment("--until", f.until, now); err != nil {
				return err
			}
			if f.effect != "" && !slices.Contains([]string{audit.EffectAllow, audit.EffectDeny, audit.EffectAsk, audit.EffectError}, f.effect) {
				return usageError{fmt.Errorf("--effect %q: use allow, deny, ask or error", f.effect)}
			}
			dir, err := s.auditDir(cmd)
			if err != nil {
				return err
			}
			list, err := audit.Calls(dir, q)
			if err != nil {
				return err
			}
			if !oldest {
				slices.Reverse(list)
			}
			if asJSON {
				return s.printJSON(append([]*audit.CallEntry{}, list...))
			}
			if len(list) == 0 {
				_, err := fmt.Fprintln(s.out, "no such calls")
				return err
			}
			w := tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "TIME\tEXECUTION\tCALLER\tCALL\tEFFECT\tRULE\tOUTCOME\tTOOK")
			for _, e := range list {
				outcome, took := "no end", "-"
				if e.End != nil {
					outcome, took = auditOutcome(e.End), short(time.Duration(e.End.DurationMS)*time.Millisecond)
				}
				c := e.Call
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", when(e.At), oneLine(c.Execution), auditCaller(&c.Identity), clipped(auditCommand(c), 60),
					c.Effect, first(oneLine(c.Rule), "-"), outcome, took)
			}
			return w.Flush()
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.since, "since", "", "calls that began then or later")
	flags.StringVar(&f.until, "until", "", "calls that began then or earlier")
	flags.StringVar(&f.tool, "tool", "", "calls of this tool, or of what its module brings")
	flags.StringVar(&f.caller, "caller", "", "calls of this subject, user, uid or opaque name")
	flags.StringVar(&f.session, "session", "", "calls in this session")
	flags.StringVar(&f.rule, "rule", "", "calls that this rule decided")
	flags.StringVar(&f.effect, "effect", "", "allow, deny, ask: not approved, or error: refused before it was decided")
	flags.StringVar(&f.code, "code", "", "calls that ended with this error code")
	flags.BoolVar(&f.mutating, "mutating", false, "calls that were begun and may have changed something")
	flags.BoolVar(&f.readOnly, "read-only", false, "all others")
	flags.IntVar(&limit, "limit", 50, "list at most so many; 0 lists all")
	flags.BoolVar(&oldest, "oldest", false, "begin with the oldest")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// match reports whether e passes the filter.
func (f *auditFilter) match(e *audit.CallEntry) bool {
	c := e.Call
	is := func(want string, have ...string) bool { return want == "" || slices.Contains(have, want) }
	mutating := c.Runs != nil && c.Runs.Mutating
	code := ""
	if e.End != nil {
		code = e.End.Code
	}
	id := &c.Identity
	return is(f.tool, c.Tool, c.Source) && is(f.session, c.Session) && is(f.rule, c.Rule) && is(f.effect, c.Effect) && is(f.code, code) &&
		is(f.caller, id.ID, id.Subject, strconv.FormatUint(uint64(id.UID), 10), "uid:"+strconv.FormatUint(uint64(id.UID), 10), userName(id.UID)) &&
		(!f.mutating || mutating) && (!f.readOnly || !mutating)
}

// moment parses a time as a person writes it. An empty text is the zero time.
func moment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateTime, "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	for _, layout := range []string{time.TimeOnly, "15:04"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			y, m, d := now.Date()
			return time.Date(y, m, d, t.Hour(), t.Minute(), t.Second(), 0, now.Location()), nil
		}
	}
	ago := text
	days, isDays := strings.CutSuffix(text, "d")
	if n, err := strconv.Atoi(days); isDays && err == nil && n < 40000 {
		ago = strconv.Itoa(24*n) + "h"
	}
	if d, err := time.ParseDuration(ago); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	return time.Time{}, usageError{fmt.Errorf("%s %q is not a time; write 15:04, 2006-01-02, \"2006-01-02 15:04\", RFC 3339, or how long ago: 2h, 3d", flag, text)}
}

// auditCaller names the caller as precisely as the log allows.
func auditCaller(id *audit.Identity) string {
	if id.Subject != "" {
		return oneLine(id.Subject)
	}
	name := first(userName(id.UID), strconv.FormatUint(uint64(id.UID), 10))
	if id.ID == "" {
		return name + "?" // the caller was not admitted
	}
	return name
}

// userName returns the name of a uid on this machine at present, or "" if it has none.
func userName(uid uint32) string {
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return ""
	}
	return u.Username
}

// auditCommand returns the call on one line.
func auditCommand(c *audit.Call) string {
	words := []string{c.Tool}
	words = append(words, c.Args...)
	for i, w := range words {
		if w == "" || strings.ContainsAny(w, " \t\n'\"\\$`*?&|;<>(){}[]#~!") {
			words[i] = quoteWords([]string{w})
		}
	}
	if len(c.Payload) > 0 {
		words = append(words, string(c.Payload))
	}
	if c.ArgCount > 0 {
		words = append(words, fmt.Sprintf("(%d arguments)", c.ArgCount))
	}
	return oneLine(strings.Join(words, " "))
}

// clipped returns the beginning of a line.
func clipped(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

func auditOutcome(e *audit.End) string {
	switch {
	case e.Code != "":
		return e.Code
	case e.ExitCode != 0:
		return fmt.Sprintf("exit %d", e.ExitCode)
	case e.FromCache:
		return e.Status + " (its record)"
	}
	return e.Status
}

func auditShow(s *state) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show one call whole: who, what, which policies, what they answered, what came of it",
		Long: `Show a call by its execution id, or the beginning of it, or by the number of one of
its records. Callers choose execution ids: where several calls have one, each is
shown.

With --json, all that is kept of it: also what each policy was asked, from which it
can be asked again.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			dir, err := s.auditDir(cmd)
			if err != nil {
				return err
			}
			number, _ := strconv.ParseUint(a[0], 10, 64)
			list, err := audit.Calls(dir, audit.Query{Whole: true, Limit: 100, Match: func(e *audit.CallEntry) bool {
				return number > 0 && (e.N == number || e.EndN == number) || len(a[0]) >= 6 && strings.HasPrefix(e.Call.Execution, a[0])
			}})
			if err != nil {
				return err
			}
			if len(list) == 0 {
				return fmt.Errorf("no call %s in the audit log; toolctl audit log lists those there are", oneLine(a[0]))
			}
			if asJSON {
				return s.printJSON(list)
			}
			for i, e := range list {
				if i > 0 {
					fmt.Fprintln(s.out)
				}
				if err := s.showAudit(e); err != nil {
					return err
				}
			}
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (s *state) showAudit(e *audit.CallEntry) error {
	c, id := e.Call, &e.Call.Identity
	w, row := s.rows()
	number := strconv.FormatUint(e.N, 10)
	if e.EndN != 0 && e.EndN != e.N {
		number += fmt.Sprintf(" and %d", e.EndN)
	}
	row("record", number)
	row("time", e.At.Local().Format("2006-01-02 15:04:05.000 MST"))
	row("execution", c.Execution)
	row("session", c.Session)
	if c.Kind != "call" {
		row("kind", c.Kind)
	}
	row("parent", c.Parent)
	row("trace", first(c.Trace, c.TraceID))
	row("caller", auditCaller(id))
	row("issuer", id.Issuer)
	row("claims", strings.Join(pairs(id.Claims), ", "))
	process := fmt.Sprintf("uid %d", id.UID)
	if name := userName(id.UID); name != "" {
		process += " (" + name + ")"
	}
	if id.PID != 0 {
		process += fmt.Sprintf(", pid %d", id.PID)
	}
	row("process", process)
	row("identity", id.ID)
	if id.ReadOnly {
		row("may", "only read")
	}
	row("says of itself", c.CallerInfo)
	row("socket", c.Socket)
	row("call", auditCommand(c))
	row("withheld", c.Withheld)
	row("folder", c.Cwd)
	row("variables", strings.Join(c.Env, ", "))
	if c.Stdin > 0 {
		row("input", fmt.Sprintf("%d bytes with the request", c.Stdin))
	}
	row("key", c.Key)
	row("tool", oneLine(first(c.Source, c.Tool))+" "+first(brace("version", c.Version), "(not found)"))
	for _, p := range c.Policies {
		row("policy", p.File+" "+brace("sha256", p.SHA256))
	}
	if r := c.Runner; r != nil {
		row("runs", r.File+" "+brace("sha256", r.SHA256))
	}
	row("configuration", brace("sha256", c.Config))
	rowsOfDecision(row, c)
	row("not whole", strings.Join(c.Reduced, ", "))
	rowsOfEnd(row, e.End)
	return w.Flush()
}

// rowsOfDecision prints what the policies decided about a call.
func rowsOfDecision(row func(name, value string), c *audit.Call) {
	row("effect", c.Effect)
	row("rule", c.Rule)
	for _, a := range c.Asked {
		answer := first(a.Error, string(a.Decision))
		row("answer", filepath.Base(filepath.Dir(a.File))+"/"+filepath.Base(a.File)+": "+answer)
		for _, v := range a.Vars {
			row("var_get", v.Name+" "+brace("sha256", first(v.SHA256, "none")))
		}
	}
	if r := c.Runs; r != nil {
		row("changed", strings.Join(r.Changed, ", "))
		if slices.Contains(r.Changed, "args") {
			row("ran", auditCommand(&audit.Call{Tool: c.Tool, Args: r.Args}))
		}
		row("ran with", strings.Join(r.Env, ", "))
		row("class", map[bool]string{true: "mutating", false: "read-only"}[r.Mutating])
		row("key that counts", r.Key)
		if r.TimeoutMS > 0 {
			row("timeout", short(time.Duration(r.TimeoutMS)*time.Millisecond))
		}
		if r.Shell {
			row("shell", first(strings.Join(r.ShellLines, "; "), "any line"))
		}
	}
}

// rowsOfEnd prints the outcome of a call; x is nil if the outcome is unknown.
func rowsOfEnd(row func(name, value string), x *audit.End) {
	if x == nil {
		row("outcome", "no end was recorded: it still runs, or the daemon was killed, and how far it got is unknown")
		return
	}
	row("outcome", fmt.Sprintf("%s, exit code %d", auditOutcome(x), x.ExitCode))
	row("tool's code", x.ToolCode)
	row("message", x.Message)
	row("took", fmt.Sprintf("%s in %s", short(time.Duration(x.DurationMS)*time.Millisecond), several(x.Attempts, "attempt")))
	row("bytes", fmt.Sprintf("%d in, %d out", x.BytesIn, x.BytesOut))
	for _, p := range x.Programs {
		if p.Refused != "" {
			row("refused to execute", p.Path+": "+p.Refused)
		} else {
			row("executed", fmt.Sprintf("%s %d times", p.Path, p.Times))
		}
	}
	for _, c := range x.Connections {
		switch {
		case c.Refused != "" && c.On != "":
			row("refused to send", c.On+": "+c.Refused)
		case c.On != "" && c.Rule != "":
			row("allowed to send", fmt.Sprintf("%s, by rule %s, %d times", c.On, c.Rule, c.Times))
		case c.On != "":
			row("allowed to send", fmt.Sprintf("%s %d times", c.On, c.Times))
		case c.Refused != "":
			row("refused to connect", c.Host+": "+c.Refused)
		case c.Failed != "":
			row("failed to connect", c.Host+": "+c.Failed)
		default:
			row("connected", fmt.Sprintf("%s %d times, %d bytes sent, %d received", c.Host, c.Times, c.Sent, c.Received))
		}
	}
}

// brace formats a named value; without a value it returns "".
func brace(name, value string) string {
	if value == "" {
		return ""
	}
	return "(" + name + " " + value + ")"
}

func auditVerify(s *state) *cobra.Command {
	var anchor string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check that nothing in the audit log was changed, inserted or removed",
		Long: `Check the chain over all segments of the audit log: each record, their order, and
that it ends where its head says. The exit code is 1 where it is damaged, and the
first place is printed.

What it prints as anchor, kept elsewhere and given again with --anchor, finds a log
that was rewritten as a whole.`,
		Example: `  toolctl audit verify
  toolctl audit verify --anchor 1742:9f2c...`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var known *audit.Anchor
			if anchor != "" {
				n, hash, ok := strings.Cut(anchor, ":")
				number, err := strconv.ParseUint(n, 10, 64)
				if !ok || err != nil || number == 0 || len(hash) != 64 {
					return usageError{fmt.Errorf("--anchor %q: give NUMBER:HASH, as toolctl audit verify printed it", anchor)}
				}
				known = &audit.Anchor{N: number, Hash: strings.ToLower(hash)}
			}
			dir, err := s.auditDir(cmd)
			if err != nil {
				return err
			}
			r, err := audit.Verify(dir, known)
			broken, isBroken := errors.AsType[*audit.Damage](err)
			if err != nil && !isBroken {
				return err
			}
			if asJSON {
				err := s.printJSON(struct {
					audit.Report
					Broken *audit.Damage `json:"broken,omitempty"`
				}{r, broken})
				return cmp.Or(err, map[bool]error{true: exitStatus(1)}[isBroken])
			}
			if isBroken {
				fmt.Fprintf(s.out, "broken at %s, byte %d\n%s\n", broken.File, broken.Offset, broken.Reason)
				if broken.Record > 0 {
					fmt.Fprintf(s.out, "record %d\n", broken.Record)
				}
				return exitStatus(1)
			}
			if r.Records == 0 {
				_, err := fmt.Fprintln(s.out, "nothing was written yet")
				return err
			}
			w, row := s.rows()
			row("intact", fmt.Sprintf("records %d to %d in %s", r.First, r.Last, several(r.Segments, "segment")))
			row("from", when(r.From))
			row("to", when(r.To))
			if r.Pruned > 0 {
				row("removed", fmt.Sprintf("%s, as old or too many", several(int(r.Pruned), "segment")))
			}
			if r.Lost > 0 {
				row("lost", fmt.Sprintf("%s that could not be written, or that were lost in a crash of the machine", several(int(r.Lost), "record")))
			}
			row("anchor", fmt.Sprintf("%d:%s", r.Last, r.Hash))
			return w.Flush()
		},
	}
	cmd.Flags().StringVar(&anchor, "anchor", "", "NUMBER:HASH of a record that is known from elsewhere")
	jsonFlag(cmd, &asJSON)
	return cmd
}
