package server

import (
	"os"
	"strings"
	"testing"
)

const (
	idA = "3f2a91bc04d1e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e"
	idB = "00000000000000000000000000000000000000000000000000000000000000aa"
)

func TestContainerIn(t *testing.T) {
	for cgroup, want := range map[string]string{
		"":     "",
		"0::/": "",
		"0::/user.slice/user-1000.slice/session-2.scope\n":                            "",
		"0::/system.slice/docker-" + idA + ".scope\n":                                 idA,
		"12:cpuset:/docker/" + idA + "\n11:memory:/docker/" + idA + "\n":              idA,
		"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + idA + ".scope\n":   idA,
		"0::/machine.slice/libpod-" + idA + ".scope/container\n":                      idA,
		"0::/../docker-" + idA + ".scope":                                             idA,
		"0::/docker/" + idA + "/docker/" + idB + "\n":                                 idA,
		"0::/docker/" + idA + "0\n":                                                   "",
		"0::/docker/" + idA[1:] + "\n":                                                "",
		"0::/" + strings.ToUpper(idA) + "\n":                                          "",
		"1:name=systemd:/\n0::/system.slice/docker-" + idB + ".scope/x/" + idA + "\n": idB,
	} {
		if got := containerIn([]byte(cgroup)); got != want {
			t.Errorf("%q is %q, must be %q", cgroup, got, want)
		}
	}
}

func FuzzContainerIn(f *testing.F) {
	f.Add([]byte("0::/system.slice/docker-" + idA + ".scope\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if id := containerIn(b); id != "" && (len(id) != containerID || !strings.Contains(string(b), id)) {
			t.Errorf("%q", id)
		}
	})
}

// What is in the place of a process that has ended is not who connected.
func TestContainerOfEnded(t *testing.T) {
	if _, err := os.Stat("/proc/self/cgroup"); err != nil {
		t.Skip(err)
	}
	asked := false
	containerOf(Peer{PID: os.Getpid(), Ended: func() bool { asked = true; return true }})
	if !asked {
		t.Error("nobody asked whether it has ended")
	}
}
