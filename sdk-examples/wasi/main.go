// Count is the tool "count", a WASI command like any other: arguments, standard
// input and output, an exit code. It knows nothing of toold.
package main

import (
	"bufio"
	"fmt"
	"os"
)

func main() {
	unit := bufio.ScanLines
	switch {
	case len(os.Args) == 1 || os.Args[1] == "lines":
	case os.Args[1] == "words":
		unit = bufio.ScanWords
	default:
		fmt.Fprintf(os.Stderr, "count: %q is neither lines nor words\n", os.Args[1])
		os.Exit(2)
	}
	s := bufio.NewScanner(os.Stdin)
	s.Split(unit)
	n := 0
	for s.Scan() {
		n++
	}
	if err := s.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "count:", err)
		os.Exit(1)
	}
	fmt.Println(n)
}
