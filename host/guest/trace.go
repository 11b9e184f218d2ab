package guest

import "strings"

// maxFrames is how many functions a message about a trap names.
const maxFrames = 6

// trace says in which functions a trap was, innermost first: "in parse <
// policy < restrict". It answers "" for a module without names.
func trace(err error) string {
	_, stack, ok := strings.Cut(err.Error(), "wasm stack trace:\n\t")
	if !ok {
		return ""
	}
	stack, _, _ = strings.Cut(stack, "\n\n")
	var names []string
	for line := range strings.SplitSeq(stack, "\n\t") {
		// Lines are ".name(i32,i32) i32", with the name of the instance, which
		// has none, before the dot. Sources are indented further.
		line, ok := strings.CutPrefix(line, ".")
		if !ok {
			continue
		}
		if i := strings.LastIndexByte(line, '('); i > 0 {
			line = line[:i]
		}
		if line = plain(line); line != "" && !strings.HasPrefix(line, "$") && !ofRuntime(line) {
			names = append(names, line)
		}
	}
	if len(names) == 0 {
		return ""
	}
	names = fold(names)
	if len(names) > maxFrames {
		names = append(names[:maxFrames], "...")
	}
	return strings.ToValidUTF8("in "+strings.Join(names, " < "), "\uFFFD")
}

// again marks a function that called itself.
const again = " (again and again)"

// fold makes one name of those that follow each other three times and more.
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

// ofRuntime reports whether a function belongs to how a language panics, not
// to why.
func ofRuntime(name string) bool {
	for _, p := range []string{
		"runtime.", "internal/runtime", "wasm_export_", "wasm_pc_f_loop",
		"core::panicking::", "std::panicking::", "std::sys::", "alloc::alloc::handle_alloc_error", "__rustc::", "rust_panic", "__rust", "rust_begin_unwind",
		"~lib/builtins/abort",
	} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return strings.HasSuffix(name, "/host/abort")
}

// plain is a name without what a compiler added to make it one of a kind.
func plain(name string) string {
	if rest, ok := strings.CutPrefix(name, "_R"); ok {
		return strings.Join(rustNames(rest), "::")
	}
	// Rust's older form, "_ZN6policy5check17h0123456789abcdefE", and what may
	// be left of it.
	if rest, ok := strings.CutPrefix(name, "_ZN"); ok {
		name = strings.Join(rustNames(rest), "::")
	}
	if i := strings.LastIndex(name, "::h"); i > 0 && len(name)-i == 19 {
		name = name[:i]
	}
	return name
}

// rustNames are the names in a symbol of Rust's v0 form
// (NvNtCs7kM_6policy5rules5check), without its types.
func rustNames(s string) []string {
	var names []string
	for s != "" {
		c := s[0]
		switch {
		case c == 's': // a number that makes the next name one of a kind
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
		case c == 'E' || c == 'B' || c == 'I' && len(names) > 0: // what follows is of what it is made
			return names
		default:
			s = s[1:]
		}
	}
	return names
}
