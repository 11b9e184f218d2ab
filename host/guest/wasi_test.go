package guest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
)

// Modules that see folders, and commands, have wazero's descriptors; the others
// have three of ours, which can be restored. These are the answers to calls on the
// standard descriptors and on one that there is not, with zeros for all else,
// that are not the same: what ours says, and what wazero says, by the function
// and the descriptor. 0 is done, 8 a bad descriptor, 28 and 37 wrong arguments,
// 52, 54 and 58 what is not supported, is no folder, or no socket, 70 what cannot
// be sought.
var wasiDifferences = map[string]string{
	"fd_advise 0":               "70 28",
	"fd_advise 1":               "70 28",
	"fd_advise 2":               "70 28",
	"fd_allocate 0":             "70 0",
	"fd_allocate 1":             "70 0",
	"fd_allocate 2":             "70 0",
	"fd_fdstat_set_rights 4":    "8 52",
	"fd_filestat_set_size 0":    "28 52",
	"fd_filestat_set_size 1":    "28 52",
	"fd_filestat_set_size 2":    "28 52",
	"fd_filestat_set_times 0":   "28 trap",
	"fd_filestat_set_times 1":   "28 trap",
	"fd_filestat_set_times 2":   "28 trap",
	"fd_pread 0":                "70 0",
	"fd_pread 1":                "70 0",
	"fd_pread 2":                "70 0",
	"fd_prestat_dir_name 0":     "8 37",
	"fd_prestat_dir_name 1":     "8 37",
	"fd_prestat_dir_name 2":     "8 37",
	"fd_prestat_get 0":          "8 0",
	"fd_prestat_get 1":          "8 0",
	"fd_prestat_get 2":          "8 0",
	"fd_pwrite 0":               "70 0",
	"fd_pwrite 1":               "70 0",
	"fd_pwrite 2":               "70 0",
	"fd_read 1":                 "8 0",
	"fd_read 2":                 "8 0",
	"fd_renumber 0":             "8 58",
	"fd_renumber 1":             "8 58",
	"fd_renumber 2":             "8 58",
	"fd_seek 0":                 "70 52",
	"fd_seek 1":                 "70 52",
	"fd_seek 2":                 "70 52",
	"fd_tell 0":                 "70 52",
	"fd_tell 1":                 "70 52",
	"fd_tell 2":                 "70 52",
	"path_create_directory 0":   "8 54",
	"path_create_directory 1":   "8 54",
	"path_create_directory 2":   "8 54",
	"path_filestat_get 0":       "8 54",
	"path_filestat_get 1":       "8 54",
	"path_filestat_get 2":       "8 54",
	"path_filestat_set_times 0": "8 54",
	"path_filestat_set_times 1": "8 54",
	"path_filestat_set_times 2": "8 54",
	"path_link 0":               "8 54",
	"path_link 1":               "8 54",
	"path_link 2":               "8 54",
	"path_open 0":               "8 54",
	"path_open 1":               "8 54",
	"path_open 2":               "8 54",
	"path_readlink 0":           "8 54",
	"path_readlink 1":           "8 54",
	"path_readlink 2":           "8 54",
	"path_remove_directory 0":   "8 54",
	"path_remove_directory 1":   "8 54",
	"path_remove_directory 2":   "8 54",
	"path_rename 0":             "8 54",
	"path_rename 1":             "8 54",
	"path_rename 2":             "8 54",
	"path_unlink_file 0":        "8 54",
	"path_unlink_file 1":        "8 54",
	"path_unlink_file 2":        "8 54",
	"sock_send 0":               "8 58",
	"sock_send 1":               "8 58",
	"sock_send 2":               "8 58",
	"sock_send 4":               "8 58",
}

// The two answer alike but for what is listed.
func TestWASIDifferences(t *testing.T) {
	e := newEngine(t)
	a := &asm{}
	imports := map[string]uint32{}
	for _, f := range wasiFuncs() {
		imports[f.name] = a.imp(wasiModule, f.name, []byte(f.params), []byte(f.results))
	}
	answer := a.answerer()
	a.memory(1)
	var calls []string
	for _, f := range wasiFuncs() {
		if f.name == "proc_exit" || f.name == "proc_raise" || f.name == "poll_oneoff" || f.name == "sched_yield" || f.name == "random_get" || f.name == "sock_accept" {
			continue // they end the call or wait, or are the same code
		}
		for _, fd := range []int32{0, 1, 2, 4} {
			var args []byte
			for i, p := range f.params {
				switch {
				case i == 0 && (f.name[:3] == "fd_" || f.name[:5] == "path_" || f.name[:5] == "sock_"):
					args = cat(args, i32c(fd))
				case p == i64:
					args = cat(args, i64c(0))
				default:
					args = cat(args, i32c(int32(1024+64*i))) // room for what it answers; zeros
				}
			}
			call := fmt.Sprintf("%s %d", f.name, fd)
			a.exported(call, nil, answer(cat(args, callf(imports[f.name]))), i32c(0))
			calls = append(calls, call)
		}
	}
	ours := load(t, e, Spec{Name: "ours", Wasm: a.bytes()})
	theirs := load(t, e, Spec{Name: "theirs", Wasm: a.bytes(), Files: []Mount{{Guest: "/data", Host: t.TempDir()}}})
	says := func(m *Module, call string) string {
		reply, err := m.Call(context.Background(), Invocation{Export: call})
		if e, ok := errors.AsType[*Error](err); ok && e.Kind == Trapped {
			return "trap"
		} else if err != nil {
			t.Errorf("%s: %v", call, err)
			return "error"
		}
		return fmt.Sprint(binary.LittleEndian.Uint32(reply.Output))
	}
	got := map[string]string{}
	for _, call := range calls {
		if ours, theirs := says(ours, call), says(theirs, call); ours != theirs {
			got[call] = ours + " " + theirs
		}
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if wasiDifferences[k] != got[k] {
			t.Errorf("%q: %q,", k, got[k])
		}
	}
	for _, k := range slices.Sorted(maps.Keys(wasiDifferences)) {
		if got[k] == "" {
			t.Errorf("%s is the same now", k)
		}
	}
}
