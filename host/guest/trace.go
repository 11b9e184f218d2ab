package guest

import (
	"strconv"
	"strings"

	"github.com/toold/toold/host/guest/wasm"
	"github.com/toold/toold/host/regular"
)

// maxFrames is the maximum number of functions in a message about a trap.
const maxFrames = 6

// where returns the functions and lines of a trap: see trace.
func (m *Module) where(err error) string {
	find := func(uint32) []wasm.Place { return nil }
	if m.lines != "" {
		// It is read now and not kept: few modules trap, and fewer again.
		if f, err := regular.Open(m.lines); err == nil {
			defer f.Close()
			found := map[uint32][]wasm.Place{} // a recursion looks up the same offset repeatedly
			find = func(offset uint32) []wasm.Place {
				if places, ok := found[offset]; ok {
					return places
				}
				places, err := wasm.FindLine(f, offset)
				found[offset] = places
				if err != nil {
					m.e.cfg.Logger.Warn("lines of a module cannot be read; delete the file and its note, to have them made again", "module", m.spec.Name, "file", m.lines, "error", err)
				}
				return places
			}
		}
	}
	return trace(err, find)
}

// trace returns the functions of a trap, innermost first: "in parse (policy.c:12) <
// policy (policy.c:40) < restrict". It returns "" for a module without names. find
// returns the lines for an offset in the code.
func trace(err error, find func(offset uint32) []wasm.Place) string {
	_, stack, ok := strings.Cut(err.Error(), "wasm stack trace:\n\t")
	if !ok {
		return ""
	}
	stack, _, _ = strings.Cut(stack, "\n\n")
	var frames []string
	lines := strings.Split(stack, "\n\t")
	for i, line := range lines {
		// Lines are ".name(i32,i32) i32", with the instance's name, which is empty,
		// before the dot. The location is indented further: "\t0x1b2: m:1".
		name, ok := strings.CutPrefix(line, ".")
		if !ok || strings.HasPrefix(name, ".. maybe followed by omitted frames") {
			continue
		}
		if i := strings.LastIndexByte(name, '('); i > 0 {
			name = name[:i]
		}
		if name = plain(name); name == "" || strings.HasPrefix(name, "$") || ofRuntime(name) {
			continue
		}
		places := []wasm.Place{{}}
		if i+1 < len(lines) {
			if at, ok := strings.CutPrefix(lines[i+1], "\t0x"); ok {
				at, _, _ = strings.Cut(at, ":")
				if offset, err := strconv.ParseUint(at, 16, 32); err == nil {
					if found := find(uint32(offset)); len(found) > 0 {
						places = found
					}
				}
			}
		}
		for j, p := range places {
			if p.Function = plain(p.Function); j == len(places)-1 {
				p.Function = name // the name used without DWARF
			} else if p.Function == "" || ofRuntime(p.Function) {
				continue
			}
			if p.Source != "" {
				p.Function += " (" + p.Source + ")"
			}
			frames = append(frames, p.Function)
		}
	}
	if len(frames) == 0 {
		return ""
	}
	frames = fold(frames)
	if len(frames) > maxFrames {
		frames = append(frames[:maxFrames], "...")
	}
	return strings.ToValidUTF8("in "+strings.Join(frames, " < "), "\uFFFD")
}

// again marks a function that called itself.
const again = " (again and again)"

// fold replaces three or more consecutive equal names by one.
func fold(names []string) []string {
	var out []string
	for i := 0; i < len(names); {
		n := 1
		for i+n < len(names) && names[i+n] == names[i] {
			n++
		}
		if n > 2 {
			out = append(out, names[i]+again)
		} else {
			out = append(out, names[i:i+n]...)
		}
		i += n
	}
	return out
}

// ofRuntime reports whether a function belongs to a language's panic handling rather
// than to the cause.
func ofRuntime(name string) bool {
	for _, p := range []string{
		"runtime.", "internal/runtime", "wasm_export_", "wasm_pc_f_loop",
		"core::panicking::", "std::panicking::", "std::sys::", "std::sys_common::backtrace::", "alloc::alloc::handle_alloc_error", "__rustc::", "rust_panic", "__rust", "rust_begin_unwind",
		"~lib/builtins/abort",
	} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return strings.HasSuffix(name, "/host/abort")
}

// plain returns a name without the parts that a compiler added to make it unique.
func plain(name string) string {
	if rest, ok := strings.CutPrefix(name, "_R"); ok {
		return strings.Join(rustNames(rest), "::")
	}
	// Rust's legacy form, "_ZN6policy5check17h0123456789abcdefE", and what may be left
	// of it.
	if rest, ok := strings.CutPrefix(name, "_ZN"); ok {
		name = strings.Join(olderNames(rest), "::")
	}
	if i := strings.LastIndex(name, "::h"); i > 0 && len(name)-i == 19 {
		name = name[:i]
	}
	// Type arguments: "index<i32, usize>".
	if i := strings.IndexByte(name, '<'); i > 0 && strings.HasSuffix(name, ">") && !strings.HasPrefix(name, "operator") {
		name = name[:i]
	}
	return name
}

// olderNames returns the names in a symbol of Rust's legacy form
// (_ZN6policy5check17h0123456789abcdefE), without those that stand for types.
func olderNames(s string) []string {
	var names []string
	for s != "" && '1' <= s[0] && s[0] <= '9' {
		n := 0
		for s != "" && '0' <= s[0] && s[0] <= '9' && n < len(s) {
			n, s = 10*n+int(s[0]-'0'), s[1:]
		}
		if n > len(s) {
			break
		}
		if name := s[:n]; !strings.Contains(name, "$") {
			names = append(names, name)
		}
		s = s[n:]
	}
	return names
}

// rustNames returns the names in a symbol of Rust's v0 form
// (NvNtCs7kM_6policy5rules5check), without its types.
func rustNames(s string) []string {
	var names []string
	for s != "" {
		c := s[0]
		switch {
		case c == 's': // a number that makes the next name unique
			_, rest, ok := strings.Cut(s, "_")
			if !ok {
				return names
			}
			s = rest
		case '0' <= c && c <= '9':
			n := 0
			for s != "" && '0' <= s[0] && s[0] <= '9' && n < len(s) {
				n = 10*n + int(s[0]-'0')
				s = s[1:]
			}
			if n > 0 && strings.HasPrefix(s, "_") {
				s = s[1:]
			}
			if n > len(s) {
				return names
			}
			if n > 0 {
				names = append(names, s[:n])
			}
			s = s[n:]
		case c == 'E' || c == 'B' || c == 'I' && len(names) > 0: // type arguments follow
			return names
		default:
			s = s[1:]
		}
	}
	return names
}
