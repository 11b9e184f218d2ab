package wire

import (
	"encoding/base64"
	"encoding/binary"
	"io"

	"github.com/toold/toold/host/fault"
)

// MaxFrame is the largest JSON of a frame, in bytes, in both directions: 64 KiB.
const MaxFrame = 64 << 10

// MaxChunk is how many bytes of a stream one stdin, stdout or stderr frame holds;
// in base64 they fit in MaxFrame.
const MaxChunk = 48000

// headerSize is the size of the length that goes before the JSON of a frame.
const headerSize = 4

// ReadFrame reads one frame and returns its JSON, unparsed.
//
// The error is io.EOF if the stream ended between frames, io.ErrUnexpectedEOF if
// it ended within one, and a *fault.Error with MessageTooLarge if the frame's
// length is over MaxFrame; then only the length has been read.
func ReadFrame(r io.Reader) ([]byte, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(header[:])
	if n > MaxFrame {
		return nil, tooLarge(int64(n))
	}
	frame := make([]byte, n)
	if _, err := io.ReadFull(r, frame); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return frame, nil
}

// WriteFrame writes json as one frame, in one Write. More than MaxFrame bytes
// are refused with MessageTooLarge before anything is written.
func WriteFrame(w io.Writer, json []byte) error {
	frame, err := AppendFrame(make([]byte, 0, headerSize+len(json)), json)
	if err != nil {
		return err
	}
	_, err = w.Write(frame)
	return err
}

// AppendFrame appends json, as one frame, to dst. More than MaxFrame bytes are
// refused with MessageTooLarge.
func AppendFrame(dst, json []byte) ([]byte, error) {
	if len(json) > MaxFrame {
		return dst, tooLarge(int64(len(json)))
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(json)))
	return append(dst, json...), nil
}

// AppendChunk appends to dst one frame of the given type ("stdin", "stdout" or
// "stderr") that carries p, at most MaxChunk bytes of it.
func AppendChunk(dst []byte, typ string, p []byte) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = append(dst, `{"type":"`...)
	dst = append(dst, typ...)
	dst = append(dst, `","data":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, p[:min(len(p), MaxChunk)])
	dst = append(dst, `"}`...)
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-headerSize))
	return dst
}

func tooLarge(n int64) *fault.Error {
	return fault.Errorf(fault.MessageTooLarge, "a message of %d bytes is over the limit of %d; send less at once, and a long argument list in args frames", n, MaxFrame)
}
