package audit

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// On a disk that is full no record is torn: what has to be on it is refused, and
// the chain goes on when there is room.
func TestFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=128k"); err != nil {
		t.Skipf("mount a small disk: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(disk, syscall.MNT_DETACH) })
	dir := filepath.Join(disk, "audit")
	l := open(t, dir, on)
	refused, written := 0, 0
	for i := range 200 {
		_, err := l.AddSync(t.Context(), 1, func() *Record {
			r := begin(i)()
			r.Call.Args = append(r.Call.Args, strings.Repeat("x", 3000))
			return r
		})
		switch {
		case err == nil:
			written++
		case errors.Is(err, syscall.ENOSPC):
			refused++
		default:
			t.Fatal(err)
		}
	}
	if written == 0 || refused == 0 {
		t.Errorf("%d written, %d refused", written, refused)
	}
	holds(t, dir)
	if err := syscall.Mount("tmpfs", disk, "tmpfs", syscall.MS_REMOUNT, "size=1m"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.AddSync(t.Context(), 1, begin(1000)); err != nil {
		t.Error(err)
	}
	l.Close()
	if r := holds(t, dir); r.Lost != uint64(refused) {
		t.Errorf("%d are lost, and %d were refused", r.Lost, refused)
	}
}
