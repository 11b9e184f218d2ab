package toolchain

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"sync"
)

// ASC is a compiler of AssemblyScript that stays: started anew it takes most of
// a second before it reads the first line.
type ASC struct {
	program string

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

// StartASC starts the compiler of the project in dir. Its Close ends it.
func StartASC(ctx context.Context, dir string) (*ASC, error) {
	program, err := Find(ctx, AssemblyScript, dir)
	if err != nil {
		return nil, err
	}
	node, err := exec.LookPath("node")
	if err != nil {
		return nil, &MissingError{AssemblyScript, "node", apt("nodejs npm")}
	}
	// node_modules/.bin/asc is a link to assemblyscript/bin/asc.js.
	real, err := filepath.EvalSymlinks(program)
	if err != nil {
		return nil, err
	}
	a := &ASC{program: program}
	a.cmd = exec.Command(node, "--input-type=module", "-e", ascServer, filepath.Join(filepath.Dir(real), "..", "dist", "asc.js"))
	a.cmd.Dir = dir
	if a.in, err = a.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	a.lines = bufio.NewReader(out)
	if err := a.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", node, err)
	}
	return a, nil
}

// compile runs the compiler with these arguments.
func (a *ASC) compile(args []string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	b, err := json.Marshal(args)
	if err != nil {
		return err
	}
	if _, err := a.in.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("ask the compiler: %w", err)
	}
	line, err := a.lines.ReadBytes('\n')
	if err != nil {
		return errors.New("the compiler of AssemblyScript ended; run asc by itself to see why")
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

// Close ends the compiler and waits for it.
func (a *ASC) Close() error {
	a.in.Close()
	return a.cmd.Wait()
}
