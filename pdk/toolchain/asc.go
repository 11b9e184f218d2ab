package toolchain

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"sync"
)

// asc is a compiler of AssemblyScript that stays: started anew it takes most of
// a second before it reads the first line.
type asc struct {
	program, node, dir string

	mu    sync.Mutex // held while it compiles
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Reader
}

// ascServer compiles what each line of its input asks for, as asc would.
const ascServer = `
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
const { default: asc } = await import(pathToFileURL(process.argv[1]).href);
for await (const line of createInterface({ input: process.stdin })) {
  let text = "";
  const sink = { write: (s) => { text += s; } };
  const { error } = await asc.main(JSON.parse(line), { stdout: sink, stderr: sink });
  process.stdout.write(JSON.stringify({ ok: !error, text: error ? text + "\n" + error.message : text }) + "\n");
}
`

// startASC starts the compiler of the project in dir.
func startASC(program, node, dir string) (*asc, error) {
	a := &asc{program: program, node: node, dir: dir}
	return a, a.start()
}

func (a *asc) start() error {
	// node_modules/.bin/asc is a link to assemblyscript/bin/asc.js.
	real, err := filepath.EvalSymlinks(a.program)
	if err != nil {
		return err
	}
	cmd := exec.Command(a.node, "--input-type=module", "-e", ascServer, filepath.Join(filepath.Dir(real), "..", "dist", "asc.js"))
	cmd.Dir = a.dir
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", a.node, err)
	}
	a.cmd, a.in, a.lines = cmd, in, bufio.NewReader(out)
	return nil
}

// compile runs the compiler with these arguments.
func (a *asc) compile(args []string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	b, err := json.Marshal(args)
	if err != nil {
		return err
	}
	// One that ended meanwhile is started again, once.
	line, err := a.ask(b)
	if err != nil {
		a.end()
		if err := a.start(); err != nil {
			return err
		}
		if line, err = a.ask(b); err != nil {
			return errors.New("the AssemblyScript compiler ended without output; run asc by itself to see why")
		}
	}
	var said struct {
		OK   bool   `json:"ok"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(line, &said); err != nil {
		return fmt.Errorf("read what the compiler says: %w", err)
	}
	if !said.OK {
		return &FailedError{append([]string{a.program}, args...), said.Text}
	}
	return nil
}

func (a *asc) ask(request []byte) (answer []byte, err error) {
	if _, err := a.in.Write(append(request, '\n')); err != nil {
		return nil, err
	}
	return a.lines.ReadBytes('\n')
}

// end ends the process and waits for it.
func (a *asc) end() error {
	a.in.Close()
	return a.cmd.Wait()
}

func (a *asc) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.end()
}
