package guest

import (
	"context"
	"crypto/sha256"
	"testing"
	"time"
)

// TestFirstWaitsForNoOther: a module that goes first is compiled while as many others
// are as there may be, also where one of those who wait for it does not go first.
func TestFirstWaitsForNoOther(t *testing.T) {
	e := newEngine(t)
	module := func(name string) ([32]byte, []byte) {
		b := []byte("\x00asm\x01\x00\x00\x00\x01\x04\x01\x60\x00\x00\x03\x02\x01\x00\x0a\x04\x01\x02\x00\x0b\x00\x05\x04" + name)
		return sha256.Sum256(b), b
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range compileAtOnce {
		e.slots <- struct{}{}
	}
	defer func() {
		for range compileAtOnce {
			<-e.slots
		}
	}()
	patient := make(chan error, 1)
	key, code := module("last")
	go func() { patient <- e.build(ctx, buildKey{key, budgetOf(len(code))}, code, false) }()
	firstKey, firstCode := module("urge")
	if err := e.build(ctx, buildKey{firstKey, budgetOf(len(firstCode))}, firstCode, true); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-patient:
		t.Errorf("the other did not wait: %v", err)
	default:
	}
	if err := e.build(ctx, buildKey{key, budgetOf(len(code))}, code, true); err != nil {
		t.Error(err)
	}
	if err := <-patient; err != nil {
		t.Error(err)
	}
}
