package selector

import (
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"
	"cel.dev/cel-go/parser"
)

// Cost does not bound size: a list that holds another ten times over costs as much as
// one of ten numbers, and some of these within one another are more than any memory
// once they are compared or written as JSON. Nor does time bound what is one step, or
// done before the first one, as finding out the types of many comprehensions.
const (
	// maxComprehensions bounds map, filter, exists and the like in one selector.
	maxComprehensions = 16
	// maxSize bounds the values that an evaluation makes, all together and each counted
	// whole, in elements and units of texts.
	maxSize  = 4_000_000
	maxDepth = 100
	// unit is how many bytes of a text count as much as an element.
	unit = 4
	// maxText bounds one text, in bytes.
	maxText = 4 << 20
	// maxPairs bounds how many elements are each compared with all others.
	maxPairs = 1000
)

// errSize is that of a value that would be larger than may be.
var errSize = types.NewErr("size limit exceeded")

// bounded are replace and join of ext.Strings and distinct of ext.Lists, each of which
// takes any memory or time in one step. It has s.replace(a, b) call another function of
// that name, which looks before.
type bounded struct{}

func (bounded) CompileOptions() []cel.EnvOption {
	global := func(function string, args int) cel.Macro {
		return cel.ReceiverMacro(function, args, func(f cel.MacroExprFactory, target ast.Expr, args []ast.Expr) (ast.Expr, *common.Error) {
			return f.NewCall(function, append([]ast.Expr{target}, args...)...), nil
		})
	}
	text, texts, list := cel.StringType, cel.ListType(cel.StringType), cel.ListType(cel.TypeParamType("T"))
	return []cel.EnvOption{
		cel.Macros(global("replace", 2), global("replace", 3), global("join", 0), global("join", 1), global("distinct", 0)),
		cel.Function("replace",
			cel.Overload("bounded_replace", []*cel.Type{text, text, text}, text, cel.FunctionBinding(boundedReplace)),
			cel.Overload("bounded_replace_n", []*cel.Type{text, text, text, cel.IntType}, text, cel.FunctionBinding(boundedReplace))),
		cel.Function("join",
			cel.Overload("bounded_join", []*cel.Type{texts}, text, cel.FunctionBinding(boundedJoin)),
			cel.Overload("bounded_join_separator", []*cel.Type{texts, text}, text, cel.FunctionBinding(boundedJoin))),
		cel.Function("distinct", cel.Overload("bounded_distinct", []*cel.Type{list}, list, cel.UnaryBinding(boundedDistinct))),
	}
}

func (bounded) ProgramOptions() []cel.ProgramOption { return nil }

func boundedReplace(args ...ref.Val) ref.Val {
	s, from, to, n := string(args[0].(types.String)), string(args[1].(types.String)), string(args[2].(types.String)), -1
	if len(args) > 3 {
		n = int(args[3].(types.Int))
	}
	times := strings.Count(s, from)
	if n >= 0 {
		times = min(times, n)
	}
	if grown := len(to) - len(from); grown > 0 && times > maxText/grown {
		return errSize
	}
	return types.String(strings.Replace(s, from, to, n))
}

func boundedJoin(args ...ref.Val) ref.Val {
	list, separator := args[0].(traits.Lister), ""
	if len(args) > 1 {
		separator = string(args[1].(types.String))
	}
	var b strings.Builder
	for i := range list.Size().(types.Int) {
		part, ok := list.Get(i).(types.String)
		switch {
		case !ok:
			return types.NewErr("join: an element of the list is not a string")
		case b.Len()+len(separator)+len(part) > maxText:
			return errSize
		case i > 0:
			b.WriteString(separator)
		}
		b.WriteString(string(part))
	}
	return types.String(b.String())
}

// boundedDistinct is each element of a list once, in the order of the first ones.
func boundedDistinct(of ref.Val) ref.Val {
	list := of.(traits.Lister)
	var once, others []ref.Val
	texts := map[types.String]bool{}
	for i := range list.Size().(types.Int) {
		v := list.Get(i)
		if s, ok := v.(types.String); ok {
			if texts[s] {
				continue
			}
			texts[s] = true
		} else {
			if slices.ContainsFunc(others, func(o ref.Val) bool { return o.Equal(v) == types.True }) {
				continue
			}
			if others = append(others, v); len(others) > maxPairs {
				return errSize
			}
		}
		once = append(once, v)
	}
	return types.NewRefValList(types.DefaultTypeAdapter, once)
}

// sizeBudget is what the values that one evaluation makes may add up to.
type sizeBudget struct {
	left       int64
	calculator *types.SizeCalculator
	// free are the ids of the sums of a comprehension's result and its next element.
	free []int64
}

// charge takes what v is, counted whole, from the budget, and ends the evaluation where
// nothing is left.
func (b *sizeBudget) charge(v ref.Val) ref.Val {
	if b.left -= int64(b.calculator.AggregateSize(v)); b.left < 0 {
		panic(interpreter.EvalCancelledError{Cause: interpreter.MemoryLimitExceeded, Message: "size limit exceeded"})
	}
	return v
}

// decorate has what makes lists, maps and texts charge for them. A comprehension adds
// lists of one element to its result, which are charged for as such.
func (b *sizeBudget) decorate(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	switch i := i.(type) {
	case interpreter.InterpretableConstructor:
		return chargedConstructor{i, b}, nil
	case interpreter.InterpretableCall:
		if i.Function() == operators.Add && !slices.Contains(b.free, i.ID()) {
			return chargedCall{i, b}, nil
		}
	}
	return i, nil
}

type chargedConstructor struct {
	interpreter.InterpretableConstructor
	budget *sizeBudget
}

func (c chargedConstructor) Eval(a interpreter.Activation) ref.Val {
	return c.budget.charge(c.InterpretableConstructor.Eval(a))
}

func (c chargedConstructor) Exec(f *interpreter.ExecutionFrame) ref.Val {
	return c.budget.charge(c.InterpretableConstructor.Exec(f))
}

type chargedCall struct {
	interpreter.InterpretableCall
	budget *sizeBudget
}

func (c chargedCall) Eval(a interpreter.Activation) ref.Val {
	return c.budget.charge(c.InterpretableCall.Eval(a))
}

func (c chargedCall) Exec(f *interpreter.ExecutionFrame) ref.Val {
	return c.budget.charge(c.InterpretableCall.Exec(f))
}

// newSizeBudget is one of maxSize for the evaluation of expression.
func newSizeBudget(expression ast.Expr) (b *sizeBudget, comprehensions int) {
	b = &sizeBudget{left: maxSize, calculator: types.NewSizeCalculator(types.SizeCalculatorMaxDepth(maxDepth),
		types.SizeCalculatorMaxTraversal(maxSize), types.SizeCalculatorStringUnitLength(unit))}
	ast.PreOrderVisit(expression, ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.ComprehensionKind:
			comprehensions++
		case ast.CallKind:
			if call := e.AsCall(); call.FunctionName() == operators.Add && call.Args()[0].AsIdent() == parser.HiddenAccumulatorName {
				b.free = append(b.free, e.ID())
			}
		}
	}))
	return b, comprehensions
}
