package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/events"
)

func topVerb(s *state) *cobra.Command {
	var mine bool
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch sessions, running calls, breakers and tools in the terminal",
		Long: `Show the daemon's activity live: every session with the calls that run in
it, how long they have taken and the last line they wrote; circuit breakers that are
not closed; tools with which something is wrong. The daemon tells what happens, as
it does "toolctl session watch"; it is asked only where that is not enough.

Keys: up and down choose a session or a call; a aborts it, s writes a line to it,
c closes the session; p shows the requests for approvals, where y approves what was
shown whole and n denies it; q leaves.

The operator sees everybody's sessions; --mine shows the caller's own, and needs no
admin socket.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			calls, err := s.sessions(!mine)
			if err != nil {
				return err
			}
			var admin *client.Admin
			if !mine {
				admin = client.NewAdmin(s.places().Admin)
			}
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			first := watch(ctx, calls, admin)
			if first.err != nil {
				return daemonError(first.err)
			}
			m := topModel{ctx: ctx, calls: calls, admin: admin, every: every, width: 80, height: 24, told: make(chan told, 256)}
			m.take(first)
			done := make(chan struct{})
			go func() {
				defer close(done)
				follow(ctx, calls, max(every, 100*time.Millisecond), m.told)
			}()
			defer func() { cancel(); <-done }()
			_, err = tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(s.in), tea.WithOutput(s.out)).Run()
			return err
		},
	}
	cmd.Flags().BoolVar(&mine, "mine", false, "only the caller's own sessions, over the tool socket")
	cmd.Flags().DurationVar(&every, "every", 500*time.Millisecond, "interval at which times are redrawn")
	return cmd
}

// seen is the daemon's state at one moment.
type seen struct {
	at       time.Time
	status   *adminapi.HostStatus // nil for --mine
	sessions []client.SessionInfo
	breakers []adminapi.BreakerStatus
	tools    []adminapi.ToolStatus
	err      error
}

// watch queries the daemon once.
func watch(ctx context.Context, calls *client.Sessions, admin *client.Admin) seen {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	v := seen{at: time.Now()}
	v.err = calls.Query(ctx, "", "sessions", &v.sessions)
	if admin == nil || v.err != nil {
		return v
	}
	if v.status, v.err = admin.Status(ctx); v.err != nil {
		return v
	}
	if v.breakers, v.err = admin.Breakers(ctx); v.err != nil {
		return v
	}
	v.tools, v.err = admin.Tools(ctx)
	return v
}

// topModel is the state of the screen. Update and View are pure, apart from the commands that Update returns.
type topModel struct {
	ctx   context.Context
	calls *client.Sessions
	admin *client.Admin
	every time.Duration
	told  chan told

	// stale means that events alone cannot tell what happened; asking means that a query is under way.
	stale, asking bool

	width, height int
	seen          seen
	rows          []topRow
	at            int    // index of the selected row
	chosen        string // its key: it stays selected when rows come and go
	mode          topMode
	text          string // text typed in modeSteer
	said          string // result of the last key
	review        review // in modeApprove
}

type topMode int

const (
	modeList    topMode = iota
	modeSteer           // a line is being typed
	modeClose           // closing awaits confirmation
	modeApprove         // a request is on the screen
)

// topRow is one line that can be selected: a session, or a call that runs in it.
type topRow struct {
	session   *client.SessionInfo
	execution *client.RunningCall // nil for the session itself
}

func (r topRow) key() string {
	if r.execution != nil {
		return r.session.ID + " " + r.execution.Execution
	}
	return r.session.ID
}

// Messages: tick redraws the screen, done is the result of a call, happened is a batch of events from the daemon.
type (
	tick     time.Time
	done     struct{ text string }
	happened []told
)

// told is an event, or the reason why there are none for now.
type told struct {
	event events.Event
	err   error
}

func (m topModel) Init() tea.Cmd { return tea.Batch(m.later(), m.listen()) }

func (m topModel) later() tea.Cmd {
	return tea.Tick(m.every, func(at time.Time) tea.Msg { return tick(at) })
}

// maxTold limits the events processed before the screen is drawn.
const maxTold = 1000

// listen waits for events from the daemon.
func (m topModel) listen() tea.Cmd {
	return func() tea.Msg {
		var list happened
		select {
		case t := <-m.told:
			list = append(list, t)
		case <-m.ctx.Done():
			return nil
		}
		for len(list) < maxTold {
			select {
			case t := <-m.told:
				list = append(list, t)
			default:
				return list
			}
		}
		return list
	}
}

// take updates the screen with a new state.
func (m *topModel) take(v seen) {
	if v.err != nil {
		m.seen.err = v.err // the last good state stays on the screen
		return
	}
	m.seen = v
	m.arrange()
}

// arrange builds the rows.
func (m *topModel) arrange() {
	m.rows = nil
	for i := range m.seen.sessions {
		s := &m.seen.sessions[i]
		m.rows = append(m.rows, topRow{session: s})
		for j := range s.Running {
			m.rows = append(m.rows, topRow{s, &s.Running[j]})
		}
	}
	for i, r := range m.rows {
		if r.key() == m.chosen {
			m.at = i
		}
	}
	m.move(0)
}

// move selects another row.
func (m *topModel) move(by int) {
	m.at = max(0, min(m.at+by, len(m.rows)-1))
	m.chosen = ""
	if len(m.rows) > 0 {
		m.chosen = m.rows[m.at].key()
	}
}

func (m topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tick:
		m.seen.at = time.Time(msg)
		if !m.stale || m.asking {
			return m, m.later()
		}
		m.stale, m.asking = false, true
		return m, tea.Batch(m.later(), func() tea.Msg { return watch(m.ctx, m.calls, m.admin) })
	case happened:
		// The sessions are shared with older models, and drawn by others.
		m.seen.sessions = slices.Clone(m.seen.sessions)
		for _, t := range msg {
			m.hear(t)
		}
		m.arrange()
		return m, m.listen()
	case seen:
		m.asking = false
		m.stale = m.stale || msg.err != nil
		m.take(msg)
	case done:
		m.said = msg.text
	case reviewed:
		m.takeReview(msg)
	case tea.PasteMsg:
		if m.mode == modeSteer {
			m.text += oneLine(msg.Content)
		}
	case tea.KeyPressMsg:
		return m.key(msg)
	}
	return m, nil
}

// hear applies one event. Its change may already be part of seen: a response is newer than the events before it.
func (m *topModel) hear(t told) {
	if t.err != nil {
		m.seen.err = t.err
		return
	}
	e := &t.event
	switch e.Kind {
	case events.Ready: // earlier events are missing
		m.stale = true
		return
	case events.Lost:
		m.stale = m.stale || e.Lost.Reset || e.Lost.State > 0
		return
	case events.Tool:
		m.stale = true
		return
	case events.Approval:
		m.hearApproval(e)
		return
	}
	i := slices.IndexFunc(m.seen.sessions, func(s client.SessionInfo) bool { return s.ID == e.Session })
	if e.Kind == events.State && (e.State == "closing" || e.State == events.Closed) {
		if i >= 0 {
			m.seen.sessions = slices.Delete(m.seen.sessions, i, i+1)
		}
		return
	}
	if i < 0 {
		m.stale = true // its name is unknown
		m.seen.sessions = append(m.seen.sessions, client.SessionInfo{ID: e.Session, Owner: e.Owner, State: "active", Used: e.At})
		i = len(m.seen.sessions) - 1
	}
	s := &m.seen.sessions[i]
	s.Running = slices.Clone(s.Running)
	at := slices.IndexFunc(s.Running, func(x client.RunningCall) bool { return x.Execution == e.Execution })
	switch e.Kind {
	case events.State:
		s.State = e.State
	case events.Settings:
		s.Name = e.Name
	case events.Begin:
		s.Used, s.State = e.At, "active"
		if at < 0 {
			s.Running = append(s.Running, client.RunningCall{Execution: e.Execution, Tool: e.Tool, Kind: e.Type, Job: e.Job, Started: e.At})
		}
	case events.Attempt:
		if at >= 0 {
			s.Running[at].Attempts, s.Running[at].Mutating = e.Attempt, e.Mutating
		}
	case events.Output:
		if at >= 0 && e.LastLine != "" {
			s.Running[at].LastLine = e.LastLine
		}
	case events.End:
		s.Used = e.At
		if at >= 0 {
			s.Running = slices.Delete(s.Running, at, at+1)
			s.Telemetry.Calls++
		}
		s.Recent = []client.EndedCall{{Execution: e.Execution, Tool: e.Tool, Kind: e.Type, Status: e.Status, Code: e.Code, ExitCode: e.ExitCode}}
		m.stale = m.stale || e.Code != "" // a breaker may have opened for it
	}
}

func (m topModel) key(k tea.KeyPressMsg) (tea.Model, tea.Cmd) {
	name := k.String()
	if name == "ctrl+c" {
		return m, tea.Quit
	}
	if m.mode == modeSteer {
		switch name {
		case "esc":
			m.mode, m.text = modeList, ""
		case "enter":
			text := m.text
			m.mode, m.text = modeList, ""
			return m, m.steer(text)
		case "backspace":
			_, n := utf8.DecodeLastRuneInString(m.text)
			m.text = m.text[:len(m.text)-n]
		default:
			m.text += k.Text
		}
		return m, nil
	}
	if m.mode == modeClose {
		m.mode = modeList
		if name == "y" {
			return m, m.close()
		}
		m.said = "not closed"
		return m, nil
	}
	if m.mode == modeApprove {
		return m.reviewKey(name)
	}
	switch name {
	case "q", "esc":
		return m, tea.Quit
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "pgup":
		m.move(-10)
	case "pgdown":
		m.move(10)
	case "home", "g":
		m.move(-len(m.rows))
	case "end", "G":
		m.move(len(m.rows))
	case "a":
		return m, m.abort()
	case "s":
		if len(m.rows) > 0 {
			m.mode, m.said = modeSteer, ""
		}
	case "p":
		return m, m.askApprovals()
	case "c":
		if len(m.rows) > 0 {
			m.mode, m.said = modeClose, ""
		}
	}
	return m, nil
}

// ask makes a session call about the selected row.
func (m topModel) ask(name string, payload map[string]any, say func(json.RawMessage) string) tea.Cmd {
	if len(m.rows) == 0 {
		return nil
	}
	r := m.rows[m.at]
	payload["id"] = r.session.ID
	if r.execution != nil && name != "mutate" {
		payload["execution"] = r.execution.Execution
	}
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(m.ctx, 5*time.Second)
		defer cancel()
		data, err := m.calls.Do(ctx, client.SessionCall{Name: name, Payload: payload})
		if err != nil {
			return done{oneLine(err.Error())}
		}
		return done{say(data)}
	}
}

func (m topModel) abort() tea.Cmd {
	return m.ask("abort", map[string]any{}, func(data json.RawMessage) string {
		var answer struct {
			Aborted []struct{ Tool, Outcome string }
		}
		json.Unmarshal(data, &answer)
		if len(answer.Aborted) == 0 {
			return "nothing was running"
		}
		var list []string
		for _, a := range answer.Aborted {
			list = append(list, oneLine(a.Tool)+": "+a.Outcome)
		}
		return "aborted " + strings.Join(list, ", ")
	})
}

func (m topModel) steer(text string) tea.Cmd {
	return m.ask("steer", map[string]any{"text": text + "\n"}, func(data json.RawMessage) string {
		var answer struct{ Delivered bool }
		json.Unmarshal(data, &answer)
		if !answer.Delivered {
			return "not read yet: it waits for the call to read it"
		}
		return "delivered"
	})
}

func (m topModel) close() tea.Cmd {
	return m.ask("mutate", map[string]any{"op": "close"}, func(json.RawMessage) string { return "closed" })
}

func (m topModel) View() tea.View {
	v := tea.NewView(m.screen())
	v.AltScreen = true
	v.WindowTitle = "toolctl top"
	return v
}

const (
	reversed = "\x1b[7m"
	bold     = "\x1b[1m"
	plain    = "\x1b[0m"
)

// screen returns the whole screen: as many lines as it is high, none wider than it.
func (m topModel) screen() string {
	if m.mode == modeApprove {
		return m.reviewScreen()
	}
	var head, foot []string
	calls, running := int64(0), 0
	for i := range m.seen.sessions {
		calls += m.seen.sessions[i].Telemetry.Calls
		running += len(m.seen.sessions[i].Running)
	}
	title := fmt.Sprintf("toold  %d sessions  %d running  %d calls", len(m.seen.sessions), running, calls)
	if st := m.seen.status; st != nil {
		title = fmt.Sprintf("toold %s  up %s  %d sessions  %d running  %d calls  %d connections", st.Instance, short(m.seen.at.Sub(st.Started)), len(m.seen.sessions), running, calls, st.Connections)
	}
	head = append(head, bold+fit(title, m.width)+plain)
	for _, b := range m.seen.breakers {
		if b.State != "closed" {
			head = append(head, fit(fmt.Sprintf("breaker  %-16s %s", oneLine(b.Tool), b.State), m.width))
		}
	}
	for _, t := range m.seen.tools {
		if t.State != adminapi.ToolOK {
			head = append(head, fit(fmt.Sprintf("tool     %-16s %-8s %s", oneLine(t.Name), t.State, oneLine(t.Reason)), m.width))
		}
	}
	// Errors take at most a third of the screen.
	if most := max(m.height/3, 2); len(head) > most {
		head = append(head[:most-1], fit(fmt.Sprintf("and %d more: toolctl tools, toolctl circuit-breaker list", len(head)-most+1), m.width))
	}
	head = append(head, "", bold+fit(row("SESSION / TOOL", "STATE", "TIME", "CALLS", "LAST LINE"), m.width)+plain)

	said := m.said
	switch {
	case m.mode == modeSteer:
		said = "write to " + m.rowName() + ": " + m.text + "_   (enter sends, esc leaves)"
	case m.mode == modeClose:
		said = "close " + m.rowName() + "? y closes it, any other key does not"
	case m.seen.err != nil:
		said = "the daemon does not answer: " + oneLine(m.seen.err.Error())
	}
	foot = append(foot, fit(said, m.width), fit("up/down choose   a abort   s steer   c close   p approvals   q quit", m.width))

	room := max(m.height-len(head)-len(foot), 1)
	from := max(0, min(m.at-room/2, len(m.rows)-room))
	var lines []string
	for i := from; i < len(m.rows) && i < from+room; i++ {
		line := fit(m.line(m.rows[i]), m.width)
		if i == m.at {
			line = reversed + pad(line, m.width) + plain
		}
		lines = append(lines, line)
	}
	if len(m.rows) == 0 {
		lines = append(lines, fit("no sessions yet: every caller has one from its first call", m.width))
	}
	for len(lines) < room {
		lines = append(lines, "")
	}
	all := append(append(head, lines...), foot...)
	return strings.Join(all[:min(len(all), max(m.height, 1))], "\n")
}

// rowName returns the name of the selected row for messages.
func (m topModel) rowName() string {
	if m.at >= len(m.rows) {
		return "nothing"
	}
	r := m.rows[m.at]
	if r.execution != nil && m.mode != modeClose {
		return oneLine(r.execution.Tool)
	}
	return "session " + first(strings.Trim(sessionName(r.session), "-"), r.session.ID)
}

func row(what, state, took, calls, line string) string {
	return fmt.Sprintf("%s %s %7s %6s  %s", pad(what, 28), pad(state, 10), took, calls, line)
}

func (m topModel) line(r topRow) string {
	if x := r.execution; x != nil {
		kind := x.Kind
		if x.Attempts > 1 {
			kind += fmt.Sprintf(" #%d", x.Attempts)
		}
		took := m.seen.at.Sub(x.Started)
		return row("  "+oneLine(x.Tool), kind, short(took), "", oneLine(x.LastLine))
	}
	s := r.session
	name := s.ID
	if n := sessionName(s); n != "-" {
		name = n
	}
	if s.Default {
		name += " " + peers(s)
	}
	last := ""
	if n := len(s.Recent); n > 0 {
		last = oneLine(s.Recent[n-1].Tool) + " " + outcomeText(s.Recent[n-1].Status, s.Recent[n-1].Code, s.Recent[n-1].ExitCode)
	}
	return row(name, s.State, short(m.seen.at.Sub(s.Used)), fmt.Sprint(s.Telemetry.Calls), last)
}

// fit truncates a line to the width of the screen, and pad also fills it up. Both count cells: some characters take
// two.
func fit(s string, width int) string { return ansi.Truncate(s, width, "…") }

func pad(s string, width int) string {
	s = fit(s, width)
	return s + strings.Repeat(" ", max(width-ansi.StringWidth(s), 0))
}
