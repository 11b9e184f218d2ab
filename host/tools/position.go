package tools

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

var (
	pointerEscape   = strings.NewReplacer("~", "~0", "/", "~1")
	pointerUnescape = strings.NewReplacer("~1", "/", "~0", "~")
)

// escapePointer escapes a key as a token of a JSON pointer (RFC 6901).
func escapePointer(key string) string { return pointerEscape.Replace(key) }

// has reports whether the document holds a value at pointer.
func has(data []byte, pointer string) bool {
	_, found := find(data, pointer)
	return found
}

// position returns the line and column, from 1, of the value at pointer, or of the
// innermost value that would contain it. Columns count characters. data must be valid
// JSON.
func position(data []byte, pointer string) (line, column int) {
	offset, _ := find(data, pointer)
	before := data[:offset]
	line = bytes.Count(before, []byte("\n")) + 1
	column = utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]) + 1
	return line, column
}

// find returns the offset of the value at pointer and whether it exists. If not, the
// offset is that of the innermost value that would contain it.
func find(data []byte, pointer string) (int, bool) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	start := func() int {
		o := int(dec.InputOffset())
		for o < len(data) && strings.IndexByte(" \t\r\n:,", data[o]) >= 0 {
			o++
		}
		return o
	}
	at := start()
	if pointer == "" {
		return at, true
	}
	for _, token := range strings.Split(pointer[1:], "/") {
		key := pointerUnescape.Replace(token)
		open, err := dec.Token()
		if err != nil {
			return at, false
		}
		index := -1
		switch open {
		case json.Delim('{'):
		case json.Delim('['):
			if index, err = strconv.Atoi(key); err != nil || index < 0 {
				return at, false
			}
		default:
			return at, false
		}
		found := false
		for i := 0; dec.More(); i++ {
			match := i == index
			if index < 0 {
				name, err := dec.Token()
				if err != nil {
					return at, false
				}
				match = name == key
			}
			if match {
				at, found = start(), true
				break
			}
			var skip json.RawMessage
			if dec.Decode(&skip) != nil {
				return at, false
			}
		}
		if !found {
			return at, false
		}
	}
	return at, true
}
