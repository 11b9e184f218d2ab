package component

// Values of a Type are of these Go types, wherever any stands for a value:
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

// Case is a value of a variant, enum, option or result: which case, and its
// payload, nil where it has none.
type Case struct {
	Index int
	Value any
}

// What options and results are.
var (
	None = Case{0, nil}
	OK   = Case{0, nil}
)

// Some is an option that is there.
func Some(v any) Case { return Case{1, v} }

// Good is the result that holds v; Bad is the error that holds v.
func Good(v any) Case { return Case{0, v} }
func Bad(v any) Case  { return Case{1, v} }

// Trap is what a guest did that the canonical ABI forbids.
type Trap struct{ Reason string }

func (t *Trap) Error() string { return t.Reason }
