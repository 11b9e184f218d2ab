package session

import (
	"fmt"
	"testing"
)

// Whatever there is more of than is kept apart is counted: nothing is left out without
// a word, and what one can make many of does not take the place of the rest.
func TestWhatIsNotKeptApartIsCounted(t *testing.T) {
	const more = 10
	x := &Execution{}
	for i := range maxPrograms + more {
		x.AddConnection(Connection{Host: fmt.Sprintf("%d.example:443", i), Sent: 1, Received: 2})
		x.AddConnection(Connection{Host: fmt.Sprintf("%d.example:80", i), Refused: fmt.Sprintf("rule %d", i)})
		x.AddProgram(fmt.Sprintf("/bin/%d", i), "")
	}
	x.AddConnection(Connection{Host: "0.example:443", Sent: 1})
	for i := range maxPrograms + more {
		x.AddConnection(Connection{Host: "toold-ssh", On: fmt.Sprintf("SIGN %d", i)})
	}
	x.AddConnection(Connection{Host: "a:1", On: "GET /", Refused: "no", Times: 5})
	times := map[Connection]int{}
	apartOf := map[bool]int{}
	for _, c := range x.Connections() {
		n := c.Times
		c.Times, c.Sent, c.Received = 0, 0, 0
		if c.Host == Others {
			times[c] += n
		} else {
			apartOf[c.On != ""]++
		}
	}
	want := map[Connection]int{
		{Host: Others}:                             maxPrograms/2 + more,
		{Host: Others, Refused: apart}:             maxPrograms/2 + more,
		{Host: Others, On: Others}:                 more,
		{Host: Others, On: Others, Refused: apart}: 5,
	}
	if apartOf[false] != maxPrograms || apartOf[true] != maxPrograms || fmt.Sprint(times) != fmt.Sprint(want) {
		t.Errorf("%v are kept apart, further ones are %v, want %v", apartOf, times, want)
	}
	sent, all := int64(0), 0
	for _, c := range x.Connections() {
		sent += c.Sent
		all += c.Times
	}
	if sent != maxPrograms+more+1 || all != 3*(maxPrograms+more)+1+5 {
		t.Errorf("%d connections with %d bytes", all, sent)
	}
	_, _, _, programs := x.Spent()
	if len(programs) != maxPrograms+1 || programs[maxPrograms] != (Program{Path: Others, Times: more}) {
		t.Errorf("%+v", programs)
	}
}
