//go:build !linux

package confine

// Confinement returns that there is none.
func Confinement() Status {
	return Status{
		Reason: "toold confines binaries with Landlock, which is Linux only",
		Lost: []string{
			"a tool can write wherever toold's user can",
			"a tool can execute any program: configuration and hooks of a hostile repository run",
			"a tool can signal any process of toold's user, toold itself among them",
			"a process that leaves its tool's process group outlives the call",
			"a tool outlives toold when toold is killed",
		},
	}
}
