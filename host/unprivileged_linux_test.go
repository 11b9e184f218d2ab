package host_test

import (
	"testing"

	"github.com/toold/toold/host/hosttest"
)

// What tools and guests must not get of the daemon holds for a daemon without any
// privilege too.
func TestUnprivileged(t *testing.T) {
	hosttest.Unprivileged(t, "^(TestBinariesDoNotReadTheDaemons|TestToolsDoNotReachTheAdminSocket|TestToolsDoNotCallTools|TestHardLinksToSecrets|TestToolDoesNotShowSecrets|TestSecretFolderIsRemoved|TestGuestDoesNotSeeSecrets|TestExecutionIDIsOfOneCaller|TestStacksOfManyGuests|TestPromisesOfCallbacks|TestHomeIsMended)$",
		nil, []string{handlerPkg, policyPkg})
}
