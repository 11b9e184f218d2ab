package host

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/disk"
	"github.com/toold/toold/host/execute"
	"github.com/toold/toold/host/inode"
	"github.com/toold/toold/host/regular"
)

// takeState makes the state folder of c this daemon's own, as long as lock is open.
func takeState(c *config.Config, log *slog.Logger) (lock *os.File, err error) {
	if err := os.MkdirAll(c.State, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w; choose another with --state", err)
	}
	// Binaries reach their HOME without following links, so its folder is
	// named by what it is.
	if c.State, err = filepath.EvalSymlinks(c.State); err != nil {
		return nil, fmt.Errorf("resolve the state folder: %w; choose another with --state", err)
	}
	if err := own(c.State, log); err != nil {
		return nil, err
	}
	if lock, err = lockState(c.State); err != nil {
		return nil, err
	}
	// Those of calls that a daemon before this one could not clean up after.
	return lock, errors.Join(execute.RemoveLeftSecrets(c.State), removeRehearsals(c.State))
}

// own keeps others from changing what is in the state folder, as after it was restored
// without its modes and owners: they could approve calls, and name themselves as they
// like. A folder of this user's is narrowed. One of root's that everybody may write to is
// a volume as container engines make them; who else mounts it, the operator knows.
func own(state string, log *slog.Logger) error {
	info, err := os.Stat(state)
	if err != nil {
		return fmt.Errorf("look at the state folder: %w", err)
	}
	owner, other := inode.Owner(info)
	if other {
		return fmt.Errorf("the state folder %s belongs to user %d, who could change what is in it; chown -R it to the daemon's user", state, owner)
	}
	if !disk.WritableByOthers(state, info.Mode()) {
		return nil
	}
	if owner != os.Geteuid() {
		log.Warn("others can write to the state folder: mount it for this daemon only, or name a folder in it with --state", "path", state, "mode", fmt.Sprintf("%04o", info.Mode().Perm()))
		return nil
	}
	if err := os.Chmod(state, info.Mode().Perm()&^0o022); err != nil {
		return fmt.Errorf("keep others from writing to the state folder: %w", err)
	}
	log.Warn("others could write to the state folder: its mode was narrowed; look whether what is in it is yours", "path", state, "mode", fmt.Sprintf("%04o", info.Mode().Perm()))
	return nil
}

// lockPatience is how long a daemon waits for another to be gone.
const lockPatience = 5 * time.Second

// lockState makes this the one daemon of a state folder, for as long as the
// file that it returns is open. The kernel lets go of the lock with the
// process, however it ends.
func lockState(state string) (*os.File, error) {
	path := filepath.Join(state, "lock")
	f, err := regular.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state folder: %w", err)
	}
	// A daemon that was killed leaves the lock to the supervisors of what it ran,
	// which keep it until all of that is killed: once the lock is here, nothing
	// of an earlier daemon's calls runs any longer. One that was killed while it
	// started a program leaves it to that for as long as it takes to execute.
	for end := time.Now().Add(lockPatience); ; time.Sleep(lockPatience / 100) {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the state folder: %s is in use by another toold; stop it, or choose another --instance or --state", state)
	}
	return f, nil
}

// rehearsalPrefix begins the names of folders of daemons that are tried.
const rehearsalPrefix = "upgrade-"

// removeRehearsals removes what a daemon left that was killed while it was tried.
func removeRehearsals(state string) error {
	left, err := filepath.Glob(filepath.Join(state, rehearsalPrefix+"*"))
	for _, dir := range left {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}
