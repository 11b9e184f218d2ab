package component

// Values of a Type have these Go types, wherever any stands for a value:
//
//	bool             bool
//	s8 to s64        int64
//	u8 to u64        uint64
//	f32, f64         float32, float64
//	char             rune
//	string           string
//	list<u8>         []byte
//	list, record, tuple  []any
//	variant, enum, option, result  Case
//	flags            uint32, the first flag lowest
//	own, borrow      uint32

// Case is a value of a variant, enum, option or result: the index of the case and its
// payload, nil if it has none.
type Case struct {
	Index int
	Value any
}

// None is the option without a value; OK is the result without a payload.
var (
	None = Case{0, nil}
	OK   = Case{0, nil}
)

// Some returns an option with a value.
func Some(v any) Case { return Case{1, v} }

// Good returns a result that holds v; Bad returns an error that holds v.
func Good(v any) Case { return Case{0, v} }
func Bad(v any) Case  { return Case{1, v} }

// Trap is a violation of the canonical ABI by a guest.
type Trap struct{ Reason string }

func (t *Trap) Error() string { return t.Reason }
