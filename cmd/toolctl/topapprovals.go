package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/events"
)

// review holds the requests that can be decided now, one of which is on the screen.
type review struct {
	list  []adminapi.Approval
	at    int
	lines []string // of the request on the screen
	from  int      // the first line shown
	whole bool     // the last line was shown
}

// reviewed is the daemon's response about requests.
type reviewed struct {
	list []adminapi.Approval
	err  error
}

func (m topModel) approvals() *client.Approvals {
	return &client.Approvals{Operator: m.calls.Operator, Socket: m.calls.Socket, Token: m.calls.Token}
}

// askApprovals queries the requests that can be decided.
func (m topModel) askApprovals() tea.Cmd {
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(m.ctx, 5*time.Second)
		defer cancel()
		all, err := m.approvals().List(ctx)
		var r reviewed
		r.err = err
		for _, a := range all {
			if a.State != "pending" || !a.Yours {
				continue
			}
			shown, err := m.approvals().Show(ctx, a.ID)
			if err != nil {
				r.err = err
				break
			}
			r.list = append(r.list, *shown)
		}
		return r
	}
}

// takeReview shows the first request.
func (m *topModel) takeReview(r reviewed) {
	switch {
	case r.err != nil:
		m.said = oneLine(r.err.Error())
	case len(r.list) == 0:
		m.said = "nothing waits for an approval that is yours to give"
	default:
		m.mode, m.said, m.review = modeApprove, "", review{list: r.list}
		m.showReview(0)
	}
}

// showReview shows the request at an index.
func (m *topModel) showReview(at int) {
	v := review{list: m.review.list, at: at}
	var b bytes.Buffer
	if err := showApproval(&b, &v.list[at]); err != nil {
		v.lines = []string{oneLine(err.Error())}
	}
	for line := range strings.Lines(b.String()) {
		v.lines = append(v.lines, wrap(strings.TrimSuffix(line, "\n"), max(m.width, 20))...)
	}
	m.review = v
	m.scroll(0)
}

// wrap breaks a line of ASCII so that none of it is off the screen.
func wrap(line string, width int) (out []string) {
	for len(line) > width {
		out = append(out, line[:width])
		line = "  " + line[width:]
	}
	return append(out, line)
}

// room returns how many lines of a request are shown at a time.
func (m *topModel) room() int { return max(m.height-3, 1) }

func (m *topModel) scroll(by int) {
	v := &m.review
	v.from = max(0, min(v.from+by, len(v.lines)-m.room()))
	v.whole = v.whole || v.from+m.room() >= len(v.lines)
}

// reviewKey handles a key while a request is on the screen. A request cannot be approved before its end was shown.
func (m topModel) reviewKey(name string) (tea.Model, tea.Cmd) {
	v := &m.review
	switch name {
	case "q", "esc":
		m.mode = modeList
	case "up", "k":
		m.scroll(-1)
	case "down", "j":
		m.scroll(1)
	case "pgup":
		m.scroll(-m.room())
	case "pgdown", "space":
		m.scroll(m.room())
	case "tab", "right":
		m.showReview((v.at + 1) % len(v.list))
	case "y", "n":
		if name == "y" && !v.whole {
			m.said = "there is more below: space shows it"
			return m, nil
		}
		m.mode = modeList
		return m, m.decide(v.list[v.at].ID, name == "y")
	}
	return m, nil
}

func (m topModel) decide(id string, approve bool) tea.Cmd {
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(m.ctx, 5*time.Second)
		defer cancel()
		a, err := m.approvals().Decide(ctx, id, approve, "")
		if err != nil {
			return done{oneLine(err.Error())}
		}
		return done{a.State + " " + toolsOf(a)}
	}
}

// reviewScreen returns the screen while a request is on it.
func (m topModel) reviewScreen() string {
	v := &m.review
	all := []string{bold + fit(fmt.Sprintf("approval %d of %d", v.at+1, len(v.list)), m.width) + plain}
	all = append(all, v.lines[v.from:min(v.from+m.room(), len(v.lines))]...)
	all = append(all, slices.Repeat([]string{""}, max(m.room()+1-len(all), 0))...)
	all = append(all, fit(m.said, m.width), fit("y approve   n deny   space more   tab next   esc back", m.width))
	return strings.Join(all[:min(len(all), max(m.height, 1))], "\n")
}

// hearApproval announces that a request is pending.
func (m *topModel) hearApproval(e *events.Event) {
	if e.State == "pending" && m.mode == modeList {
		m.said = oneLine(e.Tool) + " waits for an approval: p shows what it would run"
	}
}
