package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/events"
)

func sessionWatch(s *state) *cobra.Command {
	var all, asJSON, quiet bool
	var after string
	cmd := &cobra.Command{
		Use:   "watch [ID]",
		Short: "Show what happens in sessions, as it happens",
		Long: `Show calls that begin and end, their output, steering, jobs and states, as they
happen: of one session, until it is closed, or of all of the caller's.

With --json each event is one line. The cursor of any of them goes to --after, and
the watch resumes there; what could not be kept meanwhile is said in an event "lost".
An operator (--all) sees everybody's sessions, and of output the last line.`,
		Example: `  toolctl session watch $TOOL_SESSION
  toolctl session watch --json | jq -c 'select(.event == "end")'`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, ids []string) error {
			calls, err := s.sessions(all)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			id := first(append(ids, "")...)
			if id == "" && !all {
				id = os.Getenv("TOOL_SESSION")
			}
			p := eventPrinter{s: s, one: id != "", quiet: quiet}
			err = calls.Watch(ctx, id, after, func(e events.Event) error {
				if e.Cursor != "" {
					after = e.Cursor
				}
				if asJSON {
					return printLine(s, e)
				}
				return p.print(e)
			})
			if err != nil && after != "" && !asJSON {
				fmt.Fprintf(s.err, "toolctl: to go on where this ends: --after %s\n", after)
			}
			if ctx.Err() != nil && errors.Is(err, context.Canceled) {
				return nil // the usual way to end a watch
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&after, "after", "", "resume after the event with this cursor")
	f.BoolVar(&quiet, "quiet", false, "leave out what calls write")
	allFlag(cmd, &all)
	jsonFlag(cmd, &asJSON)
	return cmd
}

func printLine(s *state, e events.Event) error {
	line, err := json.Marshal(e)
	if err == nil {
		_, err = fmt.Fprintf(s.out, "%s\n", line)
	}
	return err
}

// eventPrinter prints events for people: one line each, and one for each line of output.
type eventPrinter struct {
	s     *state
	one   bool // all events are of the same session
	quiet bool
}

func (p *eventPrinter) print(e events.Event) error {
	var what []string
	switch e.Kind {
	case events.Ready:
		return nil
	case events.Output:
		if p.quiet {
			return nil
		}
		text := string(e.Data)
		if e.Data == nil {
			text = e.LastLine
		}
		for line := range strings.Lines(strings.ToValidUTF8(text, "\uFFFD")) {
			if err := p.line(e, e.Tool, e.Stream+":", oneLine(strings.TrimRight(line, "\r\n"))); err != nil {
				return err
			}
		}
		return nil
	case events.Begin:
		what = []string{e.Tool, e.Type}
	case events.Attempt:
		if e.Attempt == 1 {
			return nil // its start was printed already
		}
		what = []string{e.Tool, fmt.Sprintf("#%d", e.Attempt)}
	case events.Steer:
		what = []string{e.Tool, fmt.Sprintf("%d bytes", e.Bytes)}
		if e.EOF {
			what = append(what, "and the end")
		}
	case events.End:
		what = []string{e.Tool, outcomeText(e.Status, e.Code, e.ExitCode), short(time.Duration(e.DurationMS) * time.Millisecond)}
	case events.Queue:
		what = []string{fmt.Sprintf("%d turns wait", e.Queued)}
	case events.Job:
		what = []string{e.Tool, e.State, e.Execution}
	case events.State:
		what = []string{e.State}
	case events.Settings:
		what = []string{e.Name}
	case events.Tool:
		what = []string{e.Tool, e.Change}
	case events.Discovery:
		what = []string{e.Tool, first(string(e.Code), "ok")}
	case events.Lost:
		what = []string{lossText(e.Lost)}
	default:
		what = []string{e.Reason}
	}
	return p.line(e, append([]string{string(e.Kind)}, what...)...)
}

// line prints one event on a line.
func (p *eventPrinter) line(e events.Event, words ...string) error {
	at := e.At
	if at.IsZero() {
		at = time.Now()
	}
	head := at.Local().Format("15:04:05.000")
	if !p.one {
		head += " " + pad(e.Session, 8)
	}
	for i, w := range words {
		words[i] = oneLine(w)
	}
	_, err := fmt.Fprintf(p.s.out, "%s  %s\n", head, strings.TrimRight(strings.Join(words, " "), " "))
	return err
}

func lossText(l *events.Loss) string {
	switch {
	case l == nil:
		return ""
	case l.Reset:
		return "what happened since: the daemon does not have it any more"
	}
	text := fmt.Sprintf("%d pieces of output, %d bytes", l.Output, l.Bytes)
	if l.State > 0 {
		text = fmt.Sprintf("%d events, ", l.State) + text
	}
	return text
}

// follow watches until ctx is done, and starts again when the connection to the daemon is lost. It sends events and
// errors to ch, which must be read until ctx is done.
func follow(ctx context.Context, calls *client.Sessions, again time.Duration, ch chan<- told) {
	after := ""
	for ctx.Err() == nil {
		err := calls.Watch(ctx, "", after, func(e events.Event) error {
			if e.Cursor != "" {
				after = e.Cursor
			}
			select {
			case ch <- told{event: e}:
			case <-ctx.Done():
			}
			return nil
		})
		if err != nil {
			select {
			case ch <- told{err: err}:
			case <-ctx.Done():
			}
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
		}
	}
}
