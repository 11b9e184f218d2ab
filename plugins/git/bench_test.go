package main

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

// BenchmarkRestrict asks about a push in repositories of 20 and of 1,000
// variables, with the JSON that the host sends.
func BenchmarkRestrict(b *testing.B) {
	for _, n := range []int{20, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			config := []abi.ConfigEntry{{Key: "remote.origin.url", Value: "https://example.com/x.git"}}
			for i := range n {
				config = append(config, abi.ConfigEntry{Key: fmt.Sprintf("branch.feature-%d.merge", i), Value: fmt.Sprintf("refs/heads/feature-%d", i)})
			}
			in, err := json.Marshal(callOf([]string{"push", "origin", "main"}, config...))
			if err != nil {
				b.Fatal(err)
			}
			f := &pdk.Fake{}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := f.Run(restrict, in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkStatus asks about git status, as a shell's prompt does all day, in a
// repository of 20 variables.
func BenchmarkStatus(b *testing.B) {
	var config []abi.ConfigEntry
	for i := range 20 {
		config = append(config, abi.ConfigEntry{Key: fmt.Sprintf("branch.feature-%d.merge", i), Value: fmt.Sprintf("refs/heads/feature-%d", i)})
	}
	in, err := json.Marshal(callOf([]string{"status", "--short"}, config...))
	if err != nil {
		b.Fatal(err)
	}
	f := &pdk.Fake{}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.Run(restrict, in); err != nil {
			b.Fatal(err)
		}
	}
}
