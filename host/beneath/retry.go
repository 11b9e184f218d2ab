//go:build unix

package beneath

import "golang.org/x/sys/unix"

// RetryEINTR calls f again as long as a signal interrupts it.
func RetryEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != unix.EINTR {
			return n, err
		}
	}
}
