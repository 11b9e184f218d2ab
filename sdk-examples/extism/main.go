// A plugin as the documentation of Extism has it, written with Extism's own Go
// PDK. It has never heard of toold.
package main

import (
	"strings"

	"github.com/extism/go-pdk"
)

type report struct {
	Count  int    `json:"count"`
	Vowels string `json:"vowels"`
	Total  int    `json:"total"`
}

//go:wasmexport count_vowels
func countVowels() int32 {
	vowels, ok := pdk.GetConfig("vowels")
	if !ok {
		vowels = "aeiouAEIOU"
	}
	count := 0
	for _, c := range pdk.InputString() {
		if strings.ContainsRune(vowels, c) {
			count++
		}
	}
	total := count
	if v := pdk.GetVar("total"); len(v) == 1 {
		total += int(v[0])
	}
	pdk.SetVar("total", []byte{byte(total)})
	if err := pdk.OutputJSON(report{count, vowels, total}); err != nil {
		pdk.SetError(err)
		return 1
	}
	return 0
}

func main() {}
