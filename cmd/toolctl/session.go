package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

func sessionVerb(s *state) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "session",
		Short: "Create, show, watch, prompt, steer, abort and close sessions",
		Long: `A session is what a piece of work has for itself: the calls that run in it, one
turn at a time, its counters and its journal. Every caller has one named default;
further ones are made with new and named by their ids.

With --all, list, show, query, watch, abort, steer and close are the operator's: they
go over the admin socket, and every caller's sessions are there.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, verb := range []func(*state) *cobra.Command{
		sessionNew, sessionList, sessionShow, sessionQuery, sessionMutate, sessionPrompt, sessionAbort, sessionSteer, sessionClose, sessionWatch,
	} {
		cmd.AddCommand(verb(s))
	}
	return cmd
}

// sessions returns the client that makes the session calls: with a wrapper's identity or, with all, as the operator.
func (s *state) sessions(all bool) (*client.Sessions, error) {
	p := s.places()
	if all {
		return &client.Sessions{Operator: client.NewAdmin(p.Admin)}, nil
	}
	token := os.Getenv("TOOL_TOKEN")
	if file := os.Getenv("TOOL_TOKEN_FILE"); file != "" && token == "" {
		var err error
		if token, err = s.readToken(file); err != nil {
			return nil, err
		}
	}
	return &client.Sessions{Socket: p.Socket, Token: token}, nil
}

// do makes one of the six calls and decodes its data into answer.
func (s *state) do(cmd *cobra.Command, all bool, q client.SessionCall, answer any) error {
	c, err := s.sessions(all)
	if err != nil {
		return err
	}
	data, err := c.Do(cmd.Context(), q)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, answer)
}

// query runs a query about sessions.
func (s *state) query(cmd *cobra.Command, all bool, id, selector string, value any) error {
	c, err := s.sessions(all)
	if err != nil {
		return err
	}
	return c.Query(cmd.Context(), id, selector, value)
}

func allFlag(cmd *cobra.Command, all *bool) {
	cmd.Flags().BoolVar(all, "all", false, "ask as the operator, over the admin socket: every caller's")
}

func jsonFlag(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print JSON")
}

func sessionNew(s *state) *cobra.Command {
	var name, cwd, parent, key string
	var labels map[string]string
	var tools []string
	var asJSON, persist bool
	cmd := &cobra.Command{
		Use:   "new",
		Short: "Create a session and print its id",
		Example: `  export TOOL_SESSION=$(toolctl session new --name release)
  toolctl session new --parent $TOOL_SESSION --tools git,npm`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			params := map[string]any{"name": name, "cwd": cwd, "parent": parent, "labels": labels}
			for k, v := range params {
				if v == "" {
					delete(params, k)
				}
			}
			if len(labels) == 0 {
				delete(params, "labels")
			}
			if tools != nil {
				params["tools"] = tools
			}
			if cmd.Flags().Changed("persist") { // otherwise as the daemon and the parent have it
				params["persist"] = persist
			}
			var made struct {
				ID string `json:"id"`
			}
			q := client.SessionCall{Name: "mutate", Payload: map[string]any{"op": "create", "params": params}, Key: key}
			if err := s.do(cmd, false, q, &made); err != nil {
				return err
			}
			if asJSON {
				return s.printJSON(made)
			}
			_, err := fmt.Fprintln(s.out, made.ID)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&name, "name", "", "its name")
	f.StringVar(&cwd, "cwd", "", "the folder of its turns (default the first root of the daemon)")
	f.StringVar(&parent, "parent", "", "the parent session, with which it is closed")
	f.StringToStringVar(&labels, "label", nil, "NAME=VALUE, for your own use")
	f.StringSliceVar(&tools, "tools", nil, "the only tools that can be called in it")
	f.BoolVar(&persist, "persist", true, "keep a journal of it; with --persist=false it is in memory only, and a restart forgets it (default as its parent, or the daemon)")
	f.Lookup("persist").DefValue = ""
	f.StringVar(&key, "key", "", "idempotency key: repeating the call returns the same session")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func sessionList(s *state) *cobra.Command {
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List sessions",
		Args:  args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list []client.SessionInfo
			if err := s.query(cmd, all, "", "sessions", &list); err != nil {
				return err
			}
			if asJSON {
				return s.printJSON(list)
			}
			w := tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "SESSION\tNAME\tSTATE\tRUNNING\tCALLS\tUSED\tFROM")
			for _, i := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s ago\t%s\n", i.ID, sessionName(&i), i.State, len(i.Running), i.Telemetry.Calls, since(i.Used), first(peers(&i), "-"))
			}
			return w.Flush()
		},
	}
	allFlag(cmd, &all)
	jsonFlag(cmd, &asJSON)
	return cmd
}

func sessionName(i *client.SessionInfo) string {
	if i.Default && i.Name == "" {
		return "(default)"
	}
	return first(oneLine(i.Name), "-")
}

// peers names the callers in a session: by container, else by process, else by the socket that they used. If there are
// several, it names the last one and how many more there are.
func peers(i *client.SessionInfo) string {
	if len(i.Peers) == 0 {
		return ""
	}
	p := i.Peers[0]
	who := first(oneLine(p.Socket), "the daemon")
	switch {
	case len(p.Container) >= 12:
		who = oneLine(p.Container[:12])
	case p.PID != 0:
		who = fmt.Sprintf("pid %d", p.PID)
	}
	if more := len(i.Peers) - 1; more > 0 {
		who += fmt.Sprintf(" +%d", more)
	}
	return who
}

// since returns how long ago t was, formatted for people.
func since(t time.Time) string { return short(time.Since(t)) }

func short(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}

func sessionShow(s *state) *cobra.Command {
	var all, asJSON, journal bool
	cmd := &cobra.Command{
		Use:   "show [ID]",
		Short: "Show one session: running and recent calls, and counters",
		Long: `Show one session, by default the default one.

With --journal, print its journal instead: one record a line, as JSON, the intent
before each call and its outcome after. No argument, input or output is in it.`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, ids []string) error {
			id := first(append(ids, os.Getenv("TOOL_SESSION"))...)
			if journal {
				var records []json.RawMessage
				if err := s.query(cmd, all, id, "session.journal", &records); err != nil {
					return err
				}
				for _, r := range records {
					fmt.Fprintf(shown(s.out), "%s\n", r)
				}
				var info client.SessionInfo
				if err := s.query(cmd, all, id, "session", &info); err == nil && info.Journal.Skipped+info.Journal.Lost > 0 {
					fmt.Fprintf(s.err, "toolctl: %d damaged lines were passed over, %d records could not be written %s\n", info.Journal.Skipped, info.Journal.Lost, oneLine(info.Journal.Error))
				}
				return nil
			}
			var raw json.RawMessage
			if err := s.query(cmd, all, id, "session", &raw); err != nil {
				return err
			}
			if asJSON {
				return s.printJSON(raw)
			}
			var info client.SessionInfo
			if err := json.Unmarshal(raw, &info); err != nil {
				return err
			}
			return s.showSession(&info)
		},
	}
	allFlag(cmd, &all)
	jsonFlag(cmd, &asJSON)
	cmd.Flags().BoolVar(&journal, "journal", false, "print its journal")
	return cmd
}

func (s *state) showSession(i *client.SessionInfo) error {
	w, row := s.rows()
	row("session", i.ID)
	row("name", sessionName(i))
	row("state", i.State)
	row("folder", i.Cwd)
	row("parent", i.Parent)
	row("children", strings.Join(i.Children, ", "))
	if i.Tools != nil {
		row("tools", first(strings.Join(i.Tools, ", "), "none"))
	}
	row("labels", strings.Join(pairs(i.Labels), ", "))
	row("created", when(i.Created))
	row("used", since(i.Used)+" ago")
	row("from", peers(i))
	t := &i.Telemetry
	row("calls", fmt.Sprintf("%d in %d attempts, %s in all", t.Calls, t.Attempts, short(time.Duration(t.DurationMS)*time.Millisecond)))
	row("bytes", fmt.Sprintf("%d in, %d out", t.BytesIn, t.BytesOut))
	row("journal", i.Journal.Error)
	if err := w.Flush(); err != nil {
		return err
	}
	w = tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
	if len(i.Running)+len(i.Recent) > 0 {
		fmt.Fprintln(w, "\nEXECUTION\tKIND\tTOOL\tSTATE\tTOOK\tLAST LINE")
	}
	for _, r := range i.Running {
		fmt.Fprintf(w, "%s\t%s\t%s\trunning\t%s\t%s\n", r.Execution, r.Kind, oneLine(r.Tool), short(time.Duration(r.ElapsedMS)*time.Millisecond), oneLine(r.LastLine))
	}
	for n := len(i.Recent) - 1; n >= 0; n-- {
		r := i.Recent[n]
		note := ""
		if r.Undelivered > 0 {
			note = fmt.Sprintf("%d bytes of steering were not read", r.Undelivered)
		}
		for _, p := range r.Programs {
			if p.Refused != "" {
				note = fmt.Sprintf("refused to execute %s: %s", oneLine(p.Path), p.Refused)
			}
		}
		for _, c := range r.Connections {
			switch {
			case c.Refused != "" && c.On != "":
				note = oneLine(c.Refused)
			case c.Refused != "":
				note = fmt.Sprintf("refused to connect to %s: %s", oneLine(c.Host), oneLine(c.Refused))
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Execution, r.Kind, oneLine(r.Tool), outcomeText(r.Status, r.Code, r.ExitCode), short(time.Duration(r.DurationMS)*time.Millisecond), note)
	}
	return w.Flush()
}

// outcomeText describes in a word or two how a call ended.
func outcomeText(status string, code fault.Code, exit int) string {
	switch {
	case code != "":
		return string(code)
	case exit != 0:
		return fmt.Sprintf("exit %d", exit)
	}
	return status
}

func sessionQuery(s *state) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "query ID [SELECTOR]",
		Short: "Query a session with a CEL expression",
		Long: `Evaluate a CEL expression (cel.dev) over a snapshot and print the value as JSON.
The variables are session (the one that is named), sessions and jobs (all of the
caller's). session.journal is its journal, and a job's stdout and stderr are there
when the expression names them.`,
		Example: `  toolctl session query default 'session.running.map(x, x.tool)'
  toolctl session query default 'sessions.filter(s, s.state == "active").size()'`,
		Args: args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, words []string) error {
			var value json.RawMessage
			if err := s.query(cmd, all, words[0], strings.Join(words[1:], ""), &value); err != nil {
				return err
			}
			return s.printJSON(value)
		},
	}
	allFlag(cmd, &all)
	return cmd
}

func sessionMutate(s *state) *cobra.Command {
	var params, key string
	cmd := &cobra.Command{
		Use:   "mutate ID OPERATION",
		Short: "Change a session: rename, label, set-tools, suspend, resume, flush ...",
		Long: `Do one operation on a session. There are:

  create      {"cwd", "parent", "name", "labels", "tools"}, see toolctl session new
  rename      {"name": "..."}
  label       {"labels": {"name": "value"}}; an empty value takes the label away
  set-tools   {"tools": ["git"]}; without tools, all can be called again
  suspend     its journal goes to the disk; its next call resumes it
  resume
  flush       its journal goes to the disk
  close       see toolctl session close
  cancel-job  {"job": "..."}, see toolctl jobs cancel

focus, which has later calls of the same connection belong to the session, is there
for programs: toolctl has a connection for each call.`,
		Example: `  toolctl session mutate default rename --params '{"name": "mine"}'`,
		Args:    args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, words []string) error {
			payload := map[string]any{"id": words[0], "op": words[1]}
			if params != "" {
				object, err := jsonObject("--params", []byte(params))
				if err != nil {
					return err
				}
				payload["params"] = object
			}
			var answer json.RawMessage
			if err := s.do(cmd, false, client.SessionCall{Name: "mutate", Payload: payload, Key: key}, &answer); err != nil {
				return err
			}
			return s.printJSON(answer)
		},
	}
	cmd.Flags().StringVar(&params, "params", "", "a JSON object: the operation's parameters")
	cmd.Flags().StringVar(&key, "key", "", "idempotency key: repeating the call does not repeat the operation")
	return cmd
}

func sessionPrompt(s *state) *cobra.Command {
	var envelope, key, timeout string
	var queue, background bool
	cmd := &cobra.Command{
		Use:   "prompt ID [flags] -- COMMAND...",
		Short: "Run a command as the session's turn",
		Long: `Run one command as the turn of a session and show its output as it comes. A
session has one turn at a time; the standard input of the turn stays open, and
toolctl session steer writes to it.

One word is a command line, which is split as a shell would, with nothing expanded;
several are the tool and its arguments as they are. The exit code is the tool's.`,
		Example: `  toolctl session prompt default -- git log -1
  toolctl session prompt $TOOL_SESSION "git commit -m 'one message'"`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, words []string) error {
			payload := map[string]any{"id": words[0]}
			switch {
			case envelope != "" && len(words) > 1:
				return usageError{errors.New("--envelope replaces the command")}
			case envelope != "":
				object, err := jsonObject("--envelope", []byte(envelope))
				if err != nil {
					return err
				}
				payload["envelope"] = object
			case len(words) == 1:
				return usageError{errors.New("no command; name a tool after the session")}
			case len(words) == 2:
				payload["text"] = words[1]
			default:
				payload["text"] = quoteWords(words[1:])
			}
			if queue {
				payload["queue"] = true
			}
			q := client.SessionCall{Payload: payload, Key: key}
			if timeout != "" {
				d, err := parseTimeout(timeout)
				if err != nil {
					return usageError{err}
				}
				q.Timeout = d
			}
			c, err := s.sessions(false)
			if err != nil {
				return err
			}
			if background {
				return s.promptJob(cmd, c, q)
			}
			signals, stop := forwarded()
			defer stop()
			r, err := c.Prompt(cmd.Context(), q, wire.Local{Stdout: s.out, Stderr: s.err, Signals: signals})
			if err != nil {
				return err
			}
			if r.Ran && len(r.Data) > 0 && strings.HasPrefix(string(r.Data), `{"exit_code":`) {
				r.Data = nil // the output was streamed
			}
			if r.Err != nil && r.Err.Code == fault.ToolFailed && r.Ran && r.ExitCode != 0 && len(r.Data) == 0 {
				return exitStatus(r.ExitCode) // the tool's own output has the reason
			}
			return s.answer(r, wire.Envelope, false)
		},
	}
	f := cmd.Flags()
	f.StringVar(&envelope, "envelope", "", `a JSON object, {"toolId", "payload"}: the turn, instead of a command`)
	f.BoolVar(&queue, "queue", false, "wait while another turn runs")
	f.BoolVar(&background, "background", false, "print the turn's id as a job and let it run")
	f.StringVar(&key, "key", "", "idempotency key of the turn's call")
	f.StringVar(&timeout, "timeout", "", "time limit: seconds, or with a unit, such as 1m30s")
	return cmd
}

// promptJob runs a turn in the background.
func (s *state) promptJob(cmd *cobra.Command, c *client.Sessions, q client.SessionCall) error {
	data, err := json.Marshal(q.Payload)
	if err != nil {
		return err
	}
	r, err := client.Call(cmd.Context(), c.Socket, &wire.Call{
		Form: wire.Envelope, Tool: "session.prompt", ExecutionID: wire.NewExecutionID(), Payload: data, Token: c.Token, IdempotencyKey: q.Key, Timeout: q.Timeout, Background: true,
	})
	if err != nil {
		return err
	}
	if r.Err != nil {
		return r.Err
	}
	_, err = fmt.Fprintln(s.out, r.ExecutionID)
	return err
}

// quoteWords joins words into a command line that splits into the same words.
func quoteWords(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

func sessionAbort(s *state) *cobra.Command {
	var all, asJSON bool
	var execution string
	cmd := &cobra.Command{
		Use:   "abort ID",
		Short: "Abort the turn and the calls of a session",
		Long: `End the turn and all calls of a session, or with --execution one of them, jobs
included. A call that had begun to change something has an unknown outcome; that is
said. Where nothing runs, nothing happens.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, ids []string) error {
			payload := map[string]any{"id": ids[0]}
			if execution != "" {
				payload["execution"] = execution
			}
			var answer struct {
				Aborted []struct {
					Execution string     `json:"execution"`
					Tool      string     `json:"tool"`
					Kind      string     `json:"kind"`
					Outcome   fault.Code `json:"outcome"`
				} `json:"aborted"`
			}
			if err := s.do(cmd, all, client.SessionCall{Name: "abort", Payload: payload}, &answer); err != nil {
				return err
			}
			if asJSON {
				return s.printJSON(answer)
			}
			if len(answer.Aborted) == 0 {
				fmt.Fprintln(s.out, "nothing was running")
			}
			for _, a := range answer.Aborted {
				fmt.Fprintf(s.out, "%s  %s %s: %s\n", a.Execution, a.Kind, oneLine(a.Tool), a.Outcome)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&execution, "execution", "", "abort only this one")
	allFlag(cmd, &all)
	jsonFlag(cmd, &asJSON)
	return cmd
}

func sessionSteer(s *state) *cobra.Command {
	var all, eof, raw bool
	var execution, wait string
	cmd := &cobra.Command{
		Use:   "steer ID [TEXT...]",
		Short: "Write a line to the running turn, or to a call",
		Long: `Write to what runs: the standard input of a program, or what a module reads next.
The text gets a line break, unless there is --raw; "-" sends each line of the
standard input. What was not delivered is said: the exit code is then not 0, or
the text waits to be read, which is said, too.`,
		Example: `  toolctl session steer default yes
  toolctl session steer default --eof`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, words []string) error {
			send := func(text string, eof bool) error {
				payload := map[string]any{"id": words[0], "text": text}
				if execution != "" {
					payload["execution"] = execution
				}
				if eof {
					payload["eof"] = true
				}
				q := client.SessionCall{Name: "steer", Payload: payload}
				if wait != "" {
					d, err := parseTimeout(wait)
					if err != nil {
						return usageError{err}
					}
					q.Timeout = d
				}
				var answer struct {
					Delivered bool `json:"delivered"`
				}
				if err := s.do(cmd, all, q, &answer); err != nil {
					return err
				}
				if !answer.Delivered {
					fmt.Fprintln(s.err, "toolctl: not read yet; it waits for the call to read it")
				}
				return nil
			}
			if len(words) == 2 && words[1] == "-" {
				in := bufio.NewReader(s.in)
				for {
					line, err := in.ReadString('\n')
					if line != "" {
						if err := send(line, false); err != nil {
							return err
						}
					}
					if errors.Is(err, io.EOF) {
						break
					}
					if err != nil {
						return fmt.Errorf("read the standard input: %w", err)
					}
				}
				if eof {
					return send("", true)
				}
				return nil
			}
			text := strings.Join(words[1:], " ")
			if len(words) > 1 && !raw {
				text += "\n"
			}
			if text == "" && !eof {
				return usageError{errors.New("no text; give one, or --eof to end the input")}
			}
			return send(text, eof)
		},
	}
	f := cmd.Flags()
	f.StringVar(&execution, "execution", "", "write to this call, not to the turn")
	f.BoolVar(&eof, "eof", false, "also end the input of the turn")
	f.BoolVar(&raw, "raw", false, "add no line break")
	f.StringVar(&wait, "wait", "", "how long to wait until it is read (default 1s)")
	allFlag(cmd, &all)
	return cmd
}

func sessionClose(s *state) *cobra.Command {
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:   "close ID...",
		Short: "Close sessions, their children first",
		Long: `Close sessions. Nothing can be called in them from then on; what runs has 5 seconds
to end, and detached jobs as long as they take. Closing again is no error.`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, ids []string) error {
			for _, id := range ids {
				var answer struct {
					ID      string   `json:"id"`
					Running []string `json:"running"`
					GraceMS int64    `json:"grace_ms"`
				}
				if err := s.do(cmd, all, client.SessionCall{Name: "mutate", Payload: map[string]any{"id": id, "op": "close"}}, &answer); err != nil {
					return err
				}
				switch {
				case asJSON:
					if err := s.printJSON(answer); err != nil {
						return err
					}
				case len(answer.Running) > 0:
					fmt.Fprintf(s.out, "%s closed; %d calls still run and have %s to end, or are detached\n", answer.ID, len(answer.Running), short(time.Duration(answer.GraceMS)*time.Millisecond))
				default:
					fmt.Fprintf(s.out, "%s closed\n", answer.ID)
				}
			}
			return nil
		},
	}
	allFlag(cmd, &all)
	jsonFlag(cmd, &asJSON)
	return cmd
}
