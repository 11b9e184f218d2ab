// Command is a WASI command: it says what it was given.
package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

func main() {
	args := os.Args[1:]
	if len(args) == 0 {
		fmt.Println("nothing to do")
		os.Exit(2)
	}
	switch args[0] {
	case "args":
		fmt.Println(strings.Join(os.Args, "|"), os.Getenv("COLOUR"))
	case "cat":
		io.Copy(os.Stdout, os.Stdin)
	case "fail":
		fmt.Fprintln(os.Stderr, "no luck")
		os.Exit(7)
	case "loop":
		for i := 0; ; i++ {
			if i < 0 {
				fmt.Println(i)
			}
		}
	case "sleep":
		time.Sleep(time.Hour)
	case "read":
		b, err := os.ReadFile(args[1])
		fmt.Printf("%s %v\n", b, err)
	case "write":
		err := os.WriteFile(args[1], []byte(args[2]), 0o644)
		fmt.Println(err)
	case "ls":
		es, err := os.ReadDir(args[1])
		for _, e := range es {
			fmt.Println(e.Name(), e.IsDir())
		}
		fmt.Println(err)
	case "rm":
		fmt.Println(os.Remove(args[1]))
	case "mkdir":
		fmt.Println(os.Mkdir(args[1], 0o755))
	case "mv":
		fmt.Println(os.Rename(args[1], args[2]))
	case "ln":
		fmt.Println(os.Symlink(args[1], args[2]))
	case "readlink":
		fmt.Println(os.Readlink(args[1]))
	case "stat":
		st, err := os.Stat(args[1])
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(st.Size(), st.IsDir())
	case "append":
		f, err := os.OpenFile(args[1], os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(args[2])
			f.Close()
		}
		fmt.Println(err)
	}
}
