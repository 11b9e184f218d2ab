package hosttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// The ways in which a call is cut off.
const (
	CutConnection = "connection" // the server closes it
	CutCaller     = "caller"     // the caller leaves
	CutSignal     = "signal"     // the caller sends one to the tool
	CutProcess    = "process"    // that of the tool is killed
	CutTime       = "time"       // the call reaches its time limit
	CutDaemon     = "daemon"     // the daemon is killed
)

// The points of a request at which its call is cut off.
const (
	beforeRequest = iota
	midRequest
	beforeResponse // and after what was asked for has been done
	midResponse
	points
)

var pointNames = [points]string{"before the request", "in the request", "before the response", "in the response"}

// Cuts makes calls that change something at a server, cuts them off, and uses their
// keys again until each has an answer, which it compares to what the server has. The
// calls are made in waves, so that one kill of the daemon cuts off several. A seed, which
// the test logs, determines how each is cut off and where.
type Cuts struct {
	// Process is the daemon.
	*Process
	// Total is how many calls are cut off, Wave how many run concurrently.
	Total, Wave int
	// Ways are those in which they are.
	Ways []string
	// Patience is how long a server may still do what it was asked for: if a
	// verdict needs that, the records of the calls are made that old.
	Patience time.Duration
	// Call is call n, with a key of its own.
	Call func(n int) *wire.Call
	// Want returns the answer of call n when it has done what it should do.
	Want func(n int) string
	// Times is how often the server did that, or would have if it had not been done.
	Times func(n int) int
	// Kill kills the process of call n; only for CutProcess.
	Kill func(n int)
	// Settle, unless it is nil, is called before keys are used again.
	Settle func()

	t     testing.TB
	mu    sync.Mutex
	plans map[int]*cutOff // guarded by mu, as is what follows
	count map[string]int
	usual time.Duration // that a call takes to reach the server
}

// cutOff is how one call is cut off. reached is closed when the server holds it at
// the point, over when it is cut off.
type cutOff struct {
	n             int
	way           string
	point         int
	part          float64 // of the request, that has come
	began         time.Time
	reached, over chan struct{}
	once          sync.Once
}

// hold reports that the call is at its point, and returns when it has been cut off there.
// gone is closed when the tool's connection is closed: for a caller that leaves and for a
// time limit, nothing else shows when the daemon has ended what ran.
func (x *cutOff) hold(gone <-chan struct{}) {
	close(x.reached)
	switch x.way {
	case CutConnection:
	case CutCaller, CutTime:
		<-gone
	default:
		<-x.over
	}
}

func (x *cutOff) release() { x.once.Do(func() { close(x.over) }) }

// torn is a request that ends where its sender was cut off.
type torn struct {
	*cutOff
	gone <-chan struct{}
}

func (x torn) Read([]byte) (int, error) {
	x.hold(x.gone)
	return 0, io.ErrUnexpectedEOF
}

// Serve answers a request of call n, which serve does, up to the point at which the
// call is cut off. serve gets an error from its reader if the request is torn.
func (c *Cuts) Serve(w http.ResponseWriter, r *http.Request, n int, serve func(body io.Reader) (status int, answer []byte, err error)) {
	c.mu.Lock()
	x := c.plans[n]
	delete(c.plans, n)
	if x != nil {
		c.usual = time.Since(x.began)
	}
	c.mu.Unlock()
	if x == nil {
		x = &cutOff{point: points}
	}
	gone := r.Context().Done()
	if x.point == beforeRequest {
		x.hold(gone)
		panic(http.ErrAbortHandler)
	}
	var body io.Reader = r.Body
	if x.point == midRequest {
		body = io.MultiReader(io.LimitReader(r.Body, int64(x.part*float64(r.ContentLength))), torn{x, gone})
	}
	status, answer, err := serve(body)
	if err != nil || x.point == midRequest {
		panic(http.ErrAbortHandler)
	}
	switch x.point {
	case beforeResponse:
		x.hold(gone)
		panic(http.ErrAbortHandler)
	case midResponse:
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			c.t.Error(err)
			return
		}
		defer conn.Close()
		var whole bytes.Buffer
		fmt.Fprintf(&whole, "HTTP/1.1 %d %s\r\n", status, http.StatusText(status))
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		w.Header().Write(&whole)
		whole.WriteString("\r\n")
		whole.Write(answer)
		conn.Write(whole.Bytes()[:whole.Len()/2])
		left := make(chan struct{})
		go func() {
			defer close(left)
			io.Copy(io.Discard, conn)
		}()
		x.hold(left)
		return
	}
	w.WriteHeader(status)
	w.Write(answer)
}

// Run makes the calls.
func (c *Cuts) Run(t testing.TB) {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	c.t, c.plans, c.count, c.usual = t, map[int]*cutOff{}, map[string]int{}, 2*time.Second
	t.Logf("seed %d", seed)
	start, kills := time.Now(), 0
	for first := 0; first < c.Total && !t.Failed(); first += c.Wave {
		wave := make([]*cutOff, 0, c.Wave)
		for n := first; n < min(first+c.Wave, c.Total); n++ {
			part := random.Float64()
			if random.IntN(10) == 0 {
				part = 0 // its head only
			}
			wave = append(wave, &cutOff{n: n, part: part, way: c.Ways[(n+n/len(c.Ways))%len(c.Ways)], point: random.IntN(points), reached: make(chan struct{}), over: make(chan struct{})})
		}
		kills += c.cutOff(wave, random)
		open := c.again(wave, false)
		if len(open) > 0 {
			c.Process.Kill()
			c.AgeRecords(c.Patience + 3*time.Second)
			c.Start()
			kills++
			open = c.again(open, true)
		}
		for _, x := range open {
			c.add("stayed unknown")
			c.add("stayed unknown: " + x.String())
		}
	}
	twice := 0
	for n := range c.Total {
		if k := c.Times(n); k > 1 {
			twice++
			t.Errorf("a duplicate: call %d was done %d times", n, k)
		}
	}
	wrong := c.count["wrong"]
	resolved := c.count["found done"] + c.count["ran again"]
	t.Logf("%d calls in %v, the daemon was killed %d times", c.Total, time.Since(start).Round(time.Second), kills)
	for _, way := range slices.Compact(slices.Sorted(slices.Values(c.Ways))) {
		line := "cut off by " + way + ":"
		for _, point := range pointNames {
			line += fmt.Sprintf(" %d %s,", c.count["cut "+way+" "+point], point)
		}
		t.Logf("%s %d before all of these", line, c.count["cut "+way+" early"])
	}
	t.Logf("of %d without an answer %d resolved themselves (%.1f %%): %d found done, %d found not done or never begun, which ran again; %d stayed unknown", resolved+c.count["stayed unknown"],
		resolved, 100*float64(resolved)/float64(max(resolved+c.count["stayed unknown"], 1)), c.count["found done"], c.count["ran again"], c.count["stayed unknown"])
	t.Logf("%d tools reported that their connection was cut, and that is their answer; %d were not cut off; %d duplicates, %d wrong", c.count["own answer"], c.count["not cut off"], twice, wrong)
	for what, n := range c.count {
		if strings.HasPrefix(what, "stayed unknown:") {
			t.Logf("%s: %d", what, n)
		}
	}
	if 20*c.count["stayed unknown"] > resolved+c.count["stayed unknown"] {
		t.Errorf("%d of %d stayed unknown", c.count["stayed unknown"], resolved+c.count["stayed unknown"])
	}
	if resolved == 0 {
		t.Error("nothing was cut off")
	}
}

func (x *cutOff) String() string { return x.way + " " + pointNames[x.point] }

func (c *Cuts) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count[what]++
}

// cutOff makes the calls of a wave and cuts each off. It returns how often it killed
// the daemon.
func (c *Cuts) cutOff(wave []*cutOff, random *rand.Rand) (kills int) {
	var running sync.WaitGroup
	ended := make([]chan struct{}, len(wave))
	for i, x := range wave {
		ended[i] = make(chan struct{})
		c.mu.Lock()
		x.began = time.Now()
		c.plans[x.n] = x
		timeout := c.usual/2 + time.Duration(random.Int64N(int64(c.usual)))
		c.mu.Unlock()
		running.Go(func() {
			defer close(ended[i])
			defer x.release()
			c.cut(x, timeout)
		})
	}
	// Those that the daemon's end is to cut off are all held; in every fourth wave the
	// others are where they happen to be.
	early := random.IntN(4) == 0
	waits, dies := false, false
	for i, x := range wave {
		if x.way != CutDaemon && early {
			continue
		}
		if x.way != CutDaemon {
			<-ended[i]
			continue
		}
		waits = true
		select {
		case <-x.reached:
			dies = true
		case <-ended[i]:
		}
	}
	if waits && dies {
		c.Process.Kill()
		kills++
	}
	for _, x := range wave {
		if x.way == CutDaemon {
			x.release()
		}
	}
	running.Wait()
	c.mu.Lock()
	clear(c.plans)
	c.mu.Unlock()
	if kills > 0 {
		c.Start()
	}
	return kills
}

// cut makes one call and cuts it off.
func (c *Cuts) cut(x *cutOff, timeout time.Duration) {
	q := c.Call(x.n)
	ctx, leave := context.WithCancel(c.t.Context())
	defer leave()
	signals := make(chan os.Signal, 2)
	if x.way == CutTime {
		q.Timeout = timeout
	}
	ended := make(chan struct{})
	var cutting sync.WaitGroup
	cutting.Go(func() {
		select {
		case <-ended:
			return
		case <-x.reached:
		}
		switch x.way {
		case CutCaller:
			leave()
		case CutSignal:
			signals <- syscall.SIGKILL
			signals <- syscall.SIGTERM // a module has no process to kill
		case CutProcess:
			c.Kill(x.n)
		}
	})
	res, out, err := c.ask(ctx, q, signals)
	close(ended)
	cutting.Wait()
	select {
	case <-x.reached:
		c.add("cut " + x.way + " " + pointNames[x.point])
	default:
		c.add("cut " + x.way + " early")
	}
	if err == nil && res.Err == nil && res.ExitCode == 0 {
		c.add("not cut off")
		c.holds(x, res, out)
	}
}

func (c *Cuts) ask(ctx context.Context, q *wire.Call, signals chan os.Signal) (*wire.Result, string, error) {
	if q.Form == wire.Envelope {
		res, err := client.Call(ctx, c.Socket, q)
		if err != nil {
			return nil, "", err
		}
		return res, string(res.Data), nil
	}
	var out strings.Builder
	res, err := client.Stream(ctx, c.Socket, q, wire.Local{Stdout: &out, Stderr: io.Discard, Signals: signals})
	return res, out.String(), err
}

// again uses the keys of calls again and returns those whose outcome stays unknown.
func (c *Cuts) again(calls []*cutOff, last bool) (open []*cutOff) {
	if c.Settle != nil {
		c.Settle()
	}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, x := range calls {
		asking.Go(func() {
			for tries := 0; ; tries++ {
				before := c.Times(x.n)
				res, out, err := c.ask(c.t.Context(), c.Call(x.n), nil)
				switch {
				case err != nil:
					c.t.Errorf("call %d, %v: %v", x.n, x, err)
				case res.Err != nil && res.Err.Code == fault.OutcomeUnknown:
					// The server may yet write down what it did.
					if last && c.Settle != nil && tries < 10 {
						<-time.After(time.Second)
						c.Settle()
						continue
					}
					mu.Lock()
					open = append(open, x)
					mu.Unlock()
				case res.Err == nil && !res.FromCache && before > 0:
					c.add("wrong")
					c.t.Errorf("a wrong verdict: call %d, %v, ran again, and had been done: %+v: %s", x.n, x, res, out)
				case res.Err == nil && res.ExitCode == 0:
					c.holds(x, res, out)
					if res.FromCache {
						c.add("found done")
					} else {
						c.add("ran again")
					}
				case x.way == CutConnection && res.FromCache:
					c.add("own answer")
				default:
					c.t.Errorf("call %d, %v: %+v, %v: %s", x.n, x, res, res.Err, out)
				}
				return
			}
		})
	}
	asking.Wait()
	return open
}

// holds holds the answer that a call was done against what the server has.
func (c *Cuts) holds(x *cutOff, res *wire.Result, out string) {
	if k := c.Times(x.n); k == 0 {
		c.add("wrong")
		c.t.Errorf("a wrong verdict: call %d, %v, is answered as done (from the record: %v), and the server has nothing of it", x.n, x, res.FromCache)
	}
	if want := c.Want(x.n); out != want {
		c.t.Errorf("call %d, %v, answers %q, want %q", x.n, x, out, want)
	}
}

// Kills is TOOLD_KILLS, or n without it.
func Kills(t testing.TB, n int) int {
	t.Helper()
	if s := os.Getenv("TOOLD_KILLS"); s != "" {
		k, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("TOOLD_KILLS: %v", err)
		}
		return k
	}
	return n
}

// KillProcesses kills what runs the program of that name, for arguments and a working
// folder of which is is true.
func KillProcesses(program string, is func(cmdline, cwd string) bool) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		exe, err := os.Readlink(filepath.Join(dir, "exe"))
		if err != nil || filepath.Base(exe) != program {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		cwd, _ := os.Readlink(filepath.Join(dir, "cwd"))
		if is(strings.ReplaceAll(string(line), "\x00", " "), cwd) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
