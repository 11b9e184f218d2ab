package mcp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
)

// MaxMessage is how long a message of a client may be, in bytes.
const MaxMessage = 1 << 20

// maxBeside is how many bytes the parameters of a message may have beside arguments and
// answers. The rest is kept as values while a call runs, and what a client says of itself
// for as long as its session lives: they take up to 20 times the memory of their text.
const maxBeside = 64 << 10

// maxNumber is the largest id that is a number which a float64 holds with its neighbors.
const maxNumber = 1<<53 - 1

// check reports why a message is not taken, of which readers could make different ones,
// or which is too long in what is kept of it.
func check(message []byte) *fault.Error {
	var params, id []byte
	requests := false
	err := strictjson.Members(message, func(name, value []byte) {
		switch string(name) {
		case "params":
			params = value
		case "id":
			id = bytes.TrimSpace(value)
		case "method":
			requests = true
		}
	})
	if err != nil {
		return fault.Errorf(fault.InvalidEnvelope, "read the message: %w; send it as JSON that every reader takes for the same", err)
	}
	if requests && id != nil && id[0] != '"' {
		// The SDK reads a float64 and cuts off what is behind the point, so that the answer
		// would be another request's; null is no id to it.
		if n, err := strconv.ParseInt(string(id), 10, 64); err != nil || n > maxNumber || n < -maxNumber {
			return fault.Errorf(fault.InvalidEnvelope, "id is %.40s; send a string or a whole number of up to %d, by which the answer is found", id, maxNumber)
		}
	}
	beside := 0
	err = strictjson.Members(params, func(name, value []byte) {
		if string(name) != "arguments" && string(name) != "inputResponses" {
			beside += len(value)
		}
	})
	if err != nil {
		return nil // it is no object, which is the SDK's to answer
	}
	if beside > maxBeside {
		return fault.Errorf(fault.MessageTooLarge, "the parameters have %d bytes beside arguments and inputResponses, and may have %d; shorten _meta and what the client says of itself", beside, maxBeside)
	}
	return nil
}

// tooLongError is a message of more than MaxMessage bytes, which was skipped.
type tooLongError struct {
	size int64
	// id is the request's as it was written; nil where there is none to answer.
	id json.RawMessage
}

func (e *tooLongError) Error() string {
	return fmt.Sprintf("the message has %d bytes, over %d", e.size, MaxMessage)
}

// readLine reads a message up to its end of line, without the space around it. One
// that is too long is read to its end, and the error is a *tooLongError. A message
// without an end is an error of the reader.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	var id *idFinder
	var size int64
	for {
		part, err := in.ReadSlice('\n')
		if err != nil && err != bufio.ErrBufferFull {
			return nil, err
		}
		size += int64(len(part))
		switch {
		case id != nil:
			id.read(part)
		case size > MaxMessage:
			id = &idFinder{}
			id.read(line)
			id.read(part)
			line = nil
		default:
			line = append(line, part...)
		}
		if err != nil {
			continue
		}
		if id != nil {
			return nil, &tooLongError{size: size, id: id.id()}
		}
		return bytes.TrimSpace(line), nil
	}
}

// maxID is the longest id that an oversized message is answered with, in bytes.
const maxID = 256

// idFinder finds the "id" of a JSON object that is given in parts and not kept: the
// value of that key at the first level. It expects JSON, and finds nothing in other
// text, or something that was not meant; it only selects the request to answer.
type idFinder struct {
	depth            int
	inString, escape bool
	isKey            bool   // the string is a key of the first level
	value            bool   // what follows is a value, at the first level
	key              []byte // up to 3 bytes of the key
	found            []byte
	taking           bool
}

func (f *idFinder) read(part []byte) {
	for _, b := range part {
		f.next(b)
	}
}

func (f *idFinder) next(b byte) {
	if f.taking {
		if ends := !f.inString && (b == ',' || b == '}' || b == '\n') && f.depth == 1; ends {
			f.taking = false
		} else if len(f.found) <= maxID {
			f.found = append(f.found, b)
		}
	}
	if f.inString {
		switch {
		case f.escape:
			f.escape = false
		case b == '\\':
			f.escape = true
		case b == '"':
			f.inString = false
			return
		}
		if f.isKey && len(f.key) < 3 {
			f.key = append(f.key, b)
		}
		return
	}
	switch b {
	case '"':
		f.inString = true
		f.isKey = f.depth == 1 && !f.value
		if f.isKey {
			f.key = f.key[:0]
		}
	case '{', '[':
		f.depth++
	case '}', ']':
		f.depth--
	case ':':
		if f.depth == 1 {
			f.value = true
			if string(f.key) == "id" {
				f.taking, f.found = true, f.found[:0]
			}
		}
	case ',':
		if f.depth == 1 {
			f.value = false
		}
	}
}

// id returns what was found, if it can be an id.
func (f *idFinder) id() json.RawMessage {
	id := bytes.TrimSpace(f.found)
	if len(id) == 0 || len(id) > maxID || !json.Valid(id) || id[0] == '{' || id[0] == '[' || id[0] == 't' || id[0] == 'f' || id[0] == 'n' {
		return nil
	}
	return json.RawMessage(id)
}
